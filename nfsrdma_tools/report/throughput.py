# SPDX-License-Identifier: Apache-2.0
"""Throughput over rsize, a line per read-ahead, a figure per transport: the paper's 15 and 16.

Callaghan, Lingutla-Raj, Chiu, Staubach, Asad: "NFS over RDMA", NICELI 2003, section 7.3.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from nfsrdma_tools.report import captions, style
from nfsrdma_tools.report.canvas import Drawing, bars, describe, label_ends, panels, rsize_axis
from nfsrdma_tools.report.study import Point, Study

__all__ = ["draw"]

_FIGURES = {"tcp": "15", "rdma": "16"}


def draw(study: Study, transport: str) -> Drawing:
    """The figure of one transport; all transports of a study share the y scale."""
    variants = study.variants_of(transport)
    figure, axes = panels(variants)
    for ax, variant in zip(axes, variants, strict=True):
        ax.set_ylim(0, _top(study))
        ax.set_ylabel("MB/s")
        rsize_axis(ax, study)
        points = study.of(transport, variant)
        _limits(ax, study, points)
        _lines(ax, study, points)
        _ring(ax, points)
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
    colors = style.steps(len(aheads))
    if len(aheads) == 1 and points:
        colors = [style.transport(points[0].cell.transport)]
    ends = []
    for i, (ahead, color) in enumerate(zip(aheads, colors, strict=True)):
        line = [p for p in points if p.cell.read_ahead == ahead]
        if line:
            xs, mark = [p.cell.rsize for p in line], style.MARKERS[i % len(style.MARKERS)]
            bars(ax, line, xs, [p.throughput for p in line], (color, mark))
            ends.append((xs[-1], line[-1].throughput.mean, f"{ahead} ahead", color))
    if len(aheads) > 1:
        label_ends(ax, ends)


def _ring(ax: Axes, points: list[Point]) -> None:
    for best in (p for p in points if p.best):
        ax.plot(best.cell.rsize, best.throughput.mean, "o", ms=13, mfc="none", mec=style.INK,
                mew=1.2, zorder=5, clip_on=False)  # fmt: skip


def _limits(ax: Axes, study: Study, points: list[Point]) -> None:
    if study.visible_wire:
        ax.axhline(study.visible_wire, color=style.MUTED, lw=1.1, ls=(0, (5, 3)), zorder=1)
        ax.annotate(f"link rate: {study.visible_wire:.4g} MB/s", (0.012, study.visible_wire),
                    (0, 3), xycoords=("axes fraction", "data"), textcoords="offset points",
                    fontsize=8.5, color=style.MUTED)  # fmt: skip
    sizes, ceilings = _one_at_a_time(study, points)
    if sizes:
        ax.plot(sizes, ceilings, color=style.MUTED, lw=1.3, ls=":", zorder=1)
        at = int(np.argmin(np.abs(np.array(ceilings) - 0.3 * _top(study))))
        ax.annotate("rsize / round trip", (sizes[at], ceilings[at]), (7, -3), fontsize=8.5,
                    textcoords="offset points", color=style.MUTED)  # fmt: skip


def _one_at_a_time(study: Study, points: list[Point]) -> tuple[list[float], list[float]]:
    least = min((p.cell.read_ahead for p in points), default=0)
    known = [p for p in points if p.cell.read_ahead == least and p.ceiling]
    if len(known) < 2 or not study.plan.reads_ahead:
        return [], []
    # interpolate on logarithmic scales between the measured sizes
    at = np.log([p.cell.rsize for p in known])
    sizes = np.linspace(at[0], at[-1], 100)
    ceilings = np.interp(sizes, at, np.log([p.ceiling or 1 for p in known]))
    return list(np.exp(sizes)), list(np.exp(ceilings))
