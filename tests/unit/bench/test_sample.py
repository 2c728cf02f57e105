# SPDX-License-Identifier: Apache-2.0
"""The loads of ``make bench-sample`` are what their names say."""

from pathlib import Path

import pytest

from bench import sample, sample_load


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recorded host, with few mounts."""
    monkeypatch.setattr(sample, "MOUNTS", 3)
    sample.make_host(tmp_path)
    return tmp_path


@pytest.mark.parametrize("load", sample.LOADS)
def test_each_sample_of_a_load_has_its_counts(host: Path, load: str) -> None:
    take = sample_load.sampled(host, load)
    for _ in range(sum(sample_load.RUNS)):
        take()
    with pytest.raises(StopIteration):
        take()


@pytest.mark.parametrize("load", sample.LOADS)
def test_a_load_that_is_another_one_is_an_error(host: Path, load: str) -> None:
    other = next(name for name in sample.LOADS if name != load)
    (host / load).rename(host / "was")
    (host / other).rename(host / load)
    take = sample_load.sampled(host, load)
    with pytest.raises(SystemExit, match=f"{load}: . of 3 mounts have counts"):
        take()


def test_the_table_has_the_ratio_of_both_trees() -> None:
    found = {"abc": {"idle": 4e6, "busy": 8e6}, "today": {"idle": 3e6, "busy": 8e6}}
    rows = sample.table(found, "ms of CPU time")
    assert rows[0] == "| a sample of 1,000 mounts, ms of CPU time | abc | today | ratio |"
    assert [row.rsplit(" | ", 3)[1:] for row in rows[2:]] == [
        ["4.0", "3.0", "0.75 |"], ["8.0", "8.0", "1.00 |"],
    ]  # fmt: skip
