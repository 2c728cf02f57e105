# SPDX-License-Identifier: Apache-2.0
"""The pictures of rooms in docs/img: boxes with names, and arrows from box to box."""

import re
from collections.abc import Mapping

__all__ = ["arrows_of", "circle"]

REACH = 1.0  # in units of the picture


def arrows_of(picture: str) -> set[tuple[str, str]]:
    """The arrows of an SVG: from the box where a line begins to the box where it ends."""
    boxes = {tag["id"]: tag for tag in _tags(picture, "rect") if "id" in tag}

    def box_at(point: str) -> str:
        x, y = map(float, point.split(","))
        (name,) = (name for name, box in boxes.items() if _on_edge(box, x, y))
        return name

    lines = _tags(picture, "polyline")
    assert all("marker-end" in line for line in lines)
    points = [line["points"].split() for line in lines]
    arrows = [(box_at(line[0]), box_at(line[-1])) for line in points]
    assert len(arrows) == len(set(arrows)), "an arrow is drawn twice"
    return set(arrows)


def _tags(picture: str, name: str) -> list[dict[str, str]]:
    """The attributes of each element of a name."""
    matches = re.findall(rf"<{name} ([^>]*)>", picture)
    return [dict(re.findall(r'([\w-]+)="([^"]*)"', attributes)) for attributes in matches]


def _on_edge(box: Mapping[str, str], x: float, y: float) -> bool:
    left, top, width, height = (float(box[key]) for key in ("x", "y", "width", "height"))
    inside = left - REACH <= x <= left + width + REACH and top - REACH <= y <= top + height + REACH
    to_edge = min(abs(x - left), abs(x - left - width), abs(y - top), abs(y - top - height))
    return inside and to_edge <= REACH


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """A circle of a graph, with its first node again at the end; empty if there is none."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        nodes = sorted(graph.get(node, ()))
        result = next(filter(None, (walk(name, [*path, node]) for name in nodes)), [])
        done.add(node)
        return result

    return next(filter(None, (walk(node, []) for node in sorted(graph))), [])
