# SPDX-License-Identifier: Apache-2.0
"""The rooms of kmod/: layers without an arrow back, no circles, and a prefix for each."""

import re
from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
KMOD = ROOT / "kmod"
# each includes those before it
LAYERS = (("wire", "observe", "compat"), ("memory", "connection"), ("client", "server"))
LAYER = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
PREFIXES = {
    **{room: f"nfr_{room}_" for room in ("wire", "client", "observe", "compat")},
    **{"memory": "nfr_mem_", "connection": "nfr_conn_", "server": "nfr_svc_"},
}
# the ground, which every room may include and which includes no room, and the roof
GROUND = (
    "gfp.h",
    "params.c",
    "params.h",
    "proof.h",
    "variants.c",
    "variants.h",
    "work.c",
    "work.h",
)
ROOF = ("module.c", "trace.c")
FILES = sorted(path for room in LAYER for path in (KMOD / room).glob("*.[ch]"))
ALL = [*FILES, *(KMOD / name for name in (*GROUND, *ROOF))]
# a definition, not a declaration: the name, the parameters, and { in the next line
DEFINED = re.compile(r"^[a-z][\w \t]*[ *](\w+)\([^;{}]*\)\n\{", re.M)
# a variable of more than one file
VARIABLE = re.compile(
    r"^(?!static |extern |typedef |struct \w+;)[a-z][\w \t]*[ *](\w+)(?:\[\w*\])*(?: =|;)", re.M
)
# an inline function of a header, with its body
INLINE = re.compile(r"^static inline [\w \t*]*?(\w+)\([^;{}]*\)\n\{.*?^\}", re.M | re.S)
TRACE = re.compile(r"\btrace_nfsrdma_\w+\(")

Arrows = set[tuple[str, str]]


def code(path: Path) -> str:
    """A file without what trace.c compiles of a trace event."""
    return re.sub(r"^\tTP_fast_assign\(.*?^\t\),$", "", bare(path), flags=re.M | re.S)


def bare(path: Path) -> str:
    """A file without its comments and strings."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S)
    return re.sub(r'"[^"\n]*"', '""', text)


def included(path: Path) -> set[str]:
    """The folders of the headers that a file includes; "" for those of the module itself."""
    found = re.findall(r'^#include "(?:(\w+)/)?\w+\.h"', path.read_text(), re.M)
    return set(found) - {path.parent.name}


def arrows(files: Iterable[Path]) -> Arrows:
    return {(path.parent.name, room) for path in files for room in included(path) if room}


def calls(source: Mapping[str, str]) -> dict[str, set[str]]:
    """For each .c file the others that define the symbols it names.

    The symbols that an inline function names are its caller's.  A trace event is a function of
    trace.c, which compiles it.
    """
    files = {name: text for name, text in source.items() if name.endswith(".c")}
    home = {
        name: file
        for file, text in files.items()
        for name in (*DEFINED.findall(text), *VARIABLE.findall(text))
    }
    inline = {
        found[1]: set(re.findall(r"\w+", found[0]))
        for name, text in source.items()
        for found in INLINE.finditer(text)
        if name.endswith(".h")
    }

    def named(words: set[str], seen: set[str]) -> set[str]:
        new = (words & set(inline)) - seen
        return words.union(*(named(inline[name], seen | new) for name in new))

    return {
        file: (
            {home[name] for name in named(set(re.findall(r"\w+", text)), set()) & set(home)}
            | ({"trace.c"} if TRACE.search(text) else set())
        )
        - {file}
        for file, text in files.items()
    }


def sources() -> dict[str, str]:
    found = {str(path.relative_to(KMOD)): code(path) for path in ALL}
    found["trace.c"] += "".join(bare(path) for path in (KMOD / "observe").glob("trace*.h"))
    return found


def test_each_folder_is_a_room_and_each_file_is_in_one() -> None:
    folders = {path.name for path in KMOD.iterdir() if path.is_dir()}
    assert folders == {*LAYER, "card"}
    assert {path.name for path in KMOD.glob("*.[ch]")} == {*GROUND, *ROOF}


def test_no_arrow_leads_back_or_aside() -> None:
    assert [(a, b) for a, b in arrows(FILES) if LAYER[b] >= LAYER[a]] == []


def test_what_all_rooms_include_includes_no_room() -> None:
    # compat has no arrow to another room
    assert set().union(*(included(KMOD / name) for name in GROUND)) <= {"", "compat"}
    for name in ROOF:
        assert included(KMOD / name) >= {"client", "memory", "server"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(KMOD)))
def test_a_room_includes_each_room_whose_functions_it_names(path: Path) -> None:
    room, text = path.parent.name, code(path)
    used = {other for other, prefix in PREFIXES.items() if re.search(rf"\b{prefix}\w+\(", text)}
    assert used - {room} <= {b for a, b in arrows(FILES) if a == room}


def test_no_files_call_each_other_in_a_circle() -> None:
    graph = calls(sources())
    assert {"client/call.c", "server/call.c", "connection/state.c", "module.c"} <= set(graph)
    assert "connection/state.c" in graph["connection/queues.c"]
    assert {"params.c", "work.c", "client/transport.c"} <= graph["module.c"]
    # by an inline function
    assert "work.c" in graph["server/sink.c"]
    assert "trace.c" in graph["connection/state.c"]
    assert "wire/header.c" in graph["trace.c"]
    # CycleError names the files
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("room", LAYER)
def test_the_names_of_functions_begin_with_their_room(room: str) -> None:
    names = [name for path in FILES if path.parent.name == room for name in found_in(path)]
    others = [name for name in names if not name.startswith(PREFIXES[room])]
    assert names
    # wire also has functions of one file each, which user space compiles
    assert [name for name in others if room != "wire" or name.startswith("nfr_")] == []


def found_in(path: Path) -> list[str]:
    return DEFINED.findall(code(path))
