# SPDX-License-Identifier: Apache-2.0
"""What module.py does inside a client: one round of each load over the mount in /mnt/bench.

Runs as ``python3 - LOAD=COUNT...``, for functions below that are named in LOADS. Prints JSON: for
each load operations per second, microseconds of the clock and of this machine's CPU time for each
operation, and the counts of mountstats, which must equal the requested ones.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.host.nfs import mountstats

FILE = Path("/mnt/bench/bench-data")
FILE_BYTES = 64 << 20
LISTED = Path("/export/bench-listed")
NAMES = 10_000
MIB, PAGE, STORM = 1 << 20, 4096, 4


def sequential(count: int) -> None:
    """Reads of 1 MiB past the cache, one after the other."""
    size = FILE.stat().st_size // MIB
    _reads(count, MIB, lambda turn: turn % size)


def scattered(count: int) -> None:
    """Reads of 4 KiB past the cache, each somewhere else; the same places in each run."""
    dice = random.Random(1)  # noqa: S311
    pages = FILE.stat().st_size // PAGE
    _reads(count, PAGE, lambda _: dice.randrange(pages))


def attributes(count: int) -> None:
    """A storm of stat(2) by four processes on a mount with noac: each one asks the server."""
    children = [_forked(lambda: _stats(count // STORM)) for _ in range(STORM)]
    for child in children:
        if os.waitpid(child, 0)[1]:
            raise SystemExit("a process of the storm failed")


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
    file = os.open(FILE, os.O_WRONLY | os.O_DIRECT)
    for turn in range(count):
        if os.pwritev(file, [room], turn * size % FILE_BYTES) != size:
            raise SystemExit(f"{FILE}: a write of {size} bytes came back short")
    os.close(file)


def listing(count: int) -> None:
    """A folder read anew; in one machine with its server, which touches it each time."""
    for turn in range(count):
        os.utime(LISTED, (turn, time.time_ns() % 10**9))
        found = sum(1 for _ in os.scandir(FILE.parent / LISTED.name))
        if found != NAMES:
            raise SystemExit(f"{LISTED}: {found} names over the mount, not {NAMES}")


def cached(count: int) -> None:
    """The whole file in calls of 8 KiB, through the cache."""
    for _ in range(count):
        subprocess.run(("dd", f"if={FILE}", "of=/dev/null", "bs=8k", "status=none"), check=True)


def forget() -> None:
    """Drop the file from the client's page cache."""
    with FILE.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(work: Callable[[int], None], count: int) -> dict[str, float]:
    work(max(count // 10, 2))
    forget()
    stats, before = mountstats.read(FILE.parent), cpu_time.snapshot()
    work(count)
    spent = cpu_time.difference(cpu_time.snapshot(), before)
    counted = mountstats.difference(mountstats.read(FILE.parent), stats)
    return {
        "per_second": count / spent.wall_ns * 1e9,
        "us": spent.wall_ns / count / 1e3,
        "cpu_us": spent.busy_ns / count / 1e3,
        "rpcs": sum(op.operations for op in counted.operations.values()) / count,
        "bytes": counted.bytes.server_read / count,
    }


LOADS = (sequential, scattered, attributes, writes, small_writes, listing, cached)


def main() -> None:
    found = {}
    for word in sys.argv[1:]:
        name, count = word.split("=")
        (load,) = (load for load in LOADS if load.__name__ == name)
        found[name] = measure(load, int(count))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
