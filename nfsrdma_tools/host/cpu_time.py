# SPDX-License-Identifier: Apache-2.0
"""CPU time of the whole host between two snapshots, in nanoseconds.

/proc/stat counts ticks, which is too coarse for a run of a third of a second: equal runs showed
24 to 35 % busy.  Two sources count nanoseconds:

* /proc/schedstat: how long tasks ran on each CPU (the 7th number of a "cpu" line: rq_cpu_time in
  kernel/sched/stats.h, Documentation/scheduler/sched-stats.rst).  It misses interrupts that hit an
  idle CPU: 15 % of a TCP read without read-ahead.
* /proc/timer_list: how long each CPU was idle (idle_sleeptime and iowait_sleeptime in
  kernel/time/tick-sched.c).  All other time is busy time, interrupts included.  A CPU whose tick
  is stopped is idle now, since idle_entrytime.

psutil provides the modes (user, system, softirq, steal, ...), in ticks.
"""

from __future__ import annotations

import os
import re
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import readable

__all__ = [
    "CpuTimes",
    "accounting",
    "busy",
    "difference",
    "not_idle",
    "own_ns",
    "parse_idle",
    "parse_tasks",
    "snapshot",
]

_PROC = Path("/proc")
_BUSY = ("user", "nice", "system", "irq", "softirq")
_IDLE = ("tick_stopped", "idle_entrytime", "idle_sleeptime", "iowait_sleeptime")


@dataclass(frozen=True)
class CpuTimes:
    """Time of all CPUs together, in ns: busy, and running tasks; ``modes`` in seconds.

    ``wall_ns`` is the monotonic clock, ``cpus`` the number of CPUs.
    """

    busy_ns: int
    task_ns: int
    wall_ns: int
    cpus: int
    modes: dict[str, float]


def accounting(proc: Path = _PROC) -> str:
    """The source of busy time on this host: "idle time" and "schedstat" in ns, or "ticks"."""
    if parse_idle(readable(proc / "timer_list")):
        return "idle time"
    return "schedstat" if readable(proc / "schedstat") else "ticks"


def snapshot(proc: Path = _PROC) -> CpuTimes:
    """The current counters, from the best available source; subtract two with ``difference``."""
    import psutil

    # the kernel updates a task's time when it switches the task out: have it switch us out
    time.sleep(1e-6)
    tasks = parse_tasks(readable(proc / "schedstat"))
    idle = parse_idle(readable(proc / "timer_list"))
    wall = time.monotonic_ns()
    modes = psutil.cpu_times()._asdict()
    cpus = len(idle or tasks) or psutil.cpu_count() or 1
    ticks = round(sum(modes.get(mode, 0.0) for mode in _BUSY) * 1e9)
    task_ns = sum(tasks) if tasks else ticks
    busy_ns = wall * cpus - sum(idle) if idle else task_ns
    return CpuTimes(busy_ns, task_ns, wall, cpus, modes)


def busy(proc: Path = _PROC) -> CpuTimes:
    """Like ``snapshot`` without tasks and modes: a third of the cost if idle time is available."""
    idle = parse_idle(readable(f"{proc}/timer_list"))
    wall = time.monotonic_ns()
    if not idle:
        return snapshot(proc)
    busy_ns = wall * len(idle) - sum(idle)
    return CpuTimes(busy_ns, busy_ns, wall, len(idle), {})


def difference(after: CpuTimes, before: CpuTimes) -> CpuTimes:
    """The time between two snapshots; ticks that went backwards count as 0."""
    modes = {mode: max(after.modes[mode] - before.modes[mode], 0.0) for mode in after.modes}
    return CpuTimes(
        busy_ns=after.busy_ns - before.busy_ns,
        task_ns=after.task_ns - before.task_ns,
        wall_ns=after.wall_ns - before.wall_ns,
        cpus=after.cpus,
        modes=modes,
    )


def not_idle(proc: Path = _PROC) -> tuple[int, int]:
    """The monotonic clock, and the time since boot that /proc/stat does not count as idle, in ns.

    Computed from idle ticks, because the kernel can lose ticks of a busy CPU.
    """
    now = time.monotonic_ns()
    rows = [row.split() for row in readable(proc / "stat").splitlines() if re.match(r"cpu\d", row)]
    ticks = sum(int(row[4]) + int(row[5]) for row in rows)
    return now, now * len(rows) - ticks * 10**9 // os.sysconf("SC_CLK_TCK")


def own_ns() -> int:
    """CPU time of this process and of the child processes it waited for, in ns."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + round((children.ru_utime + children.ru_stime) * 1e9)


def parse_tasks(schedstat: str) -> list[int]:
    """Nanoseconds that tasks ran, per CPU.  UserError if the format is unknown."""
    rows = [line.split() for line in schedstat.splitlines() if line.startswith("cpu")]
    try:
        return [int(row[7]) for row in rows]
    except (IndexError, ValueError) as error:
        raise UserError(f"unknown format of /proc/schedstat: {error}") from error


def parse_idle(timer_list: str) -> list[int]:
    """Idle nanoseconds since boot, per CPU; [] if the text does not contain them."""
    found = [_numbers(timer_list, name) for name in _IDLE]
    now = timer_list.partition("now at ")[2].partition(" nsecs")[0]
    if not now.isdigit() or len({len(values) for values in found}) != 1:
        return []
    return [
        slept + waited + (max(int(now) - since, 0) if stopped else 0)
        for stopped, since, slept, waited in zip(*found, strict=True)
    ]


def _numbers(text: str, name: str) -> list[int]:
    """The numbers after each ``.name:`` in the text."""
    parts = (part.partition(":") for part in text.split(f".{name}")[1:])
    words = (rest.split(None, 1) for blanks, _, rest in parts if not blanks.strip())
    return [int(word[0]) for word in words if word and word[0].isdigit()]
