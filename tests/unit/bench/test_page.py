# SPDX-License-Identifier: Apache-2.0
"""The page of benchmarks has the figures of one kernel."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import markdown
from bench.__main__ import summary
from bench.costs import measure
from nfsrdma_tools.lab import kernels
from nfsrdma_tools.lab.config import KERNELS

BEFORE = "text\n<!-- begin: costs -->\n\nold\n\n<!-- end: costs -->\nmore\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page with one section."""
    file = tmp_path / "benchmarks.md"
    file.write_text(BEFORE)
    monkeypatch.setattr(markdown, "PAGE", file)
    return file


def test_the_first_kernel_replaces_its_section(file: Path) -> None:
    markdown.update(KERNELS[0], "costs", ["new"])
    assert file.read_text() == BEFORE.replace("old", "new")


@pytest.mark.parametrize("kernel", KERNELS[1:])
def test_another_kernel_leaves_the_page(
    file: Path, kernel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    markdown.update(kernel, "costs", ["conditions of the run", "new"])
    assert file.read_text() == BEFORE
    assert capsys.readouterr().out.endswith("conditions of the run\n")


def test_a_page_without_the_section_is_an_error_of_one_line(file: Path) -> None:
    with pytest.raises(SystemExit, match="no section new: add the lines <!-- begin: new -->"):
        markdown.write("new", ["a line"])
    assert file.read_text() == BEFORE


def test_a_benchmark_without_a_main_is_named(tmp_path: Path) -> None:
    path = tmp_path / "page.py"
    path.write_text("def table() -> None: ...\n")
    with pytest.raises(SystemExit, match=r"page\.py: no function main"):
        summary(path)


@pytest.mark.parametrize(
    ("clock", "printed"), [("instructions", "instruction clock"), ("counted", "counted clock")]
)
def test_conditions_name_the_clock(
    clock: str, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "find", lambda _: SimpleNamespace(release="6.12.1"))
    facts = {"clock": clock, "link": "none", "qemu": "10.0.2 (Debian)"}
    lab: Any = SimpleNamespace(facts=facts, config=SimpleNamespace(kernel=KERNELS[0]))
    text = markdown.conditions(lab, "rxe", "make test")
    assert f"`make test`, soft-RoCE, Linux 6.12.1, {printed}, link none, QEMU 10.0.2, " in text


@pytest.mark.parametrize(
    ("rounds", "printed"), [([2.0], "0.500"), ([2.0, 4.0, 1.0], "0.500 (0.250 to 1.000)")]
)
def test_a_ratio_has_a_range_if_there_are_rounds(rounds: list[float], printed: str) -> None:
    turns: Any = {
        "a": [{"stat": {"us": 1.0}} for _ in rounds],
        "b": [{"stat": {"us": us}} for us in rounds],
    }
    assert measure.ratio(turns, "stat", "a", "b") == printed
