# SPDX-License-Identifier: Apache-2.0
"""Checks of the kernel: its features, its rpcrdma module, and the owner of netid rdma."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator

from nfsrdma_tools.host import kernel_modules, packages
from nfsrdma_tools.host.checks.finding import Finding
from nfsrdma_tools.host.kernel_modules import ModuleFile
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.transports import KERNELS, client_owners
from nfsrdma_tools.module_source import OURS

__all__ = ["btf", "feature", "headers", "judge_module", "module", "netid"]

_OPTION = "CONFIG_SUNRPC_XPRT_RDMA"
_OTHER_KERNEL = "boot a kernel that has it: the kernels of Debian, RHEL and SUSE do"


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
        found = f"{machine.release} does not have {_OPTION}"
        yield Finding("kernel", "error", found, f"{_OPTION}=m or y", _OTHER_KERNEL)


def _config(machine: Machine) -> str | None:
    for name in (f"boot/config-{machine.release}", f"lib/modules/{machine.release}/config"):
        if machine.path(name).exists():
            return machine.read(name)
    if not machine.has("proc/config.gz"):
        return None
    return gzip.decompress(machine.path("proc/config.gz").read_bytes()).decode()


def module(machine: Machine) -> Iterator[Finding]:
    """The module that modprobe would load exists and is not a dummy."""
    running = machine.path("sys/module/rpcrdma/srcversion")
    srcversion = running.read_text().strip() if running.exists() else ""
    # modinfo ignores modprobe.d: the name means the kernel's module, also after `module install`
    yield judge_module(kernel_modules.on_disk(KERNELS, machine), machine.release, srcversion)


def judge_module(file: ModuleFile | None, release: str, running: str) -> Finding:
    """Judge rpcrdma by modinfo; ``running`` is the srcversion of the loaded module, "" if none."""
    name, expected = "rpcrdma", "the kernel's own rpcrdma"
    if file is None:
        remedy = (
            "install the kernel's extra modules (Ubuntu: linux-modules-extra, Red Hat:"
            " kernel-modules-extra); cloud kernels do not have it"
        )
        return Finding(name, "error", f"no module for kernel {release}", expected, remedy)
    if doubts := kernel_modules.doubts(file, release):
        found = f"{file.path} is not the real module: {'; '.join(doubts)}"
        remedy = "reinstall the kernel package, or the vendor's RDMA stack with NFS over RDMA"
        return Finding(name, "error", found, expected, remedy)
    if running and file.srcversion and running != file.srcversion:
        found = f"the loaded module has srcversion {running}, {file.path} has {file.srcversion}"
        return Finding(
            name, "warning", found, "the same srcversion", "unload the module, or reboot"
        )
    if not (file.intree or file.builtin):
        found = f"{file.path}, an out-of-tree module"
        remedy = "expected with a vendor's RDMA stack or DKMS; else remove it and run depmod"
        return Finding(name, "warning", found, expected, remedy)
    return Finding(name, "ok", file.path or "built in")


def netid(machine: Machine) -> Iterator[Finding]:
    """A mount with proto=rdma uses rpcrdma or our module."""
    machine.has("proc/modules")
    ours = kernel_modules.parameters(OURS, machine.path("sys"))
    owners = client_owners(kernel_modules.loaded(machine.path("proc")), ours)
    builtin = machine.path("sys/module/rpcrdma").exists() and not owners
    if owners in ([KERNELS], [OURS]) or builtin:
        yield Finding("netid rdma", "ok", f"owned by {owners[0] if owners else KERNELS}")
    elif not owners:
        remedy = "modprobe rpcrdma (a mount with proto=rdma loads it too)"
        yield Finding("netid rdma", "warning", "no transport module is loaded", "rpcrdma", remedy)
    else:
        found = f"used by {', '.join(owners)}"
        remedy = "unload the others: the first module to register owns the netid"
        yield Finding("netid rdma", "warning", found, "rpcrdma alone", remedy)


def headers(machine: Machine) -> Iterator[Finding]:
    """The kernel headers for building a module are installed."""
    name = f"lib/modules/{machine.release}/build"
    if machine.has(f"{name}/Makefile"):
        yield Finding("headers", "ok", f"/{name}")
    else:
        found, remedy = f"no /{name}", packages.install("headers", machine.release, machine.root)
        yield Finding(
            "headers", "warning", found, "headers, for probes and for building nfsrdma", remedy
        )


def btf(machine: Machine) -> Iterator[Finding]:
    """The kernel has the type information (BTF) from which probes take structure offsets."""
    if machine.has("sys/kernel/btf/vmlinux"):
        yield Finding("btf", "ok", "/sys/kernel/btf/vmlinux")
    else:
        remedy = "boot a kernel with CONFIG_DEBUG_INFO_BTF"
        yield Finding("btf", "warning", "no type information", "BTF, for some probes", remedy)
