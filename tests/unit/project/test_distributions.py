# SPDX-License-Identifier: Apache-2.0
"""The tables of distributions: true by the tests that they name."""

import re
import tomllib

import pytest
from distribution_tables import PARTS, ROOT, WAYS, distributions, programs, short

ROWS = distributions()
NAMES = [row.name for row in ROWS]


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_each_cell_is_a_test_that_exists_untested_or_no(row: object) -> None:
    for part in PARTS:
        word = getattr(row, part).partition("; ")[0]
        if word in ("untested", "no"):
            continue
        file, _, test = word.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(), word


def test_the_short_table_has_each_distribution_once() -> None:
    text = short()
    listed = [
        name.strip().strip("*")
        for line in text.splitlines()[2:]
        for name in line.split("|")[2].split(";")
    ]
    assert sorted(listed) == sorted(NAMES)
    assert {row.way for row in ROWS} == set(WAYS)


def test_each_known_fact_has_a_source() -> None:
    for row in ROWS:
        named = {text.partition(":")[0] for text in row.source}
        if named == {"tests/distributions"}:
            continue
        assert ("kernel" in named) == (row.kernel != "unknown"), row.name
        if row.python not in ("unknown", "none"):
            assert "python" in named, row.name


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def test_a_wheel_is_refused_where_python_is_too_old_and_no_newer_one_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = _number(project["requires-python"])
    for row in ROWS:
        if _number(row.python):
            old = _number(row.python) < oldest
            assert (row.way in ("newer", "zipapp")) == old, row.name
            assert row.wheel.startswith("no") == (row.way == "zipapp"), row.name


def test_no_module_is_promised_for_a_kernel_that_dkms_skips() -> None:
    conf = (ROOT / "kmod/dkms.conf").read_text()
    (pattern,) = re.findall(r'^BUILD_EXCLUSIVE_KERNEL="(.*)"$', conf, re.M)
    for row in ROWS:
        if _number(row.kernel):
            built = bool(re.search(pattern, f"{row.kernel.split(',')[0]}.0"))
            assert row.module.startswith("no") == (not built), row.name


def test_each_program_has_the_versions_of_each_release() -> None:
    for program in programs():
        assert list(program.versions) == ["11", "12", "13", "sid"]
