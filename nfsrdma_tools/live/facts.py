# SPDX-License-Identifier: Apache-2.0
"""What the host says by itself, without probes: mounts, connections, ports, CPU, nfsd."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import (
    cpu,
    fstab,
    mountinfo,
    mountstats,
    nfsd,
    nfsd_stats,
    rdma_ports,
    readahead,
    sunrpc,
)
from nfsrdma_tools.host.effect import Mount as Effect
from nfsrdma_tools.live.owners import Owners
from nfsrdma_tools.live.snapshot import Credits, Mount, Op, Port, Processors, Server, Xprt

__all__ = ["Facts", "Readings", "host_name"]

_FSTAB = Path("/etc/fstab")
_INFO = Path("/proc/self/mountinfo")
# what changes only by hand is read every so many intervals, a part of it each time
_SLOWLY = 10
# what mountstats says of a connection that is no count of what happened
_STATES = ("port", "bind_count", "connect_time", "idle_time", "max_slots")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Readings:
    """What the kernel counted until now; two of them make an interval."""

    stats: dict[str, mountstats.MountStats] = field(default_factory=dict)
    cpu: cpu.CpuTimes | None = None
    nfsd: nfsd_stats.Served | None = None


class Facts:
    """Reads the host; what was read before is kept to tell what was added."""

    def __init__(self, owners: Owners) -> None:
        self.owners = owners
        self.missing: dict[str, str] = {}
        self._stats = mountstats.Reader()
        self._info = ""
        self._mounts: list[Mount] = []
        self._listeners: tuple[str, ...] = ()
        self._turn = 0

    def read(self) -> Readings:
        """What was counted until now."""
        stats = self._tried("mountstats", self._stats.read_all) or ()
        return Readings(
            stats={str(each.directory): each for each in stats},
            cpu=self._tried("CPU", cpu.snapshot),
            nfsd=self._tried("nfsd", nfsd_stats.read),
        )

    def mounts(self, now: Readings, before: Readings) -> tuple[Mount, ...]:
        """All superblocks of NFS, with what was done on them in between."""
        self._look()
        known = self.owners.known.xprts
        there = {n for numbers in known.values() for n in numbers}
        transports = {t.number: t for t in sunrpc.transports(there)} if there else {}
        return tuple(
            _done(mount, now, before, [transports[n] for n in numbers if n in transports])
            for mount in self._mounts
            for numbers in [known.get(mount.directory, ())]
        )

    def processors(self, now: Readings, before: Readings) -> Processors:
        """CPU time in between."""
        if not now.cpu or not before.cpu:
            return Processors(cpus=os.cpu_count() or 1)
        spent = cpu.difference(now.cpu, before.cpu)
        return Processors(spent.cpus, spent.wall_ns, max(spent.busy_ns, 0))

    def server(self, now: Readings, before: Readings) -> Server | None:
        """What nfsd did in between; None where none runs."""
        threads = self._tried("nfsd threads", nfsd.threads)
        if not threads or not now.nfsd:
            return None
        if self._turn % _SLOWLY == 1:
            self._listeners = tuple(map(str, self._tried("listeners", nfsd.listeners) or ()))
        then = before.nfsd or now.nfsd
        names = ("read_bytes", "write_bytes", "calls", "bad_calls")
        grown = (max(getattr(now.nfsd, n) - getattr(then, n), 0) for n in names)
        return Server(threads, self._listeners, *grown)

    def ports(self) -> tuple[Port, ...]:
        """The RDMA ports."""
        return tuple(
            Port(p.name, p.netdev, p.state, p.physical)
            for p in self._tried("RDMA ports", rdma_ports.ports) or ()
        )

    def _tried(self, name: str, read: Callable[[], _T]) -> _T | None:
        try:
            found = read()
        except (OSError, UserError) as error:
            self.missing[name] = getattr(error, "strerror", None) or str(error)
            return None
        self.missing.pop(name, None)
        return found

    def _look(self) -> None:
        """Mounts anew when there are others, and a part of their slow facts."""
        self._turn += 1
        info = mountinfo.read_text(_INFO)
        if info != self._info:
            self._info = info
            entries = [e for e in mountinfo.parse(info) if e.fstype in ("nfs", "nfs4")]
            self._mounts = _grouped(map(Effect.of, entries))
            self.owners.look()
        self._mounts = [
            _slow(m) if i % _SLOWLY == self._turn % _SLOWLY or not m.read_ahead_kb else m
            for i, m in enumerate(self._mounts)
        ]


def host_name() -> tuple[str, str]:
    """The name of the host, and its kernel's release."""
    return socket.gethostname(), os.uname().release


def _grouped(found: Iterable[Effect]) -> list[Mount]:
    asked = fstab.asked_transports(files.read(_FSTAB))
    by_device: dict[str, Mount] = {}
    for each in found:
        directory = str(each.directory)
        first = by_device.get(each.device)
        if first:
            by_device[each.device] = replace(first, also=(*first.also, directory))
            continue
        by_device[each.device] = Mount(
            device=each.device,
            directory=directory,
            target=str(each.target),
            fstype=each.fstype,
            transport=each.transport,
            asked=asked.get(each.directory, ""),
            vers=each.vers,
            rsize=each.rsize,
            wsize=each.wsize,
            nconnect=each.nconnect,
        )
    return list(by_device.values())


def _slow(mount: Mount) -> Mount:
    try:
        return replace(mount, read_ahead_kb=readahead.get_kb(mount.device))
    except UserError:
        return mount


def _done(
    mount: Mount, now: Readings, before: Readings, transports: list[sunrpc.Transport]
) -> Mount:
    after = now.stats.get(mount.directory)
    if after is None:
        return mount
    earlier = before.stats.get(mount.directory)
    try:
        added = mountstats.difference(after, earlier or after)
    except UserError:
        # mounted anew: it begins with the next interval
        added = mountstats.difference(after, after)
    return replace(
        mount,
        read=added.bytes.server_read,
        written=added.bytes.server_write,
        direct=added.bytes.direct_read + added.bytes.direct_write,
        ops=tuple(
            _op(n, o) for n, o in added.operations.items() if o.operations or o.transmissions
        ),
        xprts=_xprts(added.xprts, transports, mount.transport),
    )


def _op(name: str, done: mountstats.Operation) -> Op:
    again = max(done.transmissions - done.operations, 0)
    return Op(
        name, done.operations, done.errors, done.timeouts, again, done.bytes_sent,
        done.bytes_received, done.queue_ms, done.rtt_ms, done.execute_ms,
    )  # fmt: skip


def _xprts(
    counted: tuple[mountstats.Xprt, ...], transports: list[sunrpc.Transport], transport: str
) -> tuple[Xprt, ...]:
    # both are in the order in which they were made
    pairs = zip(counted, transports, strict=True) if len(counted) == len(transports) else None
    if pairs is None:
        return tuple(_counted(each) for each in counted)
    return tuple(_shown(_counted(c), t, transport) for c, t in pairs)


def _counted(xprt: mountstats.Xprt) -> Xprt:
    counters = {n: value for n, value in xprt.counters.items() if value and n not in _STATES}
    return Xprt(kind=xprt.proto, connects=counters.pop("connect_count", 0), counters=counters)


def _shown(xprt: Xprt, told: sunrpc.Transport, transport: str) -> Xprt:
    # our module counts credits by itself, and sunrpc's window stays as it was made
    credits = Credits(told.credits, told.used) if transport == "rdma" else Credits()
    return replace(
        xprt,
        number=told.number,
        address=told.address,
        states=told.states,
        connected=told.connected,
        credits=credits,
        requests=told.requests,
        sending=told.sending,
        pending=told.pending,
        backlog=told.backlog,
    )
