# SPDX-License-Identifier: Apache-2.0
"""Frames of ``nfsrdma top --batch``: a snapshot as lines of text."""

from __future__ import annotations

import time
from collections.abc import Callable

from nfsrdma_tools.errors import printable
from nfsrdma_tools.live.snapshot import Client, Event, Mount, Snapshot
from nfsrdma_tools.live.top.figures import rate, span

__all__ = ["frame"]

_Row = tuple[str, ...]
_MOUNTS: _Row = ("MOUNT", "TRANSPORT", "READ/s", "WRITE/s", "OPS/s", "EXE", "BOTTLENECK")
_CLIENTS: _Row = ("CLIENT", "PROCEDURE", "CALLS/s", "FETCHED/s", "WRITTEN/s", "MEAN")
# the first two columns of both tables are names
_NAMES = 2


def frame(snapshot: Snapshot) -> list[str]:
    """The lines of a frame: host, mounts, clients of the server, events, unavailable metrics."""
    clients = snapshot.server.clients if snapshot.server else ()
    busiest = sorted(
        snapshot.mounts, key=lambda mount: (-mount.read - mount.written, mount.directory)
    )
    return [
        _head(snapshot),
        *_table([_MOUNTS, *(_mount(mount, snapshot.seconds) for mount in busiest)]),
        *(_table([_CLIENTS, *(_client(c, snapshot.seconds) for c in clients)]) if clients else ()),
        *map(_event, snapshot.events),
        *(printable(f"unavailable: {what}: {why}") for what, why in snapshot.missing.items()),
        "",
    ]


def _head(snapshot: Snapshot) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(snapshot.time))
    words = [at, snapshot.host, f"Linux {snapshot.kernel}", f"CPU {snapshot.processors.share:.0%}"]
    if snapshot.server:
        words.append(f"nfsd {_rate(snapshot.server.calls, snapshot.seconds)} Calls/s")
    down = ", ".join(port.name for port in snapshot.ports if not port.active)
    words += [f"down: {down}"] if down else []
    return printable("  ".join(words))


def _rate(amount: float, seconds: float) -> str:
    return rate(amount, seconds) or "0"


def _mount(mount: Mount, seconds: float) -> _Row:
    rates = (_rate(amount, seconds) for amount in (mount.read, mount.written, mount.rpcs))
    transport = f"{mount.transport} {mount.vers}"
    return (mount.directory, transport, *rates, span(mount.mean_ms) or "-", mount.limit)


def _client(client: Client, seconds: float) -> _Row:
    counts, calls = client.counts, client.counts.get("calls", 0)
    amounts = (calls, counts.get("read_bytes", 0), counts.get("written", 0))
    mean = span(client.ns / calls / 1e6) if calls else "-"
    return (client.peer, client.procedure, *(_rate(amount, seconds) for amount in amounts), mean)


def _event(event: Event) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event.time))
    return printable(f"{at} {event.severity}: {event.kind} {event.where}: {event.what}")


def _table(rows: list[_Row]) -> list[str]:
    """Aligned rows: names and the last column of mounts to the left, numbers to the right."""
    columns = [_column(index, column) for index, column in enumerate(zip(*rows, strict=True))]
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def _column(index: int, cells: _Row) -> list[str]:
    plain = [printable(cell) for cell in cells]
    width = max(map(len, plain))
    left = index < _NAMES or cells[0] == _MOUNTS[-1]
    align: Callable[[str, int], str] = str.ljust if left else str.rjust
    return [align(cell, width) for cell in plain]
