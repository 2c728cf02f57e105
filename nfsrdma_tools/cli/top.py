# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma top``: mounts, clients and bottlenecks, in the terminal or as frames of text."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from nfsrdma_tools.cli.live import _Interval, _Probes, _Record, _Replay, _Stall
from nfsrdma_tools.cli.options import flag, option
from nfsrdma_tools.errors import UsageError, printable

if TYPE_CHECKING:
    from nfsrdma_tools.live.feed import FeedOptions
    from nfsrdma_tools.live.snapshot import Client, Event, Mount, Snapshot

__all__ = ["frame", "top"]

_Row = tuple[str, ...]
_MOUNTS: _Row = ("MOUNT", "TRANSPORT", "READ/s", "WRITE/s", "OPS/s", "EXE", "BOTTLENECK")
_CLIENTS: _Row = ("CLIENT", "PROCEDURE", "CALLS/s", "FETCHED/s", "WRITTEN/s", "MEAN")
# the first two columns of both tables are names
_NAMES = 2


def top(
    batch: Annotated[
        bool, flag("Print frames of text; needs no terminal.", "--batch", "-b")
    ] = False,
    count: Annotated[
        int | None,
        option(
            "N",
            "Stop after N frames, with --batch (default: run until Ctrl-C).",
            "--count",
            "-c",
            "-n",
            min=1,
        ),
    ] = None,
    interval: _Interval = 1.0,
    stall: _Stall = 5.0,
    probes: _Probes = True,
    record: _Record = None,
    replay: _Replay = None,
    as_json: Annotated[
        bool, flag("Print a line of JSON per frame, with --batch.", "--json", "-j")
    ] = False,
) -> None:
    """Show mounts, clients and bottlenecks, live.

    Press ? for the keys.  With --batch, print frames instead, as top(1) does.  Root and bcc add
    probes; unavailable metrics are listed.
    """
    from nfsrdma_tools.live.feed import FeedOptions

    options = FeedOptions(interval, stall, probes, record, replay)
    if batch:
        _print(options, count, as_json)
        return
    if count or as_json:
        raise UsageError("--count and --json need --batch", "add -b")
    from nfsrdma_tools.live.top.app import run

    run(options)


def _print(options: FeedOptions, count: int | None, as_json: bool) -> None:
    from nfsrdma_tools.cli.output import print_line
    from nfsrdma_tools.live.dataclass_json import to_plain
    from nfsrdma_tools.live.feed import snapshots

    try:
        for snapshot in snapshots(options, count):
            if as_json:
                print_line(to_plain(snapshot))
            else:
                print(*frame(snapshot), sep="\n", flush=True)
    except KeyboardInterrupt:
        # without a count, Ctrl-C is how it ends
        if count:
            raise


def frame(snapshot: Snapshot) -> list[str]:
    """The lines of a frame: host, mounts, clients of the server, events, unavailable metrics."""
    clients = snapshot.server.clients if snapshot.server else ()
    served = snapshot.server.limit if snapshot.server else ""
    busiest = sorted(
        snapshot.mounts, key=lambda mount: (-mount.read - mount.written, mount.directory)
    )
    return [
        _head(snapshot),
        *_table([_MOUNTS, *(_mount(mount, snapshot.seconds) for mount in busiest)]),
        *(_table([_CLIENTS, *(_client(c, snapshot.seconds) for c in clients)]) if clients else ()),
        *([printable(f"nfsd: {served}")] if served else ()),
        *map(_event, snapshot.events),
        *(printable(f"unavailable: {what}: {why}") for what, why in snapshot.missing.items()),
        "",
    ]


def _head(snapshot: Snapshot) -> str:
    from nfsrdma_tools.live.top.figures import cpu_figures

    at = time.strftime("%H:%M:%S", time.localtime(snapshot.time))
    cpu = cpu_figures(snapshot.processors)
    words = [at, snapshot.host, f"Linux {snapshot.kernel}", cpu]
    if snapshot.server:
        words.append(f"nfsd {_rate(snapshot.server.calls, snapshot.seconds)} Calls/s")
    down = ", ".join(port.name for port in snapshot.ports if not port.active)
    words += [f"down: {down}"] if down else []
    return printable("  ".join(words))


def _rate(amount: float, seconds: float) -> str:
    from nfsrdma_tools.live.top.figures import rate

    return rate(amount, seconds) or "0"


def _mount(mount: Mount, seconds: float) -> _Row:
    from nfsrdma_tools.live.top.figures import span

    rates = (_rate(amount, seconds) for amount in (mount.read, mount.written, mount.rpcs))
    transport = f"{mount.transport} {mount.vers}"
    return (mount.directory, transport, *rates, span(mount.mean_ms) or "-", mount.limit)


def _client(client: Client, seconds: float) -> _Row:
    from nfsrdma_tools.live.top.figures import span

    counts, calls = client.counts, client.counts.get("calls", 0)
    amounts = (calls, counts.get("read_bytes", 0), counts.get("written", 0))
    mean = span(client.ns / calls / 1e6) if calls else "-"
    return (client.peer, client.procedure, *(_rate(amount, seconds) for amount in amounts), mean)


def _event(event: Event) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event.time))
    return printable(f"{at} {event.severity}: {event.kind} {event.where}: {event.what}")


def _table(rows: list[_Row]) -> list[str]:
    """Aligned rows: names and the last column of mounts to the left, numbers to the right."""
    # not rich's Table: it takes 300 times the CPU time, once an interval on a busy host
    columns = [_column(index, column) for index, column in enumerate(zip(*rows, strict=True))]
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def _column(index: int, cells: _Row) -> list[str]:
    plain = [printable(cell) for cell in cells]
    width = max(map(len, plain))
    left = index < _NAMES or cells[0] == _MOUNTS[-1]
    align: Callable[[str, int], str] = str.ljust if left else str.rjust
    return [align(cell, width) for cell in plain]
