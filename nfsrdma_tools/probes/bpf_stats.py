# SPDX-License-Identifier: Apache-2.0
"""What the probes themselves cost: their runs and time, counted by the kernel while asked to.

sysctl kernel.bpf_stats_enabled (Documentation/admin-guide/sysctl/kernel.rst) has the kernel time
each run of each program, for some 20 ns a run; a program's fdinfo shows the sums.
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
    """How often programs ran, and for how many ns of CPU time."""

    runs: int
    ns: int

    def __sub__(self, other: Cost) -> Cost:
        """What was added since."""
        return Cost(self.runs - other.runs, self.ns - other.ns)


@contextlib.contextmanager
def counted(wanted: bool = True) -> Iterator[None]:
    """Have the kernel time programs; the switch is back where it was afterwards."""
    if not wanted:
        yield
        return
    with journal() as book:
        # read now: a run that was killed has just been taken back
        book.add(Write(str(_SWITCH), _SWITCH.read_text()))
        _SWITCH.write_text("1")
        yield


def spent(session: Any) -> Cost:
    """What a session's programs have cost since it began, as far as it was counted."""
    own = Path(f"/proc/{os.getpid()}/fdinfo")
    texts = [(own / str(function.fd)).read_text() for function in session.bpf.funcs.values()]
    found = [parse(text) for text in texts]
    return Cost(sum(cost.runs for cost in found), sum(cost.ns for cost in found))


def parse(fdinfo: str) -> Cost:
    """A program's fdinfo (bpf_prog_show_fdinfo in kernel/bpf/syscall.c)."""
    counts = {name: int(value) for name, value in _COUNT.findall(fdinfo)}
    return Cost(counts.get("cnt", 0), counts.get("time_ns", 0))
