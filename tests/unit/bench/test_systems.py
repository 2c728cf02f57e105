# SPDX-License-Identifier: Apache-2.0
"""The systems of the papers: their rows have the numbers of the generated tables."""

from pathlib import Path

import pytest

from bench import published, systems

TABLES = """
<!-- begin: one -->

| block | a, MB/s | b |
| --- | --- | --- |
| 4 KiB | 1.0 | 2 |
| 8 KiB | 3.0 | 4 |

| files | wire | ratio |
| --- | --- | --- |
| 4 KiB | none | 5.0 |
| 4 KiB | near | 6.0 |

Here: a 7 MB/s.

<!-- end: one -->
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "page.md"
    found.write_text(TABLES)
    return found


def test_a_cell_is_found_by_the_beginning_of_its_row(path: Path) -> None:
    assert systems.entry(path, "one", ("8 KiB",), "a, MB/s") == "3.0"
    assert systems.entry(path, "one", ("4 KiB", "near"), "ratio") == "6.0"
    assert systems.said(path, "one", r" a (\d+) MB/s") == "7"


def test_what_is_not_there_is_an_error(path: Path) -> None:
    with pytest.raises(KeyError):
        systems.entry(path, "one", ("16 KiB",), "b")
    with pytest.raises(KeyError):
        systems.entry(path, "one", ("4 KiB",), "c")
    with pytest.raises(KeyError):
        systems.said(path, "one", r" b (\d+) MB/s")


def test_the_page_has_the_numbers_of_its_tables() -> None:
    text = systems.PAPERS.read_text()
    for line in systems.lines():
        assert f"{line}\n" in text, "run `make papers`, which writes the rows"


def test_each_figure_of_a_paper_has_a_row() -> None:
    assert {one["figure"] for one in published.points()} == {one.figure for one in systems.SYSTEMS}


def test_all_numbers_are_found_but_those_that_no_run_has_written() -> None:
    missing = {line for line in systems.lines() if systems.MISSING in line}
    written = "Not measured yet." not in systems.OPTIMISTIC.read_text()
    assert not written or not missing
    assert all("DAFS" in name for name in missing), missing
