# SPDX-License-Identifier: Apache-2.0
"""Throughput over rsize and read-ahead as a heat map with numbers."""

from __future__ import annotations

from itertools import product

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from nfsrdma_tools.report import captions, style
from nfsrdma_tools.report.canvas import Drawing, describe, panels
from nfsrdma_tools.report.study import Point, Study

__all__ = ["draw"]


def draw(study: Study, transport: str) -> Drawing | None:
    """The map of one transport, or None if only one read-ahead was measured."""
    aheads = sorted({p.cell.read_ahead for p in study.points})
    sizes = sorted({p.cell.rsize for p in study.points})
    if len(aheads) < 2:
        return None
    variants = study.variants_of(transport)
    figure, axes = panels(variants, room=False)
    top = max(p.throughput.mean for p in study.points)
    for ax, variant in zip(axes, variants, strict=True):
        _axes(ax, study, sizes, aheads)
        found = {(p.cell.rsize, p.cell.read_ahead): p for p in study.of(transport, variant)}
        for (x, size), (y, ahead) in product(enumerate(sizes), enumerate(aheads)):
            _tile(ax, (x, y), found.get((size, ahead)), top, min(1, 8 / len(sizes)))
    title = f"{captions.transport(transport)}: MB/s over {captions.size_word(study)} and read-ahead"
    describe(figure, title, captions.map_finding(study, transport), captions.small_print(study))
    caption, alt = captions.map_caption(study, transport), captions.map_alt(study, transport)
    # the colours of the tiles encode values, so a dark page keeps them
    frame = (style.INK, style.MUTED, style.GRID, style.PAPER)
    return Drawing(f"map-{transport}", title, caption, alt, figure, frame)


def _axes(ax: Axes, study: Study, sizes: list[int], aheads: list[int]) -> None:
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


def _tile(ax: Axes, place: tuple[int, int], point: Point | None, top: float, scale: float) -> None:
    corner = (place[0] - 0.48, place[1] - 0.46)
    if point is None:
        ax.add_patch(Rectangle(corner, 0.96, 0.92, fc="none", ec=style.GRID, hatch="////", lw=0.8))
        return
    share = point.throughput.mean / top if top else 0
    ax.add_patch(Rectangle(corner, 0.96, 0.92, fc=to_hex(colormaps["viridis"](share)), lw=0))
    ink = "#fffffe" if share < 0.55 else "#101214"
    if point.best or point.tied:
        line = "-" if point.best else (0, (2, 1.5))
        ax.add_patch(Rectangle(corner, 0.96, 0.92, fc="none", ec=ink, lw=2.2 * scale, ls=line))
    mark = "~" if point.unstable else ""
    said = f"{mark}{captions.figure(point.throughput.mean)}"
    ax.text(*place, said, color=ink, fontsize=10 * scale,
            fontweight="bold" if point.best else "normal", ha="center", va="center")  # fmt: skip
