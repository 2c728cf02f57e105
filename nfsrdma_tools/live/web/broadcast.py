# SPDX-License-Identifier: Apache-2.0
"""Frames of the page, from the sampler's thread to the browsers: the newest, and the last hour.

A snapshot becomes a frame of sums for the charts, and the state for the tables.  Frames are kept
for an hour, in little memory: several old ones become one, and of many mounts, clients and
connections, the busiest are kept and the others added up.  A frame is nested dicts of numbers.
Merging adds them up, except for "credits", which keeps the larger values, and "time", which is the
later one.

Each listener has a short queue of events, the same bytes for all.  A listener with a full queue is
disconnected; EventSource reconnects by itself.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import threading
import zlib
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from nfsrdma_tools.live.snapshot import Client, Mount, Server, Slots, Snapshot, xprt_groups
from nfsrdma_tools.live.snapshot_json import to_plain
from nfsrdma_tools.probes.sets.latency import slot_ns

__all__ = [
    "Frame",
    "History",
    "Hub",
    "TooManyListeners",
    "compact_json",
    "frame",
    "merged",
    "page_data",
]

SCHEMA_VERSION = 1
"""Version of /past and /events: raised when a key is renamed, removed or changes its meaning."""
_QUEUE = 8
_EVENTS = 500


class TooManyListeners(Exception):  # noqa: N818 - a state, not a fault
    """The number of listeners is at its limit."""


class Hub:
    """``deliver`` runs in any thread, all other methods in the event loop's thread."""

    def __init__(self, most: int = 256) -> None:
        self.most = most
        self._history = History()
        self._events: deque[object] = deque(maxlen=_EVENTS)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: set[asyncio.Queue[bytes | None]] = set()

    @property
    def listening(self) -> int:
        """The number of listeners."""
        return len(self._listeners)

    def open(self) -> None:
        """Send events to listeners in the running event loop from now on."""
        self._loop = asyncio.get_running_loop()

    def deliver(self, snapshot: Snapshot) -> None:
        """Keep a snapshot and send it to all listeners."""
        new, events = frame(snapshot), to_plain(snapshot.events)
        with self._lock:
            self._history.add(snapshot.seconds, new)
            sent = self._history.thinned(new, _MOST_SENT)
            self._events.extend(events)
        frame_json = compact_json(sent)
        if self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send, frame_json, snapshot)

    def past(self) -> bytes:
        """The last hour and the newest events, as JSON."""
        with self._lock:
            kept, events = self._history.kept(), list(self._events)
        frames = (zlib.decompress(packed).decode() for packed in kept)
        lists = f'"frames":[{",".join(frames)}],"events":{compact_json(events)}'
        return f'{{"schema_version":{SCHEMA_VERSION},{lists}}}'.encode()

    async def listen(self) -> AsyncIterator[bytes]:
        """Server-sent events with the snapshots from now on.

        Raises TooManyListeners at the limit.
        """
        if len(self._listeners) >= self.most:
            raise TooManyListeners
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_QUEUE)
        self._listeners.add(queue)
        try:
            yield b"retry: 2000\n\n"
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._listeners.discard(queue)

    def close(self) -> None:
        """Disconnect all listeners."""
        for queue in list(self._listeners):
            self._dismiss(queue)

    def _send(self, frame_json: str, snapshot: Snapshot) -> None:
        if not self._listeners:
            return
        event = _event(frame_json, compact_json(page_data(snapshot)))
        for queue in list(self._listeners):
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:
                self._dismiss(queue)

    def _dismiss(self, queue: asyncio.Queue[bytes | None]) -> None:
        self._listeners.discard(queue)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)


def _event(frame_json: str, now: str) -> bytes:
    snapshot = f'"schema_version":{SCHEMA_VERSION},"frame":{frame_json},"now":{now}'
    return f"data: {{{snapshot}}}\n\n".encode()


Frame = dict[str, Any]
_HOUR = 3600.0
_RECENT = 600.0
# older frames are merged in groups of this size
_TOGETHER = 10


class History:
    """Frames of the last hour; those of the last ten minutes are not merged.

    An hour of snapshots, not of the time of day, which may be set meanwhile.  A frame is kept as
    compressed JSON.
    """

    def __init__(self) -> None:
        self._elapsed = 0.0
        self._recent: deque[tuple[float, bytes]] = deque()
        self._old: deque[tuple[float, bytes]] = deque()
        self._busiest = {kind: _Busiest() for kind in (*_KINDS, "credits")}

    def add(self, seconds: float, new: Frame) -> None:
        """Add the frame of an interval of ``seconds``, and drop frames older than an hour."""
        self._elapsed += seconds
        self._rank(new)
        self._recent.append((self._elapsed, self._packed(new)))
        full = len(self._recent) > _TOGETHER
        if full and self._elapsed - self._recent[_TOGETHER - 1][0] > _RECENT:
            several = [self._recent.popleft() for _ in range(_TOGETHER)]
            whole = merged(json.loads(zlib.decompress(packed)) for _, packed in several)
            self._old.append((several[-1][0], self._packed(whole)))
        while self._old and self._elapsed - self._old[0][0] > _HOUR:
            self._old.popleft()

    def kept(self) -> list[bytes]:
        """All frames as compressed JSON, the oldest first."""
        return [packed for _, packed in (*self._old, *self._recent)]

    def _rank(self, new: Frame) -> None:
        for kind in _KINDS:
            rows = ((n, row) for n, row in new["subjects"].items() if n.startswith(kind))
            self._busiest[kind].add({name: _activity(row) for name, row in rows})
        self._busiest["credits"].add({n: row["used"] for n, row in new["credits"].items()})

    def thinned(self, whole: Frame, most: int) -> Frame:
        """The frame with that many of the busiest of each kind, and the sums of the others."""
        subjects = whole["subjects"]
        for kind in _KINDS:
            subjects = self._busiest[kind].thinned(subjects, kind, most)
        credits = self._busiest["credits"].thinned(whole["credits"], "", most)
        return {**whole, "subjects": subjects, "credits": credits}

    def _packed(self, whole: Frame) -> bytes:
        kept = self.thinned(whole, _MOST_SUBJECTS)
        return zlib.compress(compact_json(kept).encode(), _LEVEL)


_KINDS = ("mount:", "client:")
_OTHERS = "(others)"
"""No directory, address or number of a connection has this name."""
_MOST_SUBJECTS = 20
"""Of a kind, in a frame that is kept."""
_MOST_SENT = 100
"""Of a kind in the newest frame, and rows of clients."""
_LEVEL = 6
_FADING = 0.99
"""What activity counts a frame later: ranks last, so that the lines of a mount have no gaps."""
_MOST_RANKED = 4096


def _activity(row: Frame) -> float:
    # an RPC without data counts as a page
    return float(row.get("read", 0) + row.get("written", 0) + 4096 * row.get("rpcs", 0))


class _Busiest:
    """The busiest subjects of one kind, by their activity in the last minutes."""

    def __init__(self) -> None:
        self._activity: dict[str, float] = {}

    def add(self, new: dict[str, float]) -> None:
        """Add the activity of an interval."""
        faded = {name: value * _FADING for name, value in self._activity.items() if value > 1}
        for name, value in new.items():
            faded[name] = faded.get(name, 0.0) + value
        if len(faded) > _MOST_RANKED:
            faded = dict(heapq.nlargest(_MOST_RANKED, faded.items(), key=lambda item: item[1]))
        self._activity = faded

    def thinned(self, rows: Frame, kind: str, most: int) -> Frame:
        """``rows`` with the busiest of a kind, and the sums of the others of that kind."""
        names = [n for n in rows if n.startswith(kind) and n != kind + _OTHERS]
        if len(names) <= most:
            return rows
        best = heapq.nlargest(most, names, key=lambda n: self._activity.get(n, 0.0))
        left = set(names).difference(best)
        thin = {name: row for name, row in rows.items() if name not in left}
        others: Frame = {}
        for name in (kind + _OTHERS, *left):
            _add(others, rows.get(name, {}))
        return {**thin, kind + _OTHERS: others}


def merged(frames: Iterable[Frame]) -> Frame:
    """One frame with the sums of several."""
    whole: Frame = {}
    for part in frames:
        _add(whole, {key: value for key, value in part.items() if key not in ("time", "credits")})
        _larger(whole.setdefault("credits", {}), part.get("credits", {}))
        whole["time"] = part["time"]
    return whole


def _add(into: Frame, other: Frame) -> None:
    for key, value in other.items():
        if isinstance(value, dict):
            _add(into.setdefault(key, {}), value)
        else:
            into[key] = into.get(key, 0) + value


def _larger(into: Frame, other: Frame) -> None:
    for key, value in other.items():
        if isinstance(value, dict):
            _larger(into.setdefault(key, {}), value)
        else:
            into[key] = max(into.get(key, 0), value)


def frame(snapshot: Snapshot) -> Frame:
    """The figures of a snapshot that the charts show.

    In "subjects", the keys are "mount:DIRECTORY", "client:ADDRESS", and "server:" for this server.
    Each has bytes (read, written), RPCs and their milliseconds as in nfsiostat (execute_ms is its
    exe), RPCs that probes counted (probed), on the server completed Sends (sends), ns by phase
    (phases), counts by power of two of 1024 ns (times) and of bytes (sizes), and operations on
    memory regions (regions).  On the server, "read" and "rpcs" have threadless reads, which the
    others lack.  "cpus_ns" is the time of all CPUs.  "credits" has those granted and in use by
    connection, which mounts may share.
    """
    mounts = {f"mount:{m.directory}": _mount(m) for m in snapshot.mounts if m.did_something}
    clients = _clients(snapshot.server) if snapshot.server else {}
    cpu = snapshot.processors
    spent: Frame = {"busy_ns": cpu.busy_ns, "cpus_ns": cpu.wall_ns * cpu.cpus}
    if cpu.fresh:
        spent |= {
            "layers": {layer.name: layer.ns for layer in cpu.layers},
            "layers_cpus_ns": cpu.layers_ns * cpu.cpus,
        }
    return {
        "time": round(snapshot.time, 3),
        "seconds": round(snapshot.seconds, 4),
        "subjects": {name: sums for name, sums in {**mounts, **clients}.items() if sums},
        "cpu": spent,
        "credits": _credits(snapshot.mounts),
    }


def _mount(mount: Mount) -> Frame:
    ops = mount.ops
    regions = mount.regions.counts if mount.regions else {}
    return _without_nothing(
        {
            "read": mount.read,
            "written": mount.written,
            "rpcs": mount.rpcs,
            "execute_ms": sum(op.execute_ms for op in ops),
            "queue_ms": sum(op.queue_ms for op in ops),
            "rtt_ms": sum(op.rtt_ms for op in ops),
            "probed": sum(timing.count for timing in mount.timings),
            "phases": _sums(timing.phases for timing in mount.timings),
            "times": _sums(_by_power(timing.times) for timing in mount.timings),
            "sizes": _sums(_texts(slots) for row in mount.chunks for slots in row.sizes.values()),
            "regions": {name: regions[name] for name in _REGIONS if name in regions},
        }
    )


_REGIONS = ("mapped", "local_invalidations", "remote_invalidations")


def _credits(mounts: Sequence[Mount]) -> Frame:
    # if a Call waited, all credits were in use between two snapshots; with several connections
    # the one on which it waited is unknown
    waited = {id(m.xprts) for m in mounts if m.credit_waits and len(m.xprts) == 1}
    by_number: Frame = {}
    for key, xprts in xprt_groups(mounts).items():
        for xprt in xprts:
            granted = xprt.credits.granted
            if granted:
                credits = {
                    "granted": granted,
                    "used": granted if key in waited else xprt.credits.used,
                }
                _larger(by_number.setdefault(str(xprt.number), {}), credits)
    return by_number


_PROBED = ("probed", "sends", "execute_ms", "phases", "times")


def _clients(server: Server) -> Frame:
    total = _without_nothing(
        {"read": server.read_in_all, "written": server.written, "rpcs": server.answered}
    )
    subjects: Frame = {"server:": total}
    for client in server.clients:
        sums = _client(client)
        _add(subjects.setdefault(f"client:{client.peer}", {}), sums)
        _add(total, {key: sums[key] for key in _PROBED})
    return subjects


def _client(client: Client) -> Frame:
    calls = client.counts.get("calls", 0)
    return {
        # from the client's side, as for mounts: it reads what the server writes by RDMA
        "read": client.read,
        "written": client.counts.get("read_bytes", 0),
        "rpcs": client.answered,
        "probed": calls,
        "sends": client.counts.get("sends", 0),
        "execute_ms": client.ns / 1e6,
        "phases": client.phases,
        "times": _texts(client.times),
    }


def _by_power(times: Slots) -> dict[str, int]:
    counts: dict[str, int] = {}
    for slot, count in times:
        key = str((slot_ns(slot)[0] >> 10).bit_length())
        counts[key] = counts.get(key, 0) + count
    return counts


def _texts(slots: Slots) -> dict[str, int]:
    # keys of JSON objects are strings
    return {str(slot): count for slot, count in slots}


def _sums(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    whole: dict[str, int] = {}
    for part in parts:
        _add(whole, part)
    return whole


def _without_nothing(values: Frame) -> Frame:
    return {name: value for name, value in values.items() if value}


_MOUNT = ("device", "directory", "target", "transport", "vers", "rsize", "read_ahead_kb", "read",
          "written", "ops", "chunks", "waiting", "limit")  # fmt: skip
_XPRT = ("number", "kind", "address", "states", "connected", "credits", "requests", "pending",
         "personality")  # fmt: skip
_NOW = ("seconds", "host", "kernel", "ports", "events", "missing")
_SERVER = (
    "threads",
    "listeners",
    "read",
    "written",
    "calls",
    "exposed",
    "dones_outstanding",
    "lanes",
    "granted",
    "threadless",
    "limit",
)
_CLIENT = ("peer", "procedure", "counts", "ns")


def page_data(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as dicts and lists, without fields that are empty or 0."""
    state = {
        **_set_fields(snapshot, _NOW),
        "mounts": [_mount_now(mount) for mount in snapshot.mounts],
    }
    return state | {"server": _server_now(snapshot.server)} if snapshot.server else state


def compact_json(value: object) -> str:
    """JSON in ASCII, without a newline."""
    return json.dumps(value, separators=(",", ":"))


def _mount_now(mount: Mount) -> dict[str, Any]:
    return _set_fields(mount, _MOUNT) | {
        "xprts": [_set_fields(xprt, _XPRT) for xprt in mount.xprts]
    }


def _server_now(server: Server) -> dict[str, Any]:
    rows = server.busiest(_MOST_SENT)
    left = {"clients_left": len(server.clients) - len(rows)}
    clients = {"clients": [_set_fields(client, _CLIENT) for client in rows]}
    return _set_fields(server, _SERVER) | clients | _without_nothing(left)


def _set_fields(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    parts = ((name, getattr(value, name)) for name in names)
    return {name: to_plain(part) for name, part in parts if part or part is False}
