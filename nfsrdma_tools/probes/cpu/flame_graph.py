# SPDX-License-Identifier: Apache-2.0
"""Draws a flame graph of sampled stacks: callees above callers, widths in proportion to time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from nfsrdma_tools.errors import printable
from nfsrdma_tools.probes.cpu import layer_names as names
from nfsrdma_tools.probes.cpu import layers
from nfsrdma_tools.probes.cpu.attribution import Cpu, Seen

__all__ = ["COLOURS", "Bar", "draw", "flame"]

COLOURS = {
    names.APPLICATION: "#9aa5b1",
    names.VFS: "#8fbc5a",
    names.NFS: "#4caf7d",
    names.SUNRPC: "#2aa198",
    names.TRANSPORT: "#2f86c9",
    names.RDMA: "#5b6fd6",
    names.NIC: "#8a63c9",
    names.EMULATED: "#e4572e",
    names.TCP_IP: "#c46bb0",
    names.COPIES: "#f2a33a",
    names.NFSD: "#d8c230",
    names.EXPORTED: "#b58f3c",
    names.SCHEDULING: "#7fb3d9",
    names.INTERRUPTS: "#d98c8c",
    names.MEMORY: "#b5a9d6",
    names.OTHER: "#c9c2b8",
    names.TRACING: "#5c6470",
    names.UNATTRIBUTED: "#e3e3e3",
}
"""The fixed colour of each layer."""
_PLAIN = "#eceff2"
_WIDTH, _ROW, _MARGIN, _LETTER = 1200, 17, 10, 6.7
_HEAD = 78
# narrower bars, in pixels, are invisible
_NARROWEST = 0.2
_STYLE = (
    "text{font:11px 'DejaVu Sans Mono',monospace;fill:#1b1f24;pointer-events:none}"
    ".title{font:bold 15px 'DejaVu Sans',sans-serif}.small{font:11px 'DejaVu Sans',sans-serif}"
    "rect{stroke:#fefefe;stroke-width:.5}g:hover>rect{stroke:#1b1f24;stroke-width:1}"
)

Step = tuple[str, str]
"""A function and its layer; "" without one, such as for a thread."""


def flame(snapshot: Cpu) -> str:
    """An SVG of the stacks of the whole session, each sample counts as the sampling interval."""
    period = 1e9 / snapshot.rate if snapshot.rate else 0.0
    busy = {seen: n for seen, n in snapshot.stacks.items() if seen.where[0] != names.IDLE}
    remark = (
        f"{snapshot.host.wall_ns / 1e9:.1f} s, busy {snapshot.host.busy_ns / 1e9:.2f} s of"
        f" {snapshot.host.cpus} CPUs; {sum(busy.values())} samples at {snapshot.rate} Hz,"
        f" {snapshot.lost} lost"
    )
    paths = sorted((_path(seen), count * period) for seen, count in busy.items())
    return draw(paths, "CPU time by layer", remark)


def _path(seen: Seen) -> list[Step]:
    """The path from the thread to the running function, without what was interrupted.

    A function without a layer has the layer of its caller.
    """
    name = seen.where[0]
    stack = seen.stack[: len(layers.uninterrupted(seen.stack)) + 1]
    interrupted = len(stack) > len(layers.uninterrupted(stack))
    path = [("interrupts", names.INTERRUPTS) if interrupted else (seen.name, "")]
    for frame in reversed(stack):
        shown = f"{frame.function} [{frame.module}]" if frame.module else frame.function
        path.append((shown, layers.own_layer(frame) or path[-1][1]))
    return [*path[:-1], (path[-1][0], name)] if stack else [*path, ("user space", name)]


@dataclass
class Bar:
    """A function in the call tree: its nanoseconds (callees included), and its callees."""

    name: str
    layer: str
    ns: float = 0.0
    called: dict[Step, Bar] = field(default_factory=dict)

    def add(self, path: Sequence[Step], ns: float) -> None:
        """Count time for a path of calls, the outermost first."""
        bar = self
        bar.ns += ns
        for step in path:
            bar = bar.called.setdefault(step, Bar(*step))
            bar.ns += ns

    def depth(self) -> int:
        """The number of calls in the longest path."""
        return 1 + max((bar.depth() for bar in self.called.values()), default=0)


def draw(paths: Iterable[tuple[Sequence[Step], float]], title: str, remark: str) -> str:
    """An SVG of the paths and their nanoseconds; equal paths give equal bytes.

    The tooltip of a bar has its function, its layer and its share of the total.
    """
    root = Bar("all", "")
    own: dict[str, float] = {}
    for path, ns in paths:
        root.add(path, ns)
        own[path[-1][1]] = own.get(path[-1][1], 0.0) + ns
    height = _HEAD + root.depth() * _ROW + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
        f' width="{_WIDTH}" height="{height}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#fefefe"/>',
        _text(_MARGIN, 20, title, "title"),
        _text(_MARGIN, 35, remark, "small"),
        *_legend(own, root.ns),
    ]
    if root.ns:
        lines += _bars(root, root.ns, _MARGIN, height - _MARGIN - _ROW)
    return "\n".join([*lines, "</svg>", ""])


def _legend(own: dict[str, float], total: float) -> Iterator[str]:
    shown = sorted(own, key=lambda name: (-own[name], name))
    for number, name in enumerate(shown[:14]):
        x, y = _MARGIN + number % 7 * 168, 44 + number // 7 * 15
        yield f'<rect x="{x}" y="{y}" width="10" height="10" fill="{COLOURS[name]}"/>'
        yield _text(x + 14, y + 9, f"{name} {own[name] / total:.1%}", "small")


def _bars(bar: Bar, total: float, x: float, y: float) -> Iterator[str]:
    width = bar.ns / total * (_WIDTH - 2 * _MARGIN)
    if width < _NARROWEST:
        return
    yield _bar(bar, total, x, y, width)
    for step in sorted(bar.called):
        called = bar.called[step]
        yield from _bars(called, total, x, y - _ROW)
        x += called.ns / total * (_WIDTH - 2 * _MARGIN)


def _bar(bar: Bar, total: float, x: float, y: float, width: float) -> str:
    where = f", {bar.layer}" if bar.layer else ""
    tooltip = f"{bar.name}{where}: {bar.ns / 1e6:.1f} ms, {bar.ns / total:.2%}"
    letters = int((width - 4) / _LETTER)
    name = bar.name if len(bar.name) <= letters else f"{bar.name[: letters - 1]}…"
    return (
        f"<g><title>{escape(printable(tooltip))}</title>"
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 1}"'
        f' fill="{COLOURS.get(bar.layer, _PLAIN)}"/>'
        f"{_text(x + 3, y + 12, name) if letters > 2 else ''}</g>"
    )


def _text(x: float, y: float, text: str, look: str = "") -> str:
    chosen = f' class="{look}"' if look else ""
    return f'<text x="{x:.2f}" y="{y}"{chosen}>{escape(printable(text))}</text>'
