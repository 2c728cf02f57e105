# SPDX-License-Identifier: Apache-2.0
"""Draw the folders of nfsrdma_tools and their imports: docs/img/layout.svg.

Usage: tools/layout.py [--check]    --check: fail if the picture shows other imports
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import grimp
from matplotlib import rc_context
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
PACKAGE = "nfsrdma_tools"
PICTURE = ROOT / "docs" / "img" / "layout.svg"
GROUND = "top folder"


def imports() -> dict[str, set[str]]:
    """The folders that each folder imports from; files beside the folders are the top folder."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    rooms = {GROUND: set[str]()}
    for module in graph.modules - {PACKAGE, f"{PACKAGE}.__main__"}:
        others = {_room(other) for other in graph.find_modules_directly_imported_by(module)}
        rooms.setdefault(_room(module), set()).update(others - {_room(module)})
    return rooms


def _room(module: str) -> str:
    name = module.removeprefix(PACKAGE).lstrip(".").partition(".")[0]
    return name if (ROOT / PACKAGE / name / "__init__.py").exists() and name else GROUND


def levels(rooms: dict[str, set[str]]) -> dict[str, int]:
    """The height of each room: one more than the highest room that it imports from."""
    heights: dict[str, int] = {}
    while len(heights) < len(rooms):
        before = len(heights)
        for room, others in rooms.items():
            if room not in heights and others <= heights.keys():
                heights[room] = max((heights[other] + 1 for other in others), default=0)
        if len(heights) == before:
            raise SystemExit(f"imports in a circle: {sorted(rooms.keys() - heights.keys())}")
    return heights


def needed(rooms: dict[str, set[str]]) -> set[tuple[str, str]]:
    """The arrows that no chain of others replaces."""

    def below(room: str) -> set[str]:
        return rooms[room].union(*(below(other) for other in rooms[room]))

    return {
        (room, other)
        for room, others in rooms.items()
        for other in others
        if not any(other in below(third) for third in others - {other})
    }


def draw(rooms: dict[str, set[str]]) -> None:
    """Draw each room with its subject, and an arrow to each room that it needs directly."""
    heights = levels(rooms)
    rows = [[room for room in sorted(rooms) if heights[room] == height]
            for height in range(max(heights.values()) + 1)]  # fmt: skip
    middle = {
        room: (1.6 * (column - (len(row) - 1) / 2), 1.0 * height)
        for height, row in enumerate(rows)
        for column, room in enumerate(row)
    }
    figure = Figure(figsize=(9, 1.1 * len(rows)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(min(x for x, _ in middle.values()) - 1, max(x for x, _ in middle.values()) + 1)
    axes.set_ylim(-0.5, len(rows) - 0.5)
    arrow = {"arrowstyle": "-|>", "color": "0.45", "shrinkA": 0, "shrinkB": 0}
    for room, other in sorted(needed(rooms)):
        (x, y), (other_x, other_y) = middle[room], middle[other]
        axes.annotate("", (other_x, other_y + 0.16), (x, y - 0.16), arrowprops=arrow)
    for room, (x, y) in middle.items():
        box = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": "0.2"}
        axes.text(x, y, room, ha="center", va="center", bbox=box, fontsize=11)
    with rc_context({"svg.hashsalt": PACKAGE, "svg.fonttype": "none"}):
        figure.savefig(PICTURE, metadata={"Date": None, "Description": text(rooms)})


def text(rooms: dict[str, set[str]]) -> str:
    """The imports as the picture's description: ``cli: doctor host; ...``."""
    return "; ".join(" ".join((f"{room}:", *sorted(rooms[room]))) for room in sorted(rooms))


def shown() -> str:
    """The description of the picture."""
    match = re.search(r"<dc:description>(.*?)</dc:description>", PICTURE.read_text(), re.DOTALL)
    return match[1].strip() if match else ""


def main() -> None:
    """Draw, or compare."""
    rooms = imports()
    if "--check" not in sys.argv:
        draw(rooms)
    elif shown() != text(rooms):
        sys.exit(f"{PICTURE.relative_to(ROOT)} shows other imports: run tools/layout.py")


if __name__ == "__main__":
    main()
