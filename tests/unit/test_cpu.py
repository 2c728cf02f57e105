# SPDX-License-Identifier: Apache-2.0
import time
from pathlib import Path

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.cpu_time import (
    CpuTimes,
    accounting,
    busy,
    difference,
    own_ns,
    parse_idle,
    parse_tasks,
    snapshot,
)

SCHEDSTAT = """version 17
timestamp 4295030124
cpu0 0 0 0 0 0 0 5000000000 7 99
domain0 MC 00000003 1 2 3
cpu1 0 0 0 0 0 0 1500000000 8 98
domain0 MC 00000003 1 2 3
"""
TIMER_LIST = """Timer List Version: v0.10
HRTIMER_MAX_CLOCK_BASES: 8
now at 10000 nsecs

cpu: 0
 clock 0:
  .base:       00000000ae2bba40
 #0: <000000007bcf3dab>, tick_nohz_handler, S:01
  .nohz           : 1
  .tick_stopped   : 0
  .idle_entrytime : 9000 nsecs
  .idle_waketime  : 97578144005533 nsecs
  .idle_sleeptime : 4000 nsecs
  .iowait_sleeptime: 500 nsecs
cpu: 1
  .tick_stopped   : 1
  .idle_entrytime : 9000 nsecs
  .idle_sleeptime : 7000 nsecs
  .iowait_sleeptime: 0 nsecs
"""


def test_task_time_is_the_seventh_number() -> None:
    assert parse_tasks(SCHEDSTAT) == [5_000_000_000, 1_500_000_000]


@pytest.mark.parametrize("text", ["cpu0 1 2 3\n", "cpu0 a b c d e f g h i\n"])
def test_an_unknown_form_is_a_clear_error(text: str) -> None:
    with pytest.raises(UserError, match="unknown form"):
        parse_tasks(text)


def test_a_cpu_with_a_stopped_tick_is_idle_until_now() -> None:
    assert parse_idle(TIMER_LIST) == [4500, 8000]


def test_a_kernel_that_does_not_tell_idle_time() -> None:
    assert parse_idle("") == []
    assert parse_idle(TIMER_LIST.replace("iowait_sleeptime", "other", 1)) == []


def test_difference() -> None:
    before = CpuTimes(1_000, 900, 0, 2, {"user": 1.0, "idle": 5.0})
    after = CpuTimes(601_000, 500_900, 1_000_000, 2, {"user": 1.25, "idle": 4.9})
    spent = CpuTimes(600_000, 500_000, 1_000_000, 2, {"user": 0.25, "idle": 0.0})
    assert difference(after, before) == spent


def test_the_best_source_is_taken(tmp_path: Path) -> None:
    assert accounting(tmp_path) == "ticks"
    ticks = snapshot(tmp_path)
    assert ticks.busy_ns == ticks.task_ns > 0
    (tmp_path / "schedstat").write_text(SCHEDSTAT)
    assert accounting(tmp_path) == "schedstat"
    assert snapshot(tmp_path).busy_ns == 6_500_000_000
    (tmp_path / "timer_list").write_text(TIMER_LIST)
    assert accounting(tmp_path) == "idle time"
    times = snapshot(tmp_path)
    assert times.busy_ns == times.wall_ns * 2 - 12_500
    assert times.task_ns == 6_500_000_000


def test_busy_time_alone_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "timer_list").write_text(TIMER_LIST)
    found = busy(tmp_path)
    assert found.wall_ns * found.cpus - found.busy_ns == sum(parse_idle(TIMER_LIST))
    assert found.cpus == len(parse_idle(TIMER_LIST))
    (tmp_path / "timer_list").write_text("")
    assert busy(tmp_path).cpus >= 1


def test_own_time_counts_what_this_process_computes() -> None:
    before, end = own_ns(), time.process_time_ns() + 20_000_000
    while time.process_time_ns() < end:
        pass
    assert own_ns() - before >= 20_000_000
