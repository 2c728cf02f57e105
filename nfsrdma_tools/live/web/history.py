# SPDX-License-Identifier: Apache-2.0
"""The last hour in little memory: a frame of sums per snapshot, and one frame for several old ones.

A frame is nested dicts of numbers.  Merging adds them up, except for "max", which keeps the larger
values, and the time, which is the later one.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from nfsrdma_tools.live.snapshot import Client, Mount, Server, Slots, Snapshot, xprt_groups
from nfsrdma_tools.live.web.page_data import text
from nfsrdma_tools.probes.sets.latency import slot_ns

__all__ = ["Frame", "History", "frame", "merged"]

Frame = dict[str, Any]
_HOUR = 3600.0
_RECENT = 600.0
# older frames are merged in groups of this size
_TOGETHER = 10


class History:
    """Frames of the last hour as JSON; those of the last ten minutes are not merged.

    An hour of snapshots, not of the time of day, which may be set meanwhile.
    """

    def __init__(self) -> None:
        self._elapsed = 0.0
        self._recent: deque[tuple[float, str]] = deque()
        self._old: deque[tuple[float, str]] = deque()

    def add(self, seconds: float, new: str) -> None:
        """Add the frame of an interval of ``seconds``, and drop frames older than an hour."""
        self._elapsed += seconds
        self._recent.append((self._elapsed, new))
        full = len(self._recent) > _TOGETHER
        if full and self._elapsed - self._recent[_TOGETHER - 1][0] > _RECENT:
            several = [self._recent.popleft() for _ in range(_TOGETHER)]
            whole = merged(json.loads(each) for _, each in several)
            self._old.append((several[-1][0], text(whole)))
        while self._old and self._elapsed - self._old[0][0] > _HOUR:
            self._old.popleft()

    def frames(self) -> list[str]:
        """All frames, the oldest first."""
        return [each for _, each in (*self._old, *self._recent)]


def merged(frames: Iterable[Frame]) -> Frame:
    """One frame with the sums of several."""
    whole: Frame = {}
    for each in frames:
        _add(whole, {key: value for key, value in each.items() if key not in ("t", "max")})
        _larger(whole.setdefault("max", {}), each.get("max", {}))
        whole["t"] = each["t"]
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

    In "who", the keys are "m:DIRECTORY" for a mount, "c:ADDRESS" for a client and "s:" for the
    server.  Each has bytes read and written (r, w), RPCs (n) and their milliseconds as in nfsiostat
    (x: exe, q: queue, a: RTT), RPCs that probes counted (k), on the server completed Sends (e),
    ns by phase (p), counts by power of two of 1024 ns (l) and of bytes (z), and operations on
    memory regions (g).  "max" has granted and used credits by connection; mounts may share one.
    """
    mounts = {f"m:{m.directory}": _mount(m) for m in snapshot.mounts if m.did_something}
    clients = _clients(snapshot.server) if snapshot.server else {}
    cpu = snapshot.processors
    spent: Frame = {"b": cpu.busy_ns, "w": cpu.wall_ns * cpu.cpus}
    if cpu.fresh:
        spent |= {"L": {x.name: x.ns for x in cpu.layers}, "lw": cpu.layers_ns * cpu.cpus}
    return {
        "t": round(snapshot.time, 3),
        "s": round(snapshot.seconds, 4),
        "who": {name: each for name, each in {**mounts, **clients}.items() if each},
        "cpu": spent,
        "max": _credits(snapshot.mounts),
    }


def _mount(mount: Mount) -> Frame:
    ops = mount.ops
    regions = mount.regions.counts if mount.regions else {}
    return _without_nothing(
        {
            "r": mount.read,
            "w": mount.written,
            "n": mount.rpcs,
            "x": sum(op.execute_ms for op in ops),
            "q": sum(op.queue_ms for op in ops),
            "a": sum(op.rtt_ms for op in ops),
            "k": sum(each.count for each in mount.timings),
            "p": _sums(each.phases for each in mount.timings),
            "l": _sums(_by_power(each.times) for each in mount.timings),
            "z": _sums(_texts(slots) for row in mount.chunks for slots in row.sizes.values()),
            "g": {name: regions[name] for name in _REGIONS if name in regions},
        }
    )


_REGIONS = ("mapped", "local_invalidations", "remote_invalidations")


def _credits(mounts: Sequence[Mount]) -> Frame:
    # if a Call waited, all credits were in use between two snapshots; with several connections
    # the one on which it waited is unknown
    waited = {id(m.xprts) for m in mounts if m.credit_waits and len(m.xprts) == 1}
    found: Frame = {}
    for key, xprts in xprt_groups(mounts).items():
        for x in xprts:
            if x.credits.granted:
                used = x.credits.granted if key in waited else x.credits.used
                each = {"granted": x.credits.granted, "used": used}
                _larger(found.setdefault(str(x.number), {}), each)
    return found


def _clients(server: Server) -> Frame:
    found: Frame = {"s:": _without_nothing({"r": server.read, "w": server.written,
                                            "n": server.calls})}  # fmt: skip
    for client in server.clients:
        each = _client(client)
        _add(found.setdefault(f"c:{client.peer}", {}), each)
        _add(found["s:"], {key: each[key] for key in ("k", "e", "x", "p", "l")})
    return found


def _client(client: Client) -> Frame:
    calls = client.counts.get("calls", 0)
    return {
        # from the client's side, as for mounts: it reads what the server writes by RDMA
        "r": client.counts.get("written", 0),
        "w": client.counts.get("read_bytes", 0),
        "n": calls,
        "k": calls,
        "e": client.counts.get("sends", 0),
        "x": client.ns / 1e6,
        "p": client.phases,
        "l": _texts(client.times),
    }


def _by_power(times: Slots) -> dict[str, int]:
    found: dict[str, int] = {}
    for slot, count in times:
        key = str((slot_ns(slot)[0] >> 10).bit_length())
        found[key] = found.get(key, 0) + count
    return found


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
