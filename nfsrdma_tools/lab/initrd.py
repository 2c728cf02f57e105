# SPDX-License-Identifier: Apache-2.0
"""Makes the initrd of a machine: busybox, a few modules and a script that mounts the two disks.

It takes a tenth of the instructions of Debian's own initrd, which probes for all kinds of disks.
Format: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
"""

from __future__ import annotations

import importlib.resources
import lzma
import os
import shutil
import tempfile
from pathlib import Path

from nfsrdma_tools.command import run

__all__ = ["SCRIPT", "make"]

SCRIPT = Path(str(importlib.resources.files("nfsrdma_tools.lab") / "kernel_recipe" / "init"))
# disks, their file systems and the network card; each may be built into a kernel
_MODULES = (
    *("virtio_pci", "virtio_blk", "virtio_net", "ext4", "overlay"),
    # ext4's checksums: loaded by name at run time, so modules.dep does not list them
    *("crc32c_generic", "crc32c-generic", "crc32c-cryptoapi"),
)


def make(initrd: Path, busybox: Path, release: str, modules: Path | None = None) -> None:
    """Write ``initrd`` for the kernel ``release``.

    ``modules`` is its /lib/modules/RELEASE after depmod; None if all drivers are built in.
    """
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        shutil.copyfile(busybox, root / "busybox")
        shutil.copyfile(SCRIPT, root / "init")
        for program in ("busybox", "init"):
            (root / program).chmod(0o755)
        for folder in ("dev", "proc", "modules", "root"):
            (root / folder).mkdir()
        order = _in_order(modules) if modules else []
        for path in order:
            (root / "modules" / path.name.removesuffix(".xz")).write_bytes(_content(path))
        names = [path.name.removesuffix(".xz") for path in order]
        (root / "order").write_text("".join(f"{name}\n" for name in names))
        (root / "release").write_text(f"{release}\n")
        files = sorted(os.fspath(path.relative_to(root)) for path in root.rglob("*"))
        words = ("--quiet", "-o", "-H", "newc", "-R", "0:0", "-O", initrd.absolute())
        run("cpio", *words, stdin="\n".join(files).encode(), cwd=root)


def _in_order(modules: Path) -> list[Path]:
    """The files of the wanted modules, dependencies first."""
    lines = (modules / "modules.dep").read_text().splitlines()
    needs = {path: rest.split() for path, _, rest in (line.partition(":") for line in lines)}
    by_name = {Path(path).name.partition(".")[0]: path for path in needs}
    found: dict[str, None] = {}
    for path in (by_name[name] for name in _MODULES if name in by_name):
        # modules.dep lists the first module to load last
        found.update(dict.fromkeys([*reversed(needs[path]), path]))
    return [modules / path for path in found]


def _content(file: Path) -> bytes:
    return lzma.open(file).read() if file.suffix == ".xz" else file.read_bytes()
