# SPDX-License-Identifier: Apache-2.0
"""CPU time of the whole host: busy nanoseconds and seconds per mode, between two snapshots.

/proc/stat counts ticks, far too coarse for a run of a third of a second: one and the same run
came out as 24 to 35 % busy.  /proc/schedstat has the nanoseconds that tasks ran on each CPU (the
7th number of a "cpu" line: rq_cpu_time in kernel/sched/stats.c, Documentation/scheduler/
sched-stats.rst).  It has no interrupt that hit an idle CPU, and a task still running is counted up
to its last switch; modes (user, system, softirq, steal, ...) come from psutil, in ticks.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.errors import UserError

__all__ = ["CpuTimes", "accounting", "difference", "own_ns", "parse_schedstat", "snapshot"]

_SCHEDSTAT = Path("/proc/schedstat")
_BUSY = ("user", "nice", "system", "irq", "softirq")


@dataclass(frozen=True)
class CpuTimes:
    """Time of all CPUs together: ``busy_ns`` ran tasks; ``modes`` are seconds by psutil's names.

    ``wall_ns`` is the monotonic clock, ``cpus`` how many CPUs were counted.
    """

    busy_ns: int
    wall_ns: int
    cpus: int
    modes: dict[str, float]

    def share(self, less_ns: int = 0) -> float:
        """Busy share of all CPUs, 0 to 1, without ``less_ns`` of the busy time."""
        whole = self.wall_ns * self.cpus
        return max(self.busy_ns - less_ns, 0) / whole if whole else 0.0


def accounting(path: Path = _SCHEDSTAT) -> str:
    """Where busy time comes from on this machine: "schedstat" in ns, else "ticks"."""
    return "schedstat" if path.is_file() else "ticks"


def snapshot(path: Path = _SCHEDSTAT) -> CpuTimes:
    """The counters now; subtract two with ``difference``.

    A kernel without CONFIG_SCHEDSTATS has its ticks counted instead.
    """
    import psutil

    modes = psutil.cpu_times()._asdict()
    if accounting(path) == "ticks":
        busy, cpus = round(sum(modes.get(mode, 0) for mode in _BUSY) * 1e9), psutil.cpu_count()
    else:
        per_cpu = parse_schedstat(path.read_text())
        busy, cpus = sum(per_cpu), len(per_cpu)
    return CpuTimes(busy, time.monotonic_ns(), cpus, modes)


def difference(after: CpuTimes, before: CpuTimes) -> CpuTimes:
    """What went by between two snapshots; ticks that went backwards count as none."""
    modes = {mode: max(after.modes[mode] - before.modes[mode], 0.0) for mode in after.modes}
    busy, wall = after.busy_ns - before.busy_ns, after.wall_ns - before.wall_ns
    return CpuTimes(busy, wall, after.cpus, modes)


def own_ns() -> int:
    """CPU time of this process and of the programs it ran and waited for, in ns."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + round((children.ru_utime + children.ru_stime) * 1e9)


def parse_schedstat(text: str) -> list[int]:
    """Busy nanoseconds per CPU of /proc/schedstat's text; UserError when it has another form."""
    rows = [line.split() for line in text.splitlines() if line.startswith("cpu")]
    try:
        return [int(row[7]) for row in rows]
    except (IndexError, ValueError) as error:
        raise UserError(f"/proc/schedstat has an unknown form: {error}") from error
