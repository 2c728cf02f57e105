# SPDX-License-Identifier: Apache-2.0
"""How long each thread of the host has run (/proc/PID/task/TID/schedstat), in nanoseconds.

The kernel counts this whenever it switches threads, and each tick (sum_exec_runtime in
kernel/sched/, Documentation/scheduler/sched-stats.rst): interrupts that hit a thread are in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Ran", "difference", "name", "snapshot"]

_PROC = Path("/proc")


class Ran(NamedTuple):
    """Nanoseconds that a thread ran, and the monotonic clock (ns) at which that was read."""

    ns: int
    at: int


def snapshot(proc: Path = _PROC) -> dict[int, Ran]:
    """All threads that there are, by number; none where the kernel does not tell."""
    found: dict[int, Ran] = {}
    for thread, path in _threads(proc):
        try:
            found[thread] = Ran(_ns(path), time.monotonic_ns())
        except (OSError, ValueError):
            continue
    return found


def difference(after: dict[int, Ran], before: dict[int, Ran], wall_ns: int) -> dict[int, int]:
    """How long each thread that still is there ran within ``wall_ns``.

    Reading takes a while, so each has a time of its own between its readings: what it ran is
    brought to the one that is asked for.
    """
    return {thread: _ran(ran, before.get(thread), wall_ns) for thread, ran in after.items()}


def name(thread: int, proc: Path = _PROC) -> str:
    """What a thread calls itself; "" when it is gone."""
    try:
        return (proc / str(thread) / "comm").read_text().rstrip("\n")
    except OSError:
        return ""


def _ran(after: Ran, before: Ran | None, wall_ns: int) -> int:
    # born meanwhile, or another one of that number
    if before is None or after.ns < before.ns or after.at <= before.at:
        return after.ns
    return (after.ns - before.ns) * wall_ns // (after.at - before.at)


def _ns(path: str) -> int:
    # there are thousands
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
