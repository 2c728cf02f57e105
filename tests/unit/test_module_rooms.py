# SPDX-License-Identifier: Apache-2.0
"""The rooms of kmod/: layers without an arrow back, no circles, and a picture that shows them."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KMOD = ROOT / "kmod"
PICTURE = ROOT / "docs" / "img" / "module-rooms.svg"
# each includes those above it; module.h is the ground of all rooms, module.c their roof
LAYERS = (("wire", "observe", "compat"), ("memory", "connection"), ("client", "server"))
LAYER = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
PREFIXES = {
    **{room: f"nfr_{room}_" for room in ("wire", "client", "observe", "compat")},
    **{"memory": "nfr_mem_", "connection": "nfr_conn_", "server": "nfr_svc_"},
}
FILES = sorted(path for room in LAYER for path in (KMOD / room).glob("*.[ch]"))
# a definition, not a declaration: the name, the parameters, and { in the next line
DEFINED = re.compile(r"^[a-z][\w \t]*[ *](\w+)\([^;{}]*\)\n\{", re.M)
REACH = 1.0  # in units of the picture

Arrows = set[tuple[str, str]]


def code(path: Path) -> str:
    """A file without its comments, and what it compiles: module.c compiles the trace events."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S)
    return re.sub(r"^\tTP_fast_assign\(.*?^\t\),$", "", text, flags=re.M | re.S)


def included(path: Path) -> set[str]:
    """The folders of the headers that a file includes; "" for those of the module itself."""
    found = re.findall(r'^#include "(?:(\w+)/)?\w+\.h"', path.read_text(), re.M)
    return set(found) - {path.parent.name}


def arrows(files: Iterable[Path]) -> Arrows:
    return {(path.parent.name, room) for path in files for room in included(path) if room}


def drawn(picture: str) -> Arrows:
    """The arrows of a picture: from the box where a line begins to the box where it ends."""
    boxes = {tag["id"]: tag for tag in tags(picture, "rect") if "id" in tag}

    def box_at(point: str) -> str:
        x, y = map(float, point.split(","))
        (found,) = (name for name, box in boxes.items() if on_edge(box, x, y))
        return found

    lines = tags(picture, "polyline")
    assert all("marker-end" in line for line in lines)
    points = [line["points"].split() for line in lines]
    found = [(box_at(each[0]), box_at(each[-1])) for each in points]
    assert len(found) == len(set(found)), "an arrow is drawn twice"
    return set(found)


def tags(picture: str, name: str) -> list[dict[str, str]]:
    """The attributes of each element of a name."""
    found = re.findall(rf"<{name} ([^>]*)>", picture)
    return [dict(re.findall(r'([\w-]+)="([^"]*)"', each)) for each in found]


def on_edge(box: Mapping[str, str], x: float, y: float) -> bool:
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
        found = next(filter(None, (walk(n, [*path, node]) for n in graph.get(node, ()))), [])
        done.add(node)
        return found

    return next(filter(None, (walk(node, []) for node in sorted(graph))), [])


def calls() -> dict[str, set[str]]:
    """For each .c file the files that define the functions it names."""
    texts = {str(path.relative_to(KMOD)): code(path) for path in FILES if path.suffix == ".c"}
    home = {name: file for file, text in texts.items() for name in DEFINED.findall(text)}
    return {
        file: {home[name] for name in set(re.findall(r"\w+", text)) & set(home)} - {file}
        for file, text in texts.items()
    }


def test_each_folder_is_a_room_and_each_file_is_in_one() -> None:
    folders = {path.name for path in KMOD.iterdir() if path.is_dir()}
    assert folders == {*LAYER, "card"}
    assert {path.name for path in KMOD.glob("*.[ch]")} == {
        "module.c", "module.h", "params.c", "variants.c",
    }  # fmt: skip


def test_the_picture_shows_the_includes() -> None:
    assert drawn(PICTURE.read_text()) == arrows(FILES)


def test_the_picture_is_read_not_assumed() -> None:
    text = PICTURE.read_text()
    line = re.search(r'<polyline points="290,180 290,250"[^>]*>', text)
    assert line
    assert drawn(text) - drawn(text.replace(line[0], "")) == {("client", "memory")}
    turned = line[0].replace("290,180 290,250", "290,250 290,180")
    assert ("memory", "client") in drawn(text.replace(line[0], turned))


def test_no_arrow_leads_back_or_aside() -> None:
    assert [(a, b) for a, b in arrows(FILES) if LAYER[b] >= LAYER[a]] == []


def test_what_all_rooms_include_includes_no_room() -> None:
    assert included(KMOD / "module.h") | included(KMOD / "params.c") == {""}
    assert included(KMOD / "module.c") >= {"client", "server"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(KMOD)))
def test_a_room_includes_each_room_whose_functions_it_names(path: Path) -> None:
    room, text = path.parent.name, code(path)
    used = {other for other, prefix in PREFIXES.items() if re.search(rf"\b{prefix}\w+\(", text)}
    assert used - {room} <= {b for a, b in arrows(FILES) if a == room}


def test_no_files_call_each_other_in_a_circle() -> None:
    graph = calls()
    assert {"client/call.c", "server/call.c", "connection/state.c"} <= set(graph)
    assert "connection/state.c" in graph["connection/send.c"]
    assert circle(graph) == []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_the_leaf_of_the_connection_calls_no_other_file() -> None:
    assert calls()["connection/state.c"] == set()


@pytest.mark.parametrize("room", LAYER)
def test_the_names_of_functions_begin_with_their_room(room: str) -> None:
    names = [name for path in FILES if path.parent.name == room for name in found_in(path)]
    others = [name for name in names if not name.startswith(PREFIXES[room])]
    assert names
    # wire also has functions of one file each, which user space compiles
    assert [name for name in others if room != "wire" or name.startswith("nfr_")] == []


def found_in(path: Path) -> list[str]:
    return DEFINED.findall(code(path))


def test_functions_that_other_files_name_exist() -> None:
    known = set(re.findall(r"\bnfr_\w+", "".join(path.read_text() for path in FILES)))
    others = [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "docs" / "img").glob("module*.svg"),
        *(ROOT / "nfsrdma_tools").rglob("*.py"),
        *(ROOT / "tests" / "lab").glob("*.py"),
    ]
    named = {name for path in others for name in re.findall(r"\bnfr_[a-z_\d]+", path.read_text())}
    assert "nfr_mem_prepare" in named
    assert sorted(name for name in named if not any(x.startswith(name) for x in known)) == []
