# SPDX-License-Identifier: Apache-2.0
"""One mount in detail: history, phases of its RPCs, operations, chunks, connections."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from nfsrdma_tools.live.snapshot import Mount, Snapshot, Xprt
from nfsrdma_tools.live.top.number_format import number, rate, span, text
from nfsrdma_tools.live.top.recent_values import Trail, spark
from nfsrdma_tools.live.top.text_screen import TextScreen
from nfsrdma_tools.probes.sets.latency import percentile

__all__ = ["Detail", "body"]

_BAR = 24
_FINE = 128


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

    def show(self, taken: Snapshot, trail: Trail) -> None:
        """Show a new snapshot."""
        mount = next((m for m in taken.mounts if m.device == self.device), None)
        if mount is None:
            self.set_text(Text("This filesystem is no longer mounted."))
            return
        facts = f"{mount.transport} v{mount.vers} rsize {number_of(mount.rsize)} "
        facts += f"read-ahead {mount.read_ahead_kb}K nconnect {mount.nconnect}"
        self.query_one("#title", Static).update(
            text(mount.directory, width=24) + text(f"  {facts}")
        )
        self.set_text(body(mount, taken, trail))


def number_of(size: int) -> str:
    """A size in KiB."""
    return f"{size // 1024}K"


def body(mount: Mount, taken: Snapshot, trail: Trail) -> Text:
    """The sections of a mount; empty sections are left out."""
    limit = text(mount.limit, "bold")
    limit.no_wrap = False
    parts: list[Sequence[Text]] = [
        [limit],
        _sparks(mount, taken.seconds, trail),
        _times(mount),
        _operations(mount, taken),
        _chunks(mount, taken),
        _regions(mount, taken),
        _connections(mount),
        _waiting(mount),
    ]
    return Text("\n\n").join(Text("\n").join(part) for part in parts if part)


def _sparks(mount: Mount, seconds: float, trail: Trail) -> list[Text]:
    now = {
        "read": f"{rate(mount.read, seconds) or 0}B/s",
        "written": f"{rate(mount.written, seconds) or 0}B/s",
        "ops": f"{rate(mount.rpcs, seconds) or 0}/s",
        "exe": span(mount.mean_ms),
    }
    return [
        Text(f"{name:8} {said:>10} ") + Text(spark(trail.of(mount.device, name), 56), "cyan")
        for name, said in now.items()
    ]


def _times(mount: Mount) -> list[Text]:
    """The phases of the procedure with the most time, if probes measure them."""
    if not mount.timings:
        return []
    most = max(mount.timings, key=lambda each: each.ns)
    slots = dict(most.times)
    times = tuple(slots.get(slot, 0) for slot in range(_FINE))
    p50, p95, p99 = (span(percentile(times, p) / 1e6) for p in (50, 95, 99))
    mean = span(most.ns / most.count / 1e6)
    head = text(f"{most.procedure}: mean {mean}, p50 {p50}, p95 {p95}, p99 {p99}")
    return [head, *(_bar(name, ns, most.ns, most.count) for name, ns in most.phases.items())]


def _bar(name: str, ns: int, whole: int, count: int) -> Text:
    length = round(ns / whole * _BAR) if whole else 0
    return Text(f"  {name:9}{span(ns / count / 1e6):>9} ") + Text("#" * length, "cyan")


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
                f"{_each(op.queue_ms, op.count):>9}{_each(op.rtt_ms, op.count):>9}"
                f"{_each(op.execute_ms, op.count):>9}{op.again or '':>8}{op.errors or '':>7}"
            )
            for op in rows
        ),
    ]


def _each(ms: int, count: int) -> str:
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
    said = [
        f"{name.replace('_', ' ')} {rate(counts[name], taken.seconds)}/s"
        for name in ("mapped", "reused", "remote_invalidations", "local_invalidations")
        if counts.get(name)
    ]
    if mapped := counts.get("mapped_bytes"):
        said.append(f"{number(mapped)}B mapped")
    return [Text("regions  " + ", ".join(said))]


def _connections(mount: Mount) -> list[Text]:
    waited = [Text(f"{number(mount.credit_waits)} Calls waited for a credit")]
    lines = (each for xprt in mount.xprts for each in (_xprt(xprt), *_personality(xprt)))
    return [*lines, *(waited if mount.credit_waits else [])]


def _personality(xprt: Xprt) -> list[Text]:
    """A line of its figures; none for read-write, which has none."""
    has = xprt.personality
    if not has or not has.gauges | has.counters:
        return []
    values = has.gauges | has.counters
    figures = (f"{name.replace('_', ' ')} {number(n) or 0}" for name, n in values.items())
    return [text(f"  {has.name}: {', '.join(figures)}")]


def _xprt(xprt: Xprt) -> Text:
    state = "" if xprt.connected is None else "connected" if xprt.connected else "NOT CONNECTED"
    style = "bold red" if xprt.connected is False else ""
    kind = f"{xprt.kind} {xprt.personality.name}" if xprt.personality else xprt.kind
    said = text(f"{kind} {xprt.address}  ") + Text(state, style)
    has = xprt.credits
    if has.granted:
        said += Text(f"  credits {has.used} of {has.granted}")
    return said + Text(f"  slots {xprt.requests}, pending {xprt.pending}, backlog {xprt.backlog}")


def _waiting(mount: Mount) -> Sequence[Text]:
    return [
        text(
            f"{each.procedure} pending for {each.seconds:.0f} s, in queue {each.waits_for}",
            "bold red",
        )
        for each in mount.waiting
    ]
