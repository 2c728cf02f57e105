# SPDX-License-Identifier: Apache-2.0
"""Transports, and the kernel modules that implement them.

``rdma`` and ``nfsrdma`` are both ``proto=rdma`` for the kernel; the module that owns that netid
decides which of the two a mount uses.  The module cannot change while a mount uses it, so the
current owner is the module that the mount was made with.

nfsd requests a server transport by a name of its own.  That name is ``rdma`` for both modules,
unless ours was loaded with another server_name: then both modules can be loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, ProgramMissingError
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.kernel_modules import Module
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.module_source import OURS

__all__ = [
    "CONF",
    "KERNELS",
    "KERNELS_ALIAS",
    "TRANSPORT_MODULES",
    "alias_target",
    "check_transport_module",
    "client_owners",
    "family",
    "named",
    "owner",
    "serves_as",
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
    loaded = kernel_modules.loaded(machine.path("proc"))
    found = client_owners(loaded, kernel_modules.parameters(OURS, machine.path("sys")))
    # a loaded module that uses neither sunrpc nor rdma_cm is a vendor's empty one
    builtin = KERNELS not in loaded and machine.path(f"sys/module/{KERNELS}").exists()
    return found[0] if found else KERNELS if builtin else ""


def client_owners(loaded: dict[str, Module], ours: Mapping[str, str]) -> list[str]:
    """The loaded modules that can own the netid ``rdma``; ``ours`` are our module's parameters.

    Ours does not register the netid if its parameter ``client`` is off.
    """
    found = kernel_modules.transport_owners(loaded)
    return [name for name in found if name != OURS or ours.get("client", "Y") == "Y"]


def serves_as(name: str) -> str:
    """The transport name by which nfsd listens on a loaded module; "" if it is not a server."""
    # versions of our module without a server have no such parameter
    ours = (
        kernel_modules.parameters(OURS).get("server_name", "")
        if OURS in kernel_modules.loaded()
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
    found = owner() or would_load() if wanted else ""
    if (wanted == OURS) != (found == OURS):
        hint = "nfsrdma module load"
        if found == OURS:
            way = "nfsrdma module unload" if owner() else f"modprobe {KERNELS_ALIAS}"
            hint = f"{way}, or mount with --transport nfsrdma"
        raise MismatchError(f"the transport module for {transport}", wanted, found, hint)


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
