# SPDX-License-Identifier: Apache-2.0
import time
from pathlib import Path

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.cpu import (
    CpuTimes,
    accounting,
    difference,
    own_ns,
    parse_schedstat,
    snapshot,
)

SCHEDSTAT = """version 17
timestamp 4295030124
cpu0 0 0 0 0 0 0 5000000000 7 99
domain0 MC 00000003 1 2 3
cpu1 0 0 0 0 0 0 1500000000 8 98
domain0 MC 00000003 1 2 3
"""


def test_busy_time_is_the_seventh_number() -> None:
    assert parse_schedstat(SCHEDSTAT) == [5_000_000_000, 1_500_000_000]


@pytest.mark.parametrize("text", ["cpu0 1 2 3\n", "cpu0 a b c d e f g h i\n"])
def test_an_unknown_form_is_a_clear_error(text: str) -> None:
    with pytest.raises(UserError, match="unknown form"):
        parse_schedstat(text)


def test_difference_and_share() -> None:
    before = CpuTimes(1_000, 0, 2, {"user": 1.0, "idle": 5.0})
    after = CpuTimes(601_000, 1_000_000, 2, {"user": 1.25, "idle": 4.9})
    spent = difference(after, before)
    assert spent == CpuTimes(600_000, 1_000_000, 2, {"user": 0.25, "idle": 0.0})
    assert spent.share() == pytest.approx(0.3)
    assert spent.share(less_ns=200_000) == pytest.approx(0.2)
    assert spent.share(less_ns=700_000) == 0


def test_without_schedstat_ticks_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    assert accounting(path) == "ticks"
    ticks = snapshot(path)
    assert ticks.busy_ns > 0
    path.write_text(SCHEDSTAT)
    assert accounting(path) == "schedstat"
    assert snapshot(path).busy_ns == 6_500_000_000


def test_own_time_counts_what_this_process_computes() -> None:
    before, end = own_ns(), time.process_time_ns() + 20_000_000
    while time.process_time_ns() < end:
        pass
    assert own_ns() - before >= 20_000_000
