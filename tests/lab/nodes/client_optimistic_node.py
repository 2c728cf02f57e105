# SPDX-License-Identifier: Apache-2.0
"""Parts of test_client_optimistic.py that run in a node: one function per test.

Runs as ``python3 - NAME``, prints its answer as JSON; never imported by the tests.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nfsrdma_tools.client import Session, connect
from nfsrdma_tools.client.session import File

HERE = Path("/export/client-optimistic")
TARGET = f"server:{HERE}"
PAGE, MIB = 4096, 1 << 20
DATA = random.Random(48).randbytes(3 * MIB + 1001)  # noqa: S311
SECONDS = 30


def until(happened: Callable[[], bool]) -> bool:
    """Repeat a check until it succeeds, or for SECONDS."""
    end = time.monotonic() + SECONDS
    while not happened():
        if time.monotonic() > end:
            return False
    return True


def by_reference(session: Session, file: File, offset: int = 0) -> bool:
    """Read a page until one read of it goes by reference."""

    def happened() -> bool:
        before = session.stats.by_reference
        file.pread(PAGE, offset)
        return session.stats.by_reference > before

    return until(happened)


def place(name: str, data: bytes = DATA) -> Path:
    """Write a file on the server, in its page cache and with stable times."""
    path = HERE / name
    path.write_bytes(data)
    os.sync()
    return path


def reads() -> dict[str, Any]:
    """Random ranges, alone and in batches, into memory of both kinds: the bytes are right."""
    place("data")
    chance = random.Random(8166)  # noqa: S311
    with connect(TARGET, optimistic=True) as session, session.open("data") as file:
        granted = [by_reference(session, file, offset) for offset in range(0, len(DATA), MIB)]
        wrong, before = 0, session.stats
        for _ in range(300):
            offset, length = chance.randrange(len(DATA)), chance.choice((1, 512, PAGE, 70_000))
            wrong += file.pread(length, offset) != DATA[offset : offset + length]
        middle = session.stats
        ranges = [(file, chance.randrange(len(DATA)), PAGE) for _ in range(640)]
        out = bytearray(PAGE * len(ranges))
        with session.register(out):
            counts = session.read_ranges(ranges, out)
        for number, (_, offset, _) in enumerate(ranges):
            start = number * PAGE
            expected = DATA[offset : offset + PAGE]
            wrong += bytes(out[start : start + counts[number]]) != expected
        after = session.stats
        return {
            "granted": granted, "wrong": wrong, "alone": middle.by_reference - before.by_reference,
            "together": after.by_reference - middle.by_reference,
            "doorbells": after.doorbells - middle.doorbells,
            "refused": after.refused, "connects": after.second_connects,
        }  # fmt: skip


def changes() -> dict[str, Any]:
    """A read that begins after a change on the server returned has the result of the change."""
    found: dict[str, Any] = {}
    with connect(TARGET, optimistic=True) as session:
        for name, change in CHANGES.items():
            path = place(name)
            with session.open(name) as file:
                granted = by_reference(session, file)
                change(path)
                before = session.stats.by_reference
                try:
                    seen = file.pread(PAGE, 0)
                except OSError:
                    found[name] = [granted, "gone"]
                else:
                    new = path.read_bytes()[:PAGE] if path.exists() else b""
                    # nfsd may have a removed file open for a moment, and answers a READ of it
                    is_of_nfsd = not path.exists() and session.stats.by_reference == before
                    found[name] = [granted, "gone" if is_of_nfsd else seen == new]
        found["stats"] = session.stats._asdict()
    return found


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"new" * 1000)


CHANGES: dict[str, Callable[[Path], object]] = {
    "written": overwrite,
    "truncated": lambda path: os.truncate(path, 100),
    "grown": lambda path: os.truncate(path, len(DATA) + MIB),
    "punched": lambda path: subprocess.run(
        ("fallocate", "--punch-hole", "--offset=0", "--length=65536", path), check=True
    ),
    "removed": os.unlink,
}


def restarted() -> dict[str, Any]:
    """The server restarts: both connections are made again, and the bytes are right."""
    place("data")
    with connect(TARGET, optimistic=True) as session, session.open("data") as file:
        first = by_reference(session, file)
        subprocess.run(("systemctl", "restart", "nfs-server"), check=True)
        same = file.pread(MIB, PAGE) == DATA[PAGE : PAGE + MIB]
        second = by_reference(session, file)
        return {"first": first, "same": same, "second": second,
                "connects": session.stats.second_connects}  # fmt: skip


def by_rpc() -> dict[str, Any]:
    """A server that grants nothing: all reads go by RPC."""
    place("data")
    with connect(TARGET, optimistic=True) as session, session.open("data") as file:
        same = file.read() == DATA
        return {"same": same, "personalities": session.terms.personalities,
                "by_reference": session.stats.by_reference,
                "no_second": session.stats.no_second > 0}  # fmt: skip


def cached() -> dict[str, Any]:
    """Reads again come from the cache; an open after a change sees the change."""
    path = place("data")
    with connect(TARGET, cache=4 * MIB) as session:
        with session.open("data") as file:
            first = file.read() == DATA
            calls = session.stats.calls
            again = file.pread(len(DATA), 0) == DATA
            again = again and session.stats.calls == calls
        time.sleep(0.1)  # for another mtime
        overwrite(path)
        with session.open("data") as file:
            changed = file.pread(PAGE, 0) == path.read_bytes()[:PAGE]
        with session.open("data", "r+") as file:
            file.pwrite(b"mine", 10)
            own = file.pread(4, 10) == b"mine"
        return {"first": first, "again": again, "changed": changed, "own": own,
                "hits": session.stats.cached > 0}  # fmt: skip


PARTS = {part.__name__: part for part in (reads, changes, restarted, by_rpc, cached)}


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    try:
        print(json.dumps(PARTS[sys.argv[1]]()))
    finally:
        shutil.rmtree(HERE)


if __name__ == "__main__":
    main()
