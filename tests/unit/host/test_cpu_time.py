# SPDX-License-Identifier: Apache-2.0
import os
import time
from pathlib import Path

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.cpu_time import (
    CpuCounters,
    CpuTimes,
    accounting,
    busy,
    busy_between,
    difference,
    idle_ticks,
    own_ns,
    parse_idle,
    parse_tasks,
    snapshot,
)
from nfsrdma_tools.host.machine import Machine

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
    assert parse_tasks(SCHEDSTAT) == {0: 5_000_000_000, 1: 1_500_000_000}


@pytest.mark.parametrize("text", ["cpu0 1 2 3\n", "cpu0 a b c d e f g h i\n"])
def test_an_unknown_form_is_a_clear_error(text: str) -> None:
    with pytest.raises(UserError, match="unknown form"):
        parse_tasks(text)


def test_a_cpu_with_a_stopped_tick_is_idle_until_now() -> None:
    assert parse_idle(TIMER_LIST) == {0: 4500, 1: 8000}


def test_a_kernel_that_does_not_tell_idle_time() -> None:
    assert parse_idle("") == {}
    assert parse_idle(TIMER_LIST.replace("iowait_sleeptime", "other", 1)) == {}


def test_difference() -> None:
    before = CpuCounters(0, {0: 0, 1: 0}, {0: 400, 1: 500}, {"user": 1.0, "idle": 5.0})
    after = CpuCounters(
        1_000_000, {0: 600_000, 1: 800_000}, {0: 400, 1: 500_500}, {"user": 1.25, "idle": 4.9}
    )
    spent = CpuTimes(600_000, 500_000, 1_000_000, 2, {"user": 0.25, "idle": 0.0})
    assert difference(after, before) == spent


def test_the_best_source_is_taken(tmp_path: Path) -> None:
    assert accounting(Machine(procfs=tmp_path)) == "ticks"
    ticks = snapshot(Machine(procfs=tmp_path))
    seconds = sum(ticks.modes[mode] for mode in ("user", "nice", "system", "irq", "softirq"))
    assert ticks.busy_since_boot_ns == round(seconds * 1e9) > 0
    (tmp_path / "schedstat").write_text(SCHEDSTAT)
    assert accounting(Machine(procfs=tmp_path)) == "schedstat"
    assert snapshot(Machine(procfs=tmp_path)).busy_since_boot_ns == 6_500_000_000
    (tmp_path / "timer_list").write_text(TIMER_LIST)
    assert accounting(Machine(procfs=tmp_path)) == "idle time"
    counters = snapshot(Machine(procfs=tmp_path))
    assert counters.busy_since_boot_ns == counters.wall_ns * 2 - 12_500
    assert counters.task_ns == {0: 5_000_000_000, 1: 1_500_000_000}


def test_busy_time_alone_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "timer_list").write_text(TIMER_LIST)
    machine = Machine(procfs=tmp_path)
    counters = busy(machine)
    assert counters.idle_ns == parse_idle(TIMER_LIST)
    assert counters.busy_since_boot_ns == counters.wall_ns * 2 - 12_500
    (tmp_path / "timer_list").write_text("")
    assert difference(busy(machine), busy(machine)).cpus >= 1


DAY = 86_400 * 10**9


@pytest.mark.parametrize(
    ("before", "after", "cpus", "busy_ns"),
    [
        # a CPU comes online; it was offline for a day, or since boot
        ({0: DAY}, {0: DAY + 400, 1: 100}, 1, 600),
        ({0: DAY}, {0: DAY + 400, 1: DAY - 5}, 1, 600),
        # a CPU goes offline
        ({0: DAY, 1: DAY}, {0: DAY + 400}, 1, 600),
        # a CPU was offline in between, on a kernel that restarts or keeps its idle time
        ({0: DAY, 1: DAY}, {0: DAY + 400, 1: 100}, 1, 600),
        ({0: DAY, 1: DAY}, {0: DAY + 400, 1: DAY + 100}, 2, 1500),
        # another one takes its place
        ({0: DAY, 1: DAY}, {0: DAY + 400, 2: DAY}, 1, 600),
        # a reading that was not of one moment
        ({0: DAY, 1: DAY}, {0: DAY + 1010, 1: DAY - 10}, 2, 1000),
    ],
)
def test_cpus_that_come_and_go_do_not_count(
    before: dict[int, int], after: dict[int, int], cpus: int, busy_ns: int
) -> None:
    usage = difference(CpuCounters(DAY + 1000, after), CpuCounters(DAY, before))
    assert (usage.cpus, usage.busy_ns, usage.task_ns) == (cpus, busy_ns, busy_ns)


def test_a_cpu_that_comes_online_adds_no_days(tmp_path: Path) -> None:
    """As `nfsrdma top` sees it: /proc/timer_list lists the CPUs that are online."""
    first, second = TIMER_LIST.split("cpu: 1\n")
    (tmp_path / "timer_list").write_text(first)
    (tmp_path / "schedstat").write_text("".join(SCHEDSTAT.splitlines(True)[:4]))
    machine = Machine(procfs=tmp_path)
    before = snapshot(machine)
    (tmp_path / "timer_list").write_text(f"{first}cpu: 1\n{second}")
    (tmp_path / "schedstat").write_text(SCHEDSTAT)
    for spent in (
        difference(snapshot(machine), before),
        difference(before, CpuCounters(0, snapshot(machine).idle_ns, snapshot(machine).task_ns)),
    ):
        assert (spent.cpus, spent.busy_ns, spent.task_ns) == (1, spent.wall_ns, 0)


def test_idle_ticks_are_read_by_cpu(tmp_path: Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    row = f"1 2 3 {2 * tick} {tick} 6 7 8 9 10"
    (tmp_path / "stat").write_text(f"cpu  {row}\ncpu0 {row}\ncpu7 {row}\nintr 1 2 3\n")
    now, idle = idle_ticks(Machine(procfs=tmp_path))
    assert now > 0
    assert idle == {0: 3 * 10**9, 7: 3 * 10**9}
    assert busy_between(idle, {0: 3 * 10**9 - 10}, 100) == (1, 90)


def test_own_time_counts_what_this_process_computes() -> None:
    before, end = own_ns(), time.process_time_ns() + 20_000_000
    while time.process_time_ns() < end:
        pass
    assert own_ns() - before >= 20_000_000
