# SPDX-License-Identifier: Apache-2.0
"""The first screen: mounts, bottleneck, clients of the server, latest events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from nfsrdma_tools.live.snapshot import Client, Event, Mount, Snapshot
from nfsrdma_tools.live.top.figures import RecentRates, cpu_figures, number, rate, span, spark, text
from nfsrdma_tools.live.top.screens import event_line

__all__ = ["SORTS", "Overview", "status"]

_NAME, _SPARK = 20, 7
_EVENTS = 4
SORTS: dict[str, Callable[[Mount], tuple[float, str]]] = {
    "bytes": lambda m: (-(m.read + m.written), m.directory),
    "RPCs": lambda m: (-m.rpcs, m.directory),
    "mean time": lambda m: (-m.mean_ms, m.directory),
    "name": lambda m: (0, m.directory),
}
"""Sort keys of mounts."""


class Overview(Screen[None]):
    """The overview screen."""

    CSS = """
    #mounts { height: 1fr; min-height: 4; }
    #clients { height: auto; max-height: 9; }
    #limit { height: 2; padding: 0 1; text-style: bold; }
    #events { height: auto; max-height: 5; padding: 0 1; border-top: solid $primary; }
    #status { height: 1; padding: 0 1; }
    #filter { display: none; height: 3; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Mount] = []
        self.wanted = ""
        self.taken: Snapshot | None = None

    def compose(self) -> ComposeResult:
        """The widgets from top to bottom."""
        yield Static(id="status", markup=False)
        with Vertical():
            yield DataTable(id="mounts", cursor_type="row", zebra_stripes=False)
            yield Static(id="limit", markup=False)
            yield DataTable(id="clients", cursor_type="none", show_cursor=False)
            yield Static(id="events", markup=False)
        yield Input(id="filter", placeholder="part of a mount's name, then Enter")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Add the columns, which never change."""
        mounts = self.query_one("#mounts", DataTable)
        for name in ("mount", "transport", "read/s", "write/s", "ops/s", "exe", "bytes/s"):
            mounts.add_column(name, key=name)
        clients = self.query_one("#clients", DataTable)
        for name in ("client", "procedure", "Calls/s", "fetched/s", "written/s", "mean"):
            clients.add_column(name, key=name)
        mounts.focus()

    @property
    def chosen(self) -> Mount | None:
        """The mount at the cursor."""
        row = self.query_one("#mounts", DataTable).cursor_row
        return self.shown[row] if 0 <= row < len(self.shown) else None

    def show(self, taken: Snapshot, rates: RecentRates, sort: str, events: Sequence[Event]) -> None:
        """Show a new snapshot; the cursor stays on its mount."""
        self.taken = taken
        before = self.chosen
        matching = [mount for mount in taken.mounts if self.wanted in mount.directory]
        self.shown = sorted(matching, key=SORTS[sort])
        table = self.query_one("#mounts", DataTable)
        table.clear()
        for mount in self.shown:
            table.add_row(*_cells(mount, taken.seconds, rates))
        devices = [mount.device for mount in self.shown]
        if before and before.device in devices:
            table.move_cursor(row=devices.index(before.device), animate=False)
        self._clients(taken)
        self.query_one("#events", Static).update(
            Text("\n").join(map(event_line, events[-_EVENTS:]))
        )
        self.tell()

    def tell(self) -> None:
        """Show the bottleneck of the mount at the cursor; without mounts, that of the server."""
        mount = self.chosen
        shown = text(mount.limit) if mount else text(_nothing(self.taken, self.wanted))
        shown.no_wrap = False
        self.query_one("#limit", Static).update(shown)

    def _clients(self, taken: Snapshot) -> None:
        table = self.query_one("#clients", DataTable)
        table.clear()
        rows = taken.server.clients if taken.server else ()
        table.display = bool(rows)
        for client in sorted(rows, key=lambda row: -row.ns):
            table.add_row(*_served(client, taken.seconds))


def _nothing(taken: Snapshot | None, wanted: str) -> str:
    if taken is None:
        return "Waiting for the first snapshot."
    if wanted:
        return f"No mount has {wanted!r} in its name."
    served = taken.server.limit if taken.server else ""
    return f"nfsd: {served}" if served else "No NFS filesystem is mounted."


def _cells(mount: Mount, seconds: float, rates: RecentRates) -> list[Text]:
    down = any(xprt.connected is False for xprt in mount.xprts)
    style = "bold red" if down or mount.waiting else ""
    moved = [a + b for a, b in zip(rates.of(mount.device, "read"),
                                   rates.of(mount.device, "written"), strict=True)]  # fmt: skip
    mark = "!" if style else " "
    return [
        Text(mark, style) + text(mount.directory, style, _NAME - 1),
        text(f"{mount.transport} {mount.vers}", width=11),
        _right(rate(mount.read, seconds), 7),
        _right(rate(mount.written, seconds), 7),
        _right(rate(mount.rpcs, seconds), 6),
        _right(span(mount.mean_ms), 7),
        Text(spark(moved, _SPARK), "cyan", no_wrap=True),
    ]


def _served(client: Client, seconds: float) -> list[Text]:
    counts = client.counts
    calls = counts.get("calls", 0)
    return [
        text(client.peer, width=24),
        text(client.procedure, width=14),
        _right(rate(calls, seconds), 8),
        _right(rate(counts.get("read_bytes", 0), seconds), 9),
        _right(rate(counts.get("written", 0), seconds), 9),
        _right(span(client.ns / calls / 1e6 if calls else 0), 8),
    ]


def _right(plain: str, width: int) -> Text:
    return Text(plain.rjust(width), no_wrap=True)


def status(taken: Snapshot, more: str) -> Text:
    """The status line: host, kernel, CPU, nfsd, ports that are down, sort key, interval."""
    down = [port.name for port in taken.ports if not port.active]
    cpu = cpu_figures(taken.processors)
    shown = text(taken.host, "bold", 20) + Text(f"  Linux {taken.kernel}  {cpu}")
    if taken.server:
        shown += Text(f"  nfsd {number(taken.server.calls / (taken.seconds or 1)) or 0} Calls/s")
    if down:
        shown += Text("  ") + text(f"down: {', '.join(down)}", "bold red", 24)
    return shown + Text(f"  {more}", "bold")
