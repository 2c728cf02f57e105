# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics (families.py) from snapshots: a scrape does not read the host.

Series end with their mount or port, and those of a client or an event after some time without
a count.  Servers, paths and users choose labels, so the length of a label and the number of series
have limits.  Needs prometheus-client.
"""

from __future__ import annotations

import platform
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from nfsrdma_tools import __version__
from nfsrdma_tools.host.nfs.personality import GAUGES
from nfsrdma_tools.live.prometheus.families import (
    COLUMNS,
    FAMILIES,
    MOST_SERIES,
    NAMES,
    PERSONALITY,
)
from nfsrdma_tools.live.prometheus.labels import Labels, cleaned
from nfsrdma_tools.live.snapshot import (
    Chunks,
    Client,
    Mount,
    Op,
    Server,
    Slots,
    Snapshot,
    Xprt,
    connection_name,
    connections,
)
from nfsrdma_tools.probes.maps import IDLE
from nfsrdma_tools.probes.sets.latency import slot_ns

__all__ = ["Metrics"]

_Value = tuple[str, float, Labels]
"""The name of a metric, the value of a series, and its labels."""
_OPS = {
    "nfsrdma_rpc_requests_total": ("count", 1.0),
    "nfsrdma_rpc_errors_total": ("errors", 1.0),
    "nfsrdma_rpc_timeouts_total": ("timeouts", 1.0),
    "nfsrdma_rpc_retransmissions_total": ("again", 1.0),
    "nfsrdma_rpc_sent_bytes_total": ("sent", 1.0),
    "nfsrdma_rpc_received_bytes_total": ("received", 1.0),
    "nfsrdma_rpc_queue_seconds_total": ("queue_ms", 1e-3),
    "nfsrdma_rpc_response_seconds_total": ("rtt_ms", 1e-3),
    "nfsrdma_rpc_execute_seconds_total": ("execute_ms", 1e-3),
}
_BUILD_INFO = ("nfsrdma_build_info", 1.0, (__version__, platform.python_version()))
_WAYS = ("calls_", "replies_", "reply_unused")
_FINE, _MICRO, _COARSE, _SIZES = "fine", "microseconds", "1024 ns", "bytes"
# the upper bounds of a histogram's slots, by the kind of slots
_EDGES: dict[str, Callable[[int], float]] = {
    _FINE: lambda slot: slot_ns(slot)[1] / 1e9,
    _MICRO: lambda slot: (1 << slot) / 1e6,
    _COARSE: lambda slot: (1 << slot) * 1024 / 1e9,
    _SIZES: lambda slot: float((1 << slot) - 1),
}
# series end with these first labels of theirs; the name of the first, and how many there are
_ENDING = {"mount": 2, "client": 1, "kind": 2}
_MOST_OF_MOUNT = 4
"""Gauges of a mount, not counting one per connection."""
_MOST_OF_XPRT = 8 + len(GAUGES) + 1 + len(COLUMNS) + len(PERSONALITY)
"""Gauges of a connection, and its counters."""
_LAST = {_FINE: 107, _MICRO: 24, _COARSE: 24, _SIZES: 24}


class _Histogram:
    """Counts by slot, and the sum of all observations."""

    def __init__(self, slots: str) -> None:
        self.slots, self.sum = slots, 0.0
        self.counts: dict[int, int] = {}

    @property
    def series(self) -> int:
        """Its number of series: buckets, sum and count."""
        return _series_of(self.slots)

    def add(self, slots: Slots, total: float) -> None:
        self.sum += total
        for slot, count in slots:
            self.counts[slot] = self.counts.get(slot, 0) + count

    def buckets(self) -> list[tuple[str, float]]:
        # one bucket per power of two: four would be too many series
        step = 4 if self.slots == _FINE else 1
        ends = range(step - 1, _LAST[self.slots] + 1, step)
        get = self.counts.get
        sums = [sum(get(slot, 0) for slot in range(end - step + 1, end + 1)) for end in ends]
        edge = _EDGES[self.slots]
        finite = [
            (repr(edge(end)), float(n)) for end, n in zip(ends, accumulate(sums), strict=True)
        ]
        return [*finite, ("+Inf", float(sum(self.counts.values())))]


def _series_of(slots: str) -> int:
    return (_LAST[slots] + 1) // (4 if slots == _FINE else 1) + 3


class Metrics:
    """The metrics of ``collectors``: ``add`` each snapshot, ``text`` answers a scrape.

    There are at most ``most`` series, not counting those that describe the exporter.  Those of the
    newest snapshot have precedence over counters and histograms, and older ones over newer ones.
    ``source`` is the file that lists the mounts, and its mount namespace.
    """

    def __init__(
        self,
        collectors: Iterable[str] = NAMES,
        most: int = MOST_SERIES,
        source: tuple[str, str] | None = None,
    ) -> None:
        wanted = {*collectors, ""}
        self._wanted = {name for name, family in FAMILIES.items() if family.collector in wanted}
        self._lock = threading.Lock()
        self._counters: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
        self._connections = _ConnectionTotals()
        self._last: Snapshot | None = None
        self._histograms: defaultdict[str, dict[Labels, _Histogram]] = defaultdict(dict)
        self._mounts: set[Labels] = set()
        # of the snapshots: the time of day may be set meanwhile
        self._elapsed = 0.0
        # when a client or an event was last counted, by the first labels of its series
        self._counted: dict[str, dict[Labels, float]] = {"client": {}, "kind": {}}
        self._most, self._source = most, source
        # series of the newest snapshot, at most; those of counters and histograms
        self._reserved = self._counting = 0
        self._dropped = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics and their content type, in the format that ``accept`` prefers."""
        encode, kind = choose_encoder(accept)
        return encode(self._registry), kind

    def collect(self) -> Iterator[Metric]:
        """All families that have series, for prometheus-client."""
        with self._lock:
            last = self._last
            now: list[_Value] = [_BUILD_INFO]
            if self._source:
                now.append(("nfsrdma_mount_namespace_info", 1, self._source))
            if last:
                now += self._of_snapshot(last)
                now.append(("nfsrdma_series_dropped_total", self._dropped, ()))
            counters = [(name, rows.items()) for name, rows in self._counters.items()]
            families = [_family(name, rows) for name, rows in (*counters, *_by_name(now))]
            yield from [*families, *map(self._histogram, self._histograms)]

    def add(self, snapshot: Snapshot) -> None:
        """Add the counts of a snapshot; gauges show the newest snapshot."""
        with self._lock:
            self._last = snapshot
            self._connections.add(snapshot)
            self._elapsed += snapshot.seconds
            self._reserved = self._upper_bound(snapshot)
            before, self._mounts = self._mounts, {*map(_own, snapshot.mounts)}
            self._remove("mount", before - self._mounts)
            for kind in self._counted:
                self._remove(kind, self._idle(kind))
            for mount in snapshot.mounts:
                if mount.did_something or _own(mount) not in before:
                    self._mount(mount)
            if snapshot.server:
                self._server(snapshot.server)
            self._host(snapshot)

    def _of_snapshot(self, snapshot: Snapshot) -> list[_Value]:
        """The series of the newest snapshot that have room; counts the others."""
        series = [*_gauges(snapshot), *self._connections.counters()]
        own = [value for value in series if not FAMILIES[value[0]].collector]
        others = [
            value for value in series if value[0] in self._wanted and FAMILIES[value[0]].collector
        ]
        room = max(self._most - self._counting, 0)
        self._dropped += max(len(others) - room, 0)
        return own + others[:room]

    def _upper_bound(self, snapshot: Snapshot) -> int:
        """The most series that ``_of_snapshot`` has; counting them takes longer."""
        mounts = [_MOST_OF_MOUNT + len(mount.xprts) for mount in snapshot.mounts]
        xprts = len(self._connections) * _MOST_OF_XPRT
        return (
            sum(mounts) * ("nfsrdma_mount_info" in self._wanted)
            + xprts * ("nfsrdma_xprt_info" in self._wanted)
            + len(snapshot.ports)
        )

    def _has_room(self, name: str, series: int) -> bool:
        """Whether there is room for a new counter or histogram; counts it if there is none."""
        if not FAMILIES[name].collector:
            return True
        if self._reserved + self._counting + series > self._most:
            self._dropped += 1
            return False
        self._counting += series
        return True

    def _idle(self, kind: str) -> set[Labels]:
        counted = self._counted[kind]
        idle = {key for key, last in counted.items() if self._elapsed - last >= IDLE}
        for key in idle:
            del counted[key]
        return idle

    def _remove(self, kind: str, keys: Collection[Labels]) -> None:
        """Remove all series that begin with these labels, the first of which is named ``kind``."""
        width = _ENDING[kind]
        for name, family in FAMILIES.items() if keys else ():
            if family.labels[:1] == (kind,):
                for rows in (self._counters.get(name, {}), self._histograms.get(name, {})):
                    for labels in [labels for labels in rows if labels[:width] in keys]:
                        self._counting -= getattr(rows.pop(labels), "series", 1)

    def _count(self, name: str, amount: float, *labels: str) -> None:
        if name not in self._wanted:
            return
        counter, key = self._counters[name], cleaned(labels)
        if key in counter or self._has_room(name, 1):
            counter[key] = counter.get(key, 0) + amount

    def _time(self, name: str, kind: str, slots: Slots, total: float, *labels: str) -> None:
        if name not in self._wanted:
            return
        histograms, key = self._histograms[name], cleaned(labels)
        if key not in histograms:
            if not self._has_room(name, _series_of(kind)):
                return
            histograms[key] = _Histogram(kind)
        histograms[key].add(slots, total)

    def _mount(self, mount: Mount) -> None:
        own = _own(mount)
        self._count("nfsrdma_mount_read_bytes_total", mount.read, *own)
        self._count("nfsrdma_mount_written_bytes_total", mount.written, *own)
        if any(x.credits.granted for x in mount.xprts):
            self._count("nfsrdma_mount_credit_waits_total", mount.credit_waits, *own)
        for op in mount.ops:
            self._op(op, own)
        self._probed(mount, own)

    def _op(self, op: Op, own: Labels) -> None:
        for name, (field, scale) in _OPS.items():
            self._count(name, getattr(op, field) * scale, *own, op.name)

    def _probed(self, mount: Mount, own: Labels) -> None:
        for timing in mount.timings:
            labels = (*own, timing.procedure)
            self._time(
                "nfsrdma_rpc_duration_seconds", _FINE, timing.times, timing.ns / 1e9, *labels
            )
            for phase, ns in timing.phases.items():
                self._count("nfsrdma_rpc_phase_seconds_total", ns / 1e9, *labels, phase)
        self._chunks(mount.chunks, own)
        if mount.regions:
            self._regions(mount.regions.counts, mount.regions.lifetimes, own)
        for kind, pages in (mount.ahead.counts if mount.ahead else {}).items():
            self._count("nfsrdma_read_ahead_pages_total", pages, *own, kind)

    def _chunks(self, rows: Iterable[Chunks], own: Labels) -> None:
        for row in rows:
            for name, count in row.counts.items():
                if name.startswith(_WAYS):
                    self._count("nfsrdma_messages_total", count, *own, row.procedure, name)
            for kind, slots in row.sizes.items():
                total = row.counts.get(f"{kind}_bytes", 0)
                labels = (*own, row.procedure, kind)
                self._time("nfsrdma_chunk_size_bytes", _SIZES, slots, total, *labels)

    def _regions(self, counts: dict[str, int], lifetimes: Slots, own: Labels) -> None:
        for kind in ("mapped", "registered", "local_invalidations", "remote_invalidations",
                     "unmapped", "reused"):  # fmt: skip
            self._count("nfsrdma_regions_total", counts.get(kind, 0), *own, kind)
        spent = counts.get("lifetime_ns", 0) / 1e9
        self._time("nfsrdma_region_lifetime_seconds", _MICRO, lifetimes, spent, *own)

    def _server(self, server: Server) -> None:
        for name, value in (("read_bytes", server.read), ("written_bytes", server.written),
                            ("calls", server.calls), ("bad_calls", server.bad_calls)):  # fmt: skip
            self._count(f"nfsrdma_server_{name}_total", value)
        for name, count in server.grants.items():
            if name == "grants":
                self._count("nfsrdma_server_grants_total", count)
            elif reason := name.partition("revoked_")[2]:
                self._count("nfsrdma_server_revocations_total", count, reason)
        for name, count in server.threadless.items():
            if reason := name.partition("missed_")[2]:
                self._count("nfsrdma_server_threadless_missed_total", count, reason)
            else:
                kind = "reads" if name == "hits" else "read_bytes"
                self._count(f"nfsrdma_server_threadless_{kind}_total", count)
        for client in server.clients:
            self._client(client, (client.peer, client.procedure))

    def _client(self, client: Client, own: Labels) -> None:
        counts = client.counts
        self._counted["client"][cleaned(own[:1])] = self._elapsed
        self._count("nfsrdma_server_client_calls_total", counts.get("calls", 0), *own)
        self._count("nfsrdma_server_client_sends_total", counts.get("sends", 0), *own)
        for direction, name in (("fetched", "read_bytes"), ("written", "written")):
            moved = counts.get(name, 0)
            self._count("nfsrdma_server_client_bytes_total", moved, *own, direction)
        spent, op = client.ns / 1e9, own[1]
        self._count("nfsrdma_server_client_seconds_total", spent, *own)
        # of all clients: a histogram for each would have three quarters of all series
        self._time("nfsrdma_server_call_duration_seconds", _COARSE, client.times, spent, op)
        for phase, ns in client.phases.items():
            self._count("nfsrdma_server_phase_seconds_total", ns / 1e9, *own, phase)

    def _host(self, snapshot: Snapshot) -> None:
        cpu = snapshot.processors
        self._count("nfsrdma_cpu_busy_seconds_total", cpu.busy_ns / 1e9)
        for layer in cpu.layers if cpu.fresh else ():
            for side in ("client", "server", "neither"):
                spent = getattr(layer, side) / 1e9
                self._count("nfsrdma_cpu_layer_seconds_total", spent, layer.name, side)
        for event in snapshot.events:
            self._counted["kind"][cleaned((event.kind, event.where))] = self._elapsed
            self._count("nfsrdma_events_total", 1, event.kind, event.where)
        for kind, count in snapshot.lost.items():
            self._count("nfsrdma_probes_lost_total", count, kind)
        self._count("nfsrdma_sampler_snapshots_total", 1)
        self._count("nfsrdma_sampler_cpu_seconds_total", snapshot.cost_ns / 1e9)

    def _histogram(self, name: str) -> Metric:
        family = FAMILIES[name]
        metric = HistogramMetricFamily(name, family.help, labels=family.labels)
        for labels, histogram in sorted(self._histograms[name].items()):
            metric.add_metric(labels, histogram.buckets(), histogram.sum)
        return metric


def _own(mount: Mount) -> Labels:
    return cleaned((mount.directory, mount.transport))


def _by_name(
    values: Iterable[tuple[str, float, Labels]],
) -> Iterable[tuple[str, Iterable[tuple[Labels, float]]]]:
    by_name: dict[str, dict[Labels, float]] = {}
    for name, value, labels in values:
        by_name.setdefault(name, {})[cleaned(labels)] = value
    return ((name, rows.items()) for name, rows in by_name.items())


def _family(name: str, rows: Iterable[tuple[Labels, float]]) -> Metric:
    family = FAMILIES[name]
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(name, family.help, labels=family.labels)
    for labels, value in sorted(rows):
        metric.add_metric(labels, float(value))
    return metric


class _ConnectionTotals:
    """Totals of the connections in the newest snapshot: ``add`` each snapshot."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], Counter[str]] = {}

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, snapshot: Snapshot) -> None:
        """Add the counts of a snapshot; drop connections that are not in it."""
        before, self._sums = self._sums, {}
        for connection in connections(snapshot.mounts):
            # the snapshot before may not have had its number
            sums = before.get(connection.labels) or before.get(
                (connection.unnumbered, connection.labels[1])
            )
            self._sums[connection.labels] = _added(sums or Counter(connects=0), connection.xprt)

    def counters(self) -> Iterator[tuple[str, float, tuple[str, str]]]:
        """The name, value and labels of each series (families.py)."""
        for labels, sums in self._sums.items():
            for counter, value in sums.items():
                yield f"nfsrdma_xprt_{counter}_total", value, labels


def _added(sums: Counter[str], xprt: Xprt) -> Counter[str]:
    sums["connects"] += xprt.connects
    for column, value in xprt.counters.items():
        if column in COLUMNS:
            sums[COLUMNS[column].name] += value
    for name, value in (xprt.personality.counters if xprt.personality else {}).items():
        sums[name] += value
    return sums


def _gauges(snapshot: Snapshot) -> Iterator[_Value]:
    """The name, value and labels of each series (families.py)."""
    for mount in snapshot.mounts:
        yield from _mount(mount)
    for connection in connections(snapshot.mounts):
        yield from _xprt(connection.xprt, connection.labels)
    if snapshot.server:
        yield from _server(snapshot.server)
    for port in snapshot.ports:
        yield "nfsrdma_port_active", port.active, (port.name, port.netdev)
    for metric in snapshot.missing:
        yield "nfsrdma_missing", 1, (metric,)
    yield "nfsrdma_sampler_last_snapshot_timestamp_seconds", snapshot.time, ()


def _server(server: Server) -> Iterator[_Value]:
    yield "nfsrdma_server_threads", server.threads, ()
    for gauge, value in (
        ("exposed_bytes", server.exposed),
        ("dones_outstanding", server.dones_outstanding),
        ("lanes", server.lanes),
        ("granted_bytes", server.granted),
    ):
        if value is not None:
            yield f"nfsrdma_server_{gauge}", value, ()


def _mount(mount: Mount) -> Iterator[_Value]:
    own = (mount.directory, mount.transport)
    sizes = map(str, (mount.rsize, mount.wsize, mount.nconnect))
    yield "nfsrdma_mount_info", 1, (*own, mount.target, mount.vers, *sizes)
    yield "nfsrdma_mount_read_ahead_bytes", mount.read_ahead_kb * 1024, own
    oldest = max((rpc.seconds for rpc in mount.waiting), default=0.0)
    yield "nfsrdma_mount_oldest_rpc_seconds", oldest, own
    if mount.asked:
        yield "nfsrdma_mount_other_transport", mount.has_another, (*own, mount.asked)
    for index in range(len(mount.xprts)):
        yield "nfsrdma_mount_xprt_info", 1, (*own, connection_name(mount, index))


def _xprt(xprt: Xprt, own: Labels) -> Iterator[_Value]:
    yield "nfsrdma_xprt_info", 1, (*own, xprt.address)
    if xprt.connected is not None:
        yield "nfsrdma_xprt_connected", xprt.connected, own
        for queue in ("requests", "pending", "backlog"):
            yield f"nfsrdma_xprt_{queue}", getattr(xprt, queue), own
    if xprt.credits.granted:
        yield "nfsrdma_xprt_credits", xprt.credits.granted, own
        yield "nfsrdma_xprt_credits_used", xprt.credits.used, own
    if xprt.personality:
        yield "nfsrdma_xprt_personality_info", 1, (*own, xprt.personality.name)
        for gauge, value in xprt.personality.gauges.items():
            yield f"nfsrdma_xprt_{gauge}", value, own
