# SPDX-License-Identifier: Apache-2.0
"""Parts of test_client.py that run in a node: one function per test, each returns plain values.

Runs as ``python3 - NAME``, prints its answer as JSON; never imported by the tests.
"""

from __future__ import annotations

import asyncio
import errno
import json
import mmap
import os
import random
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import numpy

from nfsrdma_tools.client import Session, connect

EXPORT = Path("/export")
HERE = EXPORT / "client"
TARGET = "server:/export/client"
DATA = random.Random(47).randbytes(3_000_001)  # noqa: S311
HOSTILE = (b"\x1b[2Jx", b"new\nline", b"\xff\xfe", b"-rf", b" ", "日本".encode(), b"n" * 255)


def files(session: Session) -> dict[str, Any]:
    """Reads of all kinds, compared byte by byte."""
    (HERE / "data").write_bytes(DATA)
    return {"reads": reads(session), "ranges": ranges(session), "writes": writes(session)}


def reads(session: Session) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with session.open("data") as file:
        found["whole"] = file.read() == DATA
        found["small"] = file.pread(100, 7) == DATA[7:107]
        found["end"] = (file.pread(100, len(DATA) - 30) == DATA[-30:], file.pread(9, 1 << 40))
        found["end"] = [found["end"][0], len(found["end"][1])]
        before = session.stats
        array = numpy.zeros(1_500_000, dtype="u1")
        count = file.pread_into(array, 1000)
        after = session.stats
        found["array"] = [count == 1_500_000, array.tobytes() == DATA[1000:1_501_000]]
        found["copied"] = after.copied > before.copied and after.direct == before.direct
        memory = mmap.mmap(-1, 2 << 20)
        with session.register(memory):
            count = file.pread_into(memory, 5)
        found["direct"] = session.stats.direct > after.direct
        found["direct"] = [found["direct"], session.stats.copied == after.copied]
        found["registered"] = [count == 2 << 20, memory[:] == DATA[5 : 5 + (2 << 20)]]
    return found


def ranges(session: Session) -> dict[str, Any]:
    """A batch of many ranges of two files: in their places, and with few doorbells."""
    (HERE / "other").write_bytes(DATA[::-1])
    chance = random.Random(8166)  # noqa: S311
    contents = {"data": DATA, "other": DATA[::-1]}
    wanted = [
        (
            chance.choice(list(contents)),
            chance.randrange(len(DATA)),
            chance.choice((1, 4096, 70_000)),
        )
        for _ in range(300)
    ]
    opened = {name: session.open(name) for name in contents}
    out, before = bytearray(sum(length for *_, length in wanted)), session.stats
    counts = session.read_ranges([(opened[name], *rest) for name, *rest in wanted], out)
    after, place, wrong = session.stats, 0, 0
    for (name, offset, length), count in zip(wanted, counts, strict=True):
        expected = contents[name][offset : offset + length]
        wrong += bytes(out[place : place + count]) != expected
        place += length
    return {
        "wrong": wrong,
        "calls": after.calls - before.calls >= 300,
        "doorbells": (after.doorbells - before.doorbells) * 2 < after.calls - before.calls,
    }


def writes(session: Session) -> dict[str, Any]:
    with session.open("written", "w+") as file:
        count = file.pwrite(DATA, 0)
        memory = bytearray(DATA[:500_000])
        with session.register(memory):
            more = file.pwrite(memory, len(DATA))
        file.pwrite(b"tiny", 3)
        file.fsync()
        size = file.size()
    expected = bytearray(DATA + DATA[:500_000])
    expected[3:7] = b"tiny"
    session.truncate("written", 3_200_000)
    return {
        "counts": [count == len(DATA), more == 500_000, size == 3_500_001],
        "same": (HERE / "written").read_bytes() == bytes(expected[:3_200_000]),
    }


def names(session: Session) -> dict[str, Any]:
    """Names and attributes, compared with those that the server's file system has."""
    for name in HOSTILE:
        (HERE / os.fsdecode(name)).write_bytes(name)
    listed = sorted(map(os.fsencode, session.listdir()))
    read = [session.open(name).readall() == name for name in HOSTILE]
    session.mkdir("sub")
    for number in range(400):
        (HERE / "sub" / f"{number:0200}").touch()
    many = session.listdir("sub")
    session.symlink("../data", "sub/link")
    session.rename("sub/link", "moved")
    text = session.readlink("moved")
    found = {
        "listed": listed == sorted(HOSTILE),
        "read": all(read),
        "many": sorted(many) == sorted(p.name for p in (HERE / "sub").iterdir() if p.is_file()),
        "link": [text, stat.S_ISLNK(session.lstat("moved").st_mode)],
        "attributes": attributes(session, "sub") + attributes(session, os.fsdecode(HOSTILE[0])),
        "errors": [error(session.stat, "none"), error(session.rmdir, "sub"),
                   error(session.open, "sub"), error(session.mkdir, "sub")],
    }  # fmt: skip
    session.unlink("moved")
    session.mkdir("empty")
    session.rmdir("empty")
    return {
        **found,
        "left": sorted(p.name for p in HERE.iterdir())
        == sorted(map(os.fsdecode, (*HOSTILE, b"sub"))),
    }


def attributes(session: Session, name: str) -> list[str]:
    """The attributes that differ."""
    ours, theirs = session.lstat(name), (HERE / name).lstat()
    same = ("mode", "ino", "nlink", "uid", "gid", "size", "mtime_ns", "ctime_ns")
    return [each for each in same if getattr(ours, f"st_{each}") != getattr(theirs, f"st_{each}")]


def error(call: Any, *words: Any) -> str:
    try:
        call(*words)
    except OSError as caught:
        return errno.errorcode[caught.errno or 0]
    return "none"


def coroutines(session: Session) -> dict[str, Any]:
    """Many reads in an event loop that goes on meanwhile."""
    (HERE / "data").write_bytes(DATA)
    file = session.open("data")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def main() -> list[bytes]:
        clock = asyncio.create_task(tick())
        pieces = (file.pread_async(30_000, n * 30_000) for n in range(101))
        found = await asyncio.wait_for(asyncio.gather(*pieces), 120)
        clock.cancel()
        return found

    same = b"".join(asyncio.run(main())) == DATA
    out = session.open("async", "w")

    async def write() -> None:
        pieces = (out.pwrite_async(DATA[n : n + 99_999], n) for n in range(0, len(DATA), 99_999))
        await asyncio.wait_for(asyncio.gather(*pieces), 120)

    asyncio.run(write())
    return {
        "same": same,
        "ticked": ticks > 1,
        "again": asyncio.run(main()) == [DATA[n * 30_000 :][:30_000] for n in range(101)],
        "written": (HERE / "async").read_bytes() == DATA,
    }


def forked(session: Session) -> dict[str, Any]:
    """A child cannot use the session, opens its own, and the parent's goes on."""
    (HERE / "data").write_bytes(DATA)
    file = session.open("data")
    child = os.fork()
    if not child:
        status = 1
        try:
            if error(file.pread, 1, 0) == "EOWNERDEAD":
                with connect(TARGET) as own, own.open("data") as again:
                    status = 0 if again.pread(1000, 5) == DATA[5:1005] else 2
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"child": status, "parent": file.pread(70_000, 9) == DATA[9:70_009]}


def fsspec_files(session: Session) -> dict[str, Any]:
    """Reads and writes of other programs, by URL."""
    import fsspec

    from nfsrdma_tools.client.fsspec import NfsRdmaFileSystem

    # an installed package has an entry point
    fsspec.register_implementation("nfsrdma", NfsRdmaFileSystem)
    (HERE / "data").write_bytes(DATA)
    url = f"nfsrdma://{TARGET.replace(':/', '/')}"
    with fsspec.open(f"{url}/data") as file:
        files, whole = file.fs, file.read() == DATA
    paths = [f"/export/client/{name}" for name in ("data", "none", "data")]
    first, missing, last = files.cat_ranges(paths, [0, 0, 2_900_000], [50_000, 1, 4_000_000])
    with fsspec.open(f"{url}/new", "wb") as file:
        file.write(DATA)
    found = {
        "whole": whole,
        "ranges": [first == DATA[:50_000], type(missing).__name__, last == DATA[2_900_000:]],
        "written": (HERE / "new").read_bytes() == DATA,
        "listed": sorted(files.ls("/export/client", detail=False)),
    }
    files.close()
    return found


PARTS = {part.__name__: part for part in (files, names, coroutines, forked, fsspec_files)}


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    try:
        with connect(TARGET) as session:
            print(json.dumps(PARTS[sys.argv[1]](session)))
    finally:
        shutil.rmtree(HERE)


if __name__ == "__main__":
    main()
