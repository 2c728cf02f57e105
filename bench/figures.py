# SPDX-License-Identifier: Apache-2.0
"""Figures of benchmarks, and the sections of a page that show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from bench import markdown
from nfsrdma_tools.report import canvas
from nfsrdma_tools.report.canvas import Drawing, label_ends, save

__all__ = ["Lines", "Look", "Place", "Point", "Section", "picture", "plot", "sizes", "write"]

IMAGES = Path(__file__).parents[1] / "docs" / "img"
Point = tuple[float, float]
Lines = dict[str, list[Point]]
# colour and marker of a line; a "-" behind the marker dashes the line
Look = tuple[str, str]
# an object with the results, such as a store
_Source = TypeVar("_Source")
# a name, what draws it, if anything, what describes it, and the alternative text of the picture
Section = tuple[str, Callable[[_Source], Drawing] | None, Callable[[_Source], list[str]], str]


def plot(
    ax: Axes, lines: Lines, looks: Mapping[str, Look], room: float = 1.12, least: float = 0.0
) -> None:
    """Lines with labels at their ends; the scale ends at ``room`` times the largest value.

    It includes ``least``, which is drawn later: labels have their places by the scale.
    """
    ends = []
    for name, places in lines.items():
        color, mark = looks.get(name, (canvas.INK, "*"))
        xs, ys = zip(*places, strict=True)
        ax.plot(xs, ys, f"{mark}-", color=color, mec=canvas.PAPER, mew=0.7, clip_on=False)
        ends.append((xs[-1], ys[-1], name, color))
    largest = max(y for places in lines.values() for _, y in places)
    ax.set_ylim(0, max(room * largest, 1.2 * least))
    label_ends(ax, ends)


def sizes(ax: Axes, values: Iterable[float], label: str) -> None:
    """A logarithmic axis of sizes."""
    ticks = sorted(set(values))
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [f"{value / 1024:g}" for value in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(f"{label} (KiB)")


def picture(drawn: Callable[[], Drawing], folder: Path) -> None:
    """Draw with the style of reports, into a folder and docs/img."""
    with matplotlib.rc_context(canvas.RC):
        png, _ = save(drawn(), folder)
    (IMAGES / png.name).write_bytes(png.read_bytes())


class Place(NamedTuple):
    """Where sections go: a page, the beginning of their names, and docs/img as seen from it."""

    page: Path
    prefix: str
    images: str


def write(
    sections: Sequence[Section[_Source]],
    source: _Source,
    folder: Path,
    place: Place,
    about: Sequence[str] = (),
) -> None:
    """Draw the figures whose cells are measured, and replace the generated texts of the page.

    ``about``: the last lines of each section.
    """
    for name, draw, lines_of, alt in sections:
        try:
            lines = lines_of(source)
        except KeyError as missing:
            print(f"{name}: {missing}", flush=True)
            continue
        if draw:
            picture(partial(draw, source), folder)
            lines = [f"![{alt}]({place.images}/{place.prefix}-{name}.png)", "", *lines]
        markdown.write(f"{place.prefix} {name}", [*lines, *about], place.page)
        print("\n".join(lines), flush=True)
