# SPDX-License-Identifier: Apache-2.0
"""The picture of the rooms shows the imports; a host's files are read through one door."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from layout import imports, levels, needed, shown, text

ROOT = Path(__file__).parents[3]


def test_the_picture_shows_the_imports() -> None:
    assert shown() == text(imports()), "run tools/layout.py"


def test_implied_arrows_are_left_out() -> None:
    rooms = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}
    assert needed(rooms) == {("a", "b"), ("b", "c")}
    assert levels(rooms) == {"c": 0, "b": 1, "a": 2}


def test_a_circle_is_an_error() -> None:
    with pytest.raises(SystemExit, match=r"in a circle: \['a', 'b'\]"):
        levels({"a": {"b"}, "b": {"a"}, "c": set()})


OWN_PATHS = {
    # the door to the files of a host
    "host/machine.py: Machine.root",
    # a file that a command writes
    "cli/sweep.py: sweep.store",
}
"""Defaults that are paths.  A reader of a host's files takes a Machine: only remove some."""


def own_paths(file: Path, source: str) -> Iterator[str]:
    """The parameters and the fields of a module whose default is a path."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last = [*node.args.posonlyargs, *node.args.args][::-1]
            values = [
                *zip(last, node.args.defaults[::-1], strict=False),
                *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
            ]
            pairs = [(each.arg, each.annotation, value) for each, value in values]
        elif isinstance(node, ast.ClassDef):
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            pairs = [(ast.unparse(each.target), each.annotation, each.value) for each in fields]
        else:
            continue
        for name, kind, value in pairs:
            empty = value is None or ast.unparse(value) in ("None", "''", "()")
            if kind and not empty and re.search(r"\bPath\b", ast.unparse(kind)):
                yield f"{file}: {node.name}.{name}"


def test_the_files_of_a_host_have_one_door() -> None:
    package = ROOT / "nfsrdma_tools"
    files = [path.relative_to(package) for path in sorted(package.rglob("*.py"))]
    paths = {each for file in files for each in own_paths(file, (package / file).read_text())}
    assert paths == OWN_PATHS


def test_a_path_of_its_own_is_seen() -> None:
    source = """
def read(name: str, folder: Path = Path("/proc"), /, *, also: Path = PROC):
    def inner(at: list[Path] = PATHS, none: Path | None = None): ...
class Reader:
    root: Path = SLASH
    names: tuple[Path, ...] = ()
    link: Path
"""
    names = ["read.folder", "read.also", "Reader.root", "inner.at"]
    assert sorted(own_paths(Path("a.py"), source)) == sorted(f"a.py: {name}" for name in names)
