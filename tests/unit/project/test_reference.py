# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/reference: as the code is now, and complete."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import reference
import typer.main

from nfsrdma_tools.cli.main import app
from nfsrdma_tools.lab.config import KERNELS
from nfsrdma_tools.personalities import PERSONALITIES
from nfsrdma_tools.sweep.plan import Cell
from nfsrdma_tools.sweep.store import Trial

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", reference.MADE)
def test_page_is_as_the_code_is(name: str) -> None:
    assert (reference.PAGES / name).read_text() == reference.page(name), "run: make reference"


@pytest.mark.parametrize("name", reference.SECTIONS)
def test_generated_part_is_as_the_code_is(name: str) -> None:
    text = (reference.ROOT / name).read_text()
    assert reference.section(text, name) == text, "run: make reference"


def test_a_page_without_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"README\.md has no generated part"):
        reference.section("# A page\n", "README.md")


def test_each_event_that_the_module_emits_has_a_row() -> None:
    source = "".join(path.read_text() for path in (ROOT / "kmod").rglob("*.c"))
    emitted = {name.removesuffix("_enabled") for name in re.findall(r"\btrace_(\w+)\(", source)}
    events = {name for name in emitted if name.startswith("nfsrdma_")}
    listed = set(re.findall(r"^\| `(\w+)`", reference.events(), re.M))
    assert events
    assert events <= listed


def test_each_module_parameter_has_a_row() -> None:
    source = "".join((ROOT / "kmod" / name).read_text() for name in ("params.c", "personality.c"))
    names = re.findall(r"^(?:NFR_NUMBER|module_param_(?:named|cb))\((\w+),", source, re.M)
    table, personalities = reference.parameters().split("## Personalities")
    listed = re.findall(r"^\| `(\w+)`", table, re.M)
    assert names
    assert sorted(names) == sorted(listed)
    assert re.findall(r"^\| `([\w-]+)`", personalities, re.M) == list(PERSONALITIES)


def test_each_command_has_one_row_of_its_changes() -> None:
    program = typer.main.get_command(app)
    commands = [path for path, _ in reference._leaves(program, "nfsrdma")]
    page = (reference.PAGES / "changes.md").read_text()
    assert re.findall(r"^\| `(nfsrdma [^`]*)` \|", page, re.M) == commands


def test_each_command_has_one_row_of_its_tests() -> None:
    program = typer.main.get_command(app)
    commands = [path for path, _ in reference._leaves(program, "nfsrdma")]
    named = [f"nfsrdma {name}" for row in reference.tested_rows() for name in row.commands]
    assert sorted(named) == commands


@pytest.mark.parametrize("row", reference.tested_rows(), ids=lambda row: row.commands[0])
def test_a_row_of_tested_commands_names_tests_that_exist(row: reference.Tested) -> None:
    texts = [(ROOT / name).read_text() for name in row.tests]
    words = {word for name in row.commands for word in name.split()[-1:]}
    assert not [
        word for word in words if not any(re.search(rf"\b{word}\b", text) for text in texts)
    ]
    assert any(name.startswith("tests/lab/") for name in row.tests) == bool(row.kernels)
    assert bool(row.chroot) == any(name.startswith("tests/distributions/") for name in row.tests)
    assert set(row.devices) <= {"soft-RoCE", "soft-iWARP", "modelled card"}
    assert set(row.kernels) <= set(KERNELS)
    assert bool(row.others) == (len(row.kernels) > 1)
    if row.others.startswith("tests/"):
        assert row.others in row.tests
        assert "KERNELS" in (ROOT / row.others).read_text()
    elif row.others:
        kind, name = row.others.removeprefix("make ").split(" NAME=")
        campaign = f"def {name}(kernel" in (ROOT / "tests/campaign.py").read_text()
        assert campaign if kind == "campaign" else (ROOT / "bench" / name).is_dir()


def test_the_page_of_changes_names_the_commands_with_a_dry_run() -> None:
    leaves = reference._leaves(typer.main.get_command(app), "nfsrdma")
    dry = {path for path, each in leaves if any("--dry-run" in x.opts for x in each.params)}
    page = (reference.PAGES / "changes.md").read_text()
    match = re.search(r"`--dry-run` prints the changes of (.*?)\.\s", page, re.S)
    assert match
    assert {f"nfsrdma {name}" for name in re.findall(r"`([^`]+)`", match[1])} == dry
    changes = dict(re.findall(r"^\| `(nfsrdma [^`]*)` \| ([^|]*) \|", page, re.M))
    assert not [path for path in dry if changes[path].startswith("nothing")]


def test_each_column_of_an_export_is_explained() -> None:
    page = (reference.PAGES / "export.md").read_text()
    explained = {
        name
        for row in re.findall(r"^\| (`[^|]*`) \|", page, re.M)
        for name in re.findall(r"`(\w+)`", row)
    }
    cell = {f"cell_{each.name}" for each in fields(Cell)}
    columns = Trial("", Cell("tcp", 4096, 0), 1, 0).to_json().keys()
    assert explained == cell | columns - {"cell"}
