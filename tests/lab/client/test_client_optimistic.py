# SPDX-License-Identifier: Apache-2.0
"""Optimistic reads and the cache of libnfsrdma, against a server of nfsrdma over modelled cards."""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nfsrdma_tools.client import Session, connect
from nfsrdma_tools.client.session import File
from nfsrdma_tools.lab.lab import Lab
from testbed.labs import OURS, cards_lab, counts_listeners, serve
from testbed.mounts import set_to
from testbed.node.dmabufs import memory_of
from testbed.node.programs import call, until
from testbed.remote import on

pytestmark = pytest.mark.lab

HERE = Path("/export/client-optimistic")
TARGET = f"server:{HERE}"
PAGE, MIB = 4096, 1 << 20
DATA = random.Random(48).randbytes(3 * MIB + 1001)  # noqa: S311 - no secret


@pytest.fixture(scope="module")
def cards(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A solo lab with two modelled cards; the server is optimistic."""
    counts_listeners(pytestconfig.getoption("--kernel"))
    with cards_lab(pytestconfig, "client-optimistic") as lab:
        serve(lab, "server", OURS)
        set_to(lab, "server", "server_personalities", "optimistic")
        yield lab


# --- in the node ---


def place(name: str = "data") -> Path:
    """Write a file on the server, in its page cache and with stable times."""
    HERE.mkdir(exist_ok=True)
    path = HERE / name
    path.write_bytes(DATA)
    os.sync()
    return path


def wait_for_grant(session: Session, file: File, offset: int = 0) -> None:
    """Read a page until one read of it goes by reference."""

    def goes_by_reference() -> bool:
        before = session.stats.by_reference
        file.pread(PAGE, offset)
        return session.stats.by_reference > before

    until("a read by reference", goes_by_reference, 30, 0)


@contextmanager
def opened(name: str = "data") -> Iterator[tuple[Session, File]]:
    """A new file in a new optimistic session."""
    place(name)
    with connect(TARGET, optimistic=True) as session, session.open(name) as file:
        yield session, file


@on("client")
def check_reads() -> None:
    """Random ranges, alone and in batches, into memory of both kinds: the bytes are right."""
    chance = random.Random(8166)  # noqa: S311 - no secret
    with opened() as (session, file):
        for offset in range(0, len(DATA), MIB):
            wait_for_grant(session, file, offset)
        before = session.stats
        for _ in range(300):
            offset, length = chance.randrange(len(DATA)), chance.choice((1, 512, PAGE, 70_000))
            assert file.pread(length, offset) == DATA[offset : offset + length]
        middle = session.stats
        ranges = [(file, chance.randrange(len(DATA)), PAGE) for _ in range(640)]
        out = bytearray(PAGE * len(ranges))
        with session.register(out):
            counts = session.read_ranges(ranges, out)
        for start, (_, offset, _), count in zip(
            range(0, len(out), PAGE), ranges, counts, strict=True
        ):
            assert out[start : start + count] == DATA[offset : offset + PAGE]
        after = session.stats
        # others cross an extent, or are longer than what the file has there
        assert middle.by_reference - before.by_reference > 100
        together = after.by_reference - middle.by_reference
        assert together > 500
        assert after.doorbells - middle.doorbells < together / 2
        assert (after.refused, after.second_connects) == (0, 1)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"new" * 1000)


CHANGES: dict[str, Callable[[Path], object]] = {
    "written": overwrite,
    "truncated": lambda path: os.truncate(path, 100),
    "grown": lambda path: os.truncate(path, len(DATA) + MIB),
    "punched": lambda path: call("fallocate", "--punch-hole", "--offset=0", "--length=65536", path),
    "removed": os.unlink,
}


@on("client")
def check_changes() -> None:
    """A read that begins after a change on the server returned has the result of the change."""
    with connect(TARGET, optimistic=True) as session:
        for name, change in CHANGES.items():
            path = place(name)
            with session.open(name) as file:
                wait_for_grant(session, file)
                change(path)
                before = session.stats.by_reference
                try:
                    data = file.pread(PAGE, 0)
                except OSError:
                    assert name == "removed"
                    continue
                if path.exists():
                    assert data == path.read_bytes()[:PAGE], name
                else:
                    # nfsd may have a removed file open for a moment, and answers a READ of it
                    assert session.stats.by_reference == before
        assert session.stats.revocations >= len(CHANGES)


@on("client")
def check_dmabuf() -> tuple[int, int]:
    """Reads to a dma-buf, by reference where that is granted and by RPC where not.

    Returns the reads by reference, and the bytes that the processor copied.
    """
    with opened() as (session, file), memory_of(2 * MIB) as (memory, fd):
        region = session.register_dmabuf(fd, 0, memory.size, memory.address)
        # one that is granted, and one that the server has not seen
        wait_for_grant(session, file)
        before = session.stats
        for offset, length in ((0, PAGE), (3, 100), (PAGE, 1), (2 * MIB, 700), (len(DATA) - 9, 99)):
            wanted = DATA[offset : offset + length]
            assert file.pread_into(region.memory(5, length), offset) == len(wanted)
            assert memory.get(5, len(wanted)) == wanted
        after = session.stats
        region.close()
    by_reference = after.by_reference - before.by_reference
    return by_reference, after.copied_bytes - before.copied_bytes


@pytest.mark.nightly
def test_a_dmabuf_is_read_by_reference(cards: Lab) -> None:
    by_reference, copied = check_dmabuf(cards)
    assert by_reference >= 3
    assert copied == 0


@on("client")
def check_restart() -> None:
    """The server restarts: both connections are made again, and the bytes are right."""
    with opened() as (session, file):
        wait_for_grant(session, file)
        call("systemctl", "restart", "nfs-server")
        assert file.pread(MIB, PAGE) == DATA[PAGE : PAGE + MIB]
        wait_for_grant(session, file)
        assert session.stats.second_connects == 2


@on("client")
def check_rpc() -> None:
    """A server that grants nothing: all reads go by RPC."""
    with opened() as (session, file):
        assert file.read() == DATA
        assert not session.terms.personalities
        assert session.stats.by_reference == 0
        assert session.stats.no_second > 0


@on("client")
def check_cache() -> None:
    """Reads again come from the cache; an open after a change sees the change."""
    path = place()
    with connect(TARGET, cache=4 * MIB) as session:
        with session.open("data") as file:
            assert file.read() == DATA
            calls = session.stats.calls
            assert file.pread(len(DATA), 0) == DATA
            assert session.stats.calls == calls
        time.sleep(0.1)  # for another mtime
        overwrite(path)
        with session.open("data") as file:
            assert file.pread(PAGE, 0) == path.read_bytes()[:PAGE]
        with session.open("data", "r+") as file:
            file.pwrite(b"mine", 10)
            assert file.pread(4, 10) == b"mine"
        assert session.stats.cached > 0


# --- tests ---


def test_bytes_read_by_reference_are_right(cards: Lab) -> None:
    check_reads(cards)


def test_a_read_after_a_change_sees_it(cards: Lab) -> None:
    check_changes(cards)


def test_both_connections_come_back_after_a_restart(cards: Lab) -> None:
    check_restart(cards)


def test_a_server_that_grants_nothing_answers_by_rpc(cards: Lab) -> None:
    set_to(cards, "server", "server_personalities", "")
    try:
        check_rpc(cards)
    finally:
        set_to(cards, "server", "server_personalities", "optimistic")


def test_the_cache_is_consistent_from_close_to_open(cards: Lab) -> None:
    check_cache(cards)
