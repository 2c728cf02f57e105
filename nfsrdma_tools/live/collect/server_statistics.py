# SPDX-License-Identifier: Apache-2.0
"""The NFS server of a snapshot: nfsd's counts between two readings, and its exports' disks."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from nfsrdma_tools import etab
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.module import server_debugfs
from nfsrdma_tools.host.nfs import mountinfo
from nfsrdma_tools.host.nfsd import nfsctl, threadless
from nfsrdma_tools.host.nfsd_status import NfsdStatus, PendingList, PendingRpc
from nfsrdma_tools.live.collect import device_counters
from nfsrdma_tools.live.collect.readings import BUSIEST, NEARLY, SLOWLY, Readings, Sources, rounded
from nfsrdma_tools.live.snapshot import Disk, Server

__all__ = ["ServerReader"]

_PENDING = "pending RPCs of nfsd"
_MOST_HELD = 5
_HELD = 1.0
"""Seconds from which an RPC is worth a line: on a busy server, some are always pending."""


class ServerReader:
    """Reads nfsd, and remembers its listeners and the disks below its exports."""

    def __init__(self, machine: Machine, sources: Sources, pending_rpcs: bool = False) -> None:
        self._sources = sources
        # netlink is that of the namespace of this process
        self._netlink, self._pending = machine.live, pending_rpcs
        self._machine = machine
        self._debug = machine.path("sys/kernel/debug/nfsrdma-server")
        self._limit = machine.path(threadless.PARAMETER)
        self._etab = machine.path("var/lib/nfs/etab")
        self._listeners: tuple[str, ...] = ()
        self._exported: dict[str, str] = {}
        self._turn = 0

    def statistics(self) -> nfsctl.Served | None:
        """The counters of nfsd; None if it does not run."""
        return self._sources.read("nfsd", lambda: nfsctl.read_statistics(self._machine))

    def pools(self) -> nfsctl.PoolCounts:
        """The counters of nfsd's pools."""
        return nfsctl.pool_counts(self._machine)

    def threadless(self) -> threadless.Counts | None:
        """The threadless reads of our server; None if they are off."""
        return threadless.counts(self._debug) if threadless.limit_in(self._limit) else None

    def _disks(self, now: Readings, before: Readings) -> tuple[Disk, ...]:
        passed = (now.at - before.at) / 1e6
        disks = []
        for number, directory in self._exported.items() if passed else ():
            if number in now.disks and number in before.disks:
                disk, then = now.disks[number], before.disks[number]
                busy = min(max(disk.busy_ms - then.busy_ms, 0) / passed, 1.0)
                in_flight = max(disk.waited_ms - then.waited_ms, 0) / passed
                requests = max(disk.requests - then.requests, 0)
                figures = (rounded(busy), rounded(in_flight), requests)
                disks.append(Disk(disk.name, directory, *figures))
        nearly = (disk for disk in disks if disk.busy >= NEARLY)
        return tuple(heapq.nlargest(BUSIEST, nearly, key=lambda disk: disk.busy))

    def _find_exported(self, known: Mapping[str, device_counters.DiskCounts]) -> None:
        paths = self._sources.read("exports", lambda: [e.path for e in etab.effective(self._etab)])
        entries = self._sources.read("mountinfo", lambda: mountinfo.read(self._machine))
        self._exported = device_counters.disks_below(paths or (), entries or (), known)

    def server(self, now: Readings, before: Readings) -> Server | None:
        """Counts of nfsd between two readings; None if it does not run."""
        slowly = self._turn % SLOWLY == 0
        status = self._status(slowly) if now.nfsd else NfsdStatus()
        threads = nfsctl.running(status)
        if threads is None:
            threads = self._sources.read("nfsd threads", lambda: nfsctl.threads(self._machine))
        if not threads or not now.nfsd:
            return None
        if slowly:
            listeners = nfsctl.listening(status)
            if listeners is None:
                listeners = self._sources.read("listeners", self._in_portlist)
            self._listeners = tuple(map(str, listeners or ()))
            self._find_exported(now.disks)
        self._turn += 1
        then = before.nfsd or now.nfsd
        names = ("read_bytes", "write_bytes", "calls", "bad_calls")
        # the counters restart at 0 with module nfsd
        grown = {n: max(getattr(now.nfsd, n) - getattr(then, n), 0) for n in names}
        reach = server_debugfs.personality_totals(self._machine)
        return Server(
            threads,
            self._listeners,
            read=grown["read_bytes"],
            written=grown["write_bytes"],
            calls=grown["calls"],
            bad_calls=grown["bad_calls"],
            exposed=reach.exposed,
            dones_outstanding=reach.dones_outstanding,
            lanes=reach.lanes,
            granted=reach.granted,
            threadless=threadless.grown(now.threadless or {}, before.threadless or {})
            if before.threadless is not None
            else {},
            queued=max(now.pools.queued - before.pools.queued, 0),
            woken=max(now.pools.woken - before.pools.woken, 0),
            disks=self._disks(now, before),
            pending=status.pending.count if status.pending else None,
            held=_held(status.pending),
        )

    def _in_portlist(self) -> tuple[nfsctl.Listener, ...]:
        return tuple(nfsctl.listeners(self._machine))

    def _status(self, slowly: bool) -> NfsdStatus:
        """What nfsd reports by netlink; its listeners if ``slowly``."""
        if not self._netlink:
            return NfsdStatus()
        # importing pyroute2 takes longer than an interval's work; hosts without nfsd don't
        from nfsrdma_tools.host import nfsd_netlink
        from nfsrdma_tools.host.nfsd_netlink import NfsdCommand

        commands = [NfsdCommand.THREADS]
        commands += [NfsdCommand.LISTENER] if slowly else []
        commands += [NfsdCommand.RPC_STATUS] if self._pending else []
        status = nfsd_netlink.read(commands)
        why = status.unknown.get(NfsdCommand.RPC_STATUS.label)
        if why is None:
            self._sources.missing.pop(_PENDING, None)
        else:
            self._sources.missing[_PENDING] = why
        return status


def _held(pending: PendingList | None) -> tuple[PendingRpc, ...]:
    rpcs = pending.rpcs if pending else ()
    return tuple(rpc for rpc in rpcs[:_MOST_HELD] if rpc.seconds >= _HELD)
