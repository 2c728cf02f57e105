# SPDX-License-Identifier: Apache-2.0
"""The files of lib/: each calls only those above it in a list, and a name has one meaning."""

import re
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from nfsrdma_tools.command import run

LIB = Path(__file__).parents[3] / "lib"
HEADER = (LIB / "library.h").read_text()
HEADERS = "".join(path.read_text() for path in sorted(LIB.glob("*.h")))
# the order of library.h's first comment
FILES = re.findall(r"^ \*   (\w+\.c) ", HEADER, re.MULTILINE)
# a file whose functions have another prefix than its name, or one more
PREFIXES = {
    "fail.c": ("fail", "fail_"),
    "inode.c": ("inode_", "inodes_"),
    "reference.c": ("reference_", "references_"),
    "request.c": ("request_", "requests_"),
    "optimistic.c": ("optimist_",),
}
# a definition: what stands in front of the name, and the name
DEFINED = re.compile(r"^([A-Za-z][\w \t]*[ *])(\w+)\([^;{}]*\)\n\{", re.MULTILINE)
TABLE = re.compile(r"^const struct \w+ (\w+) = \{", re.MULTILINE)
INLINE = re.compile(
    r"^static inline [\w \t*]*?(\w+)\([^;{}]*\)\n\{.*?^\}", re.MULTILINE | re.DOTALL
)


def bare(text: str) -> str:
    """A file without its comments and strings."""
    return re.sub(r'/\*.*?\*/|//[^\n]*|"[^"\n]*"', "", text, flags=re.DOTALL)


SOURCES = {path.name: bare(path.read_text()) for path in sorted(LIB.glob("*.c"))}
HOME = {
    name: file
    for file, text in SOURCES.items()
    for name in (
        *(match[2] for match in DEFINED.finditer(text) if not match[1].startswith("static")),
        *TABLE.findall(text),
    )
}


def words(file: str) -> set[str]:
    """What a file names, with what the inline functions name that it calls."""
    inline = {
        match[1]: set(re.findall(r"\w+", match[0])) for match in INLINE.finditer(bare(HEADERS))
    }
    named = set(re.findall(r"\w+", SOURCES[file]))
    while more := set().union(*(inline[name] for name in named & set(inline))) - named:
        named |= more
    return named


def test_the_header_lists_each_file() -> None:
    assert sorted(FILES) == sorted(SOURCES)


@pytest.mark.parametrize("file", FILES)
def test_a_file_calls_only_those_above_it(file: str) -> None:
    above = set(FILES[: FILES.index(file)])
    named = {(name, HOME[name]) for name in words(file) & set(HOME)}
    assert {(name, home) for name, home in named if home not in {file, *above}} == set()


@pytest.mark.parametrize("file", FILES)
def test_functions_of_more_than_one_file_have_the_prefix_of_theirs(file: str) -> None:
    prefixes = PREFIXES.get(file, (f"{file.removesuffix('.c')}_",))
    names = {name for name, home in HOME.items() if home == file}
    assert {name for name in names if not name.startswith((*prefixes, "nfsrdma_"))} == set()


def test_a_name_has_one_meaning() -> None:
    files_of = defaultdict(set)
    for file, text in SOURCES.items():
        for match in DEFINED.finditer(text):
            files_of[match[2]].add(file)
    assert {name: files for name, files in files_of.items() if len(files) > 1} == {}


@pytest.mark.skipif(not shutil.which("rpcgen"), reason="no rpcgen")
def test_the_archive_has_no_names_that_a_program_may_have() -> None:
    run("make", "-s", "-C", LIB, timeout=300)
    lines = run("nm", "-g", "--defined-only", LIB / "build" / "libnfsrdma.a").stdout.splitlines()
    names = {line.split()[2] for line in lines if len(line.split()) == 3}
    assert {name for name in names if not name.startswith("nfsrdma_")} == set()
    assert "nfsrdma_pread" in names
