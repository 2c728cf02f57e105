# SPDX-License-Identifier: Apache-2.0
"""CPU time: against throughput, of the reader alone, and per operation over its size.

Figure 17 of the paper shows the CPU of the whole host, because read-ahead runs in kernel threads
outside of the process; figure 18 disables read-ahead, so that the reader's own system time is the
whole cost.

The third figure has fitted lines: o(m) = m o_byte + o_io.  Separately for client and server,
without an emulated NIC, and for the host as a whole.  Cells without read-ahead are left out if
others have it, because they request one page at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FormatStrFormatter

from nfsrdma_tools.report import canvas, captions
from nfsrdma_tools.report.canvas import (
    Drawing,
    bars,
    describe,
    label_ends,
    name_points,
    panels,
    rsize_axis,
)
from nfsrdma_tools.report.section import Section, Table
from nfsrdma_tools.report.study import Point, Spread, Study
from nfsrdma_tools.sizes import size_label
from nfsrdma_tools.sweep.cpu_breakdown import NIC, SIDES, Spending
from nfsrdma_tools.sweep.significance import quantile

__all__ = [
    "CONFIDENCE",
    "HOST",
    "RAW",
    "Estimate",
    "Fit",
    "Line",
    "against_throughput",
    "draw_line",
    "fit",
    "lines",
    "nearest",
    "of_the_reader",
    "overhead_section",
    "per_operation",
]

LEAST_READER_MS = 100.0
"""The least system time of a run that figure 18 shows, in ms.

Linux divides a process's time into user and system time by samples of the timer's tick (getrusage,
cputime_adjust()), 4 ms with HZ=250: 25 of them.
"""

_WITHOUT, _DASHES = "without NIC", (0, (4, 2.5))
PAPER_READ_AHEAD = 4
"""The reads ahead in figure 17 of the paper."""


def nearest(study: Study, wanted: int) -> int:
    """The study's read-ahead that is nearest to ``wanted``."""
    known = {point.cell.read_ahead for point in study.buffered}
    return min(known, key=lambda ahead: (abs(ahead - wanted), ahead))


def against_throughput(study: Study) -> Drawing | None:
    """Figure 17, or None if no CPU time was measured."""
    ahead = nearest(study, PAPER_READ_AHEAD)
    points = [p for p in study.buffered if p.cell.read_ahead == ahead and p.cpu]
    if not points:
        return None
    shown = study.side_by_side(points)
    figure, axes = panels(list(shown))
    top = min(104, 1.15 * max(p.cpu.high for p in points if p.cpu))
    for ax, mine in zip(axes, shown.values(), strict=True):
        ax.set_ylim(0, top)
        ax.set_ylabel("CPU of the host (%)")
        ax.set_xlabel("MB/s")
        ax.set_xlim(0, 1.12 * max(p.throughput.high for p in points))
        ax.tick_params(length=3, color=canvas.GRID)
        # the ends are within the panel, where lines to labels beside it would look like data
        ends = _draw_lines(ax, study, mine, _at_throughput, _of_host, _host_alone)
        ax.legend(_keys(ends), [text for *_, text, _ in ends], loc="lower right", fontsize=8.5,
                  frameon=False, labelcolor=canvas.INK)  # fmt: skip
        name_points(ax, [_named(mine, name) for name in study.transports])
    title = f"CPU against throughput, {captions.ahead(study, ahead)}"
    describe(figure, title, captions.cpu_finding(study, points), captions.small_print(study))
    caption = captions.cpu_caption(study, ahead)
    return Drawing("fig17-cpu-throughput", title, caption, captions.cpu_alt(points), figure)


def of_the_reader(study: Study) -> Drawing | None:
    """Figure 18, or None if the reader's time was not measured, or is below the resolution."""
    ahead = nearest(study, 0)
    points = [p for p in study.buffered if p.cell.read_ahead == ahead and p.reader]
    if not points or min(_reader_ms(study, p) for p in points) < LEAST_READER_MS:
        return None
    shown = study.side_by_side(points)
    figure, axes = panels(list(shown))
    top = 1.15 * max(p.reader.high for p in points if p.reader)
    for ax, mine in zip(axes, shown.values(), strict=True):
        ax.set_ylim(0, top or 1)
        ax.set_ylabel("system CPU (ms per MiB)")
        rsize_axis(ax, study)
        label_ends(ax, _draw_lines(ax, study, mine, _at_rsize, _own_cpu, _own_alone))
    title = f"The {captions.actor(study)}'s own system CPU, {captions.ahead(study, ahead)}"
    describe(figure, title, captions.reader_finding(study, points), captions.small_print(study))
    caption = captions.reader_caption(study, ahead)
    return Drawing("fig18-reader-cpu", title, caption, captions.reader_alt(points), figure)


def _reader_ms(study: Study, point: Point) -> float:
    """The system time of the reader in a run, in ms."""
    plan, mib = study.plan, study.plan.bytes_moved(point.cell) / (1 << 20)
    if plan.seconds:
        mib = point.throughput.mean * 1e6 * plan.seconds / (1 << 20)
    return point.reader.mean * mib if point.reader else 0.0


def _draw_lines(
    ax: Axes,
    study: Study,
    points: list[Point],
    where: Callable[[Point], float],
    spread: Callable[[Point], Spread],
    alone: Callable[[Point], Spread | None],
) -> list[tuple[float, float, str, str]]:
    """Draw a line per transport; returns x, y, name and colour of each end."""
    ends = []
    for name in study.transports:
        line = [p for p in points if p.cell.transport == name]
        if line:
            line.sort(key=lambda p: p.cell.rsize)
            xs = [where(p) for p in line]
            color = canvas.transport_colour(name, line[0].cell.personality)
            mark = canvas.marker_of(study.transports, name)
            bars(ax, line, xs, [spread(p) for p in line], (color, mark))
            ends.append((xs[-1], spread(line[-1]).mean, captions.transport(name), color))
            ends += _without_nic(ax, xs, [alone(p) for p in line], line)
    return ends


def _keys(ends: Sequence[tuple[float, float, str, str]]) -> list[Line2D]:
    return [
        Line2D([], [], color=colour, ls=_DASHES if _WITHOUT in text else "-")
        for *_, text, colour in ends
    ]


def _without_nic(
    ax: Axes, xs: list[float], values: list[Spread | None], line: list[Point]
) -> list[tuple[float, float, str, str]]:
    """A dashed line without the time of an emulated NIC, and the label of its end.

    Sampling may attribute more time to the NIC than there was: such a point has no value.
    """
    known = [(x, value.mean) for x, value in zip(xs, values, strict=True) if value]
    if not known or not any(p.spent and p.spent.emulated for p in line):
        return []
    cell = line[0].cell
    color = canvas.transport_colour(cell.transport, cell.personality)
    ax.plot(*zip(*known, strict=True), color=color, lw=1.4, ls=_DASHES, zorder=2)
    return [(*known[-1], f"{captions.transport(cell.transport)}, {_WITHOUT}", color)]


def _named(points: list[Point], transport: str) -> list[tuple[float, float, str]]:
    line = sorted((p for p in points if p.cell.transport == transport), key=lambda p: p.cell.rsize)
    return [(_at_throughput(p), _of_host(p).mean, size_label(p.cell.rsize)) for p in line]


def _at_throughput(point: Point) -> float:
    return point.throughput.mean


def _at_rsize(point: Point) -> float:
    return point.cell.rsize


def _of_host(point: Point) -> Spread:
    return point.cpu or Spread(0, 0, 0)


def _host_alone(point: Point) -> Spread | None:
    return point.cpu_of_host


def _own_alone(point: Point) -> Spread | None:
    return point.reader_of_host


def _own_cpu(point: Point) -> Spread:
    return point.reader or Spread(0, 0, 0)


HOST, RAW = "host", "host with emulated NIC"


@dataclass(frozen=True)
class Line:
    """A fitted line: transport, side, and points (bytes and CPU ns of an operation)."""

    transport: str
    whose: str
    points: tuple[tuple[float, float], ...]
    fit: Fit


def lines(study: Study) -> list[Line]:
    """All lines that can be fitted; none without the probe set cpu."""
    fitted = []
    for name in study.transports:
        points = [p.spent for p in _points(study, name) if p.spent and p.spent.cpu]
        for whose in _sides(points) if points else ():
            pairs = tuple((p.bytes, _cost(p, whose)) for p in points)
            # samples divide the whole time of an operation, so errors are relative to that whole
            scales = [_cost(p, RAW) for p in points]
            sizes, costs = zip(*pairs, strict=True)
            if line := fit(sizes, costs, scales):
                fitted.append(Line(name, whose, pairs, line))
    return fitted


def per_operation(study: Study) -> Drawing | None:
    """The figure, or None if there are too few points."""
    fitted = lines(study)
    shown = [whose for whose in (*SIDES, HOST) if any(line.whose == whose for line in fitted)]
    if not fitted:
        return None
    figure, axes = panels(shown)
    costs = [ns / 1e3 for line in fitted if line.whose != RAW for _, ns in line.points if ns > 0]
    for ax in axes:
        ax.set(xscale="log", yscale="log")
        ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes[0].set_ylim(min(costs) / 2, max(costs) * 2)
    for ax, whose in zip(axes, shown, strict=True):
        _panel(ax, study, [line for line in fitted if line.whose == whose])
    title = f"CPU time per {study.plan.direction} by size"
    describe(figure, title, _finding(study, fitted), captions.small_print(study))
    alt = "; ".join(f"{line.whose}, {captions.transport(line.transport)}: {formula(line.fit)}"
                    for line in fitted)  # fmt: skip
    caption = (
        f"Points are cells, lines are fitted: o(m) = m × o_byte + o_io.{_left_out(study)} A hollow "
        "point at the bottom is below the scale: samples found next to nothing. All "
        f"exclude the CPU time of the {captions.nic(study)}."
    )
    return Drawing("overhead", title, caption, f"Charts, both scales logarithmic. {alt}.", figure)


def overhead_section(study: Study) -> list[Section]:
    """The cost of a byte and of an operation, as a table; [] without the probe set cpu."""
    fitted = lines(study)
    if not fitted:
        return []
    heads = ("", "CPU of", "ns per byte", "±", f"µs per {study.plan.direction}", "±", "cells",
             *_limit_heads(study))  # fmt: skip
    table = Table(heads, [_row(study, line) for line in fitted])
    return [Section("Overhead per byte and per I/O", [_legend(study)], [table])]


def formula(line: Fit) -> str:
    """A fit as text: "0.25 ns per byte + 20.0 µs"."""
    return f"{line.per_byte.value:.3g} ns per byte + {line.per_io.value / 1e3:.3g} µs"


def _points(study: Study, transport: str) -> list[Point]:
    points = study.of(transport)
    return [p for p in points if p.cell.read_ahead] or points


def _sides(points: list[Spending]) -> Iterator[str]:
    yield from (side for side in SIDES if any(p.cpu[side] for p in points))
    yield HOST
    if any(p.emulated for p in points):
        yield RAW


def _cost(point: Spending, whose: str) -> float:
    if whose in (HOST, RAW):
        return point.host + (point.cpu[NIC] if whose == RAW else 0.0)
    return point.cpu[whose]


def _panel(ax: Axes, study: Study, fitted: list[Line]) -> None:
    ax.set_xlabel(f"KiB per {study.plan.direction}")
    ax.set_ylabel(f"µs of CPU per {study.plan.direction}")
    sizes = sorted({point.cell.rsize for point in study.points})
    ax.set_xticks(sizes, [f"{size / 1024:g}" for size in sizes])
    ax.minorticks_off()
    marks = {name: canvas.marker_of(study.transports, name) for name in study.transports}
    label_ends(ax, [draw_line(ax, line, marks[line.transport]) for line in fitted])


def draw_line(ax: Axes, line: Line, mark: str) -> tuple[float, float, str, str]:
    """Draw the points and the fit of a line; returns x, y, name and colour of its end.

    The scales are logarithmic and have their limits.
    """
    color = canvas.transport_colour(line.transport)
    xs, ys = (np.array(values) for values in zip(*line.points, strict=True))
    floor = ax.get_ylim()[0]
    shown = ys / 1e3 >= floor
    ax.plot(xs[shown], ys[shown] / 1e3, mark, color=color, mec=canvas.PAPER, mew=0.7, zorder=3)
    # a logarithmic scale has no place for 0 and less
    ax.plot(xs[~shown], np.full(np.sum(~shown), floor), mark, mfc=canvas.PAPER, mec=color,
            mew=1.3, zorder=4, clip_on=False)  # fmt: skip
    grid = np.geomspace(min(xs), max(xs), 60)
    ax.plot(grid, [line.fit.at(x) / 1e3 for x in grid], color=color, zorder=2)
    end = max(line.fit.at(max(xs)) / 1e3, floor)
    return max(xs), end, captions.transport(line.transport), color


def _finding(study: Study, fitted: list[Line]) -> str:
    formulas = [f"{captions.transport(line.transport)} {formula(line.fit)}"
            for line in fitted if line.whose == HOST]  # fmt: skip
    return f"Host, {study.plan.direction}: {'; '.join(formulas)}"


def _left_out(study: Study) -> str:
    return " Cells without read-ahead are left out." if study.plan.reads_ahead else ""


def _legend(study: Study) -> str:
    direction = study.plan.direction
    return (
        f"A {direction} of m bytes takes m × o_byte + o_io of CPU time (after Magoutis et al., "
        "FAST 2003, section 2.2). Fitted to the cells above by least squares of errors relative to "
        "a cell's whole time; ± is the 95 % confidence interval. Samples of stacks divide the "
        "time: client is programs and the client's part of NFS, RPC and transport; server is nfsd "
        "and its part of them; shared is interrupts, packets and context switches, which cannot be "
        f"attributed. The time of the {captions.nic(study)}, and of the network below it, is only "
        "in the last row of a transport."
        + (" From the size in the last column, the CPUs of this host sustain the link rate and do "
           "not limit throughput." if study.wire else "")
    )  # fmt: skip


def _limit_heads(study: Study) -> tuple[str, ...]:
    return (f"sustains {captions.rate(study.wire)} from",) if study.wire else ()


def _row(study: Study, line: Line) -> tuple[str, ...]:
    byte, io = line.fit.per_byte, line.fit.per_io
    limit = (_limit(study, line),) if study.wire else ()
    scaled = Estimate(io.value / 1e3, io.margin / 1e3)
    values = (byte.value, byte.margin, scaled.value, scaled.margin)
    numbers = (f"{value:.3g}" for value in values)
    return (
        captions.transport(line.transport),
        _whose(study, line),
        *numbers,
        str(line.fit.points),
        *limit,
    )


def _whose(study: Study, line: Line) -> str:
    return f"{HOST} with {captions.nic(study)}" if line.whose == RAW else line.whose


def _limit(study: Study, line: Line) -> str:
    """The block size from which the host's CPUs are not the limit; only for the whole host."""
    if line.whose not in (HOST, RAW) or not study.wire:
        return ""
    cpus = int(study.conditions.get("cpus", "1").split()[0])
    size = line.fit.enough_from(cpus * 1e3 / study.wire)
    if math.isinf(size):
        return "never: the cost per byte is too high"
    return "any size" if size < 1024 else f"{size / 1024:.0f} KiB"


CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value, and half the width of its 95 % confidence interval."""

    value: float
    margin: float


@dataclass(frozen=True)
class Fit:
    """``per_byte`` in ns, ``per_io`` in ns of CPU time; from ``points`` points."""

    per_byte: Estimate
    per_io: Estimate
    points: int

    def at(self, size: float) -> float:
        """The cost of an operation of ``size`` bytes, in ns."""
        return size * self.per_byte.value + self.per_io.value

    def enough_from(self, ns_per_byte: float) -> float:
        """The operation size from which a byte costs at most ``ns_per_byte``; inf if none."""
        left = ns_per_byte - self.per_byte.value
        return max(self.per_io.value, 0.0) / left if left > 0 else math.inf


def fit(sizes: Sequence[float], costs: Sequence[float], scales: Sequence[float]) -> Fit | None:
    """Fit a line through ``costs`` (ns) over ``sizes`` (bytes), with errors relative to ``scales``.

    None without degrees of freedom: it needs three points, of at least two sizes.
    Intervals use Student's t for the number of points.
    """
    if len(sizes) < 3 or len(set(sizes)) < 2 or min(scales) <= 0:
        return None
    scale, cost = np.array(scales, float), np.array(costs, float)
    terms = np.column_stack([np.array(sizes, float), np.ones(len(cost))]) / scale[:, None]
    solution, *_ = np.linalg.lstsq(terms, cost / scale, rcond=None)
    degrees = len(cost) - 2
    variance = float(np.sum((terms @ solution - cost / scale) ** 2)) / degrees
    spread = np.sqrt(np.diag(np.linalg.inv(terms.T @ terms)) * variance)
    margins = quantile(degrees, (1 + CONFIDENCE) / 2) * spread
    byte, io = (Estimate(float(v), float(m)) for v, m in zip(solution, margins, strict=True))
    return Fit(byte, io, len(cost))
