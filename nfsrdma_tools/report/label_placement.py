# SPDX-License-Identifier: Apache-2.0
"""Places labels beside points of a chart without covering lines, points or other labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from matplotlib.axes import Axes

from nfsrdma_tools.report import style

__all__ = ["name_points"]

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
                    ha="center", va="center", fontsize=SIZE, color=style.MUTED)  # fmt: skip


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


def _touch(one: Spot, other: Spot) -> bool:
    return all(abs(one[i] - other[i]) < (one[i + 2] + other[i + 2]) / 2 for i in (0, 1))
