# SPDX-License-Identifier: Apache-2.0
"""One interval of a host, as all faces show it: what is, and what was done since the last one.

Counts, bytes and times are those of the interval; times are in nanoseconds or, where the kernel
counts them so, in milliseconds (``_ms``).  Histograms are sparse: pairs of a slot and a count.
Everything is plain values, so a snapshot goes to JSON and comes back as it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter

__all__ = [
    "Ahead", "Chunks", "Client", "Credits", "Event", "Layer", "Mount", "Op", "Port", "Processors",
    "Regions", "Server", "Snapshot", "Timing", "Waiting", "Xprt",
]  # fmt: skip

Slots = tuple[tuple[int, int], ...]
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
    """Transmissions beyond the first."""
    sent: int = 0
    received: int = 0
    queue_ms: int = 0
    rtt_ms: int = 0
    execute_ms: int = 0


@dataclass(frozen=True)
class Timing:
    """RPCs of one procedure, from the account "latency": ns in all and by its PHASES."""

    procedure: str
    count: int = 0
    ns: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    times: Slots = ()
    """By the slots of probes/sets/latency.py (slot_ns)."""


@dataclass(frozen=True)
class Chunks:
    """Messages of one procedure, from the account "chunks"; ``sizes`` by kind of chunk."""

    procedure: str
    counts: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, Slots] = field(default_factory=dict)


@dataclass(frozen=True)
class Regions:
    """Memory regions, from the account "registrations"."""

    counts: dict[str, int] = field(default_factory=dict)
    lifetimes: Slots = ()


@dataclass(frozen=True)
class Ahead:
    """Pages read ahead, from the account "readahead"."""

    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Credits:
    """Of a connection: granted by the server, and in use now."""

    granted: int = 0
    used: int = 0


@dataclass(frozen=True)
class Xprt:
    """A connection of a mount; ``number`` is sunrpc's, -1 where it does not say."""

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
    """What mountstats has, by the kernel's names; those that are 0 are left out."""


@dataclass(frozen=True)
class Waiting:
    """An RPC that is not done, seen for so many seconds."""

    procedure: str
    seconds: float
    waits_for: str
    client: int
    number: int


@dataclass(frozen=True)
class Mount:
    """A superblock of NFS: mount points that share it are one."""

    device: str
    directory: str
    also: tuple[str, ...] = ()
    target: str = ""
    fstype: str = "nfs"
    transport: str = ""
    asked: str = ""
    """The transport fstab asks for; "" when it says nothing of this mount."""
    vers: str = ""
    rsize: int = 0
    wsize: int = 0
    nconnect: int = 1
    read_ahead_kb: int = 0
    read: int = 0
    """Bytes that came from the server."""
    written: int = 0
    """Bytes that went to the server."""
    direct: int = 0
    """Bytes that programs read or wrote with O_DIRECT."""
    ops: tuple[Op, ...] = ()
    xprts: tuple[Xprt, ...] = ()
    timings: tuple[Timing, ...] = ()
    chunks: tuple[Chunks, ...] = ()
    regions: Regions | None = None
    ahead: Ahead | None = None
    credit_waits: int = 0
    """Calls of its client, over all connections, that found no credit (account "connections")."""
    waiting: tuple[Waiting, ...] = ()
    """The oldest RPCs under way."""
    limit: str = ""
    """In a sentence, what limits it now."""

    @property
    def has_another(self) -> bool:
        """Whether it has another transport than fstab asks for, to which ours is "rdma"."""
        found = "rdma" if self.transport == "nfsrdma" else self.transport
        return self.asked not in ("", found)

    @property
    def did_something(self) -> bool:
        """Whether anything was counted of it, besides its connections, which others may use."""
        # asked of each mount in each interval: attributes take five times as long
        return any(_counted(vars(self)))

    @property
    def starved(self) -> tuple[Xprt, ...]:
        """Connections that Calls wait for a credit of; all with credits if none is full now."""
        with_credits = tuple(x for x in self.xprts if x.credits.granted)
        full = tuple(x for x in with_credits if x.credits.used >= x.credits.granted)
        sending = tuple(x for x in full if x.sending)
        return (full or with_credits) if self.credit_waits else sending

    @property
    def rpcs(self) -> int:
        """RPCs done, of all procedures."""
        return sum(op.count for op in self.ops)

    @property
    def mean_ms(self) -> float:
        """Milliseconds that an RPC took, on average."""
        return sum(op.execute_ms for op in self.ops) / self.rpcs if self.rpcs else 0.0


@dataclass(frozen=True)
class Client:
    """A client of this server and a procedure, from the account "server"."""

    peer: str
    procedure: str
    counts: dict[str, int] = field(default_factory=dict)
    ns: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    times: Slots = ()

    @property
    def means(self) -> dict[str, float]:
        """Nanoseconds of each phase: per Call, and "send" per Send that was completed."""
        calls, sends = (self.counts.get(name, 0) for name in ("calls", "sends"))
        each = {name: sends if name == "send" else calls for name in self.phases}
        return {name: ns / each[name] for name, ns in self.phases.items() if each[name]}


@dataclass(frozen=True)
class Server:
    """nfsd, if it runs: its own counters, and its clients where probes tell."""

    threads: int = 0
    listeners: tuple[str, ...] = ()
    read: int = 0
    written: int = 0
    calls: int = 0
    bad_calls: int = 0
    clients: tuple[Client, ...] = ()


@dataclass(frozen=True)
class Layer:
    """CPU time in a layer, ns: for NFS clients, for the server, for neither."""

    name: str
    client: int = 0
    server: int = 0
    neither: int = 0

    @property
    def ns(self) -> int:
        """All of it."""
        return self.client + self.server + self.neither


@dataclass(frozen=True)
class Processors:
    """CPU time of the host.

    ``layers`` are of a time of their own, ``layers_ns`` of the clock, and ``fresh`` when that ended
    in this interval; else they are those of the last time.
    """

    cpus: int = 1
    wall_ns: int = 0
    busy_ns: int = 0
    layers_ns: int = 0
    layers: tuple[Layer, ...] = ()
    fresh: bool = False

    @property
    def share(self) -> float:
        """Busy, of all CPUs: 0 to 1."""
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
        """Whether it can carry data."""
        return self.state == "ACTIVE"


@dataclass(frozen=True)
class Event:
    """Something that happened: what is known of it, and what to do."""

    time: float
    kind: str
    where: str
    what: str
    advice: str = ""
    severity: str = "note"
    """"note", "warning" or "error"."""


@dataclass(frozen=True)
class Snapshot:
    """An interval of ``seconds`` that ended at ``time`` (of the epoch)."""

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
    """What cannot be seen here, and why."""
    lost: dict[str, int] = field(default_factory=dict)
    """What probes could not count in this interval: probes/losses.py, "events", CPU "samples"."""
    cost_ns: int = 0
    """CPU time that taking it cost, of this process."""
