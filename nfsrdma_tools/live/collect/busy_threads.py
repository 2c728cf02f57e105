# SPDX-License-Identifier: Apache-2.0
"""The threads that use a CPU, and the NFS mounts that they use.

A host can have thousands of threads, and most are idle.  So all of them are read only while NFS is
in use and threads use as much CPU time as one full thread needs, and not more often than a small
share of a CPU allows.  Between two readings of all, only those that were busy are read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.host.cpu_time import ThreadTime
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs import mountinfo
from nfsrdma_tools.live.snapshot import Processors, Thread

__all__ = ["BusyThreads"]

_COST = 0.01
"""The share of a CPU that reading all threads may take: with 5,000 threads, once in some 8 s."""
_WATCHED = 0.2
"""The share of a CPU, on average since all were read, from which a thread is read each time.

One that was idle for most of that time can be full now."""
_MOST = 16
_SHOWN = 0.5
"""The share of a CPU from which a thread is in a snapshot."""
_COUNTED = 0.95
"""Of the time of all threads, in ticks: their own times, in ns, differ from it by some percent."""
_REMEMBERED = 5 * 10**9
"""Nanoseconds for which the open files of a process are not read again."""
_FILES = 4096
"""The number of open files of a process to read: the rest of them is unknown."""
_KERNEL = 0x00200000  # PF_KTHREAD in include/linux/sched.h
_MOUNT_ID = re.compile(r"^mnt_id:\s*(\d{1,10})$", re.MULTILINE)


class BusyThreads:
    """Reads the busiest threads of a host repeatedly."""

    def __init__(self, machine: Machine = LIVE) -> None:
        self._machine = machine
        self._proc = machine.path("proc")
        self._all: dict[int, ThreadTime] = {}
        self._watched: dict[int, ThreadTime] = {}
        self._read_at = 0
        self._tasks = 0.0
        self._due = 0.0
        self._cost = 0
        self._hidden = 0.0
        self._devices: dict[int, tuple[int, tuple[str, ...] | None]] = {}

    def forget(self) -> None:
        """Start anew: an interval had no reason to read threads."""
        self._all, self._watched, self._hidden, self._tasks = {}, {}, 0.0, 0.0
        self._devices = {}

    def add_to(
        self, processors: Processors, tasks_ns: float, devices: Container[str]
    ) -> Processors:
        """``processors`` with the busiest threads; unchanged until there are two readings.

        ``tasks_ns`` is the time in which threads ran in this interval, on all CPUs; ``devices`` are
        the NFS mounts that matter.
        """
        now = time.monotonic_ns()
        self._tasks += tasks_ns
        before, had = self._watched, bool(self._all)
        read = ((thread, cpu_time.thread_ns(thread, self._machine)) for thread in before)
        self._watched = {thread: ran for thread, ran in read if ran}
        shares = {t: _share(ran, before[t]) for t, ran in self._watched.items()}
        if now >= self._due:
            shares |= self._read_all(now)
        if not had:
            return processors
        busy = sorted((-share, t) for t, share in shares.items() if share >= _SHOWN)
        busiest = (self._thread(thread, -share, now, devices) for share, thread in busy[:_MOST])
        threads = tuple(thread for thread in busiest if thread)
        # a busy host starts new processes without end
        self._devices = {
            process: entry
            for process, entry in self._devices.items()
            if now - entry[0] <= _REMEMBERED
        }
        return replace(processors, threads=threads, hidden=round(self._hidden, 3))

    def _read_all(self, now: int) -> dict[int, float]:
        """Read all threads; the shares of those that are new among the busy ones."""
        spent = time.thread_time_ns()
        before, since = self._all, self._read_at
        self._all, self._read_at = cpu_time.snapshot_threads(self._machine), now
        new = ThreadTime(0, since)
        added = {}
        if before:
            self._hidden = self._unseen(before, now - since)
            averages = {t: _share(ran, before.get(t, new)) for t, ran in self._all.items()}
            busy = {t for t in averages if averages[t] >= _WATCHED}
            for thread in sorted(busy, key=lambda t: -averages[t])[:_MOST]:
                if thread not in self._watched:
                    self._watched[thread] = self._all[thread]
                    added[thread] = averages[thread]
            self._watched = {t: ran for t, ran in self._watched.items() if t in busy}
        self._tasks = 0.0
        self._cost += time.thread_time_ns() - spent
        # two readings make a difference: the second one may follow at once
        if before:
            self._due, self._cost = now + self._cost / _COST, 0
        return added

    def _unseen(self, before: dict[int, ThreadTime], passed: int) -> float:
        """CPUs' worth of thread time, since all threads were read, of no thread that is there."""
        seen = sum(ran.ns - _before(ran, before.get(t)) for t, ran in self._all.items())
        return max(self._tasks * _COUNTED - seen, 0.0) / passed if passed else 0.0

    def _thread(
        self, thread: int, share: float, now: int, devices: Container[str]
    ) -> Thread | None:
        stat = files.readable(self._proc / str(thread) / "stat")
        # the name may contain brackets and blanks
        words = stat.rpartition(")")[2].split()
        if len(words) < 37:
            return None
        kernel = bool(int(words[6]) & _KERNEL)
        status = files.readable(self._proc / str(thread) / "status")
        group = status.partition("\nTgid:")[2].split(None, 1)
        process = int(group[0]) if group else thread
        return Thread(
            name=cpu_time.thread_name(thread, self._machine),
            process=process,
            number=thread,
            share=round(share, 3),
            cpu=int(words[36]),
            kernel=kernel,
            devices=None if kernel else self._used(process, now, devices),
        )

    def _used(self, process: int, now: int, devices: Container[str]) -> tuple[str, ...] | None:
        read_at, used = self._devices.get(process, (0, None))
        if process not in self._devices or now - read_at > _REMEMBERED:
            used = self._read_used(process, devices)
            self._devices[process] = now, used
        return used

    def _read_used(self, process: int, devices: Container[str]) -> tuple[str, ...] | None:
        """The NFS mounts of which a process has open files, or its working directory.

        Nothing here looks at a file: that would send an RPC.  Mounts have numbers of their own in
        each mount namespace, and their devices have the same number in all.
        """
        folder = self._proc / str(process)
        try:
            entries = mountinfo.parse(mountinfo.read_text(folder / "mountinfo"))
            by_id = {entry.id: entry.device for entry in entries if entry.is_nfs}
            where = os.readlink(folder / "cwd")  # noqa: PTH115 -- a text that may be no path
            opened = os.listdir(folder / "fdinfo")  # noqa: PTH208 -- names only
        except (OSError, ValueError, UserError):
            return None
        ids = _open_mounts(folder / "fdinfo", opened[:_FILES]) if by_id else ()
        in_use = {by_id[number] for number in ids if number in by_id}
        mounted = {str(entry.directory): entry for entry in entries}
        parents = (where, *map(str, Path(where).parents))
        entry = next((mounted[path] for path in parents if path in mounted), None)
        if entry and entry.is_nfs:
            in_use.add(entry.device)
        used = tuple(sorted(device for device in in_use if device in devices))
        return None if not used and len(opened) > _FILES else used


def _open_mounts(folder: Path, names: Iterable[str]) -> Iterator[int]:
    for name in names:
        # a file that was closed meanwhile has no text
        if match := _MOUNT_ID.search(files.readable(folder / name)):
            yield int(match[1])


def _before(ran: ThreadTime, before: ThreadTime | None) -> int:
    return before.ns if before and before.ns <= ran.ns else 0


def _share(after: ThreadTime, before: ThreadTime) -> float:
    """The share of a CPU between two readings, 0 to 1; of a thread that took the number, all."""
    passed = after.at - before.at
    return min((after.ns - _before(after, before)) / passed, 1.0) if passed > 0 else 0.0
