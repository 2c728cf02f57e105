# SPDX-License-Identifier: Apache-2.0
"""The screens of ``nfsrdma top``: the overview, one mount in detail, the host, and all events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from nfsrdma_tools.live.snapshot import (
    Client,
    Event,
    Mount,
    Processors,
    Server,
    Snapshot,
    Thread,
    Xprt,
)
from nfsrdma_tools.live.top.figures import RecentRates, cpu_figures, number, rate, span, spark, text
from nfsrdma_tools.probes.sets.latency import percentile

__all__ = [
    "SORTS",
    "Detail",
    "Host",
    "Log",
    "Overview",
    "TextScreen",
    "event_line",
    "host_text",
    "mount_text",
    "status",
]


class TextScreen(Screen[None]):
    """A screen with a scrolling text and the keys."""

    CSS = "#body { padding: 0 1; }"

    def compose(self) -> ComposeResult:
        """The text and the keys."""
        with VerticalScroll():
            yield Static(id="body", markup=False)
        yield Footer(compact=True)

    def set_text(self, whole: Text) -> None:
        """Replace the text."""
        self.query_one("#body", Static).update(whole)


_PHASE_BAR = 24
_LATENCY_SLOTS = 128


class Detail(TextScreen):
    """The details of the mount on a device."""

    CSS = f"{TextScreen.CSS} #title {{ height: 1; padding: 0 1; text-style: bold; }}"

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def compose(self) -> ComposeResult:
        """A fixed title and a scrolling text."""
        yield Static(id="title", markup=False)
        yield from super().compose()

    def show(self, taken: Snapshot, rates: RecentRates) -> None:
        """Show a new snapshot."""
        mount = next((m for m in taken.mounts if m.device == self.device), None)
        if mount is None:
            self.set_text(Text("This filesystem is no longer mounted."))
            return
        facts = f"{mount.transport} v{mount.vers} rsize {_kib(mount.rsize)} "
        facts += f"read-ahead {mount.read_ahead_kb}K nconnect {mount.nconnect}"
        self.query_one("#title", Static).update(
            text(mount.directory, width=24) + text(f"  {facts}")
        )
        self.set_text(mount_text(mount, taken, rates))


def _kib(size: int) -> str:
    """A size in KiB."""
    return f"{size // 1024}K"


def mount_text(mount: Mount, taken: Snapshot, rates: RecentRates) -> Text:
    """The sections of a mount; empty sections are left out."""
    limit = text(mount.limit, "bold")
    limit.no_wrap = False
    parts: list[Sequence[Text]] = [
        [limit],
        _sparks(mount, taken.seconds, rates),
        _times(mount),
        _operations(mount, taken),
        _chunks(mount, taken),
        _regions(mount, taken),
        _connections(mount),
        _waiting(mount),
    ]
    return Text("\n\n").join(Text("\n").join(part) for part in parts if part)


def _sparks(mount: Mount, seconds: float, rates: RecentRates) -> list[Text]:
    now = {
        "read": f"{rate(mount.read, seconds) or 0}B/s",
        "written": f"{rate(mount.written, seconds) or 0}B/s",
        "ops": f"{rate(mount.rpcs, seconds) or 0}/s",
        "exe": span(mount.mean_ms),
    }
    return [
        Text(f"{name:8} {value:>10} ") + Text(spark(rates.of(mount.device, name), 56), "cyan")
        for name, value in now.items()
    ]


def _times(mount: Mount) -> list[Text]:
    """The phases of the procedure with the most time, if probes measure them."""
    if not mount.timings:
        return []
    most = max(mount.timings, key=lambda timing: timing.ns)
    slots = dict(most.times)
    times = tuple(slots.get(slot, 0) for slot in range(_LATENCY_SLOTS))
    p50, p95, p99 = (span(percentile(times, p) / 1e6) for p in (50, 95, 99))
    mean = span(most.ns / most.count / 1e6)
    head = text(f"{most.procedure}: mean {mean}, p50 {p50}, p95 {p95}, p99 {p99}")
    return [head, *(_bar(name, ns, most.ns, most.count) for name, ns in most.phases.items())]


def _bar(name: str, ns: int, whole: int, count: int) -> Text:
    length = round(ns / whole * _PHASE_BAR) if whole else 0
    return Text(f"  {name.replace('_', ' '):18}{span(ns / count / 1e6):>9} ") + Text(
        "#" * length, "cyan"
    )


def _operations(mount: Mount, taken: Snapshot) -> list[Text]:
    rows = sorted(mount.ops, key=lambda op: -op.execute_ms)
    if not rows:
        return []
    head = f"{'operation':14}{'ops/s':>8}{'bytes/s':>9}{'queue':>9}{'RTT':>9}{'exe':>9}"
    return [
        Text(f"{head}{'retrans':>8}{'errors':>7}", "bold"),
        *(
            Text(
                f"{op.name[:13]:14}{rate(op.count, taken.seconds):>8}"
                f"{rate(op.sent + op.received, taken.seconds):>9}"
                f"{_mean(op.queue_ms, op.count):>9}{_mean(op.rtt_ms, op.count):>9}"
                f"{_mean(op.execute_ms, op.count):>9}{op.again or '':>8}{op.errors or '':>7}"
            )
            for op in rows
        ),
    ]


def _mean(ms: int, count: int) -> str:
    return span(ms / count) if count else ""


_WAYS = {
    "calls_inline": "call inline",
    "calls_pulled_up": "call pulled up",
    "calls_gathered": "call gathered",
    "calls_read": "call by Read chunk",
    "calls_position_zero": "call long message",
    "calls_padded": "call with padding",
    "replies_inline": "reply inline",
    "replies_write": "reply by Write chunk",
    "replies_reply": "reply by Reply chunk",
    "replies_lane": "reply by lane",
    "replies_padded": "reply with padding",
    "replies_optimistic": "optimistic read",
}


def _chunks(mount: Mount, taken: Snapshot) -> list[Text]:
    rows = [
        (row.procedure, {way: row.counts[key] for key, way in _WAYS.items() if row.counts.get(key)})
        for row in mount.chunks
    ]
    return [Text("messages per second", "bold")] * bool(rows) + [
        text(f"  {name:12}")
        + Text(", ".join(f"{way} {rate(n, taken.seconds)}" for way, n in ways.items()))
        for name, ways in rows
    ]


def _regions(mount: Mount, taken: Snapshot) -> list[Text]:
    if not mount.regions:
        return []
    counts = mount.regions.counts
    parts = [
        f"{name.replace('_', ' ')} {rate(counts[name], taken.seconds)}/s"
        for name in ("mapped", "reused", "remote_invalidations", "local_invalidations")
        if counts.get(name)
    ]
    if mapped := counts.get("mapped_bytes"):
        parts.append(f"{number(mapped)}B mapped")
    return [Text("regions  " + ", ".join(parts))]


def _connections(mount: Mount) -> list[Text]:
    waited = [Text(f"{number(mount.credit_waits)} Calls waited for a credit")]
    lines = (line for xprt in mount.xprts for line in (_xprt(xprt), *_personality(xprt)))
    return [*lines, *(waited if mount.credit_waits else [])]


def _personality(xprt: Xprt) -> list[Text]:
    """A line of its figures; none for read-write, which has none."""
    personality = xprt.personality
    if not personality or not personality.gauges | personality.counters:
        return []
    values = personality.gauges | personality.counters
    figures = (f"{name.replace('_', ' ')} {number(n) or 0}" for name, n in values.items())
    return [text(f"  {personality.name}: {', '.join(figures)}")]


def _xprt(xprt: Xprt) -> Text:
    state = "" if xprt.connected is None else "connected" if xprt.connected else "NOT CONNECTED"
    style = "bold red" if xprt.connected is False else ""
    kind = f"{xprt.kind} {xprt.personality.name}" if xprt.personality else xprt.kind
    words = text(f"{kind} {xprt.address}  ") + Text(state, style)
    if xprt.credits.granted:
        words += Text(f"  credits {xprt.credits.used} of {xprt.credits.granted}")
    return words + Text(f"  slots {xprt.requests}, pending {xprt.pending}, backlog {xprt.backlog}")


def _waiting(mount: Mount) -> Sequence[Text]:
    return [
        text(
            f"{rpc.procedure} pending for {rpc.seconds:.0f} s, in queue {rpc.waits_for}",
            "bold red",
        )
        for rpc in mount.waiting
    ]


_LAYER_BAR = 40


class Host(TextScreen):
    """The host screen: CPU, ports and nfsd."""

    def show(self, taken: Snapshot) -> None:
        """Show a new snapshot."""
        self.set_text(host_text(taken))


def host_text(taken: Snapshot) -> Text:
    """The text of the screen."""
    ports = [text(f"port {p.name} on {p.netdev}: {p.state}, {p.physical}") for p in taken.ports]
    parts = [_processors(taken.processors), ports]
    if taken.server:
        parts.append(_server(taken.server, taken.seconds))
    return Text("\n\n").join(Text("\n").join(part) for part in parts if part)


def _processors(cpu: Processors) -> list[Text]:
    head = Text(f"CPU: {cpu.share:.0%} of {cpu.cpus} busy", "bold")
    busiest = [
        Text(f"  CPU {c.number}: {c.busy:.0%} busy, {c.interrupts:.0%} in interrupts")
        for c in cpu.busiest
    ]
    busiest += [_thread(thread) for thread in cpu.threads or ()]
    if not cpu.layers:
        return [head + Text("; attach probes for CPU time by layer", ""), *busiest]
    whole = cpu.layers_ns * cpu.cpus
    layers = [_layer(layer.name, layer.ns / whole) for layer in cpu.layers if whole]
    return [head, *busiest, *layers]


def _thread(thread: Thread) -> Text:
    whose = "kernel" if thread.kernel else f"pid {thread.process}"
    return text(f"  thread {thread.number}, {thread.name} ({whose}): {thread.share:.0%} of a CPU")


def _layer(name: str, share: float) -> Text:
    return Text(f"  {name:20}{share:>7.1%} ") + Text("#" * round(share * _LAYER_BAR), "cyan")


def _server(server: Server, seconds: float) -> list[Text]:
    head = text(
        f"nfsd: {server.threads} threads on {', '.join(server.listeners)}; "
        f"{rate(server.calls, seconds) or 0} Calls/s, reads {rate(server.read, seconds) or 0}B/s, "
        f"writes {rate(server.written, seconds) or 0}B/s",
        "bold",
    )
    head += _threadless(server, seconds)
    limit = text(server.limit)
    limit.no_wrap = head.no_wrap = False
    clients = [_client(client, seconds) for client in server.busiest(_CLIENTS)]
    if more := len(server.clients) - len(clients):
        clients.append(text(f"  {more:,} more rows of clients, less busy"))
    return [
        head,
        *([limit] if server.limit else ()),
        *_exposed(server),
        *_held(server),
        *clients,
    ]


def _threadless(server: Server, seconds: float) -> Text:
    hits, moved = (server.threadless.get(name, 0) for name in ("hits", "bytes"))
    if not hits:
        return Text("")
    return text(
        f"; threadless {rate(hits, seconds)} READs/s, {rate(moved, seconds) or 0}B/s; "
        f"in all {rate(server.answered, seconds)} Calls/s, "
        f"reads {rate(server.read_in_all, seconds) or 0}B/s",
        "bold",
    )


def _held(server: Server | None) -> list[Text]:
    """A line of each RPC that nfsd holds."""
    held = server.held if server else ()
    return [text(f"nfsd holds {rpc}", "bold red") for rpc in held]


def _exposed(server: Server) -> list[Text]:
    """A line of what personalities other than read-write have in use, if anything."""
    figures = (
        (server.exposed, "B exposed"),
        (server.dones_outstanding, " RDMA_DONEs outstanding"),
        (server.lanes, " lanes"),
        (server.granted, "B granted"),
    )
    words = [f"{number(value)}{unit}" for value, unit in figures if value]
    return [text(f"  {', '.join(words)}")] if words else []


def _client(client: Client, seconds: float) -> Text:
    calls = client.counts.get("calls", 0)
    phases = [f"{name} {span(ns / 1e6)}" for name, ns in client.means.items()]
    hits = client.counts.get("threadless_hits", 0)
    more = f" and {rate(hits, seconds)}/s threadless" if hits else ""
    head = f"  {client.peer} {client.procedure}: {rate(calls, seconds) or 0}/s{more}, "
    words = text(head + f"{span(client.ns / calls / 1e6) if calls else number(0)}: ")
    return words + Text(", ".join(phases))


_SIGNS = {"error": ("x", "bold red"), "warning": ("!", "yellow"), "note": (" ", "")}


def event_line(event: Event, advice: bool = False) -> Text:
    """An event in one line; ``advice`` adds a second line."""
    sign, style = _SIGNS.get(event.severity, _SIGNS["note"])
    words = Text(time.strftime("%H:%M:%S ", time.localtime(event.time)), "dim")
    words += Text(f"{sign} ", style) + text(event.kind, style) + Text(" ")
    words += text(f"{event.where}: {event.what}")
    if advice and event.advice:
        words += Text("\n           ") + text(event.advice, "italic")
    return words


class Log(TextScreen):
    """All kept events, newest first, and the missing metrics."""

    def show(self, events: Sequence[Event], missing: dict[str, str]) -> None:
        """Show the current events."""
        lines = [event_line(event, advice=True) for event in reversed(events)]
        lines += [Text(""), Text("Missing metrics:" if missing else "", "bold")]
        lines += [text(f"  {metric}: {why}") for metric, why in missing.items()]
        whole = Text("\n").join(lines or [Text("No events yet.")])
        whole.no_wrap = False
        self.set_text(whole)


_NAME, _SPARK = 20, 7
_EVENTS = 4
_CLIENTS = 100
"""Rows of clients and procedures, of which a busy server has thousands."""
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
    #held { height: auto; max-height: 3; padding: 0 1; }
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
            yield Static(id="held", markup=False)
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
        held = _held(taken.server)
        shown = self.query_one("#held", Static)
        shown.display = bool(held)
        shown.update(Text("\n").join(held))
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
        rows = taken.server.busiest(_CLIENTS) if taken.server else ()
        table.display = bool(rows)
        for client in rows:
            table.add_row(*_served(client, taken.seconds))
        if taken.server and (more := len(taken.server.clients) - len(rows)):
            table.add_row(text(f"{more:,} more", width=24), text("less busy", width=14))


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
        _right(rate(client.answered, seconds), 8),
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
        who = "server" if taken.server.threadless.get("hits") else "nfsd"
        calls = number(taken.server.answered / (taken.seconds or 1)) or 0
        shown += Text(f"  {who} {calls} Calls/s")
    if down:
        shown += Text("  ") + text(f"down: {', '.join(down)}", "bold red", 24)
    return shown + Text(f"  {more}", "bold")
