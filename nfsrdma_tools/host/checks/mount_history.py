# SPDX-License-Identifier: Apache-2.0
"""Checks of the past of each NFS mount: what its counters in mountstats say since it was made.

Counters tell what has been, not what is: each finding is a warning with its doubt, and a mount
without anything noticeable has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nfsrdma_tools.host.checks.finding import Finding
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import mountinfo, mountstats
from nfsrdma_tools.host.nfs.mountinfo import Entry
from nfsrdma_tools.host.nfs.mountstats import MountStats

__all__ = ["history"]

# the client closes a connection without requests: XS_IDLE_DISC_TO in net/sunrpc/xprtsock.c,
# RPCRDMA_IDLE_DISC_TO in net/sunrpc/xprtrdma/xprt_rdma.h
_IDLE_S = 300
_FEW_CONNECTS = 3
_FEW = 10
_PER_THOUSAND = 1
# requests that one lost connection resends: RPCRDMA_DEF_SLOT_TABLE in net/sunrpc/xprtrdma
_BURST = 128
_LEAST_CONNECT_S = 60
_LEAST_SENDS = 1000
_SHOWN = 3
_DOUBT = "a restart of the server or of a link explains some at once"
_NEXT = "see when: nfsrdma explain; watch: nfsrdma top"


def history(machine: Machine) -> Iterator[Finding]:
    """No mount has reconnected, sent again or waited for slots more than it should."""
    by_directory = {entry.directory: entry for entry in mountinfo.of(machine) if entry.is_nfs}
    if not by_directory:
        return
    counted = {
        by_directory[stats.directory].device: _Mount(by_directory[stats.directory], stats)
        for stats in reversed(mountstats.read_all(machine.path("proc/self/mountstats")))
        if stats.directory in by_directory
    }
    # the first of several mount points of a device
    mounts = list(reversed(counted.values()))
    clients: dict[object, list[_Mount]] = {}
    for mount in mounts:
        yield from _resent(mount)
        if mount.stats.xprts:
            clients.setdefault(mount.client, []).append(mount)
    for sharing in clients.values():
        yield from _Connections(sharing).findings()


@dataclass(frozen=True)
class _Mount:
    entry: Entry
    stats: MountStats

    @property
    def name(self) -> str:
        return f"history {self.entry.directory}"

    @property
    def client(self) -> object:
        """Equal for mounts that have the same connections."""
        options = self.entry.options
        columns = ("port", "bind_count", "connect_count", "connect_time")
        return (
            *(options.get(name) for name in ("addr", "vers", "proto")),
            *((x.proto, *(x.counters.get(name) for name in columns)) for x in self.stats.xprts),
        )

    @property
    def transmissions(self) -> int:
        return sum(done.transmissions for done in self.stats.operations.values())


def _resent(mount: _Mount) -> Iterator[Finding]:
    """Operations that were sent more than once, or that timed out."""
    operations = again = timeouts = 0
    for one in mount.stats.operations.values():
        operations += one.operations
        again += max(one.transmissions - one.operations, 0)
        timeouts += one.timeouts
    connections = max(len(mount.stats.xprts), 1)
    if not _noticeable(max(again, timeouts), operations, mount.stats.age_s, connections):
        return
    found = (
        f"{_since(mount.stats.age_s)}: {again} retransmissions in {operations} operations "
        f"({_share(again, operations)}), {timeouts} timeouts; {_DOUBT}"
    )
    expected = "less than 1 of 1000 operations sent again"
    yield Finding(mount.name, "warning", found, expected, _NEXT)


class _Connections:
    """The connections that some mounts share, since the oldest of these mounts."""

    def __init__(self, mounts: list[_Mount]) -> None:
        oldest = max(mounts, key=lambda mount: mount.stats.age_s)
        self._name = oldest.name
        self._age_s = oldest.stats.age_s
        self._xprts = oldest.stats.xprts
        others = [str(mount.entry.directory) for mount in mounts if mount is not oldest]
        shown = ", ".join(others[:_SHOWN])
        more = f" and {len(others) - _SHOWN} more" if others[_SHOWN:] else ""
        self._sharing = f" (shared with {shown}{more})" if others else ""
        # what mounts that have gone, or of other mount namespaces, sent, too; a client of NFSv4
        # renews its lease once in a while
        seen = sum(mount.transmissions for mount in mounts)
        self._has_others = self._sum("sends") > 2 * seen + self._age_s + _LEAST_SENDS

    def findings(self) -> Iterator[Finding]:
        """Warnings about reconnects, replies without a request, and a queue for slots."""
        yield from self._reconnects()
        yield from self._bad_xids()
        yield from self._backlog()

    def _sum(self, column: str) -> int:
        return sum(xprt.counters.get(column, 0) for xprt in self._xprts)

    def _reconnects(self) -> Iterator[Finding]:
        if self._has_others:
            # they may be older than each mount here
            return
        idle = self._age_s // _IDLE_S
        connects = [xprt.counters.get("connect_count", 0) for xprt in self._xprts]
        unexplained = sum(max(count - 1 - idle, 0) for count in connects)
        waited = self._sum("connect_time")
        slow = max(_LEAST_CONNECT_S, self._age_s // 100) <= waited <= self._age_s * len(connects)
        if unexplained < _FEW_CONNECTS and not slow:
            return
        number = f" by {len(connects)} connections" if len(connects) > 1 else ""
        found = (
            f"{_since(self._age_s)}{self._sharing}: connected {sum(connects)} times{number}, "
            f"which took {waited} s; {_DOUBT}"
        )
        most = (1 + idle) * len(connects)
        expected = f"at most {most}: idle connections close after {_IDLE_S // 60} minutes"
        yield Finding(self._name, "warning", found, expected, _NEXT)

    def _bad_xids(self) -> Iterator[Finding]:
        bad, received = self._sum("bad_xids"), self._sum("recvs")
        if not _noticeable(bad, received, self._age_s, len(self._xprts)):
            return
        found = (
            f"{_since(self._age_s)}{self._sharing}: {bad} of {received} replies came for no "
            f"request ({_share(bad, received)}); interrupted programs and soft mounts do that, too"
        )
        yield Finding(self._name, "warning", found, "no reply with an unknown XID", _NEXT)

    def _backlog(self) -> Iterator[Finding]:
        sends, waiting = self._sum("sends"), self._sum("bklog_u")
        if sends < _LEAST_SENDS or waiting < sends:
            return
        found = (
            f"{_since(self._age_s)}{self._sharing}: {waiting / sends:.1f} requests waited for a "
            "slot at each request sent; an average, which a burst can raise for long"
        )
        remedy = "see whether they wait now: nfsrdma top; if so, mount with a greater nconnect"
        yield Finding(self._name, "warning", found, "less than 1", remedy)


def _noticeable(count: int, among: int, age_s: int, connections: int) -> bool:
    """Whether there are many for the work, or more than one per hour beside a burst."""
    many = count * 1000 >= among * _PER_THOUSAND
    return count >= _FEW and (many or count > _BURST * connections + age_s / 3600)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2g} %" if whole else "of none"


def _since(age_s: int) -> str:
    """How long ago the mount was made, in the two largest units."""
    days, rest = divmod(age_s, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    units = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((at for at, (number, _) in enumerate(units) if number), 3)
    shown = " ".join(f"{number} {unit}" for number, unit in units[first : first + 2])
    return f"mounted {shown} ago"
