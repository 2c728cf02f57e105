# SPDX-License-Identifier: Apache-2.0
"""The Python client over a stand-in for the library: batches, errors, asyncio, and fork."""

import asyncio
import errno
import gc
import os
import re
import stat
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from unit.library_stand_in import Node, StandIn, ffi

from nfsrdma_tools.client import connect, library, session
from nfsrdma_tools.client.session import PERSONALITIES, Session
from nfsrdma_tools.errors import UserError

ROOT = Path(__file__).parents[2]
HEADER = (ROOT / "lib" / "nfsrdma.h").read_text()
DATA = os.urandom(50_001)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn({"/export/data": Node(bytearray(DATA))})
    monkeypatch.setattr(session, "load", lambda: made.library)
    return made


@pytest.fixture
def opened(server: StandIn) -> Any:
    with connect("server:/export") as made:
        yield made
    assert not server.roots


# --- the declarations ---


def test_each_function_of_the_header_is_declared() -> None:
    wanted = set(re.findall(r"^ \* (nfsrdma_\w+) - ", HEADER, re.MULTILINE))
    assert len(wanted) > 30
    # any library: cffi lists the functions that it would look for
    assert set(dir(ffi().dlopen(None))) >= wanted


def test_struct_stat_has_the_layout_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 12345)
    (tmp_path / "file").chmod(0o640)
    os.link(tmp_path / "file", tmp_path / "link")
    made = ffi()
    libc = made.dlopen(None)
    made.cdef("int lstat(const char *path, struct stat *found);", override=True)
    for path in (tmp_path / "file", tmp_path, Path("/dev/null")):
        box = made.new("struct stat *")
        assert libc.lstat(os.fsencode(path), box) == 0
        found, wanted = session._attributes(box), path.lstat()
        assert found == wanted
        for name in ("st_mtime_ns", "st_ctime_ns", "st_blocks", "st_blksize", "st_rdev"):
            assert getattr(found, name) == getattr(wanted, name)


def test_bits_of_personalities_are_those_of_the_module() -> None:
    text = (ROOT / "kmod" / "variants.h").read_text()
    found = re.findall(r"NFR_(\w+)\t+= (\d),", text)
    wanted = {int(n) - 1: name.lower().replace("_", "-") for name, n in found if n != "0"}
    assert dict(enumerate(PERSONALITIES)) == wanted


def test_a_missing_library_is_one_line_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    library.load.cache_clear()
    monkeypatch.setenv("NFSRDMA_LIBRARY", "/none/libnfsrdma.so.0")
    with pytest.raises(UserError) as caught:
        library.load()
    said = str(caught.value)
    assert "/none/libnfsrdma.so.0: cannot open shared object file" in said
    assert said.endswith("(apt install libnfsrdma0, or in a clone: make -C lib)")
    assert "\n" not in said


def test_an_unknown_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "vax")
    with pytest.raises(UserError, match="struct stat of vax"):
        library.declarations()


# --- sessions and names ---


def test_terms_and_stats(opened: Session) -> None:
    terms = opened.terms
    assert (terms.address, terms.device, terms.credits) == ("10.9.1.1", "rxe0", 32)
    assert terms.personalities == ()
    assert (opened.stats.calls, opened.stats.doorbells) == (7, 3)


def test_options_and_errors_of_connect(server: StandIn) -> None:
    connect("server:/export", port=20050, timeout=1.5).close()
    assert server.options == {
        "port": 20050, "timeout": 1500, "arena": 0, "version": 3, "personality": 0,
        "optimistic": 0, "cache": 0,
    }  # fmt: skip
    connect("server:/export", vers="4.1").close()
    assert server.options["version"] == 41
    with pytest.raises(ValueError, match=r"one of 3, 4\.1"):
        connect("server:/export", vers="4")
    with pytest.raises(PermissionError, match="the mount daemon refuses it"):
        connect("server:/other")
    with pytest.raises(ValueError, match="null byte"):
        connect("server:/a\0b")


def test_files_of_an_optimistic_session_have_the_flag(server: StandIn) -> None:
    found = re.search(r"#define NFSRDMA_OPTIMISTIC\s+(0x\w+)", HEADER)
    assert found
    with connect("server:/export", optimistic=True, cache=1 << 20) as made, made.open("data"):
        assert (server.options["optimistic"], server.options["cache"]) == (1, 1 << 20)
        assert server.open_flags == [int(found[1], 16) | os.O_RDONLY]
    with connect("server:/export") as made, made.open("data"):
        assert server.open_flags[1:] == [os.O_RDONLY]


def test_stats_are_those_of_the_header() -> None:
    found = re.search(r"struct nfsrdma_stats \{(.*?)\}", HEADER, re.DOTALL)
    assert found
    assert tuple(re.findall(r"(\w+);", found[1])) == ("size", *session.Stats._fields)


def test_a_close_that_fails_is_an_exception_and_closes(server: StandIn) -> None:
    made = connect("server:/export")
    file, left = made.open("data", "r+"), made.open("data", "r+")
    server.close_errors = [errno.EIO]
    with pytest.raises(OSError, match="Input/output") as caught:
        file.close()
    assert caught.value.errno == errno.EIO
    assert file.closed
    file.close()
    server.close_errors = [errno.ENOSPC]
    with pytest.raises(OSError, match="No space"):
        made.close()
    assert left.closed
    assert made.closed
    assert not server.roots


def test_names_are_any_bytes(server: StandIn, opened: Session) -> None:
    server.names["/export"] = [b"a\xff\n", b"\x1b[2J"]
    assert opened.listdir() == ["data", "a\udcff\n", "\x1b[2J"]
    assert [entry.is_file() for entry in opened.scandir()] == [True] * 3
    assert not server.dirs


@pytest.mark.parametrize("name", [b"..", b".", b"a/b", b"/etc", b""])
def test_names_that_lead_elsewhere_are_refused(
    server: StandIn, opened: Session, name: bytes
) -> None:
    server.names["/export"] = [name]
    with pytest.raises(OSError, match="the server sent the name") as caught:
        opened.listdir()
    assert caught.value.errno == errno.EBADMSG
    gc.collect()
    assert not server.dirs


def test_files_have_a_position(server: StandIn, opened: Session) -> None:
    with opened.open("new", "x+") as file:
        assert (file.write(b"hello"), file.tell(), file.size()) == (5, 5, 5)
        file.seek(1)
        assert file.read(3) == b"ell"
        assert file.seek(-2, os.SEEK_END) == 3
        assert file.read() == b"lo"
        assert file.truncate(2) == 2
        assert file.name == "server:/export/new"
    assert file.closed
    assert bytes(server.nodes["/export/new"].data) == b"he"
    with pytest.raises(FileExistsError):
        opened.open("new", "x")
    with pytest.raises(ValueError, match="mode 'a'"):
        opened.open("new", "a")
    with pytest.raises(ValueError, match="closed"):
        file.pread(1, 0)


# --- batches ---

RANGES = [(0, 50_001), (100, 7000), (49_000, 5000), (60_000, 10), (5, 0)]


@pytest.mark.parametrize("short", [False, True])
def test_ranges_are_read_one_behind_the_other(
    server: StandIn, opened: Session, short: bool
) -> None:
    server.short = short
    file = opened.open("data")
    out = bytearray(b"?" * sum(length for _, length in RANGES))
    counts = opened.read_ranges([(file, *each) for each in RANGES], out)
    assert counts == [50_001, 7000, 1001, 0, 0]
    place = 0
    for (offset, length), count in zip(RANGES, counts, strict=True):
        assert out[place : place + count] == DATA[offset : offset + count]
        place += length
    # the memory is the caller's again
    out.clear()


def test_one_wait_takes_many_completions(server: StandIn, opened: Session) -> None:
    server.depth = 64
    file = opened.open("data")
    opened.read_ranges([(file, n * 100, 100) for n in range(64)], bytearray(6400))
    assert server.waits == 1
    assert server.calls.count("submit") == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: array("Q", [0]) * 100,
        lambda: memoryview(bytearray(900))[50:850],
        lambda: __import__("numpy").zeros((10, 10), dtype="f8"),
    ],
)
def test_buffers_of_any_type_are_filled_in_place(opened: Session, make: Callable[[], Any]) -> None:
    buffer, file = make(), opened.open("data")
    assert file.pread_into(buffer, 3) == 800
    assert bytes(memoryview(buffer).cast("B")) == DATA[3:803]


def test_buffers_that_cannot_hold_it_are_refused(opened: Session) -> None:
    file = opened.open("data")
    with pytest.raises((TypeError, BufferError)):
        file.pread_into(b"read-only", 0)
    with pytest.raises(ValueError, match="the buffer has 10 bytes, the ranges have 11"):
        opened.read_ranges([(file, 0, 11)], bytearray(10))
    with pytest.raises(ValueError, match="negative"):
        opened.read_ranges([(file, -1, 1)], bytearray(10))
    numpy = pytest.importorskip("numpy")
    with pytest.raises((ValueError, BufferError)):
        file.pread_into(numpy.zeros(10)[::2], 0)


@pytest.mark.parametrize("short", [False, True])
def test_data_is_written_as_it_was(server: StandIn, opened: Session, short: bool) -> None:
    server.short = short
    with opened.open("copy", "w") as file:
        assert file.pwrite(DATA, 11) == len(DATA)
    assert bytes(server.nodes["/export/copy"].data) == bytes(11) + DATA


def test_an_error_ends_the_batch_and_the_session_goes_on(server: StandIn, opened: Session) -> None:
    file = opened.open("data")
    server.failing[8192] = errno.EIO
    with pytest.raises(OSError, match="Input/output error: 'data'") as caught:
        file.pread_into(bytearray(50_001), 0)
    assert caught.value.errno == errno.EIO
    assert not server.completed
    server.failing.clear()
    assert file.pread(50_001, 0) == DATA


def test_an_interrupted_batch_waits_for_what_the_server_has(
    server: StandIn, opened: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = opened.open("data"), bytearray(50_001)
    peek = server.do_peek

    def interrupt(*words: Any) -> int:
        monkeypatch.setattr(server, "do_peek", peek)
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "do_peek", interrupt)
    with pytest.raises(KeyboardInterrupt):
        opened.read_ranges([(file, 0, 50_001)], out)
    assert not opened._queue.busy
    out.clear()
    assert file.pread(10, 0) == DATA[:10]


def test_regions_are_used_and_unregistered(server: StandIn, opened: Session) -> None:
    file, out = opened.open("data"), bytearray(10_000)
    server.read_max = opened._read_max = 1 << 20
    with opened.register(out) as region:
        assert len(server.registered) == 1
        assert file.pread_into(memoryview(out)[100:], 0) == 9900
        # one operation: registered memory needs no part of the arena
        assert server.calls.count("prepare_read") == 1
        with pytest.raises(BufferError):
            out.clear()
    region.close()
    assert not server.registered
    out.clear()


def test_closing_a_session_closes_what_it_has(server: StandIn) -> None:
    made = connect("server:/export")
    file, region = made.open("data"), made.register(bytearray(10))
    transfer = made.start_read([(file, 0, 50_001)], bytearray(50_001))
    made.close()
    made.close()
    assert (file.closed, made.closed, transfer.done) == (True, True, True)
    region.close()
    for call in (made.listdir, made.null, lambda: made.terms):
        with pytest.raises(ValueError, match="session is closed"):
            call()
    assert not server.roots


def test_a_forgotten_session_is_closed(server: StandIn) -> None:
    made = connect("server:/export")
    transfer = made.start_read([(made.open("data"), 0, 50_001)], bytearray(50_001))
    del made
    gc.collect()
    # the transfer needs it
    assert server.roots
    assert transfer.result() == [50_001]
    del transfer
    gc.collect()
    assert not server.roots


def test_a_forked_process_opens_a_session_of_its_own(opened: Session) -> None:
    file = opened.open("data")
    child = os.fork()
    if not child:
        status = 1
        try:
            file.pread(1, 0)
        except OSError as error:
            status = 0 if error.errno == errno.EOWNERDEAD else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- asyncio ---


def test_coroutines_share_a_session(server: StandIn, opened: Session) -> None:
    file = opened.open("data")

    async def main() -> list[bytes]:
        return await asyncio.gather(*(file.pread_async(1000, n * 1000) for n in range(60)))

    found = asyncio.run(main())
    assert b"".join(found) == DATA
    assert not opened._queue.busy
    # another event loop
    assert asyncio.run(main()) == found


def test_a_call_between_takes_no_completion_from_a_coroutine(opened: Session) -> None:
    file = opened.open("data")

    async def main() -> bytes:
        task = asyncio.create_task(file.pread_async(50_001, 0))
        await asyncio.sleep(0)
        assert file.pread(1000, 5) == DATA[5:1005]
        return await asyncio.wait_for(task, 5)

    assert asyncio.run(main()) == DATA


def test_a_cancelled_coroutine_gives_the_memory_back(opened: Session) -> None:
    file, out = opened.open("data"), bytearray(50_001)

    async def main() -> None:
        task = asyncio.create_task(file.readinto_async(out, 0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not opened._queue.busy
    out.clear()


def test_a_coroutine_gets_the_error_of_its_own_batch(server: StandIn, opened: Session) -> None:
    file = opened.open("data")
    server.failing[4096] = errno.ESTALE

    async def main() -> list[Any]:
        reads = (file.pread_async(10, offset) for offset in (0, 4096, 100))
        return await asyncio.gather(*reads, return_exceptions=True)

    first, second, third = asyncio.run(main())
    assert (first, third) == (DATA[:10], DATA[100:110])
    assert second.errno == errno.ESTALE


def test_writes_of_coroutines(server: StandIn, opened: Session) -> None:
    file = opened.open("copy", "w")

    async def main() -> None:
        await asyncio.gather(
            *(file.pwrite_async(DATA[n : n + 9999], n) for n in range(0, 50_001, 9999))
        )

    asyncio.run(main())
    assert bytes(server.nodes["/export/copy"].data) == DATA


def test_entries_know_their_kind(server: StandIn, opened: Session) -> None:
    server.nodes["/export/dir"] = Node(mode=stat.S_IFDIR | 0o755)
    server.nodes["/export/link"] = Node(bytearray(b"data"), stat.S_IFLNK | 0o777)
    kinds = {e.name: (e.is_file(), e.is_dir(), e.is_symlink()) for e in opened.scandir()}
    assert kinds == {
        "data": (True, False, False), "dir": (False, True, False), "link": (False, False, True),
    }  # fmt: skip
    assert opened.readlink("link") == "data"
