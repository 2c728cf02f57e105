# SPDX-License-Identifier: Apache-2.0
"""The systems of the papers: their rows have the numbers of the stores."""

from pathlib import Path

import pytest
from unit.bench import test_optimistic as test_optimistic_bench
from unit.bench import test_papers

from bench import published
from bench.optimistic import measure as optimistic
from bench.optimistic_user import measure as user
from bench.papers import measure as papers
from bench.papers import page
from bench.systems import page as systems


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the page, beside stores of papers and mounts; that of the library is empty."""
    for module in (optimistic, user, papers):
        monkeypatch.setattr(module, "RESULTS", tmp_path / module.__name__)
    copy = tmp_path / "papers.md"
    copy.write_text(page.PAGE.read_text())
    monkeypatch.setattr(page, "PAGE", copy)
    test_papers.fill(papers.Store(papers.RESULTS / "6.12"))
    test_optimistic_bench.fill(optimistic.Store(optimistic.RESULTS / "6.12-card"), "card")
    return copy


def test_rows_have_the_numbers_of_the_stores(target: Path) -> None:
    test_optimistic_bench.user_store(user.RESULTS)
    systems.main("6.12")
    rows = {line.split(" | ")[0]: line for line in target.read_text().splitlines()}
    assert "| 5.0 us | the same;" in rows["| Optimistic DAFS"]
    # 45 us to 5
    assert "| 9.00 of DAFS |" in rows["| Optimistic DAFS, small files"]
    assert "| 50.0 us |" in rows["| ORDMA below NFS"]


def test_a_store_without_a_result_leaves_the_page(target: Path) -> None:
    before = target.read_text()
    with pytest.raises(SystemExit, match="no result"):
        systems.main("6.12")
    assert target.read_text() == before


def test_each_figure_of_a_paper_has_a_row() -> None:
    assert {point["figure"] for point in published.points()} == {
        system.figure for system in systems.SYSTEMS
    }
