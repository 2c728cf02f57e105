# SPDX-License-Identifier: Apache-2.0
"""The loads of bench/sample are what their names say."""

from pathlib import Path

import pytest

from bench.sample import load as sample_load
from bench.sample import measure as sample


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
