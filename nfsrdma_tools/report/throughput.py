# SPDX-License-Identifier: Apache-2.0
"""Throughput over rsize and read-ahead: lines, the paper's figures 15 and 16, and a heat map.

Each transport has one of each.

Callaghan, Lingutla-Raj, Chiu, Staubach, Asad: "NFS over RDMA", NICELI 2003, section 7.3.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from nfsrdma_tools.report import canvas, captions
from nfsrdma_tools.report.canvas import (
    Drawing,
    bars,
    describe,
    label_ends,
    name_line,
    panels,
    rsize_axis,
)
from nfsrdma_tools.report.study import Point, Study

__all__ = ["draw_heat_map", "draw_lines"]

_FIGURES = {"tcp": "15", "rdma": "16"}


def draw_lines(study: Study, transport: str) -> Drawing:
    """Lines of one transport, one per read-ahead; all transports of a study share the y scale."""
    variants = study.variants_of(transport)
    figure, axes = panels(variants)
    for ax, variant in zip(axes, variants, strict=True):
        ax.set_ylim(0, _top(study))
        ax.set_ylabel("MB/s")
        rsize_axis(ax, study)
        points = study.of(transport, variant)
        _limit(ax, study)
        ceilings = _ceiling(ax, study, points)
        _lines(ax, study, points)
        _ring(ax, points)
        name_line(ax, ceilings, "rsize / round trip")
    title = captions.title(study, transport)
    describe(figure, title, captions.best_of(study, transport), captions.small_print(study))
    return Drawing(
        name=f"fig{_FIGURES.get(transport, '16b')}-throughput-{transport}",
        title=title,
        caption=captions.throughput_caption(study, transport, _FIGURES.get(transport)),
        alt=captions.throughput_alt(study, transport),
        figure=figure,
    )


def _top(study: Study) -> float:
    return 1.12 * max([study.visible_wire, *(p.throughput.high for p in study.points)])


def _lines(ax: Axes, study: Study, points: list[Point]) -> None:
    aheads = sorted({p.cell.read_ahead for p in study.points})
    colors = canvas.ordered_colours(len(aheads))
    if len(aheads) == 1 and points:
        cell = points[0].cell
        colors = [canvas.transport_colour(cell.transport, cell.personality)]
    ends = []
    for i, (ahead, color) in enumerate(zip(aheads, colors, strict=True)):
        line = [p for p in points if p.cell.read_ahead == ahead]
        if line:
            xs, mark = [p.cell.rsize for p in line], canvas.MARKERS[i % len(canvas.MARKERS)]
            bars(ax, line, xs, [p.throughput for p in line], (color, mark))
            ends.append((xs[-1], line[-1].throughput.mean, f"{ahead} ahead", color))
    if len(aheads) > 1 and not any(p.cell.direct for p in points):
        label_ends(ax, ends)


def _ring(ax: Axes, points: list[Point]) -> None:
    for best in (p for p in points if p.best):
        ax.plot(best.cell.rsize, best.throughput.mean, "o", ms=13, mfc="none", mec=canvas.INK,
                mew=1.2, zorder=5, clip_on=False)  # fmt: skip


def _limit(ax: Axes, study: Study) -> None:
    if study.visible_wire:
        ax.axhline(study.visible_wire, color=canvas.MUTED, lw=1.1, ls=(0, (5, 3)), zorder=1)
        ax.annotate(f"link rate: {study.visible_wire:.4g} MB/s", (0.012, study.visible_wire),
                    (0, 3), xycoords=("axes fraction", "data"), textcoords="offset points",
                    fontsize=8.5, color=canvas.MUTED)  # fmt: skip


def _ceiling(ax: Axes, study: Study, points: list[Point]) -> list[tuple[float, float]]:
    """Draw the throughput of one request at a time; returns the points of the line."""
    sizes, ceilings = _one_at_a_time(study, points)
    if sizes:
        ax.plot(sizes, ceilings, color=canvas.MUTED, lw=1.3, ls=":", zorder=1)
    return list(zip(sizes, ceilings, strict=True))


def _one_at_a_time(study: Study, points: list[Point]) -> tuple[list[float], list[float]]:
    least = min((p.cell.read_ahead for p in points), default=0)
    known = [p for p in points if p.cell.read_ahead == least and p.ceiling]
    if len(known) < 2 or not study.plan.has_read_ahead(known[0].cell):
        return [], []
    # interpolate on logarithmic scales between the measured sizes
    at = np.log([p.cell.rsize for p in known])
    sizes = np.linspace(at[0], at[-1], 100)
    ceilings = np.interp(sizes, at, np.log([p.ceiling or 1 for p in known]))
    return list(np.exp(sizes)), list(np.exp(ceilings))


def draw_heat_map(study: Study, transport: str) -> Drawing | None:
    """A heat map of one transport with numbers; None if only one read-ahead was measured."""
    aheads = sorted({p.cell.read_ahead for p in study.buffered})
    sizes = sorted({p.cell.rsize for p in study.buffered})
    variants = list(
        dict.fromkeys(p.variant for p in study.buffered if p.cell.transport == transport)
    )
    if len(aheads) < 2 or not variants:
        return None
    figure, axes = panels(variants, room=False)
    top = max(p.throughput.mean for p in study.buffered)
    for ax, variant in zip(axes, variants, strict=True):
        _tile_axes(ax, study, sizes, aheads)
        measured = {(p.cell.rsize, p.cell.read_ahead): p for p in study.of(transport, variant)}
        for (x, size), (y, ahead) in product(enumerate(sizes), enumerate(aheads)):
            _tile(ax, (x, y), measured.get((size, ahead)), top, min(1, 8 / len(sizes)))
    title = f"{captions.transport(transport)}: MB/s over {captions.size_word(study)} and read-ahead"
    describe(figure, title, captions.map_finding(study, transport), captions.small_print(study))
    caption, alt = captions.map_caption(study, transport), captions.map_alt(study, transport)
    # the colours of the tiles encode values, so a dark page keeps them
    frame = (canvas.INK, canvas.MUTED, canvas.GRID, canvas.PAPER)
    return Drawing(f"map-{transport}", title, caption, alt, figure, frame)


def _tile_axes(ax: Axes, study: Study, sizes: list[int], aheads: list[int]) -> None:
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.set_xlim(-0.5, len(sizes) - 0.5)
    ax.set_ylim(-0.5, len(aheads) - 0.5)
    ax.set_xticks(range(len(sizes)), [f"{size / 1024:g}" for size in sizes])
    ax.set_yticks(range(len(aheads)), [str(ahead) for ahead in aheads])
    ax.tick_params(length=0)
    ax.set_xlabel(f"{captions.size_word(study)} (KiB)")
    ax.set_ylabel("reads ahead")


# of a font of 10 points: nobody reads a smaller one
_LEAST_SCALE = 0.4


def _tile(
    ax: Axes, position: tuple[int, int], point: Point | None, top: float, scale: float
) -> None:
    corner = (position[0] - 0.48, position[1] - 0.46)
    if point is None:
        ax.add_patch(Rectangle(corner, 0.96, 0.92, fc="none", ec=canvas.GRID, hatch="////", lw=0.8))
        return
    share = point.throughput.mean / top if top else 0
    ax.add_patch(Rectangle(corner, 0.96, 0.92, fc=to_hex(colormaps["viridis"](share)), lw=0))
    ink = "#fffffe" if share < 0.55 else "#101214"
    if point.best or point.tied:
        line = "-" if point.best else (0, (2, 1.5))
        ax.add_patch(Rectangle(corner, 0.96, 0.92, fc="none", ec=ink, lw=2.2 * scale, ls=line))
    if scale < _LEAST_SCALE:
        return
    mark = "~" if point.unstable else ""
    label = f"{mark}{captions.figure(point.throughput.mean)}"
    ax.text(*position, label, color=ink, fontsize=10 * scale,
            fontweight="bold" if point.best else "normal", ha="center", va="center")  # fmt: skip
