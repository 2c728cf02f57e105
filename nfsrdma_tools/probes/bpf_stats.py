# SPDX-License-Identifier: Apache-2.0
"""The overhead of the probes: their runs and CPU time, counted by the kernel on request.

With sysctl kernel.bpf_stats_enabled (Documentation/admin-guide/sysctl/kernel.rst) the kernel times
each run of each program, which adds some 20 ns per run; a program's fdinfo has the sums.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nfsrdma_tools.undo import Write, journal

__all__ = ["Cost", "counted", "parse", "spent"]

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
        undo.add(Write(str(_SWITCH), _SWITCH.read_text()))
        _SWITCH.write_text("1")
        yield


def spent(session: Any) -> Cost:
    """The cost of a session's programs since it began, as far as the kernel counted it."""
    own = Path(f"/proc/{os.getpid()}/fdinfo")
    texts = [(own / str(function.fd)).read_text() for function in session.bpf.funcs.values()]
    found = [parse(text) for text in texts]
    return Cost(sum(cost.runs for cost in found), sum(cost.ns for cost in found))


def parse(fdinfo: str) -> Cost:
    """Parse the fdinfo of a program (bpf_prog_show_fdinfo in kernel/bpf/syscall.c)."""
    counts = {name: int(value) for name, value in _COUNT.findall(fdinfo)}
    return Cost(counts.get("cnt", 0), counts.get("time_ns", 0))
