# SPDX-License-Identifier: Apache-2.0
"""Drawings: the style, panels, axes and labels of all figures, and their files.

Equal drawings give equal bytes.  Imports matplotlib: import this late.

Read-ahead is ordered, so its colours are steps of viridis (Smith and van der Walt), which keeps
its order in grey and for colour-blind readers; transports use colours of Okabe and Ito.  Each
colour of a light figure has a counterpart for dark pages, and the page maps one to the other.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from nfsrdma_tools.errors import printable
from nfsrdma_tools.files import write_fresh
from nfsrdma_tools.report import captions
from nfsrdma_tools.report.study import Point, Spread, Study

__all__ = [
    "COLOURS",
    "GRID",
    "INK",
    "MUTED",
    "PAPER",
    "Drawing",
    "bars",
    "describe",
    "inline_svg",
    "label_ends",
    "name_line",
    "name_points",
    "ordered_colours",
    "panels",
    "personality_colour",
    "rsize_axis",
    "save",
    "transport_colour",
    "variable",
]

INK, MUTED, GRID, PAPER = "#1b1f24", "#5b6470", "#e1e5ea", "#fefefe"
_STEPS = (
    ("#440154", "#2e6f8e"), ("#482576", "#25848e"), ("#404588", "#1f9a8a"), ("#34618d", "#2ab07f"),
    ("#297b8e", "#50c46a"), ("#20938c", "#86d549"), ("#25ac82", "#c2df23"), ("#4ec36b", "#fde725"),
)  # fmt: skip
_TRANSPORTS = {
    "tcp": ("#d55e00", "#f0904d"),
    "rdma": ("#0072b2", "#56b4e9"),
    "nfsrdma": ("#009e73", "#2fcf9f"),
}
# those of transport nfsrdma; the default is the transport itself
_PERSONALITIES = {
    "read-write": _TRANSPORTS["nfsrdma"],
    "read-read": ("#8c564b", "#c4948a"),
    "pre-posted": ("#6a3d9a", "#b79ada"),
    "cached": ("#b8860b", "#e2b64a"),
    "padded": ("#d1495b", "#ee8f9b"),
    "optimistic": ("#4d4d4d", "#b8b8b8"),
}
_OTHER = ("#cc79a7", "#e3a3c6")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")

COLOURS = {
    INK: "#e6e8eb",
    MUTED: "#a4adb8",
    GRID: "#31373e",
    PAPER: "#15181c",
    **dict(_STEPS),
    **dict(_TRANSPORTS.values()),
    **dict(_PERSONALITIES.values()),
    **dict([_OTHER]),
}
"""Each colour of a figure on a light page, with its counterpart on a dark page."""

RC: dict[str, Any] = {
    "figure.figsize": (5.6, 3.9),
    "figure.dpi": 100,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.facecolor": "none",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlepad": 10,
    "axes.labelsize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "font.size": 10,
    "font.family": ["DejaVu Sans"],
    "lines.linewidth": 1.9,
    "lines.markersize": 6.3,
    "errorbar.capsize": 2.5,
    # text from a store may contain a dollar sign, which must not start a formula
    "text.parse_math": False,
    "text.usetex": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "nfsrdma",
}
"""matplotlib's settings for all figures; the fixed salt makes equal figures equal bytes."""


def ordered_colours(count: int) -> list[str]:
    """``count`` colours for ordered values, as distinct as possible."""
    last = len(_STEPS) - 1
    indexes = [round(i * last / max(1, count - 1)) for i in range(count)]
    return [_STEPS[index][0] for index in indexes]


def transport_colour(name: str, personality: str | None = None) -> str:
    """The colour of a transport, or of a personality of transport nfsrdma."""
    return personality_colour(personality) if personality else _TRANSPORTS.get(name, _OTHER)[0]


def personality_colour(name: str) -> str:
    """The colour of a personality of transport nfsrdma."""
    return _PERSONALITIES.get(name, _OTHER)[0]


def marker_of(names: Sequence[str], name: str) -> str:
    """The marker of one of several transports."""
    return MARKERS[names.index(name) % len(MARKERS)]


LINE = 0.17
"""Inches of a line of a label at the end of a line."""
_LABEL = 1.7
"""Inches to the right of a panel for such labels."""


@dataclass(frozen=True)
class Drawing:
    """A figure with its texts; ``name`` is the stem of its files.

    ``themed`` are the colours that a dark page replaces.
    """

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure
    themed: tuple[str, ...] = tuple(COLOURS)


def panels(
    names: Sequence[str], *, room: bool = True, one_scale: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel per name, two per row; names become subtitles.

    ``room`` leaves space for labels to the right of each panel.  The panels have ``one_scale``, or
    a y scale each.
    """
    columns = min(2, len(names))
    rows = -(-len(names) // columns)
    width = 5.6 if columns == 1 else 2 * (5.0 if room else 4.3)
    figure = Figure(figsize=(width, 3.9 * (1 + 0.85 * (rows - 1))))
    grid = figure.subplots(rows, columns, sharey=one_scale, squeeze=False)
    axes = list(grid.flat)
    for spare in axes[len(names) :]:
        spare.remove()
    left = 0.12 / columns**0.6
    right = (0.86 if columns == 1 else 1 - _LABEL / width) if room else 0.97
    panel = (right - left) * width - (_LABEL + 0.6)
    wspace = (2 * (_LABEL + 0.6) / panel) if room else 0.1
    bottom, top = 0.145 / rows**0.7, 1 - 0.15 / rows**0.7
    figure.subplots_adjust(left, bottom, right, top, wspace=wspace, hspace=0.27)
    for ax, name in zip(axes, names, strict=False):
        if name:
            ax.set_title(printable(name), fontsize=9.5, fontweight="normal", pad=4)
    return figure, axes[: len(names)]


def describe(figure: Figure, title: str, finding: str, conditions: str) -> None:
    """Add title and finding above, and the conditions in small print below the figure."""
    left = figure.subplotpars.left
    inch = 1 / figure.get_figheight()
    top = figure.subplotpars.top + (0.22 if len(figure.axes) > 1 else 0.08) * inch
    lines = "\n".join(map(printable, title.splitlines()))
    subtitle = wrapped(finding, int(16 * figure.get_figwidth()))
    rise = 0.2 + 0.16 * subtitle.count("\n")
    figure.text(left, top + rise * inch, lines, fontsize=12.5, fontweight="bold", va="bottom")
    figure.text(left, top + 0.02 * inch, subtitle, fontsize=9.5, color=MUTED, va="bottom")
    small = wrapped(conditions, int(17.5 * figure.get_figwidth()))
    note = figure.text(0.01, 0, small, fontsize=7, color=MUTED, va="top", wrap=False)
    note.set_gid("conditions")


def wrapped(text: str, width: int) -> str:
    """Wrap text to lines of at most ``width`` characters."""
    return "\n".join(textwrap.wrap(printable(text), width))


# there is no room for more
_MOST_TICKS = 32


def rsize_axis(ax: Axes, study: Study) -> None:
    """A logarithmic axis with the measured sizes in KiB."""
    sizes = sorted({point.cell.rsize for point in study.points})
    named = sizes[:: -(-len(sizes) // _MOST_TICKS)]
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(named))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels([f"{size / 1024:g}" for size in named])
    ax.tick_params(length=3, color=GRID)
    ax.set_xlabel(f"{captions.size_word(study)} (KiB)")
    if len(sizes) > 1:
        ax.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)


def bars(
    ax: Axes,
    points: Sequence[Point],
    xs: Sequence[float],
    spreads: Sequence[Spread],
    look: tuple[str, str],
) -> None:
    """Plot a line with bars from lowest to highest run; ``look`` is colour and marker.

    Unstable points are hollow.
    """
    color, marker = look
    means = [s.mean for s in spreads]
    below = [s.mean - s.low for s in spreads]
    above = [s.high - s.mean for s in spreads]
    ax.errorbar(xs, means, yerr=[below, above], color=color, elinewidth=1.1, zorder=3)
    for x, y, point in zip(xs, means, points, strict=True):
        face, edge = (PAPER, color) if point.unstable else (color, PAPER)
        ax.plot(x, y, marker, mfc=face, mec=edge, mew=1.3 if point.unstable else 0.7,
                zorder=4, clip_on=False)  # fmt: skip


def label_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Label lines at their right ends: (x, y, text, colour) each, pushed apart vertically."""
    ordered = sorted(ends, key=lambda end: end[1])
    inches = ax.get_window_extent().height / ax.figure.dpi
    heights = ax.transAxes.inverted().transform(ax.transData.transform([e[:2] for e in ordered]))
    texts = [printable(text).replace(", ", ",\n", 1) for _, _, text, _ in ordered]
    gap = LINE * (0.2 + max((text.count("\n") + 1 for text in texts), default=1)) / inches
    heights_of_labels = apart([float(height) for _, height in heights], gap)
    for (x, y, _, color), text, height in zip(ordered, texts, heights_of_labels, strict=True):
        ax.annotate(
            text, (x, y), (1.035, height), textcoords="axes fraction", va="center",
            color=INK, fontsize=9.5, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.9, "shrinkA": 1, "shrinkB": 4,
                        "relpos": (0, 0.5)},
        )  # fmt: skip


def apart(positions: Sequence[float], gap: float) -> list[float]:
    """Move ascending positions as little as possible to be ``gap`` apart, and between 0 and 1.

    If there is no room for all, the last ones are above 1.
    """
    # spread each group of touching labels around its middle, until none touch
    groups: list[list[float]] = []
    for position in positions:
        groups.append([position])
        while len(groups) > 1 and _top(groups[-2], gap) + gap > _bottom(groups[-1], gap):
            last = groups.pop()
            groups[-1] += last
    return [_bottom(group, gap) + gap * i for group in groups for i in range(len(group))]


def _bottom(group: Sequence[float], gap: float) -> float:
    middle = sum(group) / len(group)
    span = gap * (len(group) - 1)
    return max(0.0, min(middle - span / 2, 1 - span))


def _top(group: Sequence[float], gap: float) -> float:
    return _bottom(group, gap) + gap * (len(group) - 1)


def name_line(ax: Axes, line: Sequence[tuple[float, float]], name: str) -> None:
    """Write the name of a line beside it, where it covers no other line and no text.

    Call it when all else is drawn.  Without room, there is no name: the caption explains the line.
    """
    figure = ax.get_figure(root=True)
    # one that only measures: that of the figure has memory for each of its pixels
    measure = RendererAgg(1, 1, figure.dpi if figure else 72)
    box = ax.get_window_extent(measure)
    drawn = [each for each in ax.lines if each.get_linestyle() not in ("None", "")]
    paths = [each.get_path().transformed(ax.transData) for each in drawn]
    texts = [each.get_window_extent(measure) for each in ax.texts]
    for x, y in line[:: max(1, len(line) // 40)]:
        for offset, side in (((8, -4), "left"), ((-8, 4), "right")):
            text = ax.annotate(name, (x, y), offset, textcoords="offset points", ha=side,
                               va="center", fontsize=8.5, color=MUTED)  # fmt: skip
            mine = text.get_window_extent(measure)
            corners = (mine.p0, mine.p1)
            if (
                all(box.contains(*corner) for corner in corners)
                and not any(path.intersects_bbox(mine, filled=False) for path in paths)
                and not mine.count_overlaps(texts)
            ):
                return
            text.remove()


Spot = tuple[float, float, float, float]
"""Middle, width and height, in points (1/72 inch) from the lower left of the axes."""

SIZE = 8
_AROUND = ((-1, 0), (0, -1), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1), (1, 0))


def name_points(ax: Axes, lines: Sequence[Sequence[tuple[float, float, str]]]) -> None:
    """Write each point's name beside it; names without room are left out.

    ``lines`` are the points (x, y, name) of each line; axes are linear and begin at 0.
    """
    box = ax.get_window_extent()
    width, height = (72 * length / ax.figure.dpi for length in (box.width, box.height))
    wide, high = width / ax.get_xlim()[1], height / ax.get_ylim()[1]
    placed = [[(x * wide, y * high, name) for x, y, name in line] for line in lines]
    taken = [spot for line in placed for spot in _covered(line)]
    for x, y, name in (point for line in placed for point in line):
        spot = _free(x, y, name, taken, (width, height))
        if spot:
            taken.append(spot)
            ax.text(spot[0] / width, spot[1] / height, name, transform=ax.transAxes,
                    ha="center", va="center", fontsize=SIZE, color=MUTED)  # fmt: skip


def _covered(line: Sequence[tuple[float, float, str]]) -> Iterator[Spot]:
    for x, y, _ in line:
        yield x, y, 8, 8
    for (x0, y0, _), (x1, y1, _) in pairwise(line):
        steps = int(max(abs(x1 - x0), abs(y1 - y0)) / 3) + 1
        for i in range(steps):
            yield x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps, 3, 3


def _free(
    x: float, y: float, name: str, taken: list[Spot], size: tuple[float, float]
) -> Spot | None:
    wide, high = 0.62 * SIZE * len(name), 1.2 * SIZE
    spots = [(x + dx * (wide / 2 + 7), y + dy * (high / 2 + 6), wide, high) for dx, dy in _AROUND]
    inside = (s for s in spots if _within(s, size) and not any(_touch(s, t) for t in taken))
    return next(inside, None)


def _within(spot: Spot, size: tuple[float, float]) -> bool:
    return all(spot[i + 2] / 2 <= spot[i] <= size[i] - spot[i + 2] / 2 for i in (0, 1))


def _touch(spot: Spot, other: Spot) -> bool:
    return all(abs(spot[i] - other[i]) < (spot[i + 2] + other[i + 2]) / 2 for i in (0, 1))


# leave out time and library version, which are not results
_PNG = {"Software": None}
# a figure of many panels is tall
_MOST_PIXELS = 8_000_000
_SVG = {"Date": None, "Creator": None, "Format": None, "Type": None}


def save(drawing: Drawing, out: Path) -> list[Path]:
    """Write ``out``/NAME.png (for slides, up to 200 dpi) and .svg; returns both paths."""
    FigureCanvasAgg(drawing.figure)
    png, svg = out / f"{drawing.name}.png", out / f"{drawing.name}.svg"
    image = io.BytesIO()
    area = drawing.figure.get_figwidth() * drawing.figure.get_figheight()
    dpi = min(200.0, math.sqrt(_MOST_PIXELS / area))
    drawing.figure.savefig(image, dpi=dpi, bbox_inches="tight", pad_inches=0.12, metadata=_PNG)
    write_fresh(png, image.getvalue())
    write_fresh(svg, _svg(drawing.figure).encode())
    return [png, svg]


def inline_svg(drawing: Drawing) -> str:
    """The figure as an element of a page: with the page's colours and with unique ids.

    Leaves out the small print, which the page has once for all figures.
    """
    for text in drawing.figure.texts:
        text.set_visible(text.get_gid() != "conditions")
    svg = _svg(drawing.figure)
    svg = svg[svg.index("<svg") :]
    for light in drawing.themed:
        svg = svg.replace(light, f"var({variable(light)})")
    svg = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{drawing.name}-", svg)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    return svg.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)


def variable(colour: str) -> str:
    """The name of the page's variable for a colour of a light figure."""
    return f"--c-{colour.removeprefix('#')}"


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", pad_inches=0.12, metadata=_SVG)
    # without DejaVu Sans, browsers use the page's font instead of a serif font
    return re.sub(r"'DejaVu Sans'(?!,)", "'DejaVu Sans', system-ui, sans-serif", text.getvalue())
