# SPDX-License-Identifier: Apache-2.0
"""Statistics of the host without probes: mounts, connections, RDMA ports, CPU time, nfsd."""

from __future__ import annotations

import contextlib
import heapq
import os
import socket
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from nfsrdma_tools import etab, files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import cpu_time, device_counters
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.module import server_debugfs
from nfsrdma_tools.host.nfs import (
    fstab,
    mountinfo,
    mountstats,
    readahead,
    sunrpc,
)
from nfsrdma_tools.host.nfs.mounts import Mount as Effect
from nfsrdma_tools.host.nfs.mounts import nfs_mounts
from nfsrdma_tools.host.nfs.personality import ClientTransport, client_transports
from nfsrdma_tools.host.nfs.sharing import xprt_numbers
from nfsrdma_tools.host.nfs.sunrpc import Task, tasks
from nfsrdma_tools.host.nfsd import nfsctl, threadless
from nfsrdma_tools.host.rdma import ports as rdma_ports
from nfsrdma_tools.live.collect.busy_threads import BusyThreads
from nfsrdma_tools.live.snapshot import (
    FULL,
    IDLE,
    Cpu,
    Credits,
    Disk,
    Link,
    Mount,
    Op,
    Personality,
    Port,
    Processors,
    Server,
    Waiting,
    Xprt,
    xprt_groups,
)
from nfsrdma_tools.probes.rpc_clients import clients

__all__ = [
    "ClientFinder",
    "HostReader",
    "PendingRpcs",
    "Readings",
    "RpcClients",
    "described_namespace",
    "host_name",
    "mount_namespace",
]

# columns of a connection that are not counters
_NOT_COUNTED = {*mountstats.STATES, "bind_count", "connect_time"}
# CPUs, links and disks that are busy for half of the time are in a snapshot: the judgement needs
# those that are full, and a person those that are nearly full
_NEARLY = 0.5
_BUSIEST = 4
# settings change rarely: read a part of them in each interval, all of them in so many
_SLOWLY = 10
_T = TypeVar("_T")


@dataclass(frozen=True)
class Readings:
    """The counters of the host; two readings make an interval."""

    mounts: Mapping[str, mountstats.MountStats] = field(default_factory=dict)
    """By mount point."""
    cpu: cpu_time.CpuCounters | None = None
    at: int = 0
    """The monotonic clock (ns) at the reading of ``ticks``, ``links`` and ``disks``."""
    ticks: Mapping[int, cpu_time.CpuTicks] = field(default_factory=dict)
    links: Mapping[str, device_counters.LinkCounts] = field(default_factory=dict)
    disks: Mapping[str, device_counters.DiskCounts] = field(default_factory=dict)
    """Empty on a host that exports nothing."""
    nfsd: nfsctl.Served | None = None
    pools: nfsctl.PoolCounts = field(default_factory=nfsctl.PoolCounts)
    transports: Mapping[int, ClientTransport] = field(default_factory=dict)
    """Transports of our module by number; empty for users other than root."""
    threadless: threadless.Counts | None = None
    """Threadless reads of our server; None: they are off, or not known."""


class HostReader:
    """Reads the host; ``missing`` has the sources that could not be read, and the reason."""

    def __init__(self, clients: ClientFinder, machine: Machine = LIVE) -> None:
        self.clients = clients
        self.missing: dict[str, str] = {}
        self._machine = machine
        self._info = machine.of_process("mountinfo")
        self._watch = _watch(self._info)
        self._mounts: list[Mount] = []
        self._known = RpcClients()
        self._transports = self._transports_of(())
        self._ports = rdma_ports.Ports(machine.path("sys/class/infiniband"))
        self._stats = mountstats.Reader(machine.of_process("mountstats"))
        # not proc/net: that is the network namespace of the process that reads it
        self._served = machine.of_process("net/rpc/nfsd")
        self._proc = machine.path("proc")
        self._nfsd = machine.path("proc/fs/nfsd")
        self._bdi = machine.path("sys/class/bdi")
        self._ours = machine.path("sys/kernel/debug/nfsrdma")
        self._ours_of_server = machine.path("sys/kernel/debug/nfsrdma-server")
        self._limit = machine.path(threadless.PARAMETER)
        self._links = device_counters.Links(machine.path("sys"))
        self._etab = machine.path("var/lib/nfs/etab")
        self._listeners: tuple[str, ...] = ()
        self._exported: dict[str, str] = {}
        self._threads = BusyThreads(self._proc)
        self._turn = 0

    def read(self) -> Readings:
        """Read the counters."""
        mounts = self._try("mountstats", self._stats.read) or ()
        nfsd = self._try("nfsd", lambda: nfsctl.read_statistics(self._served))
        if self._turn % _SLOWLY == 0:
            self._links.find()
        return Readings(
            mounts={str(stats.directory): stats for stats in mounts},
            cpu=self._try("CPU", lambda: cpu_time.busy(self._proc)),
            at=time.monotonic_ns(),
            ticks=cpu_time.parse_stat(files.readable(self._proc / "stat")),
            links=self._links.read() if mounts or nfsd else {},
            disks=device_counters.disk_counts(self._proc / "diskstats") if nfsd else {},
            nfsd=nfsd,
            pools=nfsctl.pool_counts(self._nfsd) if nfsd else nfsctl.PoolCounts(),
            transports={state.number: state for state in client_transports(self._ours)},
            threadless=self._threadless() if nfsd else None,
        )

    def _threadless(self) -> threadless.Counts | None:
        if not threadless.limit_in(self._limit):
            return None
        return threadless.counts(self._ours_of_server)

    def mounts(self, now: Readings, before: Readings) -> tuple[Mount, ...]:
        """All NFS superblocks with their counts between two readings."""
        self._refresh()
        transports = self._transports.read()
        shared: dict[tuple[tuple[int, ...] | str, str], tuple[Xprt, ...]] = {}
        mounts = []
        for mount in self._mounts:
            stats = now.mounts.get(mount.directory)
            if stats is None:
                mounts.append(mount)
                continue
            added = _difference(stats, before.mounts.get(mount.directory))
            numbers = self._known.xprts.get(mount.directory, ())
            # mounts that share connections share the tuple of them
            key = numbers or mount.directory, mount.transport
            if key not in shared:
                states = tuple(transports[n] for n in numbers if n in transports)
                xprts = _xprts(added.xprts, states, mount.transport)
                shared[key] = tuple(_with_personality(xprt, now, before) for xprt in xprts)
            mounts.append(_with_counts(mount, added, shared[key]))
        return tuple(mounts)

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
        found = Processors(cpus=os.cpu_count() or 1)
        if now.cpu and before.cpu:
            spent = cpu_time.difference(now.cpu, before.cpu)
            nearly = (_rounded_cpu(cpu) for cpu in each if cpu.busy >= _NEARLY)
            most = tuple(heapq.nlargest(_BUSIEST, nearly, key=lambda cpu: cpu.busy))
            found = Processors(spent.cpus, spent.wall_ns, max(spent.busy_ns, 0), busiest=most)
        if in_use is None:
            return found
        tasks = sum(cpu.tasks for cpu in each)
        if tasks < FULL:
            self._threads.forget()
            return found
        return self._threads.add_to(found, tasks * passed, in_use)

    def links(self, now: Readings, before: Readings) -> tuple[Link, ...]:
        """The links that were busy between two readings."""
        seconds = (now.at - before.at) / 1e9
        found = []
        for name, counts in now.links.items():
            then = before.links.get(name, counts)
            # the counters restart at 0 with the driver
            received, sent = (
                max(counts.received - then.received, 0), max(counts.sent - then.sent, 0)
            )  # fmt: skip
            if max(received, sent) * 8 >= counts.rate * seconds * _NEARLY > 0:
                found.append(Link(name, counts.rate, received, sent))
        return tuple(found)

    def _disks(self, now: Readings, before: Readings) -> tuple[Disk, ...]:
        passed = (now.at - before.at) / 1e6
        found = []
        for number, directory in self._exported.items() if passed else ():
            if number in now.disks and number in before.disks:
                disk, then = now.disks[number], before.disks[number]
                busy = min(max(disk.busy_ms - then.busy_ms, 0) / passed, 1.0)
                in_flight = max(disk.waited_ms - then.waited_ms, 0) / passed
                requests = max(disk.requests - then.requests, 0)
                figures = (_rounded(busy), _rounded(in_flight), requests)
                found.append(Disk(disk.name, directory, *figures))
        nearly = (disk for disk in found if disk.busy >= _NEARLY)
        return tuple(heapq.nlargest(_BUSIEST, nearly, key=lambda disk: disk.busy))

    def _find_exported(self, known: Mapping[str, device_counters.DiskCounts]) -> None:
        paths = self._try("exports", lambda: [e.path for e in etab.effective(self._etab)])
        entries = self._try("mountinfo", lambda: mountinfo.read(self._info))
        self._exported = device_counters.disks_below(paths or (), entries or (), known)

    def server(self, now: Readings, before: Readings) -> Server | None:
        """Counts of nfsd between two readings; None if it does not run."""
        threads = self._try("nfsd threads", lambda: nfsctl.threads(self._nfsd))
        if not threads or not now.nfsd:
            return None
        if self._turn % _SLOWLY == 1:
            listeners = self._try("listeners", lambda: nfsctl.listeners(self._nfsd))
            self._listeners = tuple(map(str, listeners or ()))
            self._find_exported(now.disks)
        then = before.nfsd or now.nfsd
        names = ("read_bytes", "write_bytes", "calls", "bad_calls")
        # the counters restart at 0 with module nfsd
        grown = {n: max(getattr(now.nfsd, n) - getattr(then, n), 0) for n in names}
        reach = server_debugfs.personality_totals(self._ours_of_server)
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
        )

    def ports(self) -> tuple[Port, ...]:
        """The RDMA ports."""
        return tuple(
            Port(p.name, p.netdev, p.state, p.physical)
            for p in self._try("RDMA ports", self._ports.read) or ()
        )

    def _try(self, name: str, read: Callable[[], _T]) -> _T | None:
        try:
            value = read()
        except (OSError, UserError) as error:
            self.missing[name] = getattr(error, "strerror", None) or str(error)
            return None
        self.missing.pop(name, None)
        return value

    def _refresh(self) -> None:
        """Update the lists of mounts and connections if they changed, and some of the settings."""
        self._turn += 1
        if self._watch.changed():
            mounts = nfs_mounts(mountinfo.read(self._info), self._machine)
            fstab_text = files.readable(self._machine.path("etc/fstab"))
            grouped = _grouped(mounts, fstab.asked_transports(fstab_text))
            self._mounts = [_with_read_ahead(mount, self._bdi) for mount in grouped]
            self.clients.look_up()
        elif self.clients.has_failed:
            self.clients.look_up()
        if self._known is not self.clients.known:
            self._known = self.clients.known
            self._transports = self._transports_of(set().union(*self._known.xprts.values()))
        for i in range(self._turn % _SLOWLY, len(self._mounts), _SLOWLY):
            self._mounts[i] = _with_read_ahead(self._mounts[i], self._bdi)

    def _transports_of(self, numbers: Container[int]) -> sunrpc.Transports:
        switches = self._machine.path("sys/kernel/sunrpc/xprt-switches")
        return sunrpc.Transports(numbers, switches)


def _rounded(share: float) -> float:
    """Three places are enough, and make a recording shorter."""
    return round(share, 3)


def _rounded_cpu(cpu: Cpu) -> Cpu:
    return Cpu(cpu.number, *map(_rounded, (cpu.busy, cpu.interrupts, cpu.stolen)))


def _watch(path: Path) -> mountinfo.Watch:
    try:
        return mountinfo.Watch(path)
    except OSError as error:
        hint = "the path of procfs has to be the /proc of a host" if path != mountinfo.PROC else ""
        raise UserError(f"cannot read {path}: {error.strerror}", hint) from error


def mount_namespace(machine: Machine = LIVE) -> tuple[str, str]:
    """The file that lists the mounts, and the number of its mount namespace; "" if unknown."""
    link = _link(machine.of_process("ns/mnt"))
    return str(machine.of_process("mountinfo")), link.removeprefix("mnt:[").removesuffix("]")


def host_name() -> tuple[str, str]:
    """The name of the host, and its kernel's release."""
    return socket.gethostname(), os.uname().release


_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""Its number is fixed (PROC_PID_INIT_INO in include/linux/proc_ns.h)."""


def described_namespace(machine: Machine = LIVE) -> str:
    """Which mounts are read, for a person; in a container, how to read those of the host."""
    path, number = mount_namespace(machine)
    text = f"the mounts are those in {path}, mount namespace {number or 'unknown'}"
    if machine.process != "self":
        return text
    contained = _link("/proc/self/ns/pid") not in ("", _FIRST_PID_NAMESPACE)
    first = _link("/proc/1/ns/mnt")
    if contained or (first and first != f"mnt:[{number}]"):
        return f"{text}, not the host's first one: give --path.procfs for its mounts"
    return text


def _link(path: Path | str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 -- a text that is no path
    except OSError:
        return ""


def _grouped(mounts: Iterable[Effect], asked: Mapping[Path, str]) -> list[Mount]:
    by_device: dict[str, Mount] = {}
    for mount in mounts:
        directory = str(mount.directory)
        first = by_device.get(mount.device)
        if first:
            by_device[mount.device] = replace(first, also=(*first.also, directory))
            continue
        by_device[mount.device] = Mount(
            device=mount.device,
            directory=directory,
            target=str(mount.target),
            fstype=mount.fstype,
            transport=mount.transport,
            asked=asked.get(mount.directory) or _asked_by_port(mount),
            vers=mount.vers,
            rsize=mount.rsize,
            wsize=mount.wsize,
            nconnect=mount.nconnect,
            limit=IDLE,
        )
    return list(by_device.values())


def _asked_by_port(mount: Effect) -> str:
    """RDMA, if the mount has its port: also of mounts by units, autofs or a CSI driver.

    The options in effect have the port that was requested, and the transport of the connection,
    which may be that of an earlier mount (nfs_show_mount_options() in fs/nfs/super.c).
    """
    return "rdma" if mount.options.get("port") == str(nfsctl.RDMA_PORT) else ""


def _with_read_ahead(mount: Mount, bdi: Path) -> Mount:
    try:
        window = readahead.get_kb(mount.device, bdi)
    except UserError:
        return mount
    return mount if window == mount.read_ahead_kb else replace(mount, read_ahead_kb=window)


def _difference(
    now: mountstats.MountStats, before: mountstats.MountStats | None
) -> mountstats.MountStats:
    """The counts between two readings; none for a mount that is new in this interval."""
    # a new mount on the same directory often has the same device, too: the kernel gives the lowest
    # free number to a superblock (get_anon_bdev in fs/super.c)
    with contextlib.suppress(UserError):
        return mountstats.difference(now, before or now)
    return mountstats.difference(now, now)


def _with_counts(mount: Mount, added: mountstats.MountStats, xprts: tuple[Xprt, ...]) -> Mount:
    busy = ((n, op) for n, op in added.operations.items() if op.operations or op.transmissions)
    counted = added.bytes
    return replace(
        mount,
        read=counted.server_read,
        written=counted.server_write,
        direct=counted.direct_read + counted.direct_write,
        ops=tuple(_op(name, counts) for name, counts in busy),
        xprts=xprts,
    )


def _op(name: str, counts: mountstats.Operation) -> Op:
    again = max(counts.transmissions - counts.operations, 0)
    return Op(
        name, counts.operations, counts.errors, counts.timeouts, again, counts.bytes_sent,
        counts.bytes_received, counts.queue_ms, counts.rtt_ms, counts.execute_ms,
    )  # fmt: skip


def _xprts(
    counted: tuple[mountstats.Xprt, ...], transports: tuple[sunrpc.Transport, ...], transport: str
) -> tuple[Xprt, ...]:
    # both list connections in the order of their creation: the kernel appends to the list of a
    # switch (xprt_switch_add_xprt_locked in net/sunrpc/xprtmultipath.c)
    if len(counted) != len(transports):
        return tuple(map(_from_mountstats, counted))
    return tuple(
        _with_state(_from_mountstats(c), t, transport)
        for c, t in zip(counted, transports, strict=True)
    )


def _with_personality(xprt: Xprt, now: Readings, before: Readings) -> Xprt:
    state = now.transports.get(xprt.number)
    if not state:
        return xprt
    then = before.transports.get(xprt.number, state)
    # counters restart at 0 with a connection
    grown = {
        name: grown
        for name, count in state.counters.items()
        if (grown := count - (had if (had := then.counters.get(name, 0)) <= count else 0))
    }
    return replace(xprt, personality=Personality(state.personality, state.gauges, grown))


def _from_mountstats(xprt: mountstats.Xprt) -> Xprt:
    counters = {n: count for n, count in xprt.counters.items() if count and n not in _NOT_COUNTED}
    return Xprt(kind=xprt.proto, connects=counters.pop("connect_count", 0), counters=counters)


def _with_state(xprt: Xprt, state: sunrpc.Transport, transport: str) -> Xprt:
    # sunrpc's congestion window has the credits of the kernel's transport, not of our module
    credits = Credits(state.credits, state.used) if transport == "rdma" else Credits()
    return replace(
        xprt,
        number=state.number,
        address=state.address,
        states=state.states,
        connected=state.connected,
        credits=credits,
        requests=state.requests,
        sending=state.sending,
        pending=state.pending,
        backlog=state.backlog,
    )


@dataclass(frozen=True)
class RpcClients:
    """By mount point: the number of the client, and those of its connections in ascending order."""

    clients: dict[str, int] = field(default_factory=dict)
    xprts: dict[str, tuple[int, ...]] = field(default_factory=dict)


class ClientFinder:
    """``known`` is the newest result of ``look_up``; ``has_failed`` if the newest one failed."""

    def __init__(self, machine: Machine = LIVE) -> None:
        self.known = RpcClients()
        self.has_failed = False
        self._machine = machine
        self._answers: dict[str, int | None] = {}
        self._thread: threading.Thread | None = None

    def look_up(self, wait: bool = False) -> None:
        """Start a thread that updates ``known``, unless one runs; ``wait`` for its end."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._find, daemon=True)
            self._thread.start()
        if wait:
            self._thread.join()

    def _find(self) -> None:
        try:
            names_by_client = clients(self._answers, self._machine)
            known = _rpc_clients(names_by_client, self._machine.path("sys/kernel/sunrpc"))
        except (OSError, UserError):
            # mounts changed meanwhile, for example
            self.has_failed = True
            return
        self.known, self.has_failed = known, False


def _rpc_clients(names_by_client: Mapping[int, tuple[str, ...]], sysfs: Path) -> RpcClients:
    ids = {directory: number for number, names in names_by_client.items() for directory in names}
    folder = sysfs / "rpc-clients"
    xprts = {n: tuple(xprt_numbers(folder / f"clnt-{n}" / "switch")) for n in set(ids.values())}
    return RpcClients(ids, {directory: xprts[n] for directory, n in ids.items()})


_MOST_RPCS = 5


class PendingRpcs:
    """Remembers when it first saw each RPC; ``add_to`` adds the oldest ones to their mounts."""

    def __init__(self, read_tasks: Callable[[int], list[Task]] = tasks) -> None:
        self._tasks = read_tasks
        self._since: dict[tuple[int, int], float] = {}

    def add_to(self, mounts: Sequence[Mount], known: RpcClients, now: float) -> tuple[Mount, ...]:
        """The mounts with their oldest RPCs that two looks saw; ``now`` is in seconds."""
        busy = {key for key, xprts in xprt_groups(mounts).items() if _busy(xprts)}
        clients = {known.clients.get(m.directory) for m in mounts if busy and id(m.xprts) in busy}
        pending = {
            (task.client, task.number): task
            for client in clients
            if client is not None
            for task in self._tasks(client)
        }
        # the kernel does not list when an RPC started (tasks_show in net/sunrpc/debugfs.c)
        self._since = {key: self._since.get(key, now) for key in pending}
        old = [self._waiting(task, now) for key, task in pending.items() if self._since[key] < now]
        old.sort(key=lambda rpc: -rpc.seconds)
        return tuple(_with_pending(m, known, old) for m in mounts) if old else tuple(mounts)

    def _waiting(self, task: Task, now: float) -> Waiting:
        age = now - self._since[task.client, task.number]
        return Waiting(task.procedure, age, task.waits_for, task.client, task.number)


def _busy(xprts: Sequence[Xprt]) -> bool:
    # None: without sysfs (before Linux 5.14), the lengths of the queues are unknown
    return any(x.pending or x.sending or x.backlog or x.connected is not True for x in xprts)


def _with_pending(mount: Mount, known: RpcClients, old: Sequence[Waiting]) -> Mount:
    client = known.clients.get(mount.directory)
    waiting = tuple(rpc for rpc in old if rpc.client == client)[:_MOST_RPCS]
    return replace(mount, waiting=waiting) if waiting else mount
