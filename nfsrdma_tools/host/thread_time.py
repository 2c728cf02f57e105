# SPDX-License-Identifier: Apache-2.0
"""The run time of each thread of the host (/proc/PID/task/TID/schedstat), in nanoseconds.

The kernel updates it whenever it switches threads, and at each tick (sum_exec_runtime in
kernel/sched/, Documentation/scheduler/sched-stats.rst); it includes interrupts that hit a thread.
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
    """The run time of a thread in ns, and the monotonic clock (ns) at the reading."""

    ns: int
    at: int


def snapshot(proc: Path = _PROC) -> dict[int, Ran]:
    """All threads by TID; empty if the kernel has no schedstat."""
    found: dict[int, Ran] = {}
    for thread, path in _threads(proc):
        try:
            found[thread] = Ran(_ns(path), time.monotonic_ns())
        except (OSError, ValueError):
            continue
    return found


def difference(after: dict[int, Ran], before: dict[int, Ran], wall_ns: int) -> dict[int, int]:
    """The run time of each thread of ``after`` within ``wall_ns``.

    The readings take time, so the interval between its two readings differs from thread to
    thread: the result is scaled to ``wall_ns``.
    """
    return {thread: _ran(ran, before.get(thread), wall_ns) for thread, ran in after.items()}


def name(thread: int, proc: Path = _PROC) -> str:
    """The name of a thread (comm); "" if it has ended."""
    try:
        return (proc / str(thread) / "comm").read_text().rstrip("\n")
    except OSError:
        return ""


def _ran(after: Ran, before: Ran | None, wall_ns: int) -> int:
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
