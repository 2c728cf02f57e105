# SPDX-License-Identifier: Apache-2.0
"""Checks of the kernel: its features, the module that carries NFS over RDMA, and who owns it."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator

from nfsrdma_tools.host import kernel_modules, packages
from nfsrdma_tools.host.checks.finding import Finding, Machine
from nfsrdma_tools.host.kernel_modules import ModuleFile
from nfsrdma_tools.host.module.source import OURS
from nfsrdma_tools.host.transports import KERNELS, client_owners

__all__ = ["btf", "feature", "headers", "judge_module", "module", "netid"]

_OPTION = "CONFIG_SUNRPC_XPRT_RDMA"
_OTHER_KERNEL = "boot a kernel that has it: all of Debian's, RHEL's and SUSE's do"


def feature(machine: Machine) -> Iterator[Finding]:
    """The kernel was built with RPC over RDMA."""
    config = _config(machine)
    if config is None:
        found = "no kernel configuration in /boot, /proc or /lib/modules"
        yield Finding("kernel", "unknown", found, f"{_OPTION}=m or y")
        return
    match = re.search(rf"^{_OPTION}=([ym])$", config, re.MULTILINE)
    if match:
        yield Finding("kernel", "ok", f"{machine.release} has {_OPTION}={match[1]}")
    else:
        found = f"{machine.release} has no {_OPTION}"
        yield Finding("kernel", "error", found, f"{_OPTION}=m or y", _OTHER_KERNEL)


def _config(machine: Machine) -> str | None:
    for name in (f"boot/config-{machine.release}", f"lib/modules/{machine.release}/config"):
        if machine.path(name).exists():
            return machine.read(name)
    packed = machine.path("proc/config.gz")
    return gzip.decompress(packed.read_bytes()).decode() if packed.exists() else None


def module(machine: Machine) -> Iterator[Finding]:
    """The module that modprobe would load is there, and real."""
    running = machine.path("sys/module/rpcrdma/srcversion")
    srcversion = running.read_text().strip() if running.exists() else ""
    # modinfo reads no modprobe.d: this name is the kernel's own also after `module install`
    yield judge_module(kernel_modules.on_disk(KERNELS), machine.release, srcversion)


def judge_module(file: ModuleFile | None, release: str, running: str) -> Finding:
    """Judge rpcrdma as modinfo sees it; ``running`` is the loaded one's srcversion, "" if none."""
    name, expected = "rpcrdma", "the kernel's own rpcrdma"
    if file is None:
        remedy = (
            "install the kernel's extra modules (Ubuntu: linux-modules-extra, Red Hat:"
            " kernel-modules-extra); cloud kernels have none"
        )
        return Finding(name, "error", f"no module for kernel {release}", expected, remedy)
    if doubts := kernel_modules.doubts(file, release):
        found = f"{file.path} is not real: {'; '.join(doubts)}"
        remedy = "reinstall the kernel's package, or the vendor's stack with NFS over RDMA"
        return Finding(name, "error", found, expected, remedy)
    if running and file.srcversion and running != file.srcversion:
        found = f"the loaded one is not {file.path} (srcversion {running}, {file.srcversion})"
        return Finding(name, "warning", found, "one and the same", "unload it, or reboot")
    if not (file.intree or file.builtin):
        found = f"{file.path}, from outside the kernel's tree"
        remedy = "expected with a vendor's stack or DKMS; else remove it and run depmod"
        return Finding(name, "warning", found, expected, remedy)
    return Finding(name, "ok", file.path or "built in")


def netid(machine: Machine) -> Iterator[Finding]:
    """A mount with proto=rdma gets rpcrdma, or our module."""
    ours = kernel_modules.parameters(OURS, machine.path("sys"))
    owners = client_owners(kernel_modules.loaded(machine.path("proc")), ours)
    builtin = machine.path("sys/module/rpcrdma").exists() and not owners
    if owners in ([KERNELS], [OURS]) or builtin:
        yield Finding("netid rdma", "ok", f"owned by {owners[0] if owners else KERNELS}")
    elif not owners:
        remedy = "modprobe rpcrdma (a mount with proto=rdma does it too)"
        yield Finding("netid rdma", "warning", "no module is loaded for it", "rpcrdma", remedy)
    else:
        found = f"used by {', '.join(owners)}"
        remedy = "unload the ones not wanted: the first to register owns the netid"
        yield Finding("netid rdma", "warning", found, "rpcrdma alone", remedy)


def headers(machine: Machine) -> Iterator[Finding]:
    """A module can be built here."""
    name = f"lib/modules/{machine.release}/build"
    if (machine.path(name) / "Makefile").exists():
        yield Finding("headers", "ok", f"/{name}")
    else:
        found, remedy = f"no /{name}", packages.install("headers", machine.release, machine.root)
        yield Finding("headers", "warning", found, "needed to build our module", remedy)


def btf(machine: Machine) -> Iterator[Finding]:
    """Probes get structure offsets from the kernel."""
    if machine.path("sys/kernel/btf/vmlinux").exists():
        yield Finding("btf", "ok", "/sys/kernel/btf/vmlinux")
    else:
        remedy = "boot a kernel with CONFIG_DEBUG_INFO_BTF"
        yield Finding("btf", "warning", "no type information", "needed by some probes", remedy)
