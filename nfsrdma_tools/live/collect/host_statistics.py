# SPDX-License-Identifier: Apache-2.0
"""What the host says by itself, without probes: mounts, connections, ports, CPU, nfsd."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.host.nfs import (
    fstab,
    mountinfo,
    mountstats,
    mountstats_changes,
    readahead,
    sunrpc,
)
from nfsrdma_tools.host.nfs.mounts import Mount as Effect
from nfsrdma_tools.host.nfsd import nfsctl
from nfsrdma_tools.host.nfsd import statistics as nfsd_stats
from nfsrdma_tools.host.rdma import ports as rdma_ports
from nfsrdma_tools.live.analyze.bottleneck import IDLE
from nfsrdma_tools.live.collect.mount_clients import Known, Owners
from nfsrdma_tools.live.memo import Kept, changed
from nfsrdma_tools.live.snapshot import (
    Credits,
    Mount,
    Op,
    Port,
    Processors,
    Server,
    Xprt,
)

__all__ = ["Facts", "Readings", "host_name"]

_FSTAB = Path("/etc/fstab")
_INFO = Path("/proc/self/mountinfo")
# what changes only by hand is read every so many intervals, a part of it each time
_SLOWLY = 10
_T = TypeVar("_T")


@dataclass(frozen=True)
class Readings:
    """What mounts did since the last reading; of the rest two readings make an interval."""

    added: Mapping[str, mountstats_changes.Added] = field(default_factory=dict)
    cpu: cpu_time.CpuTimes | None = None
    nfsd: nfsd_stats.Served | None = None


class Facts:
    """Reads the host; what was read before is kept to tell what was added."""

    def __init__(self, owners: Owners) -> None:
        self.owners = owners
        self.missing: dict[str, str] = {}
        self._changes = mountstats_changes.Changes()
        self._watch = mountinfo.Watch(_INFO)
        self._mounts: list[Mount] = []
        self._known = Known()
        self._transports = sunrpc.Transports(())
        self._connections = Kept(_xprts)
        self._made: list[Mount] = []
        self._ports = rdma_ports.Ports()
        self._listeners: tuple[str, ...] = ()
        self._turn = 0

    def read(self) -> Readings:
        """What was counted until now."""
        return Readings(
            added=self._tried("mountstats", self._changes.read) or {},
            cpu=self._tried("CPU", cpu_time.busy),
            nfsd=self._tried("nfsd", nfsd_stats.read),
        )

    def mounts(self, now: Readings) -> tuple[Mount, ...]:
        """All superblocks of NFS, with what was done on them; one as it was is the same object."""
        self._look()
        self._connections.turn()
        known, told = self._known.xprts, self._transports.read()
        there = {all_: tuple(told[n] for n in all_ if n in told) for all_ in {*known.values()}}
        made: dict[Any, tuple[Xprt, ...]] = {}
        before, self._made = self._made, []
        for mount, was in zip(self._mounts, [*before, *self._mounts], strict=False):
            if added := now.added.get(mount.directory):
                numbers = known.get(mount.directory, ())
                # those that share connections share what is made of them
                key = numbers or mount.directory, mount.transport, id(added.xprts)
                if key not in made:
                    made[key] = self._xprts(key, added, there.get(numbers, ()))
                self._made.append(_done(mount, added, made[key], was))
            else:
                self._made.append(mount)
        return tuple(self._made)

    def _xprts(
        self, key: Any, added: mountstats_changes.Added, told: tuple[sunrpc.Transport, ...]
    ) -> tuple[Xprt, ...]:
        return self._connections.of(key, added.xprts, told, key[1])

    def processors(self, now: Readings, before: Readings) -> Processors:
        """CPU time in between."""
        if not now.cpu or not before.cpu:
            return Processors(cpus=os.cpu_count() or 1)
        spent = cpu_time.difference(now.cpu, before.cpu)
        return Processors(spent.cpus, spent.wall_ns, max(spent.busy_ns, 0))

    def server(self, now: Readings, before: Readings) -> Server | None:
        """What nfsd did in between; None where none runs."""
        threads = self._tried("nfsd threads", nfsctl.threads)
        if not threads or not now.nfsd:
            return None
        if self._turn % _SLOWLY == 1:
            self._listeners = tuple(map(str, self._tried("listeners", nfsctl.listeners) or ()))
        then = before.nfsd or now.nfsd
        names = ("read_bytes", "write_bytes", "calls", "bad_calls")
        grown = (max(getattr(now.nfsd, n) - getattr(then, n), 0) for n in names)
        return Server(threads, self._listeners, *grown)

    def ports(self) -> tuple[Port, ...]:
        """The RDMA ports."""
        return tuple(
            Port(p.name, p.netdev, p.state, p.physical)
            for p in self._tried("RDMA ports", self._ports.read) or ()
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
        """Mounts and connections anew when there are others, and a part of their slow facts."""
        self._turn += 1
        if self._watch.changed():
            entries = [e for e in mountinfo.read(_INFO) if e.fstype in ("nfs", "nfs4")]
            self._mounts = [*map(_slow, _grouped(map(Effect.of, entries)))]
            self._made = []
            self.owners.look()
        if self._known is not self.owners.known:
            self._known = self.owners.known
            self._transports = sunrpc.Transports(set().union(*self._known.xprts.values()))
        for i in range(self._turn % _SLOWLY, len(self._mounts), _SLOWLY):
            self._mounts[i] = _slow(self._mounts[i])


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
            by_device[each.device] = changed(first, also=(*first.also, directory))
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
            limit=IDLE,
        )
    return list(by_device.values())


def _slow(mount: Mount) -> Mount:
    try:
        window = readahead.get_kb(mount.device)
    except UserError:
        return mount
    return mount if window == mount.read_ahead_kb else changed(mount, read_ahead_kb=window)


def _done(
    mount: Mount, added: mountstats_changes.Added, xprts: tuple[Xprt, ...], was: Mount
) -> Mount:
    """The mount with what was added; ``was`` is what the last interval made of it, or another."""
    if added.operations or added.bytes is not mountstats_changes.NO_BYTES:
        return _busy(mount, added, xprts)
    same = was.xprts is xprts and was.device == mount.device and not was.did_something
    if same and was.read_ahead_kb == mount.read_ahead_kb:
        return was
    return changed(mount, xprts=xprts)


def _busy(mount: Mount, added: mountstats_changes.Added, xprts: tuple[Xprt, ...]) -> Mount:
    counted = added.bytes
    return changed(
        mount,
        read=counted.server_read,
        written=counted.server_write,
        direct=counted.direct_read + counted.direct_write,
        ops=tuple(_op(name, done) for name, done in added.operations.items()),
        xprts=xprts,
    )


def _op(name: str, done: mountstats.Operation) -> Op:
    again = max(done.transmissions - done.operations, 0)
    return Op(
        name, done.operations, done.errors, done.timeouts, again, done.bytes_sent,
        done.bytes_received, done.queue_ms, done.rtt_ms, done.execute_ms,
    )  # fmt: skip


def _xprts(
    counted: tuple[mountstats.Xprt, ...], told: tuple[sunrpc.Transport, ...], transport: str
) -> tuple[Xprt, ...]:
    # both are in the order in which they were made
    if len(counted) != len(told):
        return tuple(map(_counted, counted))
    return tuple(_shown(_counted(c), t, transport) for c, t in zip(counted, told, strict=True))


def _counted(xprt: mountstats.Xprt) -> Xprt:
    counters = dict(xprt.counters)
    return Xprt(kind=xprt.proto, connects=counters.pop("connect_count", 0), counters=counters)


def _shown(xprt: Xprt, told: sunrpc.Transport, transport: str) -> Xprt:
    # our module counts credits by itself, and sunrpc's window stays as it was made
    credits = Credits(told.credits, told.used) if transport == "rdma" else Credits()
    return changed(
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
