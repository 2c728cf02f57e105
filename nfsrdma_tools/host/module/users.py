# SPDX-License-Identifier: Apache-2.0
"""The visible users of a transport module: what ends if it is replaced, or must end before."""

from __future__ import annotations

import contextlib

from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs.mounts import Mount, mounts
from nfsrdma_tools.host.nfsd import nfsctl
from nfsrdma_tools.host.transports import owner, serves_as

__all__ = ["NFSD", "STOP", "UNSEEN", "ending", "rdma_mounts", "users"]

NFSD = "nfsd listening on "
"""The beginning of a user that is a listener of nfsd."""
STOP = "systemctl stop nfs-server"
UNSEEN = "connections{to} of another mount namespace, or of a lazy unmount"
"""What holds references to a module without being visible."""


def users(name: str, machine: Machine = LIVE) -> list[str]:
    """The visible users of the transport module ``name``: mounts, listeners and modules.

    NotRecordedError if a recording has no list of mounts.
    """
    module = kernel_modules.loaded(machine).get(name)
    if module is None:
        return []
    holders: list[str] = []
    if name == owner(machine):
        holders += [f"mount {mount.directory} of {mount.target}" for mount in rdma_mounts(machine)]
    with contextlib.suppress(PermissionError):
        here = serves_as(name, machine)
        listeners = nfsctl.listeners(machine)
        holders += [f"{NFSD}{each}" for each in listeners if each.transport == here]
    return holders + [f"module {each}" for each in module.used_by]


def rdma_mounts(machine: Machine = LIVE) -> list[Mount]:
    """The mounts over RDMA; NotRecordedError if a recording has no list of mounts."""
    return [mount for mount in mounts(machine) if mount.options.get("proto", "").startswith("rdma")]


def ending(holders: list[str]) -> list[str]:
    """The steps that end these users of a module."""
    listeners = [holder for holder in holders if holder.startswith(NFSD)]
    unmount = ["unmount"] if len(listeners) < len(holders) else []
    return unmount + ([STOP] if listeners else [])
