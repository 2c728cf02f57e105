# SPDX-License-Identifier: Apache-2.0
"""The threads that wait in NFS or sunrpc and can't be woken by a signal handler (state D).

Only stat, wchan and status of a thread are read.  cmdline, environ, maps and exe take its mmap
lock, which a thread holds while it waits for a page of a mount.  stack takes exec_update_lock
(lock_trace in fs/proc/base.c), and execve(2) holds that while it closes files, which writes the
data of a file of NFS to the server.

A thread whose number of context switches is the same in two runs has not run in between: it is the
same wait.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.files import beginning

__all__ = ["BlockedThread", "BlockedThreads", "waiting_threads"]

_MOST = 4096
_SWITCHES = re.compile(rb"^voluntary_ctxt_switches:\s+([0-9]{1,19})$", re.MULTILINE)
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,127}")
_NFS = ("rpc_", "__rpc_", "nfs", "xprt", "gss_", "nlm")
_SERVER = "nfsd"
_MOST_FOUND = 1000
_STATE, _NUM_THREADS, _START = 0, 17, 19
"""Fields of stat after the name in parentheses (proc(5): 3, 20 and 22)."""


class BlockedThread(NamedTuple):
    """A thread in state D; ``start`` is in clock ticks since boot."""

    number: int
    name: str
    function: str
    """Where it waits; "" if this user may not know."""
    start: int
    switches: str
    """How often it has waited; "" if that is unknown."""

    @property
    def in_nfs(self) -> bool:
        """Whether it waits in the client of NFS or RPC."""
        return self.function.startswith(_NFS) and not self.function.startswith(_SERVER)


class BlockedThreads(NamedTuple):
    """Threads in state D, and whether all threads were read."""

    found: list[BlockedThread]
    complete: bool


def waiting_threads(procfs: Path, most: int) -> BlockedThreads:
    """The threads in state D of the first ``most`` threads; some may end meanwhile.

    A number and not a time: the CPU time of a virtual machine includes time when its host runs
    something else.
    """
    blocked: list[BlockedThread] = []
    several: list[str] = []
    left = most
    for process in _numbers(str(procfs)):
        if not left or len(blocked) >= _MOST_FOUND:
            return BlockedThreads(blocked, False)
        left -= 1
        thread, threads = _read(f"{procfs}/{process}", int(process))
        blocked += [thread] if thread else []
        several += [process] if threads > 1 else []
    for process in several:
        for number in _numbers(f"{procfs}/{process}/task"):
            if number != process:
                if not left or len(blocked) >= _MOST_FOUND:
                    return BlockedThreads(blocked, False)
                left -= 1
                thread, _ = _read(f"{procfs}/{process}/task/{number}", int(number))
                blocked += [thread] if thread else []
    return BlockedThreads(blocked, True)


def _numbers(folder: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return
    yield from (name for name in names if name.isascii() and name.isdigit() and len(name) < 11)


def _read(folder: str, number: int) -> tuple[BlockedThread | None, int]:
    """The thread if it is in state D, and the number of threads of its process."""
    stat = _bytes(f"{folder}/stat")
    head, _, rest = stat.rpartition(b") ")
    fields = rest.split()
    if len(fields) <= _START or not fields[_START].isdigit():
        return None, 0
    threads = int(fields[_NUM_THREADS]) if fields[_NUM_THREADS].isdigit() else 0
    if fields[_STATE] != b"D":
        return None, threads
    function = _bytes(f"{folder}/wchan").decode("ascii", "replace").strip()
    switches = _SWITCHES.search(_bytes(f"{folder}/status"))
    return (
        BlockedThread(
            number=number,
            name=head.partition(b"(")[2].decode("utf-8", "replace"),
            function=function if _FUNCTION.fullmatch(function) else "",
            start=int(fields[_START]),
            switches=switches[1].decode() if switches else "",
        ),
        threads,
    )


def _bytes(path: str) -> bytes:
    try:
        return beginning(path, _MOST)
    except OSError:
        return b""
