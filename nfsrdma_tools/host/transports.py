# SPDX-License-Identifier: Apache-2.0
"""Transports and the kernel's words for them.

``rdma`` and ``nfsrdma`` are both ``proto=rdma`` to the kernel; which of the two a mount has is
decided by the module that owns that netid.  The module cannot change while anything is mounted
over it, so the owner now is the one that the mount was made with.

nfsd asks for a server's transport by a name of its own, which is ``rdma`` too unless ours was
loaded with another: then both modules may be loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, ProgramMissingError
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.kernel_modules import Module
from nfsrdma_tools.host.module.source import OURS

__all__ = [
    "ASIDE",
    "CARRIERS",
    "KERNELS",
    "check_carrier",
    "client_owners",
    "family",
    "named",
    "owner",
    "serves_as",
    "would_load",
]

KERNELS = "rpcrdma"
"""The name of the kernel's own module."""
ASIDE = "kernels-rpcrdma"
"""What modprobe finds it by after `module install`, when all its own names lead to ours."""
CARRIERS = {"rdma": KERNELS, "nfsrdma": OURS}
"""The transports that need a module, and its name."""


def owner() -> str:
    """The module that carries NFS over RDMA now; "" when none is loaded."""
    found = client_owners(kernel_modules.loaded(), kernel_modules.parameters(OURS))
    builtin = KERNELS if Path("/sys/module", KERNELS).exists() else ""
    return found[0] if found else builtin


def client_owners(loaded: dict[str, Module], ours: Mapping[str, str]) -> list[str]:
    """The loaded modules that can own the netid ``rdma``; ``ours`` are our module's parameters.

    Ours leaves it alone when its parameter client says so.
    """
    found = kernel_modules.transport_owners(loaded)
    return [name for name in found if name != OURS or ours.get("client", "Y") == "Y"]


def serves_as(name: str) -> str:
    """By which name nfsd listens on a module that is loaded; "" when it is no server."""
    # before our server half the module had no such parameter
    ours = (
        kernel_modules.parameters(OURS).get("server_name", "")
        if OURS in kernel_modules.loaded()
        else ""
    )
    if name == OURS:
        return ours
    # the first to register it has it; the kernel's goes on without (svc_rdma_init)
    return "rdma" if ours != "rdma" else ""


def family(transport: str) -> str:
    """What ``proto=`` calls a transport over IPv4."""
    return "rdma" if transport in CARRIERS else transport


def named(proto: str) -> str:
    """The transport of a mount that has ``proto`` in effect."""
    plain = proto.removesuffix("6")
    return "nfsrdma" if plain == "rdma" and owner() == OURS else plain


def check_carrier(transport: str) -> None:
    """MismatchError when a mount over ``transport`` would be given another module."""
    wanted = CARRIERS.get(transport, "")
    found = owner() or would_load() if wanted else ""
    if (wanted == OURS) != (found == OURS):
        hint = "nfsrdma module load"
        if found == OURS:
            way = "nfsrdma module unload" if owner() else f"modprobe {ASIDE}, to have the kernel's"
            hint = f"{way}, or mount with --transport nfsrdma"
        raise MismatchError(f"the module for {transport}", wanted, found, hint)


def would_load() -> str:
    """The module that the first mount over RDMA would have the kernel load."""
    try:
        said = run("modprobe", "--resolve-alias", KERNELS, check=False).stdout.split()
    except ProgramMissingError:
        return KERNELS
    return said[0] if said else KERNELS
