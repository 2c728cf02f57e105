# SPDX-License-Identifier: Apache-2.0
"""The bottleneck of a mount, and of the server: one sentence with the figures that show it.

A host with many CPUs is idle on average while one thread, or the interrupts of one CPU, limit a
mount.  So each resource is judged by itself, and the sentence names the one that is full.  A thread
that cannot be seen is unknown: then no sentence says that the host has idle CPU time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from nfsrdma_tools.host.nfs.mountstats import DATA
from nfsrdma_tools.live.snapshot import (
    FULL,
    IDLE,
    Link,
    Mount,
    Op,
    Processors,
    Server,
    Snapshot,
    Thread,
)

__all__ = ["limit", "server_limit", "with_limits"]

_READS = DATA["read"]
_DATA = (*_READS, *DATA["write"])
# a read-ahead window of so many READs is not the bottleneck
_WINDOWS = 8
# a share of an RPC's time, and a number in flight, that is significant
_MOST = 0.5
# on average, so many RPCs wait for a slot: less is a queue that is empty for most of the time
_BACKLOG = 1.0
# half of the connections that had work found no idle thread
_NO_THREAD = 0.5
# so few are chance: a mount, or a connection that was idle
_FEW = 20
# threads of the kernel that work for NFS: nfsd; workers, whose name ends with the queue that they
# work for (wq_worker_comm() in kernel/workqueue.c); the senders of soft-iWARP
_OF_NFS = re.compile(
    r"nfsd|siw_tx/\d+|kworker/.*[-+](xprtiod|rpciod|nfsiod|ib-comp.*|rxe_wq|nfsrdma_.*)"
)
_NO_SERVER_CALLS = "Idle: no Calls in this interval."


@dataclass(frozen=True)
class _Case:
    snapshot: Snapshot
    mount: Mount

    @property
    def processors(self) -> Processors:
        return self.snapshot.processors

    @property
    def seconds(self) -> float:
        return self.snapshot.seconds

    @property
    def data(self) -> Op | None:
        """The operation that transferred most data."""
        moved = [op for op in self.mount.ops if op.name in _DATA and op.count]
        return max(moved, key=lambda op: op.sent + op.received, default=None)

    @property
    def in_flight(self) -> float:
        """The average number of data RPCs in flight (Little's law)."""
        return self.data.rtt_ms / 1000 / self.seconds if self.data and self.seconds else 0.0


def with_limits(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the bottlenecks of each mount and of the server."""

    def with_limit(mount: Mount) -> Mount:
        if mount.limit is IDLE and not mount.ops and not mount.waiting:
            return mount
        now = limit(mount, snapshot)
        return mount if mount.limit == now else replace(mount, limit=now)

    server = snapshot.server
    if server:
        server = replace(server, limit=server_limit(server, snapshot))
    return replace(snapshot, mounts=tuple(map(with_limit, snapshot.mounts)), server=server)


def limit(mount: Mount, snapshot: Snapshot) -> str:
    """The bottleneck of ``mount`` in this interval: the first rule that matches."""
    if not mount.ops and not mount.waiting:
        return IDLE
    case = _Case(snapshot, mount)
    return next(filter(None, (rule(case) for rule in _RULES)), "")


def server_limit(server: Server, snapshot: Snapshot) -> str:
    """The bottleneck of the server in this interval: the first rule that matches."""
    if not server.answered:
        return _NO_SERVER_CALLS
    processors = snapshot.processors
    moved = (server.written, server.read_in_all)
    rules = (
        _full_thread(processors, ()),
        _full_cpu(processors),
        _full_host(processors),
        _full_link(snapshot, moved),
        _full_disk(server),
        _no_thread(server),
        _unseen(processors),
    )
    nothing = "Clients and network: no CPU, link or disk of this server is full."
    return next(filter(None, rules), nothing)


def _stalled(case: _Case) -> str:
    down = [x for x in case.mount.xprts if x.connected is False]
    if case.mount.waiting and case.mount.rpcs == 0:
        oldest = case.mount.waiting[0]
        why = "the connection is down" if down else "the server does not reply"
        return f"Stalled: {oldest.procedure} has waited for {oldest.seconds:.0f} s; {why}."
    return ""


def _idle(case: _Case) -> str:
    return "" if case.mount.rpcs else IDLE


def _credits(case: _Case) -> str:
    starved = case.mount.starved
    if not starved:
        return ""
    granted = starved[0].credits.granted
    return (
        f"Credits: all {granted} that the server grants are in use, and Calls wait. "
        "Raise svc_rdma.max_requests on the server, or mount with nconnect."
    )


def _slots(case: _Case) -> str:
    sends = sum(xprt.counters.get("sends", 0) for xprt in case.mount.xprts)
    # the length of the queue for slots, added up at each transmission (xprt_request_transmit)
    queue = sum(xprt.counters.get("bklog_u", 0) for xprt in case.mount.xprts)
    if sends < _FEW or queue / sends < _BACKLOG:
        return ""
    used = sum(xprt.requests for xprt in case.mount.xprts)
    slots = f"all {used} slots of its connections are" if used else "the slots are"
    kind = "rdma" if case.mount.transport != "tcp" else "tcp"
    return (
        f"Slots: {queue / sends:.2g} RPCs wait for a slot on average; {slots} in use. "
        f"Raise sunrpc.{kind}_{'max_' if kind == 'tcp' else ''}slot_table_entries, "
        "or mount with nconnect."
    )


def _thread(case: _Case) -> str:
    return _full_thread(case.processors, (case.mount.device,))


def _full_thread(processors: Processors, devices: tuple[str, ...]) -> str:
    """A thread that is full, of the kernel's NFS or of a program that uses one of ``devices``."""
    for thread in processors.threads or ():
        if thread.share < FULL:
            continue
        if thread.kernel and _OF_NFS.fullmatch(thread.name):
            hint = "" if thread.name == "nfsd" else " Try nconnect."
            return f"Thread: {_named(thread)} uses {thread.share:.0%} of {_place(thread)}.{hint}"
        if set(devices) & set(thread.devices or ()):
            return (
                f"Thread: {_named(thread)} uses {thread.share:.0%} of {_place(thread)}. "
                "Use more readers or writers, or O_DIRECT."
            )
    return ""


def _named(thread: Thread) -> str:
    if thread.kernel:
        return f"the kernel's {thread.name} (pid {thread.number})"
    tid = f", thread {thread.number}" if thread.number != thread.process else ""
    return f"{thread.name} (pid {thread.process}{tid})"


def _place(thread: Thread) -> str:
    return f"CPU {thread.cpu}" if thread.cpu >= 0 else "a CPU"


def _cpu(case: _Case) -> str:
    return _full_cpu(case.processors)


def _full_cpu(processors: Processors) -> str:
    """A CPU that is full and mostly works on interrupts, which no other CPU can take over."""
    for cpu in processors.busiest:
        if cpu.busy >= FULL and cpu.interrupts >= _MOST * cpu.busy:
            return (
                f"CPU: CPU {cpu.number} is {cpu.busy:.0%} busy, {cpu.interrupts:.0%} in "
                "interrupts (irq, softirq). Spread the interrupts of the card, or try nconnect."
            )
    return ""


def _host(case: _Case) -> str:
    return _full_host(case.processors)


def _full_host(processors: Processors) -> str:
    if processors.share < FULL:
        return ""
    most = max(processors.layers, key=lambda layer: layer.ns, default=None)
    where = f", most of it in {most.name}" if most else ""
    return f"CPU: {processors.share:.0%} of this host is busy{where}."


def _link(case: _Case) -> str:
    return _full_link(case.snapshot, (case.mount.read, case.mount.written))


def _full_link(snapshot: Snapshot, moved: tuple[int, int]) -> str:
    """A link that is full and carried at least what was ``moved``: bytes received and sent."""
    for link in snapshot.links:
        for verb, carried, least in (
            ("receives", link.received, moved[0]),
            ("sends", link.sent, moved[1]),
        ):
            share = _share(link, carried, snapshot.seconds)
            # another link carries what this one cannot have carried
            if share >= FULL and carried >= least > 0:
                return f"Link: {link.name} {verb} {share:.0%} of its {_rate(link.rate)}."
    return ""


def _share(link: Link, carried: int, seconds: float) -> float:
    return carried * 8 / (link.rate * seconds) if link.rate and seconds else 0.0


def _rate(bits: int) -> str:
    return f"{bits / 1e9:.3g} Gb/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mb/s"


def _full_disk(server: Server) -> str:
    for disk in server.disks:
        if disk.busy >= FULL and disk.in_flight >= FULL:
            threads = f" {_no_thread(server)}" if _no_thread(server) else ""
            return (
                f"Disk: {disk.name} ({disk.directory}) has requests in flight for "
                f"{disk.busy:.0%} of the time, {disk.in_flight:.2g} on average.{threads}"
            )
    return ""


def _no_thread(server: Server) -> str:
    waited = server.queued - server.woken
    if waited < _FEW or waited < _NO_THREAD * server.queued:
        return ""
    return (
        f"nfsd threads: {waited / server.queued:.0%} of the times that a connection had work, "
        f"all {server.threads} threads of nfsd were busy. Raise their number."
    )


def _hidden(case: _Case) -> str:
    return _unseen(case.processors)


def _unseen(processors: Processors) -> str:
    """A full thread of which nobody knows whether it works for NFS, or a full CPU without one."""
    for thread in processors.threads or ():
        if thread.share >= FULL and thread.devices is None and not _is_ksoftirqd(thread):
            return (
                f"Unknown: {_named(thread)} uses {thread.share:.0%} of {_place(thread)}; whether "
                f"it works for NFS is unknown{'' if thread.kernel else ' to this user: be root'}."
            )
    if processors.hidden >= FULL:
        return (
            f"Unknown: threads that ended, or are not visible here, use {processors.hidden:.1f} "
            "CPUs. Be root, and look from the host's pid namespace."
        )
    cpu = processors.busiest[0] if processors.busiest else None
    if cpu and cpu.tasks >= FULL and processors.threads is None:
        return f"Unknown: CPU {cpu.number} is {cpu.busy:.0%} busy; its threads are not read yet."
    return ""


def _is_ksoftirqd(thread: Thread) -> bool:
    # its time counts as interrupts of its CPU, which have a rule of their own
    return thread.kernel and thread.name.startswith("ksoftirqd/")


def _read_ahead(case: _Case) -> str:
    """The kernel reads one window ahead while the program waits for another: two are in flight."""
    mount, data = case.mount, case.data
    window = mount.read_ahead_kb * 1024 / mount.rsize if mount.rsize else 0.0
    reads = data is not None and data.name in _READS and mount.direct < mount.read / 2
    if not data or not reads or window >= _WINDOWS or case.in_flight < _MOST:
        return ""
    if data.execute_ms / 1000 / case.seconds > 2 * window + 1:
        return ""
    return (
        f"Read-ahead: {mount.read_ahead_kb} KiB is {window:.3g} READs of rsize, so only "
        f"{case.in_flight:.2g} are in flight ({_rtt(data)}). Try a larger window: "
        "nfsrdma sweep finds it, nfsrdma tune apply keeps it."
    )


def _queue(case: _Case) -> str:
    data = case.data
    if not data or data.queue_ms < _MOST * max(data.execute_ms, 1):
        return ""
    return (
        f"Queue: a {data.name} spends {data.queue_ms / data.execute_ms:.0%} of its time before "
        "transmission (it waits for a slot, a credit or the connection). Try nconnect."
    )


def _application(case: _Case) -> str:
    if case.data and case.in_flight < _MOST:
        return (
            f"Application: on average {case.in_flight:.2g} {case.data.name} is in flight; "
            "nothing that the mount uses on this host is full."
        )
    return ""


def _server(case: _Case) -> str:
    data = case.data
    if not data:
        slowest = max(case.mount.ops, key=lambda op: op.execute_ms)
        return f"Metadata: {slowest.name} takes most time ({_rtt(slowest)})."
    return (
        f"Network and server: {case.in_flight:.2g} {data.name} in flight ({_rtt(data)}), "
        "and nothing that the mount uses on this host is full."
    )


def _rtt(op: Op) -> str:
    return f"avg RTT {op.rtt_ms / max(op.count, 1):.3g} ms"


# what is full comes before those who wait for it: while a link is full, credits are used up, too
_RULES: tuple[Callable[[_Case], str], ...] = (
    _stalled,
    _idle,
    _thread,
    _cpu,
    _host,
    _link,
    _credits,
    _slots,
    _read_ahead,
    _queue,
    _hidden,
    _application,
    _server,
)
