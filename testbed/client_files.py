# SPDX-License-Identifier: Apache-2.0
"""Reads and writes of the client without a mount in a node that serves itself."""

import mmap
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nfsrdma_tools.client import Session, connect
from testbed.remote import on

__all__ = ["DATA", "HERE", "TARGET", "files", "session_here"]

HERE = Path("/export/client")
TARGET = f"server:{HERE}"
DATA = random.Random(47).randbytes(3_000_001)  # noqa: S311 - no secret


@contextmanager
def session_here() -> Iterator[Session]:
    """A session in a folder with a file of DATA."""
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    try:
        (HERE / "data").write_bytes(DATA)
        with connect(TARGET) as session:
            yield session
    finally:
        shutil.rmtree(HERE)


@on("client", timeout=1800)
def files() -> None:
    """Reads and writes of all kinds, compared byte by byte."""
    with session_here() as session:
        _check_reads(session)
        _check_ranges(session)
        _check_writes(session)


def _check_reads(session: Session) -> None:
    import numpy

    with session.open("data") as file:
        assert file.read() == DATA
        assert file.pread(100, 7) == DATA[7:107]
        assert file.pread(100, len(DATA) - 30) == DATA[-30:]
        assert file.pread(9, 1 << 40) == b""
        before = session.stats
        array = numpy.zeros(1_500_000, dtype="u1")
        assert file.pread_into(array, 1000) == 1_500_000
        assert array.tobytes() == DATA[1000:1_501_000]
        after = session.stats
        assert after.copied > before.copied
        assert after.direct == before.direct
        memory = mmap.mmap(-1, 2 << 20)
        with session.register(memory):
            assert file.pread_into(memory, 5) == 2 << 20
        assert memory[:] == DATA[5 : 5 + (2 << 20)]
        assert session.stats.direct > after.direct
        assert session.stats.copied == after.copied


def _check_ranges(session: Session) -> None:
    """A batch of many ranges of two files: in their places, and with few doorbells."""
    contents = {"data": DATA, "other": DATA[::-1]}
    (HERE / "other").write_bytes(contents["other"])
    chance = random.Random(8166)  # noqa: S311 - no secret
    names = list(contents)
    wanted = [
        (chance.choice(names), chance.randrange(len(DATA)), chance.choice((1, 4096, 70_000)))
        for _ in range(300)
    ]
    opened = {name: session.open(name) for name in contents}
    out, before = bytearray(sum(length for *_, length in wanted)), session.stats
    counts = session.read_ranges([(opened[name], at, size) for name, at, size in wanted], out)
    after, place = session.stats, 0
    for (name, offset, length), count in zip(wanted, counts, strict=True):
        assert out[place : place + count] == contents[name][offset : offset + length]
        place += length
    calls = after.calls - before.calls
    assert calls >= 300
    assert (after.doorbells - before.doorbells) * 2 < calls


def _check_writes(session: Session) -> None:
    with session.open("written", "w+") as file:
        assert file.pwrite(DATA, 0) == len(DATA)
        memory = bytearray(DATA[:500_000])
        with session.register(memory):
            assert file.pwrite(memory, len(DATA)) == 500_000
        file.pwrite(b"tiny", 3)
        file.fsync()
        assert file.size() == 3_500_001
    expected = bytearray(DATA + DATA[:500_000])
    expected[3:7] = b"tiny"
    session.truncate("written", 3_200_000)
    assert (HERE / "written").read_bytes() == expected[:3_200_000]
