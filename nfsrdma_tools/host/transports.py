# SPDX-License-Identifier: Apache-2.0
"""Transports, the kernel modules that implement them, and whose module rpcrdma is.

``rdma`` and ``nfsrdma`` are both ``proto=rdma`` for the kernel; the module that owns that netid
decides which of the two a mount uses.  The module cannot change while a mount uses it, so the
current owner is the module that the mount was made with.

nfsd requests a server transport by a name of its own.  That name is ``rdma`` for both modules,
unless ours was loaded with another server_name: then both modules can be loaded.

Vendors replace rpcrdma: MLNX_OFED and DOCA build it against their RDMA stack (package
mlnx-nfsrdma), VAST and Dell replace the whole NFS stack (vastnfs, dellnfs), and a vendor's RDMA
stack without NFS installs an empty module of that name, described as "rpcrdma dummy kernel
module", which loads without an error and does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, ProgramMissingError, UserError
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.kernel_modules import Module, ModuleFile
from nfsrdma_tools.host.machine import LIVE, Machine, NotRecordedError
from nfsrdma_tools.module_source import OURS

__all__ = [
    "CONF",
    "KERNELS",
    "KERNELS_ALIAS",
    "NVFS_MODULES",
    "TRANSPORT_MODULES",
    "Circumstances",
    "Kind",
    "Origin",
    "alias_target",
    "check_transport_module",
    "circumstances",
    "client_owners",
    "dummy_marks",
    "family",
    "gpudirect_loss",
    "gpudirect_modules",
    "loaded_origin",
    "named",
    "offers",
    "origin",
    "owner",
    "serves_as",
    "signature_rule",
    "split_family",
    "would_load",
]

KERNELS = "rpcrdma"
"""The kernel's own transport module."""
KERNELS_ALIAS = "kernels-rpcrdma"
"""Its alias for modprobe after `module install`, which maps all its names to our module."""
CONF = Path("/etc/modprobe.d/nfsrdma.conf")
"""Where `module install` has modprobe load our module in its place."""
TRANSPORT_MODULES = {"rdma": KERNELS, "nfsrdma": OURS}
"""The transport module that each transport needs."""


def owner(machine: Machine = LIVE) -> str:
    """The transport module that serves NFS over RDMA mounts now; "" if none is loaded."""
    loaded = kernel_modules.loaded(machine)
    owners = client_owners(loaded, kernel_modules.parameters(OURS, machine))
    # a loaded module that uses neither sunrpc nor rdma_cm is a vendor's empty one
    builtin = KERNELS not in loaded and machine.path(f"sys/module/{KERNELS}").exists()
    return owners[0] if owners else KERNELS if builtin else ""


def client_owners(loaded: dict[str, Module], ours: Mapping[str, str]) -> list[str]:
    """The loaded modules that can own the netid ``rdma``; ``ours`` are our module's parameters.

    Ours does not register the netid if its parameter ``client`` is off.
    """
    owners = kernel_modules.transport_owners(loaded)
    return [name for name in owners if name != OURS or ours.get("client", "Y") == "Y"]


def serves_as(name: str, machine: Machine = LIVE) -> str:
    """The transport name by which nfsd listens on a loaded module; "" if it is not a server."""
    # versions of our module without a server have no such parameter
    ours = (
        kernel_modules.parameters(OURS, machine).get("server_name", "")
        if OURS in kernel_modules.loaded(machine)
        else ""
    )
    if name == OURS:
        return ours
    # the first module to register the name owns it; the kernel's continues without (svc_rdma_init)
    return "rdma" if ours != "rdma" else ""


def family(transport: str) -> str:
    """The value of ``proto=`` for a transport over IPv4."""
    return "rdma" if transport in TRANSPORT_MODULES else transport


def split_family(text: str) -> tuple[str, bool]:
    """A transport without the 6 of IPv6, and whether it has one: tcp6 and rdma6 of nfs(5)."""
    return text.removesuffix("6"), text.endswith("6")


def named(proto: str, owner: str) -> str:
    """The transport of a mount with this ``proto`` in effect; ``owner`` is the result of owner."""
    plain, _ = split_family(proto)
    return "nfsrdma" if plain == "rdma" and owner == OURS else plain


def check_transport_module(transport: str) -> None:
    """MismatchError if a mount over ``transport`` would use another module."""
    wanted = TRANSPORT_MODULES.get(transport, "")
    module = owner() or would_load() if wanted else ""
    if (wanted == OURS) != (module == OURS):
        hint, option = "nfsrdma module load", ""
        if module == OURS:
            hint = "nfsrdma module unload" if owner() else f"modprobe {KERNELS_ALIAS}"
            option = "or mount with --transport nfsrdma"
        raise MismatchError(f"the transport module for {transport}", wanted, module, hint, option)


def would_load() -> str:
    """The module that the kernel would load for the first mount over RDMA."""
    name = alias_target()
    # the install command of `module install` loads the kernel's own module then
    missing = name == OURS and kernel_modules.on_disk(OURS) is None
    return KERNELS if missing else name


def alias_target() -> str:
    """The module to which modprobe.d maps the kernel's request; there may be no such module."""
    try:
        words = run("modprobe", "--resolve-alias", KERNELS, check=False).stdout.split()
    except ProgramMissingError:
        return KERNELS
    return words[0] if words else KERNELS


Kind = Literal["kernel", "rdma stack", "nfs stack", "dkms", "dummy", "other"]

_STACK = {"ib_core", "rdma_cm", "sunrpc", "mlx_compat", KERNELS, "xprtrdma", "svcrdma"}
"""The modules whose refusal by the kernel keeps rpcrdma from loading."""
_NFS_STACK = re.compile(r"/(\w{1,32})/bundle/net/sunrpc/")
NVFS_MODULES = "proc/driver/nvidia-fs/modules"
_BUNDLE = "sys/module/sunrpc/parameters/nfs_bundle_version"


class Origin(NamedTuple):
    """Where a file of module rpcrdma is from."""

    kind: Kind
    label: str
    """For a message: "of the kernel", "of vastnfs 4.0.34"."""


def origin(file: ModuleFile, machine: Machine = LIVE) -> Origin:
    """The origin of rpcrdma by its file, and by the loaded sunrpc."""
    if dummy_marks(file):
        return Origin("dummy", "an empty module")
    if file.builtin or file.intree:
        return Origin("kernel", "of the kernel")
    version = machine.text(_BUNDLE).strip()
    bundled = _NFS_STACK.search(file.path)
    if bundled or version:
        name = bundled[1] if bundled else "vastnfs" if "vast" in version else "another NFS stack"
        return Origin("nfs stack", f"of {name} {version}".rstrip())
    if "mlx_compat" in file.depends or re.search(r"/mlnx-(nfsrdma|ofa_kernel)/", file.path):
        return Origin("rdma stack", f"of MLNX_OFED or DOCA {file.version}".rstrip())
    if "/dkms/" in file.path:
        return Origin("dkms", f"built by DKMS, version {file.version or 'unknown'}")
    return Origin("other", "of a vendor")


def loaded_origin(module: str, machine: Machine = LIVE) -> str:
    """The label of the module that serves proto=rdma (``transports.owner``); "" for none."""
    if module in ("", OURS):
        return "of this project" if module else ""
    try:
        file = kernel_modules.on_disk(module, machine)
    except NotRecordedError:
        file = None
    running = kernel_modules.srcversion(module, machine)
    if file is None or running not in ("", file.srcversion):
        # the file of the loaded module was replaced, or nobody recorded it
        return "of unknown origin"
    return origin(file, machine).label


def dummy_marks(file: ModuleFile) -> list[str]:
    """The marks of an empty module in a file of that name; [] if it has none.

    The real module has the aliases svcrdma and xprtrdma (net/sunrpc/xprtrdma/module.c) and uses
    rdma_cm; a dummy does neither.  rdma_cm may also be built in: that alone proves nothing.
    """
    if file.builtin:
        return []
    marks = []
    if "dummy" in file.description.lower():
        marks.append(f"its description is {file.description!r}")
    if not {"svcrdma", "xprtrdma"} & set(file.aliases) and "rdma_cm" not in file.depends:
        marks.append("it has no alias svcrdma or xprtrdma, and does not use rdma_cm")
    return marks


def offers(file: ModuleFile) -> list[str]:
    """The parts that modprobe finds in a file of rpcrdma by their names: client, server."""
    names = {"client": {"xprtrdma", "rpcrdma6"}, "server": {"svcrdma"}}
    if file.builtin:
        return list(names)
    return [part for part, aliases in names.items() if aliases & set(file.aliases)]


class Circumstances(NamedTuple):
    """The state of a host on which it depends whether the kernel takes a file of rpcrdma."""

    release: str
    """The running kernel's."""
    loaded: bool | None
    """Whether a module of that name is loaded; None if unknown."""
    srcversion: str = ""
    """Of the loaded module; "" if none is loaded, or it has none."""
    refused: str = ""
    """The kernel's message that refused it, or a module it needs, since the boot; "" if none."""
    signed_only: str = ""
    """Why the kernel loads signed modules only; "" if it does not."""
    foreign: tuple[str, ...] = ()
    """Loaded modules that the file needs, and that are not of its origin."""


def circumstances(file: ModuleFile | None, machine: Machine) -> Circumstances:
    """Read them from a host.  For a loaded module, only its srcversion matters."""
    running = machine.path(f"sys/module/{KERNELS}")
    modules = kernel_modules.loaded(machine)
    here: bool | None = running.exists() or KERNELS in modules
    if not here:
        try:
            machine.require("proc/modules")
        except NotRecordedError:
            here = None
    if here:
        srcversion = kernel_modules.srcversion(KERNELS, machine)
        return Circumstances(machine.release, here, srcversion)
    return Circumstances(
        release=machine.release,
        loaded=here,
        refused=_refusal(machine),
        signed_only=signature_rule(machine),
        foreign=_foreign(file, machine, modules) if file else (),
    )


def _foreign(file: ModuleFile, machine: Machine, modules: dict[str, Module]) -> tuple[str, ...]:
    """The loaded modules below rpcrdma that its file was not built with."""
    # True: a module that is not the kernel's is expected
    wanted = {
        "kernel": {"ib_core": False, "rdma_cm": False, "sunrpc": False},
        "rdma stack": {"ib_core": True, "rdma_cm": True, "sunrpc": False},
        # built with or without a vendor's RDMA stack
        "nfs stack": {"sunrpc": True},
    }.get(origin(file, machine).kind, {})
    loaded = ((name, other, modules[name]) for name, other in wanted.items() if name in modules)
    return tuple(name for name, other, module in loaded if ("O" in module.taint) != other)


def _refusal(machine: Machine) -> str:
    from nfsrdma_tools.host.kernel_log.explain import boot_messages

    refused = boot_messages(machine, "module does not fit", "module not inserted")
    return next((row.example for row in refused if row.subject in _STACK), "")


def signature_rule(machine: Machine) -> str:
    """Why the kernel loads signed modules only; "" if it does not, or if that is unknown."""
    if machine.text("sys/module/module/parameters/sig_enforce").strip() == "Y":
        return "module.sig_enforce is on"
    # "none [integrity] confidentiality": the one in brackets is in effect
    mode = re.search(r"\[(\w+)\]", machine.text("sys/kernel/security/lockdown"))
    return f"lockdown is {mode[1]}" if mode and mode[1] != "none" else ""


def gpudirect_modules(machine: Machine = LIVE) -> list[str] | None:
    """The modules that nvidia_fs registered with, in its order; None if it has no such list.

    Each line is ``NAME: VERSION`` (nvfs_modules_show in nvfs-mod.c).
    """
    if not machine.path(NVFS_MODULES).exists():
        return None
    lines = machine.text(NVFS_MODULES).splitlines()
    return [name for line in lines if (name := line.partition(":")[0].strip())]


def gpudirect_loss(machine: Machine = LIVE) -> str:
    """What GPUDirect Storage loses if another module replaces rpcrdma; "" if nothing.

    nvidia_fs registers with a vendor's rpcrdma by rpcrdma_register_nvfs_dma_ops(), which neither
    the kernel's nor ours has.  /proc/driver/nvidia-fs/modules lists what it registered with.
    """
    registered = gpudirect_modules(machine)
    if registered and KERNELS in registered:
        return "GPUDirect Storage uses this rpcrdma: without it, data for GPU memory is copied"
    if registered or "nvidia_fs" not in kernel_modules.loaded(machine):
        return ""
    try:
        file = kernel_modules.on_disk(KERNELS, machine)
    except UserError:
        return ""
    if file is None or origin(file, machine).kind in ("kernel", "dummy"):
        return ""
    return "nvidia_fs is loaded and may use this rpcrdma for GPUDirect Storage (gdscheck -p)"
