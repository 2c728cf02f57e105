# SPDX-License-Identifier: Apache-2.0
"""Statistics of the host without probes: mounts, connections, RDMA ports, CPU time, nfsd."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Container

from nfsrdma_tools import files
from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.host.nfs.personality import client_transports
from nfsrdma_tools.host.nfsd import nfsctl
from nfsrdma_tools.host.rdma import ports as rdma_ports
from nfsrdma_tools.live.collect import device_counters
from nfsrdma_tools.live.collect.busy_threads import BusyThreads
from nfsrdma_tools.live.collect.client_finder import ClientFinder
from nfsrdma_tools.live.collect.mount_statistics import MountReader
from nfsrdma_tools.live.collect.readings import BUSIEST, NEARLY, SLOWLY, Readings, Sources, rounded
from nfsrdma_tools.live.collect.server_statistics import ServerReader
from nfsrdma_tools.live.snapshot import FULL, Cpu, Link, Mount, Port, Processors, Server

__all__ = ["HostReader"]


class HostReader:
    """Reads the counters of the host, and makes the parts of a snapshot of two readings."""

    def __init__(
        self, clients: ClientFinder, machine: Machine = LIVE, pending_rpcs: bool = False
    ) -> None:
        self._sources = Sources()
        self._mounts = MountReader(clients, machine)
        self._server = ServerReader(machine, self._sources, pending_rpcs)
        self._ports = rdma_ports.Ports(machine.path("sys/class/infiniband"))
        self._stats = mountstats.Reader(machine)
        self._machine = machine
        self._links = device_counters.Links(machine)
        self._threads = BusyThreads(machine)
        self._turn = 0

    @property
    def missing(self) -> dict[str, str]:
        """The sources that could not be read, and the reason."""
        return self._sources.missing

    def read(self) -> Readings:
        """Read the counters."""
        mounts = self._sources.read("mountstats", self._stats.read) or ()
        nfsd = self._server.statistics()
        if self._turn % SLOWLY == 0:
            self._links.find()
        self._turn += 1
        return Readings(
            mounts={str(stats.directory): stats for stats in mounts},
            cpu=self._sources.read("CPU", lambda: cpu_time.busy(self._machine)),
            at=time.monotonic_ns(),
            ticks=cpu_time.parse_stat(files.readable(self._machine.path("proc/stat"))),
            links=self._links.read() if mounts or nfsd else {},
            disks=device_counters.disk_counts(self._machine) if nfsd else {},
            nfsd=nfsd,
            pools=self._server.pools() if nfsd else nfsctl.PoolCounts(),
            transports={state.number: state for state in client_transports(self._machine)},
            threadless=self._server.threadless() if nfsd else None,
        )

    def mounts(self, now: Readings, before: Readings) -> tuple[Mount, ...]:
        """All NFS superblocks with their counts between two readings."""
        return self._mounts.mounts(now, before)

    def server(self, now: Readings, before: Readings) -> Server | None:
        """Counts of nfsd between two readings; None if it does not run."""
        return self._server.server(now, before)

    def processors(
        self, now: Readings, before: Readings, in_use: Container[str] | None = None
    ) -> Processors:
        """CPU time between two readings, the fullest CPUs, and the busiest threads.

        ``in_use`` are the mounts (Mount.device) that matter to threads; None: look at no threads.
        No thread is read while all together leave room for one more on a CPU.
        """
        passed = now.at - before.at
        uses = cpu_time.each_cpu(now.ticks, before.ticks, passed)
        each = [Cpu(number, *use) for number, use in uses.items()]
        processors = Processors(cpus=os.cpu_count() or 1)
        if now.cpu and before.cpu:
            spent = cpu_time.difference(now.cpu, before.cpu)
            nearly = (_rounded_cpu(cpu) for cpu in each if cpu.busy >= NEARLY)
            most = tuple(heapq.nlargest(BUSIEST, nearly, key=lambda cpu: cpu.busy))
            processors = Processors(spent.cpus, spent.wall_ns, max(spent.busy_ns, 0), busiest=most)
        if in_use is None:
            return processors
        tasks = sum(cpu.tasks for cpu in each)
        if tasks < FULL:
            self._threads.forget()
            return processors
        return self._threads.add_to(processors, tasks * passed, in_use)

    def links(self, now: Readings, before: Readings) -> tuple[Link, ...]:
        """The links that were busy between two readings."""
        seconds = (now.at - before.at) / 1e9
        links = []
        for name, counts in now.links.items():
            then = before.links.get(name, counts)
            # the counters restart at 0 with the driver
            received, sent = (
                max(counts.received - then.received, 0), max(counts.sent - then.sent, 0)
            )  # fmt: skip
            if max(received, sent) * 8 >= counts.rate * seconds * NEARLY > 0:
                links.append(Link(name, counts.rate, received, sent))
        return tuple(links)

    def ports(self) -> tuple[Port, ...]:
        """The RDMA ports."""
        return tuple(
            Port(p.name, p.netdev, p.state, p.physical)
            for p in self._sources.read("RDMA ports", self._ports.read) or ()
        )


def _rounded_cpu(cpu: Cpu) -> Cpu:
    return Cpu(cpu.number, *map(rounded, (cpu.busy, cpu.interrupts, cpu.stolen)))
