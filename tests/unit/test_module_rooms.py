# SPDX-License-Identifier: Apache-2.0
"""The rooms of kmod/: layers without an arrow back, no circles, and a picture that shows them."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from unit.room_pictures import arrows_of, circle

ROOT = Path(__file__).parents[2]
KMOD = ROOT / "kmod"
PICTURE = ROOT / "docs" / "img" / "module-rooms.svg"
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
# a file that more files call than this has a header of its own; wire is one codec
USERS = 5
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
    found = re.findall(r'^#include "(?:(\w+)/)?(?:\w+/)*\w+\.h"', path.read_text(), re.M)
    return set(found) - {room_of(path), "personality"}


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


def users(graph: Mapping[str, set[str]], file: str) -> set[str]:
    return {other for other, named in graph.items() if file in named}


def test_each_folder_is_a_room_and_each_file_is_in_one() -> None:
    folders = {path.name for path in KMOD.iterdir() if path.is_dir()}
    assert folders == {*LAYER, "card", "personality"}
    files = (*KMOD.glob("*.[ch]"), *(KMOD / "personality").glob("*.[ch]"))
    assert {str(path.relative_to(KMOD)) for path in files} == {*GROUND, *ROOF}


def test_the_picture_shows_the_includes() -> None:
    assert arrows_of(PICTURE.read_text()) == arrows(FILES)


def test_the_picture_is_read_not_assumed() -> None:
    text = PICTURE.read_text()
    line = re.search(r'<polyline points="290,180 290,250"[^>]*>', text)
    assert line
    assert arrows_of(text) - arrows_of(text.replace(line[0], "")) == {("client", "memory")}
    turned = line[0].replace("290,180 290,250", "290,250 290,180")
    assert ("memory", "client") in arrows_of(text.replace(line[0], turned))


def test_no_arrow_leads_back_or_aside() -> None:
    assert [(a, b) for a, b in arrows(FILES) if LAYER[b] >= LAYER[a]] == []


def test_what_all_rooms_include_includes_no_room() -> None:
    # compat has no arrow to another room
    assert set().union(*(included(KMOD / name) for name in GROUND)) <= {"", "compat"}
    for name in ROOF:
        assert included(KMOD / name) >= {"client", "memory", "server"}


def test_nothing_names_the_file_that_loads_the_module() -> None:
    assert users(calls(sources()), "module.c") == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(KMOD)))
def test_a_room_includes_each_room_whose_functions_it_names(path: Path) -> None:
    room, text = room_of(path), code(path)
    used = {other for other, prefix in PREFIXES.items() if re.search(rf"\b{prefix}\w+\(", text)}
    assert used - {room} <= {b for a, b in arrows(FILES) if a == room}


@pytest.mark.parametrize(("end", "most"), [("client", 7), ("server", 7)])
def test_a_read_crosses_few_files(end: str, most: int) -> None:
    text = (ROOT / "docs" / "explanation" / "how-a-read-travels.md").read_text()
    section = text.split(f"## A READ at the {end}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:] for line in section.splitlines() if line.startswith("| `")]
    files = {row[0].strip(" `") for row in rows}
    assert len(files) == most
    # the text names no file outside the first column
    assert set(re.findall(r"`(\w+/\w+\.c)`", section)) == files
    paths = [KMOD / file for file in files]
    paths += [path.with_suffix(".h") for path in paths if path.with_suffix(".h").exists()]
    paths.append(KMOD / end / f"{end}.h")
    there = {name for path in paths for name in found_in(path)}
    named = set(re.findall(r"`(nfr_\w+)`", section))
    assert len(named) > 10
    assert named - there == set()


def test_no_files_call_each_other_in_a_circle() -> None:
    graph = calls(sources())
    assert {"client/call.c", "server/call.c", "connection/state.c", "module.c"} <= set(graph)
    assert "connection/state.c" in graph["connection/queues.c"]
    assert {"params.c", "work.c", "client/transport.c"} <= graph["module.c"]
    # by an inline function
    assert "work.c" in graph["server/sink.c"]
    assert "trace.c" in graph["connection/state.c"]
    assert "wire/header.c" in graph["trace.c"]
    assert circle(graph) == []
    assert circle(with_headers(sources(), graph)) == []


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
    assert circle(graph) == []
    assert circle(with_headers({**source, "trace.c": ""}, graph)) == []


def test_a_queue_of_the_file_that_loads_the_module_would_close_a_circle() -> None:
    source = sources()
    source["module.c"] += source.pop("work.c")
    assert "module.c" in circle(calls(source))
    source = sources()
    source["module.c"] = source["module.c"].replace("nfr_work_create", "nfr_work_slow")
    assert circle(calls(source)) == []


def test_a_file_that_many_call_has_a_header_of_its_own() -> None:
    graph = calls(sources())
    many = [
        name
        for name in graph
        if len(users(graph, name)) > USERS and name not in ROOF and not name.startswith("wire/")
    ]
    assert {"params.c", "work.c", "connection/state.c", "server/call.c"} <= set(many)
    assert [name for name in many if not (KMOD / name).with_suffix(".h").exists()] == []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_the_leaf_of_the_connection_calls_no_other_file() -> None:
    called = calls(sources())["connection/state.c"]
    assert {name.split("/")[0] for name in called} == {"trace.c", "work.c"}


@pytest.mark.parametrize("room", LAYER)
def test_the_names_of_functions_begin_with_their_room(room: str) -> None:
    names = [name for path in FILES if room_of(path) == room for name in found_in(path)]
    others = [name for name in names if not name.startswith(PREFIXES[room])]
    assert names
    # wire also has functions of one file each, which user space compiles
    assert [name for name in others if room != "wire" or name.startswith("nfr_")] == []


def found_in(path: Path) -> list[str]:
    return DEFINED.findall(code(path))


def test_functions_that_other_files_name_exist() -> None:
    known = set(re.findall(r"\bnfr_\w+", "".join(path.read_text() for path in ALL)))
    others = [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "docs" / "img").glob("module*.svg"),
        *(ROOT / "nfsrdma_tools").rglob("*.py"),
        *(ROOT / "tests" / "lab").rglob("*.py"),
    ]
    # adds a personality of its own
    others.remove(ROOT / "tests" / "lab" / "test_module_warnings.py")
    # figures of an earlier commit name what it had
    lines = (line for path in others for line in path.read_text().splitlines())
    today = (line for line in lines if not re.search(r"\bnfsrdma at [0-9a-f]{7}", line))
    named = {name for line in today for name in re.findall(r"\bnfr_[a-z_\d]+", line)}
    assert "nfr_mem_prepare" in named
    assert sorted(name for name in named if not any(x.startswith(name) for x in known)) == []
