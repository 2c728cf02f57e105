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
    "personality.c",
    "personality.h",
    "personality/optimistic.h",
    "personality/padded.h",
    "personality/preposted.h",
    "proof.h",
    "work.c",
    "work.h",
)
ROOF = ("module.c", "trace.c")
FILES = sorted(path for room in LAYER for path in (KMOD / room).rglob("*.[ch]"))
CARD = sorted((KMOD / "card").glob("*.[ch]"))
ALL = [*FILES, *(KMOD / name for name in (*GROUND, *ROOF))]
# a definition, not a declaration: the name, the parameters, and { in the next line
DEFINED = re.compile(r"^[a-z][\w \t]*[ *](\w+)\([^;{}]*\)\n\{", re.M)
# one that other files can call
PUBLIC = re.compile(rf"(?m:^(?!static )){DEFINED.pattern}", re.M)
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


def room_of(path: Path) -> str:
    """The folder of the module that has a file, at whatever depth."""
    return path.relative_to(KMOD).parts[0]


def included(path: Path) -> set[str]:
    """The rooms of the headers that a file includes; "" for the ground and the module itself."""
    rooms = re.findall(r'^#include "(?:(\w+)/)?(?:\w+/)*\w+\.h"', path.read_text(), re.M)
    return set(rooms) - {room_of(path), "personality"}


def arrows(files: Iterable[Path]) -> Arrows:
    return {(room_of(path), room) for path in files for room in included(path) if room}


def calls(source: Mapping[str, str]) -> dict[str, set[str]]:
    """For each .c file the others that define the symbols it names.

    The symbols that an inline function names are its caller's.  A trace event is a function of
    trace.c, which compiles it.
    """
    files = {name: text for name, text in source.items() if name.endswith(".c")}
    home = {
        name: file
        for file, text in files.items()
        for name in (*PUBLIC.findall(text), *VARIABLE.findall(text))
    }
    inline = {
        match[1]: set(re.findall(r"\w+", match[0]))
        for name, text in source.items()
        for match in INLINE.finditer(text)
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
    texts = {str(path.relative_to(KMOD)): code(path) for path in ALL}
    texts["trace.c"] += "".join(bare(path) for path in (KMOD / "observe").glob("trace*.h"))
    return texts


def with_headers(source: Mapping[str, str], graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The calls and the #include lines, where a file and the header of its name are one.

    trace.c is left out: each file calls its events, and it includes the structures of each folder.
    """
    result: dict[str, set[str]] = {}
    for name in source:
        folder, text = Path(name).parent, (KMOD / name).read_text()
        headers = {
            header if header in source else str(folder / header)
            for header in re.findall(r'^#include "([\w/]+\.h)"', text, re.M)
        }
        others = {other[:-2] for other in graph.get(name, set()) | (headers & set(source))}
        result.setdefault(name[:-2], set()).update(others - {name[:-2], "trace"})
    del result["trace"]
    return result


def test_each_folder_is_a_room_and_each_file_is_in_one() -> None:
    folders = {path.name for path in KMOD.iterdir() if path.is_dir()}
    assert folders == {*LAYER, "card", "personality"}
    files = (*KMOD.glob("*.[ch]"), *(KMOD / "personality").glob("*.[ch]"))
    assert {str(path.relative_to(KMOD)) for path in files} == {*GROUND, *ROOF}


def test_no_arrow_leads_back_or_aside() -> None:
    assert [(a, b) for a, b in arrows(FILES) if LAYER[b] >= LAYER[a]] == []


def test_what_all_rooms_include_includes_no_room() -> None:
    # compat has no arrow to another room
    assert set().union(*(included(KMOD / name) for name in GROUND)) <= {"", "compat"}
    for name in ROOF:
        assert included(KMOD / name) >= {"client", "memory", "server"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(KMOD)))
def test_a_room_includes_each_room_whose_functions_it_names(path: Path) -> None:
    room, text = room_of(path), code(path)
    used = {other for other, prefix in PREFIXES.items() if re.search(rf"\b{prefix}\w+\(", text)}
    assert used - {room} <= {b for a, b in arrows(FILES) if a == room}


def test_no_files_call_each_other_in_a_circle() -> None:
    graph = calls(sources())
    assert {"client/call.c", "server/call.c", "connection/state.c", "module.c"} <= set(graph)
    assert "connection/state.c" in graph["connection/queues.c"]
    assert {"params.c", "work.c", "client/transport.c"} <= graph["module.c"]
    # by an inline function
    assert "work.c" in graph["server/sink.c"] and "trace.c" in graph["connection/state.c"]
    assert "wire/header.c" in graph["trace.c"]
    # CycleError names the files
    TopologicalSorter(graph).prepare()
    TopologicalSorter(with_headers(sources(), graph)).prepare()


def test_only_its_own_files_name_a_personality() -> None:
    listed = re.findall(r"_\(\d+, (\w+), (\w+), ", (KMOD / "personality.h").read_text())
    assert ("READ_READ", "readread") in listed
    named = {
        (str(path.relative_to(KMOD)), symbol)
        for constant, symbol in listed
        for path in ALL
        if re.search(rf"\b(?:NFR_{constant}|nfr_(?:svc|client)_{symbol})\b", code(path))
    }
    own = {
        (f"{end}/personality/{name}.c", name) for end in ("client", "server") for _, name in listed
    }
    # what a connection has before its ends agree
    default = {(name, "readwrite") for name in ("client/connect.c", "personality.c")}
    assert named == own | default | {("server/personality.c", "readwrite")}


def test_no_files_of_the_card_call_each_other_in_a_circle() -> None:
    source = {str(path.relative_to(KMOD)): bare(path) for path in CARD}
    graph = calls(source)
    # its functions, its variables, and by an inline function
    assert {"card/engine.c", "card/cards.c"} <= graph["card/state.c"]
    TopologicalSorter(graph).prepare()
    TopologicalSorter(with_headers({**source, "trace.c": ""}, graph)).prepare()


@pytest.mark.parametrize("room", LAYER)
def test_the_names_of_functions_begin_with_their_room(room: str) -> None:
    names = [name for path in FILES if room_of(path) == room for name in found_in(path)]
    others = [name for name in names if not name.startswith(PREFIXES[room])]
    assert names
    # wire also has functions of one file each, which user space compiles
    assert [name for name in others if room != "wire" or name.startswith("nfr_")] == []


def found_in(path: Path) -> list[str]:
    return DEFINED.findall(code(path))
