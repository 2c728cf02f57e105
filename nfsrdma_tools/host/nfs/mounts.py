# SPDX-License-Identifier: Apache-2.0
"""NFS mounts and their values in effect, as the kernel reports them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.module import client_debugfs
from nfsrdma_tools.host.module.client_debugfs import ClientTransport
from nfsrdma_tools.host.nfs import (
    connection_sharing,
    mount_personality,
    mountinfo,
    mountstats,
    readahead,
)
from nfsrdma_tools.host.nfs.mountinfo import Entry
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.transports import named
from nfsrdma_tools.module_source import OURS

__all__ = ["Mount", "MountState", "find", "mounts", "state", "states"]


@dataclass(frozen=True)
class Mount:
    """One NFS mount, from mountinfo.  Sizes in bytes; ``device`` is "MAJOR:MINOR"."""

    target: Target
    directory: Path
    device: str
    fstype: str
    transport: str
    vers: str
    rsize: int
    wsize: int
    nconnect: int
    options: dict[str, str]

    @classmethod
    def of(cls, entry: Entry) -> Mount:
        """Read a mountinfo entry; a missing number is 0, a missing nconnect 1."""
        has = entry.options
        return cls(
            target=Target.of(entry.source),
            directory=entry.directory,
            device=entry.device,
            fstype=entry.fstype,
            transport=named(has.get("proto", "")),
            vers=has.get("vers", ""),
            rsize=int(has.get("rsize", 0)),
            wsize=int(has.get("wsize", 0)),
            nconnect=int(has.get("nconnect", 1)),
            options=has,
        )


@dataclass(frozen=True)
class MountState:
    """A mount, with the values that mountinfo lacks.

    ``connections`` comes from mountstats; ``shares_with`` are the mount points that use the same
    connections.  ``transports`` are those of our module, for root only.
    """

    mount: Mount
    connections: int
    read_ahead_kb: int
    shares_with: tuple[Path, ...]
    transports: tuple[ClientTransport, ...] = ()

    @property
    def read_ahead_blocks(self) -> float:
        """The read-ahead window in blocks of the rsize in effect."""
        return readahead.blocks_for(self.read_ahead_kb, self.mount.rsize)

    @property
    def personality(self) -> str | None:
        """The personality in effect; "" if no transport is connected, None if it is unknown."""
        return ", ".join(client_debugfs.in_effect(self.transports)) if self.transports else None

    @property
    def figures(self) -> dict[str, int]:
        """The figures of its personality, of all its transports together."""
        sums: Counter[str] = Counter()
        for each in self.transports:
            sums.update(each.gauges | each.counters)
        return dict(sums)

    def facts(self) -> dict[str, object]:
        """All values as plain types, for JSON."""
        return {
            **asdict(self.mount),
            "target": str(self.mount.target),
            "directory": str(self.mount.directory),
            "connections": self.connections,
            "read_ahead_kb": self.read_ahead_kb,
            "read_ahead_blocks": self.read_ahead_blocks,
            "personality": self.personality,
            "figures": self.figures,
            "shares_with": [str(path) for path in self.shares_with],
        }


def mounts() -> list[Mount]:
    """All NFS mounts of this process' namespace, in the order of mountinfo."""
    return [Mount.of(entry) for entry in mountinfo.read() if _is_nfs(entry)]


def find(directory: Path) -> Mount | None:
    """The NFS mount on ``directory``; None if there is none."""
    entry = mountinfo.at(directory)
    return Mount.of(entry) if entry and _is_nfs(entry) else None


def states() -> list[MountState]:
    """All NFS mounts with all values in effect; mounts that disappear meanwhile are left out."""
    everything = mounts()
    counted = {str(stats.directory): stats for stats in mountstats.read_all()}
    found = [_state(mount, counted.get(str(mount.directory)), everything) for mount in everything]
    return [each for each in found if each]


def _state(
    mount: Mount, counted: mountstats.MountStats | None, others: Sequence[Mount]
) -> MountState | None:
    try:
        return _with(mount, counted, others) if counted else None
    except UserError:
        if mount in mounts():
            raise
        return None


def state(mount: Mount, others: Sequence[Mount]) -> MountState:
    """A mount with all values in effect; ``others`` are mounts that may share its connections."""
    return _with(mount, mountstats.read(mount.directory), others)


def _with(mount: Mount, counted: mountstats.MountStats, others: Sequence[Mount]) -> MountState:
    ours = client_debugfs.transports() if mount.transport == OURS else ()
    return MountState(
        mount=mount,
        connections=len(counted.xprts),
        read_ahead_kb=readahead.get_kb(mount.device),
        shares_with=shared(mount, others),
        transports=mount_personality.of(mount.device, ours),
    )


def shared(mount: Mount, others: Sequence[Mount]) -> tuple[Path, ...]:
    """The mount points in ``others`` that share ``mount``'s connections."""
    own = _connection(mount)
    return tuple(
        other.directory
        for other in others
        if own and other.directory != mount.directory and _connection(other) == own
    )


def _connection(mount: Mount) -> tuple[str, str, str] | None:
    name = connection_sharing.connection(mount.device)
    return (name, mount.transport, mount.vers) if name else None


def _is_nfs(entry: Entry) -> bool:
    return entry.fstype in {"nfs", "nfs4"}
