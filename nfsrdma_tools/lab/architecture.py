# SPDX-License-Identifier: Apache-2.0
"""The architectures of machines: what differs between them in QEMU, in Debian and in compilers.

The name of a kernel has that of its architecture, as Debian's packages do; amd64 goes without.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AMD64", "ARM64", "Architecture", "of_kernel"]


@dataclass(frozen=True)
class Architecture:
    """An architecture that labs can have."""

    debian: str
    """Debian's name."""
    machine: str
    """The name that ``uname -m`` prints."""
    qemu: str
    """The program that emulates its machines."""
    qemu_packages: tuple[str, ...]
    """Debian's packages of that program."""
    options: tuple[str, ...]
    """The program's options for a machine."""
    emulated: tuple[str, ...]
    """Its options for an emulated processor."""
    console: str
    compiler: str
    """What precedes the names of cross compiler and linker; "": the image has its own."""
    make: str
    """The kernel's name, ARCH."""
    defaults: str
    """The kernel's make target for the configuration that those of kernel_recipe change."""


AMD64 = Architecture(
    debian="amd64",
    machine="x86_64",
    qemu="qemu-system-x86_64",
    qemu_packages=("qemu-system-x86", "qemu-system-data", "seabios"),
    options=(),
    # QEMU emulates "rep stosb" and "rep movsb" byte by byte; without these two features the kernel
    # clears and copies 8 bytes each, and such an instruction counts as one
    emulated=("-cpu", "max,erms=off,fsrm=off"),
    console="ttyS0",
    compiler="",
    make="x86_64",
    defaults="x86_64_defconfig",
)
ARM64 = Architecture(
    debian="arm64",
    machine="aarch64",
    qemu="qemu-system-aarch64",
    qemu_packages=("qemu-system-arm", "qemu-system-data"),
    options=("-machine", "virt"),
    # has pages of 4, 16 and 64 KiB (Cortex-A72 has none of 16), and no pointer authentication,
    # which takes long to emulate
    emulated=("-cpu", "cortex-a76"),
    console="ttyAMA0",
    compiler="aarch64-linux-gnu-",
    make="arm64",
    # arm64's defconfig has drivers for all boards
    defaults="alldefconfig",
)


def of_kernel(name: str) -> Architecture:
    """The architecture of a kernel, such as 6.12 or 6.12-arm64-16k."""
    return ARM64 if ARM64.debian in name.split("-") else AMD64
