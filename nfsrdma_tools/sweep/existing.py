# SPDX-License-Identifier: Apache-2.0
"""The mount of a target that this host has already: what a sweep's best cell is compared with."""

from __future__ import annotations

from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs.mount_state import MountState, states
from nfsrdma_tools.host.nfs.mounting import TRANSPORTS, VERSIONS
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.personalities import PERSONALITIES
from nfsrdma_tools.sweep.plan import ExistingMount

__all__ = ["find"]


def find(target: str, machine: Machine = LIVE) -> ExistingMount | None:
    """The first mount of ``target`` with its values in effect; None if this host has none.

    It is None as well for a mount with values that a sweep cannot request: an unknown transport or
    NFS version, or an unknown personality of our module, which only root can read.
    """
    wanted = Target.parse(target)
    same = (state for state in states(machine) if state.mount.target == wanted)
    return next((known for state in same if (known := _of(state))), None)


def _of(state: MountState) -> ExistingMount | None:
    mount, ahead = state.mount, state.read_ahead_kb
    transport = mount.transport
    if transport not in TRANSPORTS or mount.vers not in VERSIONS or ahead is None:
        return None
    if not (mount.rsize and mount.wsize):
        return None
    personality = (state.personality or "") if transport == OURS else ""
    if transport == OURS and personality not in PERSONALITIES:
        return None
    return ExistingMount(
        directory=str(mount.directory),
        transport=transport,
        vers=mount.vers,
        rsize=mount.rsize,
        wsize=mount.wsize,
        nconnect=mount.nconnect,
        read_ahead_kb=ahead,
        personality=personality,
    )
