# SPDX-License-Identifier: Apache-2.0
"""Tasks that list a directory and are killed while the server writes the names, beside a reader.

Runs in the node as ``python3 - KILLS SECONDS SEED``.  Kills KILLS tasks or more, for SECONDS or
longer, and prints what it found as JSON; /mnt/here is mounted by our module.  Never imported by the
tests.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path("/mnt/here/abandoned")
CONNECTIONS = Path("/sys/kernel/debug/nfsrdma")
DROP = Path("/proc/sys/vm/drop_caches")
# longer than a Reply may take, shorter than the minute after which one that is due is given up
SETTLED = 45.0
SIZE = 256 << 10


def values() -> dict[str, int | str]:
    """The values in debugfs of all connections, of numbers the sum."""
    found: dict[str, Any] = {}
    for file in CONNECTIONS.glob("*/[c]*"):
        for line in file.read_text().splitlines():
            name, _, value = line.partition(" ")
            found[name] = found.get(name, 0) + int(value) if value.isdigit() else value
    return found


def forked(work: Any) -> int:
    """The process ID of a child that runs ``work`` until it is killed."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    finally:
        os._exit(1)


def listing() -> None:
    """List the directory from the server, again and again."""
    while True:
        DROP.write_text("1")
        list((HERE / "many").iterdir())


def reading(noise: bytes, done: Path) -> None:
    """Read a file from the server until told; exits with 0 if each byte was right."""
    while not done.exists():
        with (HERE / "file").open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if file.read() != noise:
                os._exit(2)
    os._exit(0)


def settle() -> dict[str, Any]:
    """The values when no Call is under way any more, or after SETTLED seconds."""
    until = time.monotonic() + SETTLED
    while True:
        now = values()
        kept = (now["credits_used"], now["calls_abandoned"], now.get("slots_kept", 0))
        if not any(kept) or time.monotonic() > until:
            return now
        time.sleep(0.1)


def main() -> Any:
    _, kills, seconds, seed = sys.argv
    rng = random.Random(seed)  # noqa: S311 - no secret
    noise = rng.randbytes(SIZE)
    done = Path("/run/abandoned.done")
    (HERE / "file").write_bytes(noise)
    before = settle()
    reader = forked(lambda: reading(noise, done))
    slowest, killed, end = 0.0, 0, time.monotonic() + float(seconds)
    while killed < int(kills) or time.monotonic() < end:
        killed += 1
        victim = forked(listing)
        time.sleep(rng.uniform(0.02, 0.12))
        os.kill(victim, signal.SIGKILL)
        start = time.monotonic()
        os.waitpid(victim, 0)
        slowest = max(slowest, time.monotonic() - start)
    done.touch()
    _, status = os.waitpid(reader, 0)
    done.unlink()
    after = settle()
    return {
        "before": before, "after": after, "reader": status, "slowest": slowest, "killed": killed,
    }  # fmt: skip
