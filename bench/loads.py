# SPDX-License-Identifier: Apache-2.0
"""Loads of a client over the mount in /mnt/bench, which run in the node."""

from __future__ import annotations

import json
import mmap
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.host.nfs import mountstats
from testbed.remote import on

__all__ = ["WORKS", "Turn", "measured"]

FILE = Path("/mnt/bench/bench-data")
# its own file: a reader of one that nfsd has just written gets no grants (optimistic)
WRITTEN = FILE.with_name("bench-written")
FILE_BYTES = 64 << 20
LISTED = Path("/export/bench-listed")
NAMES = 10_000
MIB, PAGE, STORM, CROWD = 1 << 20, 4096, 4, 16
BLOCK = 64 << 10
QUEUED = 128 << 10
QUEUE = (
    *("fio", "--name=queue", f"--filename={FILE}", "--rw=randread", "--direct=1"),
    *("--ioengine=io_uring", "--iodepth=16", "--output-format=json"),
)
# results by load
Turn = dict[str, dict[str, float]]
# executes a number of operations; may return their duration in nanoseconds
Work = Callable[[int], int | None]


def sequential(count: int) -> None:
    """Reads of 1 MiB past the cache, one after the other."""
    size = FILE.stat().st_size // MIB
    _reads(count, MIB, lambda turn: turn % size)


def blocks(count: int) -> None:
    """Reads of 64 KiB past the cache, one after the other, into the same memory."""
    size = FILE.stat().st_size // BLOCK
    _reads(count, BLOCK, lambda turn: turn % size)


def scattered(count: int) -> None:
    """Reads of 4 KiB past the cache, each somewhere else; the same places in each run."""
    dice = random.Random(1)  # noqa: S311
    pages = FILE.stat().st_size // PAGE
    _reads(count, PAGE, lambda _: dice.randrange(pages))


def crowd(count: int) -> None:
    """The reads of ``scattered`` by 16 processes at once."""
    _at_once(CROWD, lambda: scattered(count // CROWD))


def crowd_of_blocks(count: int) -> None:
    """The reads of ``blocks`` by 16 processes at once."""
    _at_once(CROWD, lambda: blocks(count // CROWD))


def queue(count: int) -> int:
    """Random reads of 128 KiB past the cache through io_uring, 16 at a time.

    Returns nanoseconds by fio's clock, because fio sleeps when it starts and ends.
    """
    return _queued(count, QUEUED)


def small_queue(count: int) -> int:
    """The same with reads of 4 KiB."""
    return _queued(count, PAGE)


def _queued(count: int, size: int) -> int:
    argv = (*QUEUE, f"--bs={size}", f"--io_size={count * size}")
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    (job,) = json.loads(done.stdout)["jobs"]
    return int(job["read"]["runtime"]) * 10**6


def attributes(count: int) -> None:
    """A storm of stat(2) by four processes on a mount with noac: each one needs an RPC."""
    _at_once(STORM, lambda: _stats(count // STORM))


def _at_once(number: int, work: Callable[[], None]) -> None:
    children = [_forked(work) for _ in range(number)]
    for child in children:
        if os.waitpid(child, 0)[1]:
            raise SystemExit("a process failed")


def _stats(count: int) -> None:
    for _ in range(count):
        FILE.stat()


def _forked(work: Callable[[], None]) -> int:
    if child := os.fork():
        return child
    work()
    os._exit(0)


def _reads(count: int, size: int, place: Callable[[int], int]) -> None:
    room = mmap.mmap(-1, size)
    file = os.open(FILE, os.O_RDONLY | os.O_DIRECT)
    for turn in range(count):
        if os.preadv(file, [room], place(turn) * size) != size:
            raise SystemExit(f"{FILE}: a read of {size} bytes came back short")
    os.close(file)


def writes(count: int) -> None:
    """Writes of 1 MiB past the cache, one after the other."""
    _writes(count, MIB)


def small_writes(count: int) -> None:
    """Writes of 4 KiB past the cache, one after the other."""
    _writes(count, PAGE)


def _writes(count: int, size: int) -> None:
    room = mmap.mmap(-1, size)
    file = os.open(WRITTEN, os.O_WRONLY | os.O_DIRECT)
    for turn in range(count):
        if os.pwritev(file, [room], turn * size % FILE_BYTES) != size:
            raise SystemExit(f"{WRITTEN}: a write of {size} bytes came back short")
    os.close(file)


def listing(count: int) -> None:
    """A folder read anew; in one machine with its server, which touches it each time."""
    for turn in range(count):
        os.utime(LISTED, (turn, time.time_ns() % 10**9))
        listed = sum(1 for _ in os.scandir(FILE.parent / LISTED.name))
        if listed != NAMES:
            raise SystemExit(f"{LISTED}: {listed} names over the mount, not {NAMES}")


def cached(count: int) -> None:
    """The whole file in calls of 8 KiB, through the cache, which does not have it."""
    for _ in range(count):
        with FILE.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        argv = ("dd", f"if={FILE}", "of=/dev/null", "bs=8k", "status=none")
        done = subprocess.run(argv, check=False, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)


def events() -> Counter[str]:
    """Thread switches, and interrupts from one processor to another, since the node's start."""
    stat = Path("/proc/stat").read_text()
    lines = map(str.split, Path("/proc/interrupts").read_text().splitlines())
    between = (words[1:] for words in lines if words[0] in ("RES:", "CAL:"))
    return Counter(
        switches=int(stat.split("ctxt ")[1].split()[0]),
        ipis=sum(int(word) for words in between for word in words if word.isdigit()),
    )


def spent(work: Work, count: int) -> Counter[str]:
    """Measure ``count`` operations, including the start of their processes."""
    stats, before, since = mountstats.read(FILE.parent), cpu_time.snapshot(), events()
    own = work(count)
    taken = cpu_time.difference(cpu_time.snapshot(), before)
    happened = events()
    happened.subtract(since)
    counted = mountstats.difference(mountstats.read(FILE.parent), stats)
    rpcs = sum(op.operations for op in counted.operations.values())
    size = counted.bytes.server_read
    times = Counter(wall_ns=own or taken.wall_ns, busy_ns=taken.busy_ns)
    return Counter(rpcs=rpcs, bytes=size, **times, **happened)


def measure(work: Work, count: int) -> dict[str, float]:
    """The difference of a long and a short run: the start of processes is in both."""
    few = max(count // 10, 2)
    work(few)
    short, long = spent(work, few), spent(work, few + count)
    long.subtract(short)
    return {
        "per_second": count / long["wall_ns"] * 1e9, "us": long["wall_ns"] / count / 1e3,
        "cpu_us": long["busy_ns"] / count / 1e3, "rpcs": long["rpcs"] / count,
        "bytes": long["bytes"] / count, "switches": long["switches"] / count,
        "ipis": long["ipis"] / count,
    }  # fmt: skip


WORKS: dict[str, Work] = {
    "sequential": sequential,
    "blocks": blocks,
    "scattered": scattered,
    "crowd": crowd,
    "crowd_of_blocks": crowd_of_blocks,
    "queue": queue,
    "small_queue": small_queue,
    "attributes": attributes,
    "writes": writes,
    "small_writes": small_writes,
    "listing": listing,
    "cached": cached,
}


@on("solo", timeout=3600)
def measured(counts: dict[str, int]) -> Turn:
    """Run each load with its number of operations.

    For each, operations per second, microseconds of the clock and of this machine's CPU time for an
    operation, and the counts of mountstats, which must equal the requested ones.
    """
    return {name: measure(WORKS[name], count) for name, count in counts.items()}
