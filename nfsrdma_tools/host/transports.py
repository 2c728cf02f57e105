# SPDX-License-Identifier: Apache-2.0
"""Transports and the kernel's words for them.

``rdma`` and ``nfsrdma`` are both ``proto=rdma`` to the kernel; which of the two a mount has is
decided by the module that owns that netid.  The module cannot change while anything is mounted
over it, so the owner now is the one that the mount was made with.
"""

from __future__ import annotations

from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, ProgramMissingError
from nfsrdma_tools.host import modules
from nfsrdma_tools.host.module_source import OURS

__all__ = ["CARRIERS", "KERNELS", "check_carrier", "family", "named", "owner", "would_load"]

KERNELS = "rpcrdma"
"""The name of the kernel's own module."""
CARRIERS = {"rdma": KERNELS, "nfsrdma": OURS}
"""The transports that need a module, and its name."""


def owner() -> str:
    """The module that carries NFS over RDMA now; "" when none is loaded."""
    found = modules.transport_owners(modules.loaded())
    builtin = KERNELS if Path("/sys/module", KERNELS).exists() else ""
    return found[0] if found else builtin


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
            way = "nfsrdma module unload" if owner() else "modprobe svcrdma, to have the kernel's"
            hint = f"{way}, or mount with --transport nfsrdma"
        raise MismatchError(f"the module for {transport}", wanted, found, hint)


def would_load() -> str:
    """The module that the first mount over RDMA would have the kernel load."""
    try:
        said = run("modprobe", "--resolve-alias", KERNELS, check=False).stdout.split()
    except ProgramMissingError:
        return KERNELS
    return said[0] if said else KERNELS
