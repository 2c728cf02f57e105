# SPDX-License-Identifier: Apache-2.0
"""Read a probe set once per interval, and return what it counted in each.

The overhead of the probes is their runs and CPU time, counted by the kernel on request: with sysctl
kernel.bpf_stats_enabled (Documentation/admin-guide/sysctl/kernel.rst) it times each run of each
program, which adds some 20 ns per run; a program's fdinfo has the sums.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nfsrdma_tools.errors import UsageError
from nfsrdma_tools.probes.maps import Losses, lost
from nfsrdma_tools.probes.probe_sets import ProbeSet, attached
from nfsrdma_tools.probes.program import Missing
from nfsrdma_tools.probes.row_filter import Filter
from nfsrdma_tools.probes.rpc_clients import clients
from nfsrdma_tools.probes.session import Session
from nfsrdma_tools.undo import Write, journal

__all__ = ["Cost", "Interval", "WatchOptions", "counted", "parse", "spent", "watch"]

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class WatchOptions:
    """Options of a watch: ``interval`` in seconds, ``count`` of intervals (0: until interrupted).

    ``cpu`` adds the CPU time of the counted work, ``cost`` the CPU time of the probes themselves.
    """

    filter: Filter = field(default_factory=Filter)
    interval: float = 1.0
    count: int = 0
    cost: bool = False
    cpu: bool = False


@dataclass(frozen=True)
class Interval:
    """The rows of an interval, the events that were lost, and the cost of the probes if wanted."""

    records: Records
    lost: Losses
    cost: Cost | None = None


class _Reading(NamedTuple):
    counted: Any
    lost: Losses
    cost: Cost | None


def watch(
    probe_set: ProbeSet,
    options: WatchOptions,
    begun: Callable[[tuple[Missing, ...]], None],
    ended: Callable[[Any], None] | None = None,
) -> Iterator[Interval]:
    """Yield what was counted in each interval.

    ``begun`` is called once with the events that this kernel lacks, ``ended`` with a snapshot of
    all intervals when the caller closes the iterator.  Raises UserError if nothing can be
    counted, UsageError if the probe set lacks an option.
    """
    options.filter.check(probe_set.name, probe_set.filters)
    if options.cpu and not probe_set.time:
        message = f"trace {probe_set.name} has no option --cpu"
        raise UsageError(message, "use trace registrations --cpu, or trace cpu")
    mount = options.filter.mount_point()
    numbers: dict[str, int | None] = {}
    if not probe_set.host_wide:
        # before counting starts: it may send RPCs to servers
        clients(numbers)
    with (
        attached([probe_set.name], options.cpu, pid=options.filter.pid) as open_session,
        counted(options.cost),
    ):
        # before the caller knows: RPCs that end after ``begun`` are in the first interval
        first = last = _read(probe_set, open_session, options.cost)
        begun(open_session.missing)
        done = 0
        try:
            while not options.count or done < options.count:
                time.sleep(options.interval)
                now = _read(probe_set, open_session, options.cost)
                known = {} if probe_set.host_wide else clients(numbers)
                added = probe_set.difference(now.counted, last.counted)
                rows = options.filter.select(probe_set.records(added, known), mount)
                cost = now.cost - last.cost if now.cost and last.cost else None
                yield Interval(rows, now.lost - last.lost, cost)
                last, done = now, done + 1
        finally:
            if ended:
                ended(probe_set.difference(last.counted, first.counted))


def _read(probe_set: ProbeSet, session: Session, cost: bool) -> _Reading:
    return _Reading(probe_set.read(session), lost(session), spent(session) if cost else None)


_SWITCH = Path("/proc/sys/kernel/bpf_stats_enabled")
_COUNT = re.compile(r"^run_(time_ns|cnt):\s*(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Cost:
    """The number of runs of programs, and their CPU time in ns."""

    runs: int
    ns: int

    def __sub__(self, other: Cost) -> Cost:
        """The increase since ``other``."""
        return Cost(self.runs - other.runs, self.ns - other.ns)


@contextlib.contextmanager
def counted(wanted: bool = True) -> Iterator[None]:
    """Have the kernel time programs, and restore the sysctl afterwards."""
    if not wanted:
        yield
        return
    with journal() as undo:
        # read it now: journal() has just reverted the change of a killed run
        undo.add(Write(str(_SWITCH), _SWITCH.read_text(), "1"))
        _SWITCH.write_text("1")
        yield


def spent(session: Session) -> Cost:
    """The cost of a session's programs since it began, as far as the kernel counted it."""
    own = Path(f"/proc/{os.getpid()}/fdinfo")
    texts = [(own / str(function.fd)).read_text() for function in session.bpf.funcs.values()]
    costs = [parse(text) for text in texts]
    return Cost(sum(cost.runs for cost in costs), sum(cost.ns for cost in costs))


def parse(fdinfo: str) -> Cost:
    """Parse the fdinfo of a program (bpf_prog_show_fdinfo in kernel/bpf/syscall.c)."""
    counts = {name: int(value) for name, value in _COUNT.findall(fdinfo)}
    return Cost(counts.get("cnt", 0), counts.get("time_ns", 0))
