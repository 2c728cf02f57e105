# SPDX-License-Identifier: Apache-2.0
"""The rooms of nfsrdma_tools: arrows that run one way, no circles, and the picture of them."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest
from unit.project.room_pictures import arrows_of, circle

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "nfsrdma_tools"
PICTURE = ROOT / "docs" / "img" / "package-rooms.svg"
ROOMS = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
FILES = sorted(PACKAGE.rglob("*.py"))
GROUND = "ground floor"
# the files that the interpreter starts
ROOF = PACKAGE / "__main__.py"


def room(path: Path) -> str:
    name = path.relative_to(PACKAGE).parts[0]
    return name if name in ROOMS else GROUND


def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


BY_NAME = {module(path): path for path in FILES}


def imports(path: Path, nodes: list[ast.stmt] | None = None) -> set[Path]:
    """The files of the package that a file imports, anywhere in it or by ``nodes`` only."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in nodes if nodes is not None else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE.name:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(BY_NAME.get(name) or BY_NAME[node.module or ""])
        elif isinstance(node, ast.Import):
            found |= {BY_NAME[alias.name] for alias in node.names if alias.name in BY_NAME}
    return found - {path}


def arrows() -> set[tuple[str, str]]:
    pairs = {(room(path), room(other)) for path in FILES if path != ROOF for other in imports(path)}
    return {(a, b) for a, b in pairs if a != b}


def test_the_picture_shows_the_imports() -> None:
    between_rooms = {(a, b) for a, b in arrows() if b != GROUND}
    assert arrows_of(PICTURE.read_text()) == between_rooms


def test_the_picture_is_read_not_assumed() -> None:
    text = PICTURE.read_text()
    line = '<polyline points="160,230 160,270"'
    assert line in text
    turned = text.replace(line, '<polyline points="160,270 160,230"')
    assert ("sweep", "report") in arrows_of(turned) - arrows_of(text)


def test_the_ground_floor_imports_no_room() -> None:
    assert {b for a, b in arrows() if a == GROUND} == set()


def test_no_rooms_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for a, b in arrows():
        graph[a].add(b)
    assert graph["cli"] >= {"report", "sweep", "live", "lab", "host"}
    assert circle(graph) == []


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_no_folders_of_a_room_import_each_other_in_a_circle(name: str) -> None:
    """A file beside the folders is a node of its own: some are below them, some above."""

    def node(path: Path) -> str:
        return path.stem if path.parent == PACKAGE / name else path.parent.name

    graph: dict[str, set[str]] = defaultdict(set)
    for path in (path for path in FILES if room(path) == name):
        graph[node(path)] |= {node(other) for other in imports(path) if room(other) == name}
    assert circle({key: nodes - {key} for key, nodes in graph.items()}) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {module(path): {module(other) for other in imports(path)} for path in FILES}
    assert len(graph["nfsrdma_tools.cli.mount"]) > 5
    assert circle(graph) == []
