# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/reference: as the code is now, and complete."""

import importlib.util
import re
from dataclasses import fields
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

from nfsrdma_tools.cli.main import app
from nfsrdma_tools.host.nfs.personality import PERSONALITIES
from nfsrdma_tools.sweep.plan import Cell
from nfsrdma_tools.sweep.store import Trial

ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    """A program of tools/ as a module."""
    loader = SourceFileLoader(f"tools_{name}", str(ROOT / "tools" / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


REFERENCE = tool("reference")


@pytest.mark.parametrize("name", REFERENCE.MADE)
def test_page_is_as_the_code_is(name: str) -> None:
    assert (REFERENCE.PAGES / name).read_text() == REFERENCE.page(name), "run: make reference"


def test_each_event_that_the_module_emits_has_a_row() -> None:
    source = "".join(path.read_text() for path in (ROOT / "kmod").rglob("*.c"))
    emitted = {name.removesuffix("_enabled") for name in re.findall(r"\btrace_(\w+)\(", source)}
    events = {name for name in emitted if name.startswith("nfsrdma_")}
    listed = set(re.findall(r"^\| `(\w+)`", REFERENCE.events(), re.M))
    assert events
    assert events <= listed


def test_each_module_parameter_has_a_row() -> None:
    source = "".join((ROOT / "kmod" / name).read_text() for name in ("params.c", "personality.c"))
    names = re.findall(r"^(?:NFR_NUMBER|module_param_(?:named|cb))\((\w+),", source, re.M)
    table, personalities = REFERENCE.parameters().split("## Personalities")
    listed = re.findall(r"^\| `(\w+)`", table, re.M)
    assert names
    assert sorted(names) == sorted(listed)
    assert re.findall(r"^\| `([\w-]+)`", personalities, re.M) == list(PERSONALITIES)


def test_each_command_has_one_row_of_its_changes() -> None:
    program = typer.main.get_command(app)
    commands = [path for path, _ in REFERENCE._leaves(program, "nfsrdma")]
    page = (REFERENCE.PAGES / "changes.md").read_text()
    assert re.findall(r"^\| `(nfsrdma [^`]*)` \|", page, re.M) == commands


def test_the_page_of_changes_names_the_commands_with_a_dry_run() -> None:
    leaves = REFERENCE._leaves(typer.main.get_command(app), "nfsrdma")
    dry = {path for path, each in leaves if any("--dry-run" in x.opts for x in each.params)}
    page = (REFERENCE.PAGES / "changes.md").read_text()
    found = re.search(r"`--dry-run` prints the changes of (.*?)\.\s", page, re.S)
    assert found
    assert {f"nfsrdma {name}" for name in re.findall(r"`([^`]+)`", found[1])} == dry
    changes = dict(re.findall(r"^\| `(nfsrdma [^`]*)` \| ([^|]*) \|", page, re.M))
    assert not [path for path in dry if changes[path].startswith("nothing")]


def test_each_column_of_an_export_is_explained() -> None:
    page = (REFERENCE.PAGES / "export.md").read_text()
    explained = {
        name
        for row in re.findall(r"^\| (`[^|]*`) \|", page, re.M)
        for name in re.findall(r"`(\w+)`", row)
    }
    cell = {f"cell_{each.name}" for each in fields(Cell)}
    columns = Trial("", Cell("tcp", 4096, 0), 1, 0).to_json().keys()
    assert explained == cell | columns - {"cell"}
