# SPDX-License-Identifier: Apache-2.0
"""Rules for the files of the repository."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import reference
import typer.main

from nfsrdma_tools.cli.main import app

ROOT = Path(__file__).parents[3]
SOURCES = sorted(
    path
    for folder in (
        "nfsrdma_tools", "testbed", "tests", "bench", "tools", ".ci", "bpf", "kmod", "lib",
    )
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and (path.suffix in (".py", ".sh", ".c", ".h") or not path.suffix)
    # configuration files of a node are data
    and "etc" not in path.relative_to(ROOT).parts
    and not {"__pycache__", "build"} & set(path.parts)
)  # fmt: skip
PYTHON = [path for path in SOURCES if path.suffix == ".py"]
ROOMS = ("host", "lab", "probes", "sweep", "live", "report", "client", "cli")


def test_there_are_sources() -> None:
    assert len(SOURCES) > 100


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_each_file_names_its_licence(path: Path) -> None:
    lines = path.read_text().splitlines()
    # what becomes part of a kernel, of QEMU or of fio
    parts, folder = path.relative_to(ROOT).parts, path.parent
    gpl = (
        {"bpf", "kmod"} & set(parts)
        or (folder / "Kbuild").exists()
        or parts[0] == "bench"
        or folder.name == "fio"
    )
    wanted = "GPL-2.0-only" if gpl and path.suffix != ".py" else "Apache-2.0"
    # they link the module's code
    if parts[:2] in {("tests", "wire"), ("tests", "device")} and path.suffix in (".c", ".h"):
        wanted = "Apache-2.0 OR GPL-2.0-only"
    # what programs link, and its headers of earlier versions
    if (
        (parts[0] == "lib" and folder.name != "fio")
        or parts[:2] == ("kmod", "wire")
        or path.match("tests/unit/data/nfsrdma-*.h")
    ):
        wanted = "GPL-2.0-only OR BSD-3-Clause"
    match = re.search(
        r"SPDX-License-Identifier: (.*?)(?: (?:\*/|-->))?$", "\n".join(lines[:3]), re.M
    )
    assert match
    assert match[1] == wanted


@pytest.mark.parametrize("room", ROOMS)
def test_no_two_classes_of_a_room_share_a_name(room: str) -> None:
    names = Counter(
        node.name
        for path in (ROOT / "nfsrdma_tools" / room).rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_unit_tests_are_in_the_folder_of_what_they_test() -> None:
    unit = ROOT / "tests/unit"
    folders = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")}
    assert len(folders) > 20
    lost = {
        str(folder)
        for folder in folders - {Path("project"), Path("testbed")}
        if not (ROOT / "nfsrdma_tools" / folder).is_dir() and not (ROOT / folder).is_dir()
    }
    assert lost == set()


def test_programs_are_run_through_one_door() -> None:
    doors = {
        str(path.relative_to(ROOT / "nfsrdma_tools"))
        for path in PYTHON
        if path.is_relative_to(ROOT / "nfsrdma_tools")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("Popen", "run", "call", "system")
        if isinstance(node.value, ast.Name) and node.value.id in ("subprocess", "os")
    }
    # processes that live on, and a login with one's own terminal
    living = {"lab/lab.py", "lab/machine.py", "lab/nodes.py"}
    assert doors <= {"command.py", *living}, doors - living


def test_the_wrong_bcc_is_never_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [project["dependencies"], *project["optional-dependencies"].values()]
    assert not [name for names in asked for name in names if re.match(r"bcc\b", name)]


def test_files_that_comments_name_exist() -> None:
    files = [*SOURCES, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    missing = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for name in re.findall(r"\b(?:docs|tests)/[\w/-]+\.(?:md|py)\b", file.read_text())
        if not (ROOT / name).exists()
    ]
    assert missing == []


def test_every_page_of_the_docs_that_is_linked_exists() -> None:
    parts = ("bpf", "docs", "kmod", "playbooks")
    pages = [*ROOT.glob("*.md"), *(page for each in parts for page in (ROOT / each).rglob("*.md"))]
    missing = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert missing == []


def test_a_test_has_the_words_of_each_command() -> None:
    """In its path and name, so that `pytest -k "tune and show"` finds it."""
    tests = [
        f"{path.relative_to(ROOT / 'tests')} {name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    ]
    commands = [
        path.replace("-", "_").split()[1:]
        for path, _ in reference._leaves(typer.main.get_command(app), "nfsrdma")
    ]
    assert [each for each in commands if not any(all(w in t for w in each) for t in tests)] == []
