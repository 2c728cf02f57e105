# SPDX-License-Identifier: Apache-2.0
"""CPU against throughput, and the reader's own CPU without read-ahead: the paper's 17 and 18.

Figure 17 shows the CPU of the whole host, because read-ahead runs in kernel threads outside of the
process; figure 18 disables read-ahead, so that the reader's own system time is the whole cost.
"""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.axes import Axes

from nfsrdma_tools.report import captions, style
from nfsrdma_tools.report.canvas import (
    Drawing,
    bars,
    describe,
    label_ends,
    name_points,
    panels,
    rsize_axis,
)
from nfsrdma_tools.report.study import Point, Spread, Study

__all__ = ["against_throughput", "nearest", "of_the_reader"]

PAPER_READ_AHEAD = 4
"""The reads ahead in figure 17 of the paper."""


def nearest(study: Study, wanted: int) -> int:
    """The study's read-ahead that is nearest to ``wanted``."""
    known = {point.cell.read_ahead for point in study.points}
    return min(known, key=lambda ahead: (abs(ahead - wanted), ahead))


def against_throughput(study: Study) -> Drawing | None:
    """Figure 17, or None if no CPU time was measured."""
    ahead = nearest(study, PAPER_READ_AHEAD)
    points = [p for p in study.points if p.cell.read_ahead == ahead and p.cpu]
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
        ax.tick_params(length=3, color=style.GRID)
        _lines(ax, study, mine, _at_throughput, _host, _host_alone)
        name_points(ax, [_named(mine, name) for name in study.transports])
    title = f"CPU against throughput, {captions.ahead(study, ahead)}"
    describe(figure, title, captions.cpu_finding(study, points), captions.small_print(study))
    caption = captions.cpu_caption(study, ahead)
    return Drawing("fig17-cpu-throughput", title, caption, captions.cpu_alt(points), figure)


def of_the_reader(study: Study) -> Drawing | None:
    """Figure 18, or None if the reader's time was not measured."""
    ahead = nearest(study, 0)
    points = [p for p in study.points if p.cell.read_ahead == ahead and p.reader]
    if not points:
        return None
    shown = study.side_by_side(points)
    figure, axes = panels(list(shown))
    top = 1.15 * max(p.reader.high for p in points if p.reader)
    for ax, mine in zip(axes, shown.values(), strict=True):
        ax.set_ylim(0, top or 1)
        ax.set_ylabel("system CPU (ms per MiB)")
        rsize_axis(ax, study)
        _lines(ax, study, mine, _at_rsize, _own, _own_alone)
    title = f"The {captions.actor(study)}'s own system CPU, {captions.ahead(study, ahead)}"
    describe(figure, title, captions.reader_finding(study, points), captions.small_print(study))
    caption = captions.reader_caption(study, ahead)
    return Drawing("fig18-reader-cpu", title, caption, captions.reader_alt(points), figure)


def _lines(
    ax: Axes,
    study: Study,
    points: list[Point],
    where: Callable[[Point], float],
    what: Callable[[Point], Spread],
    alone: Callable[[Point], Spread | None],
) -> None:
    ends = []
    for name in study.transports:
        line = [p for p in points if p.cell.transport == name]
        if line:
            line.sort(key=lambda p: p.cell.rsize)
            xs = [where(p) for p in line]
            color, mark = style.transport(name), style.marker(study.transports, name)
            bars(ax, line, xs, [what(p) for p in line], (color, mark))
            ends.append((xs[-1], what(line[-1]).mean, captions.transport(name), color))
            ends += _without_nic(ax, xs, [alone(p) for p in line], line)
    label_ends(ax, ends)


def _without_nic(
    ax: Axes, xs: list[float], values: list[Spread | None], line: list[Point]
) -> list[tuple[float, float, str, str]]:
    """A dashed line without the time of an emulated NIC, and the label of its end.

    Sampling may attribute more time to the NIC than there was: such a point has no value.
    """
    known = [(x, value.mean) for x, value in zip(xs, values, strict=True) if value]
    if not known or not any(p.spent and p.spent.emulated for p in line):
        return []
    color = style.transport(line[0].cell.transport)
    ax.plot(*zip(*known, strict=True), color=color, lw=1.4, ls=(0, (4, 2.5)), zorder=2)
    return [(*known[-1], "without NIC", color)]


def _named(points: list[Point], transport: str) -> list[tuple[float, float, str]]:
    line = sorted((p for p in points if p.cell.transport == transport), key=lambda p: p.cell.rsize)
    return [(_at_throughput(p), _host(p).mean, style.size_label(p.cell.rsize)) for p in line]


def _at_throughput(point: Point) -> float:
    return point.throughput.mean


def _at_rsize(point: Point) -> float:
    return point.cell.rsize


def _host(point: Point) -> Spread:
    return point.cpu or Spread(0, 0, 0)


def _host_alone(point: Point) -> Spread | None:
    return point.cpu_of_host


def _own_alone(point: Point) -> Spread | None:
    return point.reader_of_host


def _own(point: Point) -> Spread:
    return point.reader or Spread(0, 0, 0)
