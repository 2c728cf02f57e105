# SPDX-License-Identifier: Apache-2.0
"""A snapshot: the state of a host, and its counts in one interval.

Counts, bytes and times are those of the interval.  Times are in nanoseconds, or in milliseconds
(``_ms``) if the kernel counts milliseconds.  Histograms are sparse: pairs of a slot and a count.
All values are plain, so that a snapshot converts to JSON and back (snapshot_json.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from nfsrdma_tools.host.nfsd_status import PendingRpc

__all__ = [
    "FULL",
    "IDLE",
    "Ahead",
    "Chunks",
    "Client",
    "Connection",
    "Cpu",
    "Credits",
    "Disk",
    "Event",
    "Layer",
    "Link",
    "Mount",
    "Op",
    "Personality",
    "Port",
    "Processors",
    "Regions",
    "Server",
    "Snapshot",
    "Thread",
    "Timing",
    "Waiting",
    "Xprt",
    "connection_name",
    "connections",
    "xprt_groups",
]


@dataclass(frozen=True)
class Credits:
    """Credits of a connection: granted by the server, and in use."""

    granted: int = 0
    used: int = 0


@dataclass(frozen=True)
class Personality:
    """The personality of a transport of our module, "" while it is not connected.

    GAUGES and COUNTERS of host/nfs/personality.py; counters without zeros.
    """

    name: str = ""
    gauges: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Xprt:
    """A connection of a mount; ``number`` is sunrpc's, or -1 if the kernel reports none."""

    number: int = -1
    kind: str = ""
    address: str = ""
    states: tuple[str, ...] = ()
    connected: bool | None = None
    credits: Credits = Credits()
    requests: int = 0
    sending: int = 0
    pending: int = 0
    backlog: int = 0
    connects: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    """The columns of mountstats by the kernel's names, without zeros."""
    personality: Personality | None = None
    """None for users other than root, and for transports of other modules."""


Slots = tuple[tuple[int, int], ...]
IDLE = "Idle: no RPCs in this interval."
"""The bottleneck of a mount without completed and pending RPCs.

Mounts begin with it: most of a thousand mounts are idle, and the analysis copies none of those."""
FULL = 0.9
"""The share of its time, or of its rate, from which a thread, a CPU, a link or a disk is full.

It waits for others in the rest: a tenth of the interval.  Without any wait it would do 11 % more,
so whatever it waits for is not the bottleneck.  Ticks (10 ms or less in an interval of a second)
and headers that a link's counters leave out (7 % at an MTU of 1024) make the figure too small."""
_COUNTED = (
    *("ops", "timings", "chunks", "regions", "ahead"),
    *("read", "written", "direct", "credit_waits"),
)
_counted = itemgetter(*_COUNTED)


@dataclass(frozen=True)
class Op:
    """RPCs of one procedure, from mountstats."""

    name: str
    count: int = 0
    errors: int = 0
    timeouts: int = 0
    again: int = 0
    """Retransmissions."""
    sent: int = 0
    received: int = 0
    queue_ms: int = 0
    rtt_ms: int = 0
    execute_ms: int = 0


@dataclass(frozen=True)
class Timing:
    """RPCs of one procedure from the probe set latency: ns from start to end, and by PHASES."""

    procedure: str
    count: int = 0
    ns: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    times: Slots = ()
    """By the slots of slot_ns in probes/sets/latency.py."""


@dataclass(frozen=True)
class Chunks:
    """Messages of one procedure from the probe set chunks; ``sizes`` by kind of chunk."""

    procedure: str
    counts: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, Slots] = field(default_factory=dict)


@dataclass(frozen=True)
class Regions:
    """Memory regions, from the probe set registrations."""

    counts: dict[str, int] = field(default_factory=dict)
    lifetimes: Slots = ()


@dataclass(frozen=True)
class Ahead:
    """Read-ahead, from the probe set readahead."""

    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Waiting:
    """A pending RPC and its age in seconds."""

    procedure: str
    seconds: float
    waits_for: str
    client: int
    number: int


@dataclass(frozen=True)
class Mount:
    """An NFS superblock: mount points that share it are one Mount."""

    device: str
    directory: str
    also: tuple[str, ...] = ()
    target: str = ""
    fstype: str = "nfs"
    transport: str = ""
    asked: str = ""
    """The transport that fstab, a mount unit or the port in the mount's options requests, or ""."""
    vers: str = ""
    rsize: int = 0
    wsize: int = 0
    nconnect: int = 1
    read_ahead_kb: int = 0
    read: int = 0
    """Bytes read from the server."""
    written: int = 0
    """Bytes written to the server."""
    direct: int = 0
    """Bytes that programs read or wrote with O_DIRECT."""
    ops: tuple[Op, ...] = ()
    xprts: tuple[Xprt, ...] = ()
    timings: tuple[Timing, ...] = ()
    chunks: tuple[Chunks, ...] = ()
    regions: Regions | None = None
    ahead: Ahead | None = None
    credit_waits: int = 0
    """Calls of its client, on all connections, that waited for a credit (probe set connections)."""
    waiting: tuple[Waiting, ...] = ()
    """The oldest pending RPCs."""
    limit: str = ""
    """The bottleneck in this interval, in one sentence (analyze/bottleneck.py)."""

    @property
    def has_another(self) -> bool:
        """Whether it uses another transport than requested; our module counts as "rdma"."""
        effective = "rdma" if self.transport == "nfsrdma" else self.transport
        return self.asked not in ("", effective)

    @property
    def did_something(self) -> bool:
        """Whether it has counts, apart from its connections, which other mounts may share."""
        # runs for each mount in each interval: access to attributes takes five times as long
        return any(_counted(vars(self)))

    @property
    def starved(self) -> tuple[Xprt, ...]:
        """Connections on which Calls wait for a credit; all with credits if none is full now."""
        with_credits = tuple(x for x in self.xprts if x.credits.granted)
        full = tuple(x for x in with_credits if x.credits.used >= x.credits.granted)
        sending = tuple(x for x in full if x.sending)
        return (full or with_credits) if self.credit_waits else sending

    @property
    def rpcs(self) -> int:
        """Completed RPCs of all procedures."""
        return sum(op.count for op in self.ops)

    @property
    def mean_ms(self) -> float:
        """Average time of an RPC from start to end (nfsiostat's exe), in milliseconds."""
        return sum(op.execute_ms for op in self.ops) / self.rpcs if self.rpcs else 0.0


@dataclass(frozen=True)
class Client:
    """A client of this server and a procedure, from the probe set server."""

    peer: str
    procedure: str
    counts: dict[str, int] = field(default_factory=dict)
    """COUNTS of probes/sets/server.py, of nfsd; THREADLESS of the READs that nfsd did not get."""
    ns: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    times: Slots = ()

    @property
    def answered(self) -> int:
        """Calls that nfsd or module nfsrdma answered."""
        return self.counts.get("calls", 0) + self.counts.get("threadless_hits", 0)

    @property
    def read(self) -> int:
        """Bytes that the client got by RDMA Write, and those of threadless reads."""
        return self.counts.get("written", 0) + self.counts.get("threadless_bytes", 0)

    @property
    def means(self) -> dict[str, float]:
        """Nanoseconds of each phase: per Call, and "send" per completed Send."""
        calls, sends = (self.counts.get(name, 0) for name in ("calls", "sends"))
        times = {name: sends if name == "send" else calls for name in self.phases}
        return {name: ns / times[name] for name, ns in self.phases.items() if times[name]}


@dataclass(frozen=True)
class Disk:
    """A block device below an export: shares of the interval, and the requests that ended."""

    name: str
    directory: str
    busy: float = 0.0
    """The share of time with requests in flight, 0 to 1."""
    in_flight: float = 0.0
    """The average number of requests in flight."""
    requests: int = 0


@dataclass(frozen=True)
class Server:
    """nfsd: its own counters, and its clients from probes."""

    threads: int = 0
    listeners: tuple[str, ...] = ()
    read: int = 0
    written: int = 0
    calls: int = 0
    bad_calls: int = 0
    clients: tuple[Client, ...] = ()
    exposed: int | None = None
    """Bytes of Replies that clients may read (personality read-read); None without our module."""
    dones_outstanding: int | None = None
    """Replies that clients may read until they send an RDMA_DONE; None likewise."""
    lanes: int | None = None
    """Lanes of clients (personality pre-posted); None likewise."""
    granted: int | None = None
    """Bytes of the page cache that clients may read (personality optimistic); None likewise."""
    grants: dict[str, int] = field(default_factory=dict)
    """GRANTS of probes/sets/server.py, without zeros."""
    threadless: dict[str, int] = field(default_factory=dict)
    """READs that module nfsrdma answered without nfsd (``hits``), their ``bytes``, and those that
    nfsd got after all, by reason (``missed_REASON``); without zeros.  ``read`` and ``calls`` do not
    have the hits.  Empty for users other than root."""
    queued: int = 0
    """Times that a connection with work was queued for a thread (pool_stats)."""
    woken: int = 0
    """Times that an idle thread was woken for one."""
    disks: tuple[Disk, ...] = ()
    """The busiest devices below its exports."""
    limit: str = ""
    """The bottleneck of the server in this interval, in one sentence (analyze/bottleneck.py)."""
    pending: int | None = None
    """The RPCs that threads of nfsd work on; None if that is unknown."""
    held: tuple[PendingRpc, ...] = ()
    """Those that nfsd has had for a second or longer, the oldest ones first."""

    @property
    def answered(self) -> int:
        """Calls that nfsd received, and READs that module nfsrdma answered without it."""
        return self.calls + self.threadless.get("hits", 0)

    def busiest(self, most: int) -> tuple[Client, ...]:
        """At most that many rows of clients, those with the longest time first."""
        return tuple(heapq.nlargest(most, self.clients, key=lambda row: row.ns))

    @property
    def read_in_all(self) -> int:
        """Bytes that nfsd read from files, and those of threadless reads."""
        return self.read + self.threadless.get("bytes", 0)


@dataclass(frozen=True)
class Layer:
    """CPU time in a layer, in ns: for NFS clients, for the server, for neither."""

    name: str
    client: int = 0
    server: int = 0
    neither: int = 0

    @property
    def ns(self) -> int:
        """The sum."""
        return self.client + self.server + self.neither


@dataclass(frozen=True)
class Cpu:
    """A CPU: shares of the interval, 0 to 1.  ``stolen`` by the hypervisor."""

    number: int
    busy: float = 0.0
    interrupts: float = 0.0
    stolen: float = 0.0

    @property
    def tasks(self) -> float:
        """The share in which threads ran."""
        return max(self.busy - self.interrupts - self.stolen, 0.0)


@dataclass(frozen=True)
class Thread:
    """A thread: its process and number, its share of one CPU, and the CPU on which it ran last."""

    name: str
    process: int
    number: int
    share: float
    cpu: int = -1
    kernel: bool = False
    """Whether it is a thread of the kernel."""
    devices: tuple[str, ...] | None = None
    """NFS mounts (Mount.device) of which its process uses files; None if that is unknown."""


@dataclass(frozen=True)
class Processors:
    """CPU time of the host.

    ``layers`` cover a longer interval of ``layers_ns`` wall time.  They are ``fresh`` if it ended
    in this interval, else they repeat.
    """

    cpus: int = 1
    wall_ns: int = 0
    busy_ns: int = 0
    layers_ns: int = 0
    layers: tuple[Layer, ...] = ()
    fresh: bool = False
    busiest: tuple[Cpu, ...] = ()
    """The busiest CPUs, the busiest one first."""
    threads: tuple[Thread, ...] | None = None
    """The busiest threads, the busiest one first; None if the sampler did not read them."""
    hidden: float = 0.0
    """CPUs' worth of thread time that belongs to no visible thread."""

    @property
    def share(self) -> float:
        """The busy share of all CPUs, 0 to 1."""
        return self.busy_ns / (self.wall_ns * self.cpus) if self.wall_ns else 0.0


@dataclass(frozen=True)
class Port:
    """An RDMA port."""

    name: str
    netdev: str = ""
    state: str = ""
    physical: str = ""

    @property
    def active(self) -> bool:
        """Whether the port can transfer data."""
        return self.state == "ACTIVE"


@dataclass(frozen=True)
class Link:
    """A port or network device that is busy: its rate in bits per second, bytes in the interval."""

    name: str
    rate: int
    received: int = 0
    sent: int = 0


@dataclass(frozen=True)
class Event:
    """An event: its mount, port or server, a description, and what to do."""

    time: float
    kind: str
    where: str
    what: str
    advice: str = ""
    severity: str = "note"
    """"note", "warning" or "error"."""


@dataclass(frozen=True)
class Snapshot:
    """An interval of ``seconds`` that ended at ``time``, in seconds of the epoch."""

    time: float
    seconds: float
    number: int = 0
    host: str = ""
    kernel: str = ""
    mounts: tuple[Mount, ...] = ()
    server: Server | None = None
    processors: Processors = Processors()
    ports: tuple[Port, ...] = ()
    events: tuple[Event, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    """The unavailable sources of metrics, and the reason."""
    lost: dict[str, int] = field(default_factory=dict)
    """Numbers of RPCs (probes/maps.py), events and CPU samples that probes could not count."""
    cost_ns: int = 0
    """CPU time of this process for the snapshot."""
    links: tuple[Link, ...] = ()
    """The links that carry half of their rate or more."""


class Connection(NamedTuple):
    """A connection and its labels: name and transport."""

    labels: tuple[str, str]
    xprt: Xprt
    unnumbered: str
    """Its name before the kernel reported its number."""


def xprt_groups(mounts: Iterable[Mount]) -> dict[int, tuple[Xprt, ...]]:
    """The connections of mounts by the object id of their tuple."""
    return {id(mount.xprts): mount.xprts for mount in mounts}


def connections(mounts: Iterable[Mount]) -> Iterator[Connection]:
    """Each connection once, however many mounts share it."""
    seen = set[tuple[str, str]]()
    for mount in {id(mount.xprts): mount for mount in mounts}.values():
        for index, xprt in enumerate(mount.xprts):
            labels = connection_name(mount, index), mount.transport
            # read from a recording, mounts have equal tuples, but not the same one
            if labels not in seen:
                seen.add(labels)
                yield Connection(labels, xprt, _unnumbered(mount, index))


def connection_name(mount: Mount, index: int) -> str:
    """The number of a mount's connection; device and index if the kernel reports no number."""
    number = mount.xprts[index].number
    return _unnumbered(mount, index) if number < 0 else str(number)


def _unnumbered(mount: Mount, index: int) -> str:
    return f"{mount.device} {index}"
