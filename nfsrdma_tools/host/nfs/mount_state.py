# SPDX-License-Identifier: Apache-2.0
"""The mounts with all values in effect: connections, read-ahead, personality, sharing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import readable
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs import mounts, personality, readahead
from nfsrdma_tools.host.nfs.mounts import Mount
from nfsrdma_tools.host.nfs.mountstats import MountStats, Xprt
from nfsrdma_tools.host.nfs.personality import ClientTransport
from nfsrdma_tools.host.nfs.sharing import Sharing, client_transports, switch
from nfsrdma_tools.module_source import OURS

__all__ = ["SPREAD", "MountState", "state", "states"]

SPREAD = frozenset(
    ("localports", "max_connect", "mdconnect", "pconnect", "remoteports", "trunkdiscovery")
)
"""Options of the kernel's and vendors' clients that distribute the connections of a mount."""


class MountState(NamedTuple):
    """A mount, with the values that mountinfo lacks.

    ``xprts`` are its connections, from mountstats, () if nobody recorded them.
    ``read_ahead_kb`` is None if it cannot be read.  ``shares_with`` are the mount points that use
    the same connections.  ``transports`` are those of our module, for root only.  ``addresses``
    is the number of its connections by the server's address; None if it is unknown.
    """

    mount: Mount
    xprts: tuple[Xprt, ...]
    read_ahead_kb: int | None
    shares_with: tuple[Path, ...]
    transports: tuple[ClientTransport, ...] = ()
    addresses: dict[str, int] | None = None

    @property
    def connections(self) -> int | None:
        """Their number; None if it is unknown: each mount has one."""
        return len(self.xprts) or None

    @property
    def read_ahead_blocks(self) -> float | None:
        """The read-ahead window in blocks of the rsize in effect; None if it is unknown."""
        kb = self.read_ahead_kb
        return None if kb is None else readahead.blocks_for(kb, self.mount.rsize)

    @property
    def personality(self) -> str | None:
        """The personality in effect; "" if no transport is connected, None if it is unknown."""
        return ", ".join(personality.in_effect(self.transports)) if self.transports else None

    @property
    def figures(self) -> dict[str, int]:
        """The figures of its personality, of all its transports together."""
        sums: Counter[str] = Counter()
        for transport in self.transports:
            sums.update(transport.gauges | transport.counters)
        return dict(sums)

    def facts(self) -> dict[str, object]:
        """All values as plain types, for JSON."""
        return {
            **self.mount._asdict(),
            "target": str(self.mount.target),
            "directory": str(self.mount.directory),
            "proto": self.mount.options.get("proto", ""),
            "connections": self.connections,
            "addresses": self.addresses,
            "read_ahead_kb": self.read_ahead_kb,
            "read_ahead_blocks": self.read_ahead_blocks,
            "personality": self.personality,
            "figures": self.figures,
            "shares_with": [str(path) for path in self.shares_with],
        }


def states(machine: Machine = LIVE) -> list[MountState]:
    """All NFS mounts with all values in effect; mounts that disappear meanwhile are left out.

    Values that a recording lacks, or that cannot be read, are unknown.
    """
    machine = machine.once()
    everything = mounts.mounts(machine)
    sharing = Sharing(everything, machine)
    counters = {stats.directory: stats for stats in mounts.counters(machine)}
    ours = _our_transports(everything, machine)
    mount_states = []
    for mount in everything:
        counted = counters.get(mount.directory)
        if counted is None and machine.recording:
            counted = MountStats(mount.directory, str(mount.target), mount.fstype)
        if counted:
            mount_states.append(_state(mount, counted, sharing, ours, machine))
    if machine.recording is None and any(
        mount_state.read_ahead_kb is None for mount_state in mount_states
    ):
        there: dict[Path, list[Mount]] = {}
        for mount in mounts.mounts(machine):
            there.setdefault(mount.directory, []).append(mount)
        mount_states = [
            mount_state
            for mount_state in mount_states
            if mount_state.read_ahead_kb is not None
            or mount_state.mount in there.get(mount_state.mount.directory, ())
        ]
    return mount_states


def state(
    mount: Mount, counters: MountStats, others: Sequence[Mount], machine: Machine = LIVE
) -> MountState:
    """A mount with all values in effect; ``others`` are mounts that may share its connections."""
    sharing = Sharing((mount, *others), machine)
    return _state(mount, counters, sharing, _our_transports([mount], machine), machine)


def _our_transports(everything: Sequence[Mount], machine: Machine = LIVE) -> list[ClientTransport]:
    # debugfs has files for each transport: read them once, and only for mounts of our module
    used = any(mount.transport == OURS for mount in everything)
    return personality.client_transports(machine) if used else []


def _state(
    mount: Mount,
    counters: MountStats,
    sharing: Sharing,
    ours: Sequence[ClientTransport],
    machine: Machine,
) -> MountState:
    return MountState(
        mount=mount,
        xprts=counters.xprts,
        read_ahead_kb=_read_ahead_kb(mount.device, machine),
        shares_with=sharing.others(mount),
        transports=client_transports(
            mount.device, ours if mount.transport == OURS else (), machine
        ),
        addresses=_addresses(mount, len(counters.xprts), machine),
    )


def _read_ahead_kb(device: str, machine: Machine) -> int | None:
    try:
        return readahead.get_kb(device, machine)
    except UserError:
        # the other values of this mount, and the other mounts, can still be read
        return None


def _addresses(mount: Mount, connections: int, machine: Machine) -> dict[str, int] | None:
    folder = switch(mount.device, machine)
    if folder:
        texts = (readable(path / "dstaddr").strip() for path in sorted(folder.glob("xprt-*-*")))
        # a connection without an address is being closed
        counts = Counter(text for text in texts if text and not text.startswith("<"))
        if counts:
            return dict(counts)
    address = mount.options.get("addr")
    if not address or not connections or SPREAD & mount.options.keys():
        return None
    return {address: connections}
