# SPDX-License-Identifier: Apache-2.0
"""What module.py does inside a client: one round of each load over the mount in /mnt/bench.

Runs as ``python3 - READS PAIRS STATS``: how many reads of 1 MiB, of 4 KiB, and getattrs. Prints
JSON: for each load operations per second, microseconds of this machine's CPU time for each
operation, and what mountstats counted, which must be what was asked for.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from nfsrdma_tools.host import cpu, mountstats

FILE = Path("/mnt/bench/bench-data")
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


def measure(work: Callable[[int], None], count: int) -> dict[str, float]:
    work(max(count // 10, 2))
    stats, before = mountstats.read(FILE.parent), cpu.snapshot()
    work(count)
    spent = cpu.difference(cpu.snapshot(), before)
    counted = mountstats.difference(mountstats.read(FILE.parent), stats)
    return {
        "per_second": count / spent.wall_ns * 1e9,
        "cpu_us": spent.busy_ns / count / 1e3,
        "rpcs": sum(op.operations for op in counted.operations.values()) / count,
        "bytes": counted.bytes.server_read / count,
    }


def main() -> None:
    loads = (sequential, scattered, attributes)
    counts = [int(word) for word in sys.argv[1:]]
    print(json.dumps({w.__name__: measure(w, n) for w, n in zip(loads, counts, strict=True)}))


main()
