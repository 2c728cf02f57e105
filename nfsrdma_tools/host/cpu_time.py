# SPDX-License-Identifier: Apache-2.0
"""CPU time of the whole host, and of each thread, between two snapshots, in nanoseconds.

/proc/stat counts ticks, which is too coarse for a run of a third of a second: equal runs showed
24 to 35 % busy.  Two sources count nanoseconds:

* /proc/schedstat: how long tasks ran on each CPU (the 7th number of a "cpu" line: rq_cpu_time in
  kernel/sched/stats.h, Documentation/scheduler/sched-stats.rst).  It misses interrupts that hit an
  idle CPU: 15 % of a TCP read without read-ahead.
* /proc/timer_list: how long each CPU was idle (idle_sleeptime and iowait_sleeptime in
  kernel/time/tick-sched.c).  All other time is busy time, interrupts included.  A CPU whose tick
  is stopped is idle now, since idle_entrytime.

Both list the CPUs that are online.  A CPU that comes online may have counted nothing while it was
offline, and Linux before 6.8 also restarts its idle time at 0 (commit 71fee48fb772, "tick/sched:
Fix idle and iowait sleeptime accounting vs CPU hotplug").  Differences therefore have only the
CPUs that were online at both ends.

psutil provides the modes (user, system, softirq, steal, ...) of all CPUs, /proc/stat those of each
CPU, in ticks.  On a host without ticks on idle CPUs, its idle time is exact to a tick.
parse_stat() does not use psutil: the dashboard may read the /proc of another root (--path.procfs),
which psutil knows for the whole process only, and it needs four sums of each CPU per interval.

/proc/PID/task/TID/schedstat has the run time of a thread.  The kernel updates it whenever it
switches threads, and at each tick (sum_exec_runtime in kernel/sched/); it includes interrupts that
hit a thread.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import readable, text
from nfsrdma_tools.host.machine import LIVE, Machine

__all__ = [
    "CpuCounters",
    "CpuTicks",
    "CpuTimes",
    "CpuUse",
    "ThreadTime",
    "accounting",
    "busy",
    "busy_between",
    "difference",
    "difference_of_threads",
    "each_cpu",
    "idle_ticks",
    "own_ns",
    "parse_idle",
    "parse_stat",
    "parse_tasks",
    "snapshot",
    "snapshot_threads",
    "thread_name",
    "thread_ns",
]

_BUSY = ("user", "nice", "system", "irq", "softirq")
_IDLE = ("tick_stopped", "idle_entrytime", "idle_sleeptime", "iowait_sleeptime")


@dataclass(frozen=True)
class CpuCounters:
    """Counters at one time; subtract two with ``difference``.

    ``wall_ns`` is the monotonic clock, ``idle_ns`` and ``task_ns`` have each online CPU, ``modes``
    are seconds of all CPUs.  What the kernel does not report is empty.
    """

    wall_ns: int
    idle_ns: Mapping[int, int] = field(default_factory=dict)
    task_ns: Mapping[int, int] = field(default_factory=dict)
    modes: Mapping[str, float] = field(default_factory=dict)

    @property
    def busy_since_boot_ns(self) -> int:
        """Busy time of the CPUs that are online now; it jumps when CPUs come or go."""
        idle, tasks = dict.fromkeys(self.idle_ns, 0), dict.fromkeys(self.task_ns, 0)
        return difference(self, CpuCounters(0, idle, tasks, dict.fromkeys(self.modes, 0))).busy_ns


@dataclass(frozen=True)
class CpuTimes:
    """Time of all CPUs in an interval, in ns: busy, and running tasks; ``modes`` in seconds.

    ``wall_ns`` is the length of the interval, ``cpus`` the number of CPUs.
    """

    busy_ns: int
    task_ns: int
    wall_ns: int
    cpus: int
    modes: dict[str, float]


class CpuTicks(NamedTuple):
    """Time of a CPU since boot, in ticks (proc_stat(5)); ``interrupts`` are irq and softirq."""

    idle: int
    tasks: int
    interrupts: int
    stolen: int


class CpuUse(NamedTuple):
    """Shares of a CPU's time in an interval, 0 to 1: busy, and the parts of it.

    ``stolen`` is the time that the hypervisor gave to others.
    """

    busy: float
    interrupts: float
    stolen: float


class ThreadTime(NamedTuple):
    """The run time of a thread in ns, and the monotonic clock (ns) at the reading."""

    ns: int
    at: int


def accounting(machine: Machine = LIVE) -> str:
    """The source of busy time on this host: "idle time" and "schedstat" in ns, or "ticks"."""
    if parse_idle(readable(machine.path("proc/timer_list"))):
        return "idle time"
    return "schedstat" if readable(machine.path("proc/schedstat")) else "ticks"


def snapshot(machine: Machine = LIVE) -> CpuCounters:
    """The current counters, from all available sources."""
    import psutil

    # the kernel updates a task's time when it switches the task out: have it switch us out
    time.sleep(1e-6)
    tasks = parse_tasks(readable(machine.path("proc/schedstat")))
    idle = parse_idle(readable(machine.path("proc/timer_list")))
    return CpuCounters(time.monotonic_ns(), idle, tasks, psutil.cpu_times()._asdict())


def busy(machine: Machine = LIVE) -> CpuCounters:
    """Like ``snapshot`` without tasks and modes: a third of the cost if idle time is available."""
    idle = parse_idle(readable(machine.path("proc/timer_list")))
    return CpuCounters(time.monotonic_ns(), idle) if idle else snapshot(machine)


def difference(after: CpuCounters, before: CpuCounters) -> CpuTimes:
    """The time between two snapshots, of CPUs that were online at both."""
    wall = after.wall_ns - before.wall_ns
    modes = {m: max(s - before.modes.get(m, s), 0.0) for m, s in after.modes.items()}
    ticks = round(sum(modes.get(mode, 0.0) for mode in _BUSY) * 1e9)
    tasks = _grown(after.task_ns, before.task_ns)
    task_ns = sum(tasks.values()) if tasks else ticks
    idle_cpus, idle_busy = busy_between(after.idle_ns, before.idle_ns, wall)
    return CpuTimes(
        busy_ns=idle_busy if idle_cpus else task_ns,
        task_ns=task_ns if tasks or modes else idle_busy,
        wall_ns=wall,
        cpus=idle_cpus or len(tasks) or os.cpu_count() or 1,
        modes=modes,
    )


def busy_between(
    after: Mapping[int, int], before: Mapping[int, int], wall_ns: int
) -> tuple[int, int]:
    """The number of CPUs that were online at both ends, and their busy time, from idle times."""
    grown = _grown(after, before)
    # restarted at 0 with the CPU: the time for which it was online is unknown
    known = [idle for cpu, idle in grown.items() if not (idle < 0 and after[cpu] <= wall_ns)]
    return len(known), wall_ns * len(known) - sum(known)


def _grown(after: Mapping[int, int], before: Mapping[int, int]) -> dict[int, int]:
    return {cpu: count - before[cpu] for cpu, count in after.items() if cpu in before}


def idle_ticks(machine: Machine = LIVE) -> tuple[int, dict[int, int]]:
    """The monotonic clock, and the idle time of each CPU by /proc/stat, in ns.

    Busy time is computed from idle ticks, because the kernel can lose ticks of a busy CPU.
    """
    now = time.monotonic_ns()
    tick = 10**9 // os.sysconf("SC_CLK_TCK")
    ticks = parse_stat(readable(machine.path("proc/stat")))
    return now, {cpu: counts.idle * tick for cpu, counts in ticks.items()}


def parse_stat(stat: str) -> dict[int, CpuTicks]:
    """The ticks of each online CPU in the text of /proc/stat; {} if the format is unknown."""
    by_cpu = {}
    for line in stat.splitlines():
        # the lines of CPUs come first; the line of interrupts below them can be long
        if not line.startswith("cpu"):
            break
        name, *words = line.split()
        if name != "cpu" and len(words) >= 8 and (name[3:] + "".join(words)).isdecimal():
            user, nice, system, idle, iowait, irq, softirq, steal = map(int, words[:8])
            ticks = CpuTicks(idle + iowait, user + nice + system, irq + softirq, steal)
            by_cpu[int(name[3:])] = ticks
    return by_cpu


def each_cpu(
    after: Mapping[int, CpuTicks], before: Mapping[int, CpuTicks], wall_ns: int
) -> dict[int, CpuUse]:
    """The use of each CPU between two readings; a CPU that was offline meanwhile is left out."""
    wall = wall_ns * os.sysconf("SC_CLK_TCK") / 1e9
    uses = {}
    for cpu, ticks in after.items():
        if wall <= 0 or cpu not in before:
            continue
        idle, *counts = (now - then for now, then in zip(ticks, before[cpu], strict=True))
        spent = [max(count, 0) for count in counts]
        # it was offline, or its idle time restarted: ticks for less than half of the interval.  The
        # kernel can lose ticks of a busy CPU, but it counts the time of an idle one.
        if idle + sum(spent) < wall / 2:
            continue
        whole = sum(spent) or 1
        # by the clock, and by the ticks of the time for which it was online
        busy = min(max(1 - idle / wall, 0.0), whole / max(whole + idle, 1), 1.0)
        _, interrupts, stolen = (busy * part / whole for part in spent)
        uses[cpu] = CpuUse(busy, interrupts, stolen)
    return uses


def own_ns() -> int:
    """CPU time of this process and of the child processes it waited for, in ns."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + round((children.ru_utime + children.ru_stime) * 1e9)


def parse_tasks(schedstat: str) -> dict[int, int]:
    """Nanoseconds that tasks ran, by CPU.  UserError if the format is unknown."""
    rows = [line.split() for line in schedstat.splitlines() if line.startswith("cpu")]
    try:
        return {int(row[0][3:]): int(row[7]) for row in rows}
    except (IndexError, ValueError) as error:
        raise UserError(f"unknown format of /proc/schedstat: {error}") from error


def parse_idle(timer_list: str) -> dict[int, int]:
    """Idle nanoseconds since boot, by CPU; {} if the text does not contain them."""
    cpus = [int(part.partition("\n")[0]) for part in timer_list.split("\ncpu: ")[1:]]
    columns = [_numbers(timer_list, name) for name in _IDLE]
    now = timer_list.partition("now at ")[2].partition(" nsecs")[0]
    if not now.isdigit() or {len(values) for values in columns} != {len(cpus)}:
        return {}
    return {
        cpu: slept + waited + (max(int(now) - since, 0) if stopped else 0)
        for cpu, stopped, since, slept, waited in zip(cpus, *columns, strict=True)
    }


def _numbers(text: str, name: str) -> list[int]:
    """The numbers after each ``.name:`` in the text."""
    parts = (part.partition(":") for part in text.split(f".{name}")[1:])
    words = (rest.split(None, 1) for blanks, _, rest in parts if not blanks.strip())
    return [int(word[0]) for word in words if word and word[0].isdigit()]


def snapshot_threads(machine: Machine = LIVE) -> dict[int, ThreadTime]:
    """All threads by TID; empty if the kernel has no schedstat."""
    times: dict[int, ThreadTime] = {}
    for thread, path in _threads(machine.path("proc")):
        try:
            times[thread] = ThreadTime(_ns(path), time.monotonic_ns())
        except (OSError, ValueError):
            continue
    return times


def thread_ns(thread: int, machine: Machine = LIVE) -> ThreadTime | None:
    """The run time of one thread; None if it has ended."""
    try:
        return ThreadTime(_ns(str(machine.path(f"proc/{thread}/schedstat"))), time.monotonic_ns())
    except (OSError, ValueError):
        return None


def difference_of_threads(
    after: dict[int, ThreadTime], before: dict[int, ThreadTime], wall_ns: int
) -> dict[int, int]:
    """The run time of each thread of ``after`` within ``wall_ns``.

    The readings take time, so the interval between its two readings differs from thread to
    thread: the result is scaled to ``wall_ns``.
    """
    return {thread: _ran(ran, before.get(thread), wall_ns) for thread, ran in after.items()}


def thread_name(thread: int, machine: Machine = LIVE) -> str:
    """The name of a thread (comm); "" if it has ended."""
    try:
        return text(machine.path(f"proc/{thread}/comm")).rstrip("\n")
    except OSError:
        return ""


def _ran(after: ThreadTime, before: ThreadTime | None, wall_ns: int) -> int:
    # a new thread, or a reused TID
    if before is None or after.ns < before.ns or after.at <= before.at:
        return after.ns
    return (after.ns - before.ns) * wall_ns // (after.at - before.at)


def _ns(path: str) -> int:
    # os.open is faster than Path, and there are thousands of threads
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(handle, 64).partition(b" ")[0])
    finally:
        os.close(handle)


def _threads(proc: Path) -> Iterator[tuple[int, str]]:
    for process in filter(str.isdigit, _folder(str(proc))):
        folder = f"{proc}/{process}/task"
        for thread in _folder(folder):
            yield int(thread), f"{folder}/{thread}/schedstat"


def _folder(path: str) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208 -- names only
    except OSError:
        return []
