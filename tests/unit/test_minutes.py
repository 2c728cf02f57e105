# SPDX-License-Identifier: Apache-2.0
"""The table of test files in docs/dev/testing.md: no file is missing, and no minutes get lost."""

from pathlib import Path

import minutes
import pytest

TESTS = Path(__file__).parents[1]
LOG = """\
1.20s call     tests/unit/test_undo.py::test_one[x]
0.60s setup    tests/unit/test_undo.py::test_one[x]
machine: 2 processors, load average 1.0 at the start, 1.0 at the end, 2026-11-25
"""
OLD = f"""\
text
{minutes.START}
* `make test DURATIONS=0`, machine: 4 processors
* `make test-lab DURATIONS=0`, machine: 8 processors

| file | `make test` | `make test-lab` | `make test-nightly` |
| --- | --- | --- | --- |
| tests/lab/test_link.py |  | 9.00 |  |
| tests/unit/test_cli.py | 0.50 | 2.00 | not measured |
| in all | 0.5 | 11.0 |  |
{minutes.END}
more
"""


def test_the_page_lists_each_file_of_tests() -> None:
    found = {str(p.relative_to(TESTS.parent)) for p in TESTS.glob("[lu]*/test_*.py")}
    listed = {row[1] for row in minutes.ROW.finditer(minutes.PAGE.read_text())}
    assert listed == found, "run: PYTHONPATH=tests .venv/bin/python -m minutes"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page with a table, and two files that pytest finds."""
    file = tmp_path / "testing.md"
    file.write_text(OLD)
    monkeypatch.setattr(minutes, "PAGE", file)
    both = {"tests/unit/test_cli.py", "tests/unit/test_undo.py"}
    monkeypatch.setattr(minutes, "files", lambda *words: both if "--long" not in words else set())
    return file


def test_without_a_log_the_files_change_and_the_minutes_stay(page: Path) -> None:
    minutes.main([])
    text = page.read_text()
    assert "| tests/unit/test_cli.py | 0.50 | 2.00 |  |\n" in text
    assert "| tests/unit/test_undo.py | not measured | not measured |  |\n" in text
    assert "| in all | 0.5 | 2.0 |  |\n" in text
    assert "test_link" not in text
    assert "machine: 4 processors\n" in text
    assert "machine: 8 processors\n" in text


@pytest.mark.parametrize(
    ("target", "other", "command"), [("unit", "0.50", True), ("test", "0.00", False)]
)
def test_a_log_replaces_the_minutes_of_its_tests(
    page: Path, tmp_path: Path, target: str, other: str, command: bool
) -> None:
    """The log of a part keeps the other minutes of the tier, that of the tier none."""
    log = tmp_path / "log"
    log.write_text(LOG)
    minutes.main([f"{target}={log}"])
    text = page.read_text()
    assert f"| tests/unit/test_cli.py | {other} | 2.00 |  |\n" in text
    assert "| tests/unit/test_undo.py | 0.03 | not measured |  |\n" in text
    assert ("machine: 4 processors" in text) is command
    assert f"* `make {target} DURATIONS=0`, machine: 2 processors, load" in text
    assert text.startswith("text\n")
    assert text.endswith(f"{minutes.END}\nmore\n")
