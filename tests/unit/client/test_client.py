# SPDX-License-Identifier: Apache-2.0
"""The Python client over the real library and a device that stands in: see tests/device."""

import asyncio
import errno
import gc
import os
import re
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cffi
import pytest
from device import COMMIT, FOLDER, LINK, READ, SANITIZER, Change, Device, build
from unit.device_fixtures import (
    DATA,
    Recorder,
    device,
    device_library,
    each_version,
    opened,
    recorder,
)

from nfsrdma_tools.client import connect, library, session
from nfsrdma_tools.client.session import CAPABILITIES, Session
from nfsrdma_tools.errors import UserError

ROOT = Path(__file__).parents[3]
HEADER = (ROOT / "lib" / "nfsrdma.h").read_text()

__all__ = ["device", "device_library", "each_version", "opened", "recorder"]


def declared() -> Any:
    made = cffi.FFI()
    made.cdef(library.declarations())
    return made


# --- the declarations ---


def test_each_function_of_the_header_is_declared() -> None:
    wanted = set(re.findall(r"^ \* (nfsrdma_\w+) - ", HEADER, re.MULTILINE))
    assert len(wanted) > 30
    # any library: cffi lists the functions that it would look for
    assert set(dir(declared().dlopen(None))) >= wanted


def test_struct_stat_has_the_layout_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 12345)
    (tmp_path / "file").chmod(0o640)
    os.link(tmp_path / "file", tmp_path / "link")
    made = declared()
    libc = made.dlopen(None)
    made.cdef("int lstat(const char *path, struct stat *found);", override=True)
    for path in (tmp_path / "file", tmp_path, Path("/dev/null")):
        box = made.new("struct stat *")
        assert libc.lstat(os.fsencode(path), box) == 0
        attributes, wanted = session._attributes(box), path.lstat()
        assert attributes == wanted
        for name in ("st_mtime_ns", "st_ctime_ns", "st_blocks", "st_blksize", "st_rdev"):
            assert getattr(attributes, name) == getattr(wanted, name)


def test_bits_of_personalities_are_those_of_the_module() -> None:
    text = (ROOT / "kmod" / "personality.h").read_text()
    bits = re.findall(r'_\((\d), \w+, \w+, "([\w-]+)"\)', text)
    wanted = {int(n) - 1: name for n, name in bits if n != "0"}
    assert dict(enumerate(CAPABILITIES)) == wanted


def test_a_missing_library_is_one_line_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    library.load.cache_clear()
    monkeypatch.setenv("NFSRDMA_LIBRARY", "/none/libnfsrdma.so.0")
    with pytest.raises(UserError) as caught:
        library.load()
    message = str(caught.value)
    assert "/none/libnfsrdma.so.0: cannot open shared object file" in message
    assert message.endswith("(apt install libnfsrdma0, or in a clone: make -C lib)")
    assert "\n" not in message


def test_an_unknown_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "vax")
    with pytest.raises(UserError, match="struct stat of vax"):
        library.declarations()


# --- sessions and names ---


def test_terms_and_stats(device: Device, opened: Session) -> None:
    terms = opened.terms
    assert (terms.address, terms.device) == ("10.9.1.1", "stand0")
    assert (terms.credits, terms.send_size, terms.recv_size) == (32, 4096, 4096)
    assert (terms.read_max, terms.write_max, terms.personalities) == (1 << 20, 1 << 20, ())
    assert opened.stats.calls == device.calls
    assert opened.stats.connects == 1


def test_options_and_errors_of_connect(device: Device, recorder: Recorder) -> None:
    connect("server:/export", port=20050, timeout=15.5).close()
    assert recorder.options == [{
        "port": 20050, "timeout": 15_500, "arena": 0, "version": 3, "personality": 0,
        "optimistic": 0, "cache": 0,
    }]  # fmt: skip
    assert device.port == 20050
    device.set(nfs4=0)
    with pytest.raises(OSError) as caught:
        connect("server:/export", vers="4.1")
    assert caught.value.errno == errno.EPROTONOSUPPORT
    assert recorder.options[1]["version"] == 41
    with pytest.raises(ValueError, match=r"one of 3, 4\.1"):
        connect("server:/export", vers="4")
    device.put("/other", kind=FOLDER)
    with pytest.raises(PermissionError, match="the mount daemon refuses it"):
        connect("server:/other")
    device.set(silent=1)
    with pytest.raises(TimeoutError, match="250 ms"):
        connect("server:/export", timeout=0.25)
    with pytest.raises(ValueError, match="null byte"):
        connect("server:/a\0b")


def test_files_of_an_optimistic_session_have_the_flag(recorder: Recorder) -> None:
    match = re.search(r"#define NFSRDMA_OPTIMISTIC\s+(0x\w+)", HEADER)
    assert match
    with connect("server:/export", optimistic=True, cache=1 << 20) as made, made.open("data"):
        (options,) = recorder.options
        assert (options["optimistic"], options["cache"]) == (1, 1 << 20)
        assert recorder.flags == [int(match[1], 16) | os.O_RDONLY]
    with connect("server:/export") as made, made.open("data"):
        assert recorder.flags[1:] == [os.O_RDONLY]


def test_stats_are_those_of_the_header() -> None:
    (body,) = re.findall(r"struct nfsrdma_stats \{(.*?)\}", HEADER, re.DOTALL)
    assert tuple(re.findall(r"(\w+);", body)) == ("size", *session.Stats._fields)


def test_a_close_that_fails_is_an_exception_and_closes(device: Device) -> None:
    made = connect("server:/export")
    file, left = made.open("data", "r+"), made.open("other", "w")
    file.write(b"x")
    device.error(COMMIT, errno.EIO)
    with pytest.raises(OSError, match="Input/output") as caught:
        file.close()
    assert caught.value.errno == errno.EIO
    assert file.closed
    file.close()
    left.write(b"x")
    device.error(COMMIT, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        made.close()
    assert made.closed


def test_a_server_that_lost_data_is_an_error_of_close(device: Device, opened: Session) -> None:
    file = opened.open("new", "w")
    file.write(DATA)
    device.restart()
    with pytest.raises(OSError, match="Input/output"):
        file.close()
    with opened.open("new", "w") as again:
        again.write(DATA)
    assert device.get("/export/new", disk=True) == DATA


@pytest.mark.usefixtures("each_version")
def test_names_are_any_bytes(device: Device, opened: Session) -> None:
    for name in ("a\udcff\n", "\x1b[2J"):
        device.put(f"/export/{name}")
    assert opened.listdir() == ["data", "a\udcff\n", "\x1b[2J"]
    assert [entry.is_file() for entry in opened.scandir()] == [True] * 3


def test_long_directories_are_listed(device: Device, opened: Session) -> None:
    names = [f"{number:04}{'x' * 100}" for number in range(500)]
    for name in names:
        device.put(f"/export/many/{name}")
    assert opened.listdir("many") == names
    device.set(attributes=0)
    assert [entry.stat for entry in opened.scandir("many")] == [None] * 500


@pytest.mark.usefixtures("each_version")
@pytest.mark.parametrize("name", [b"a/b", b"/etc", b""])
def test_names_that_lead_elsewhere_are_refused(
    device: Device, opened: Session, name: bytes
) -> None:
    device.put_name("/export", name)
    with pytest.raises(OSError, match="the server sent a name with a slash") as caught:
        opened.listdir()
    assert caught.value.errno == errno.EBADMSG


@pytest.mark.usefixtures("each_version")
def test_names_of_the_directory_and_the_one_above_are_left_out(
    device: Device, opened: Session
) -> None:
    device.put_name("/export", b".")
    device.put_name("/export", b"..")
    assert opened.listdir() == ["data"]


SLASH = Change("directory.c", "if (!*from->name || strchr(from->name, '/'))", "if (0)")
DOTS_CHECK = '} while (!strcmp(from->name, ".") || !strcmp(from->name, ".."));'
DOTS = Change("directory.c", DOTS_CHECK, "} while (0);")


@pytest.mark.parametrize(
    ("change", "name"),
    [(DOTS, b".."), (DOTS, b"."), (SLASH, b"a/b"), (SLASH, b"/etc"), (SLASH, b"")],
)
@pytest.mark.usefixtures("device_library")
def test_names_are_refused_a_second_time(
    monkeypatch: pytest.MonkeyPatch, change: Change, name: bytes
) -> None:
    """A library that does not refuse them: the check of the binding is its own."""
    faulty = build(SANITIZER, change)
    device = Device(faulty)
    monkeypatch.setenv("NFSRDMA_LIBRARY", str(faulty))
    library.load.cache_clear()
    device.put("/export", kind=FOLDER)
    device.put_name("/export", name)
    try:
        with connect("server:/export") as made:
            with pytest.raises(OSError, match="the server sent the name") as caught:
                made.listdir()
            assert caught.value.errno == errno.EBADMSG
    finally:
        library.load.cache_clear()
    assert not device.objects


def test_files_have_a_position(device: Device, opened: Session) -> None:
    with opened.open("new", "x+") as file:
        assert (file.write(b"hello"), file.tell(), file.size()) == (5, 5, 5)
        file.seek(1)
        assert file.read(3) == b"ell"
        assert file.seek(-2, os.SEEK_END) == 3
        assert file.read() == b"lo"
        assert file.truncate(2) == 2
        assert file.name == "server:/export/new"
    assert file.closed
    assert device.get("/export/new") == b"he"
    with pytest.raises(FileExistsError):
        opened.open("new", "x")
    with pytest.raises(ValueError, match="mode 'a'"):
        opened.open("new", "a")
    with pytest.raises(ValueError, match="closed"):
        file.pread(1, 0)


# --- batches ---

RANGES = [(0, 50_001), (100, 7000), (49_000, 5000), (60_000, 10), (5, 0)]


@pytest.fixture(
    params=["usual", "short", "late", "small", "no attributes", "iwarp", "no private data"]
)
def odd(request: pytest.FixtureRequest, device: Device) -> Iterator[Session]:
    """Sessions with servers and devices of different kinds."""
    settings: dict[str, dict[str, int]] = {
        "short": {"shortened": 1}, "late": {"late": 500, "spurious": 2},
        "small": {"read_max": 4096, "write_max": 4096, "credits": 2}, "iwarp": {"iwarp": 1},
        "no attributes": {"attributes": 0}, "no private data": {"private_data": 0},
    }  # fmt: skip
    device.set(**settings.get(request.param, {}))
    small: dict[str, Any] = {"depth": 5, "arena": 1 << 17, "inline_size": 1024}
    with connect("server:/export", **(small if request.param == "small" else {})) as made:
        yield made


@pytest.mark.usefixtures("each_version")
def test_ranges_are_read_one_behind_the_other(odd: Session) -> None:
    file = odd.open("data")
    out = bytearray(b"?" * sum(length for _, length in RANGES))
    counts = odd.read_ranges([(file, *each) for each in RANGES], out)
    assert counts == [50_001, 7000, 1001, 0, 0]
    place = 0
    for (offset, length), count in zip(RANGES, counts, strict=True):
        assert out[place : place + count] == DATA[offset : offset + count]
        # a canary
        assert set(out[place + count : place + length]) <= {ord("?")}
        place += length
    # the memory is the caller's again
    out.clear()


@pytest.mark.usefixtures("each_version")
def test_a_batch_has_one_doorbell(device: Device, opened: Session) -> None:
    file = opened.open("data")
    file.pread(1, 0)
    device.hold(READ)
    before = opened.stats.doorbells
    transfer = opened.start_read([(file, n * 100, 100) for n in range(30)], bytearray(3000))
    assert opened.stats.doorbells == before + 1
    device.hold()
    assert transfer.result() == [100] * 30


@pytest.mark.usefixtures("each_version")
@pytest.mark.parametrize(
    "make",
    [
        lambda: array("Q", [0]) * 100, lambda: memoryview(bytearray(900))[50:850],
        lambda: __import__("numpy").zeros((10, 10), dtype="f8"),
    ],
)  # fmt: skip
def test_buffers_of_any_type_are_filled_in_place(opened: Session, make: Callable[[], Any]) -> None:
    buffer, file = make(), opened.open("data")
    assert file.pread_into(buffer, 3) == 800
    assert bytes(memoryview(buffer).cast("B")) == DATA[3:803]


@pytest.mark.usefixtures("each_version")
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


def test_data_is_written_as_it_was(device: Device, odd: Session) -> None:
    with odd.open("copy", "w") as file:
        assert file.pwrite(DATA, 11) == len(DATA)
    assert device.get("/export/copy", disk=True) == bytes(11) + DATA


@pytest.mark.usefixtures("each_version")
@pytest.mark.parametrize("cache", [0, 1 << 20])
@pytest.mark.parametrize("registered", [False, True])
def test_the_end_of_a_file_costs_no_read(device: Device, cache: int, registered: bool) -> None:
    """Another READ asked whether the file ends there."""
    end, out = len(DATA), bytearray(1000)
    with connect("server:/export", cache=cache) as session, session.open("data") as file:
        if registered:
            session.register(out)
        before = device.reads
        assert file.pread_into(out, end - 700) == 700
        assert out[:700] == DATA[-700:]
        assert device.reads - before == 1
        assert file.pread_into(out, end) == 0
        # the cache knows it
        assert device.reads - before == (1 if cache else 2)
        assert session.read_ranges([(file, end - 7, 500), (file, end, 500)], out) == [7, 0]
        assert device.reads - before == (1 if cache else 4)


@pytest.mark.usefixtures("each_version")
def test_short_reads_are_continued_where_the_file_does_not_end(device: Device) -> None:
    device.set(shortened=1)
    with connect("server:/export") as session, session.open("data") as file:
        assert file.pread(1000, 0) == DATA[:1000]
        assert file.pread(1000, len(DATA) - 700) == DATA[-700:]
        # the call of the library returns the first part, as at the end of a file
        device.error(READ, errno.EIO, offset=500)
        assert file.pread(1000, 0) == DATA[:1000]
        device.error(READ, errno.EIO, offset=500, times=2)
        with pytest.raises(OSError, match="Input/output error"):
            file.pread(1000, 0)
        assert file.pread(1000, 0) == DATA[:1000]


@pytest.mark.usefixtures("each_version")
def test_an_error_ends_the_batch_and_the_session_goes_on(device: Device) -> None:
    device.set(read_max=4096)
    with connect("server:/export") as opened:
        file = opened.open("data")
        device.error(READ, errno.EIO, offset=8192)
        with pytest.raises(OSError, match="Input/output error: 'data'") as caught:
            file.pread_into(bytearray(50_001), 0)
        assert caught.value.errno == errno.EIO
        assert not opened._queue.busy
        assert file.pread(50_001, 0) == DATA


@pytest.mark.usefixtures("each_version")
def test_a_busy_server_is_called_again(device: Device, opened: Session) -> None:
    device.error(READ, 10008, times=3)
    assert opened.open("data").pread(50_001, 0) == DATA
    assert opened.stats.resent == 3


@pytest.mark.parametrize("after", range(0, 30, 3))
def test_a_connection_that_ends_is_made_again(device: Device, after: int) -> None:
    device.set(read_max=4096, late=200)
    with connect("server:/export") as opened, opened.open("data") as file:
        device.set(end_after=after + 1)
        assert file.pread(50_001, 0) == DATA
        assert opened.stats.connects == 1 + (after < 13)


def test_a_connection_is_used_as_soon_as_it_is_made(device: Device) -> None:
    """Each second one waited a second for an event that had come already."""
    times = []
    for _ in range(11):
        start = time.monotonic()
        connect("server:/export").close()
        times.append(time.monotonic() - start)
    assert sorted(times)[5] < 0.9
    assert device.connects == 11


@pytest.mark.parametrize(
    "step",
    [
        "create_event_channel", "create_id", "resolve_addr", "event:resolve_addr", "resolve_route",
        "event:resolve_route", "open_device", "alloc_pd", "reg_mr", "query_device",
        "create_comp_channel", "create_cq", "create_qp", "init_qp_attr", "modify_qp", "post_recv",
        "connect", "event:connect", "establish",
    ],
)  # fmt: skip
def test_an_error_at_each_step_of_a_connection(device: Device, step: str) -> None:
    # once is not enough: connect() may try again
    device.fail(step, errno.ENOMEM, times=1000)
    with pytest.raises(OSError):
        connect("server:/export", timeout=5)
    assert device.objects == {}
    device.heal()
    connect("server:/export").close()


@pytest.mark.parametrize("step", ["post_send", "post_recv", "poll_cq", "req_notify_cq", "wc"])
@pytest.mark.parametrize("after", [0, 3])
def test_an_error_of_the_device_makes_another_connection(
    device: Device, step: str, after: int
) -> None:
    device.set(read_max=4096, late=300)
    with connect("server:/export") as opened, opened.open("data") as file:
        device.fail(step, errno.EIO, after)
        assert file.pread(50_001, 0) == DATA
        assert file.pread(50_001, 0) == DATA


@pytest.mark.usefixtures("each_version")
def test_a_device_without_memory_refuses_a_region(device: Device, opened: Session) -> None:
    device.fail("reg_mr", errno.ENOMEM)
    out = bytearray(10)
    with pytest.raises(OSError, match=r"cannot register 10 bytes.*ulimit -l"):
        opened.register(out)
    out.clear()


@pytest.mark.usefixtures("each_version")
def test_regions_are_used_and_unregistered(device: Device, opened: Session) -> None:
    file, out = opened.open("data"), bytearray(10_000)
    before = device.mrs
    with opened.register(out) as region:
        assert device.mrs == before + 1
        assert file.pread_into(memoryview(out)[100:], 0) == 9900
        # registered memory needs no part of the arena
        assert (opened.stats.direct, opened.stats.copied) == (1, 0)
        with pytest.raises(BufferError):
            out.clear()
    region.close()
    assert device.mrs == before
    assert out[100:] == DATA[:9900]
    out.clear()


@pytest.mark.usefixtures("each_version")
def test_closing_a_region_ends_its_transfers(device: Device, opened: Session) -> None:
    file, out = opened.open("data"), bytearray(50_001)
    region = opened.register(out)
    device.hold(READ)
    transfer = opened.start_read([(file, 0, 50_001)], out)
    threading.Timer(0.1, device.hold).start()
    region.close()
    assert transfer.done
    # its only operation was under way
    assert transfer.moved == [50_001]
    with pytest.raises(OSError, match="the region is closed"):
        transfer.result()
    out.clear()


@pytest.mark.usefixtures("each_version")
def test_closing_a_session_closes_what_it_has(device: Device) -> None:
    made = connect("server:/export")
    file, region = made.open("data"), made.register(bytearray(10))
    device.hold(READ)
    out = bytearray(50_001)
    transfer = made.start_read([(file, 0, 50_001)], out)
    made.close()
    made.close()
    assert (made.closed, transfer.done, transfer.moved) == (True, True, [0])
    with pytest.raises(OSError, match="closed"):
        transfer.result()
    out.clear()
    region.close()
    file.close()
    for call in (made.listdir, made.null, lambda: made.terms):
        with pytest.raises(ValueError, match="session is closed"):
            call()
    assert device.objects == {}


@pytest.mark.usefixtures("each_version")
def test_a_forgotten_session_is_closed(device: Device) -> None:
    made = connect("server:/export")
    transfer = made.start_read([(made.open("data"), 0, 50_001)], bytearray(50_001))
    del made
    gc.collect()
    # the transfer needs it
    assert device.connections == 1
    assert transfer.result() == [50_001]
    del transfer
    gc.collect()
    assert device.connections == 0


@pytest.mark.usefixtures("each_version")
def test_a_forgotten_transfer_is_stopped(device: Device) -> None:
    device.set(read_max=4096)
    out = bytearray(50_001)
    with connect("server:/export", depth=4) as opened:
        transfer = opened.start_read([(opened.open("data"), 0, 50_001)], out)
        del transfer
        gc.collect()
        opened.null()
        while opened._queue.busy:
            opened._queue.poll()
        assert device.reads < 13
        out.clear()


def test_files_of_another_session_are_refused(opened: Session) -> None:
    with connect("server:/export") as other:
        file = other.open("data")
        with pytest.raises(ValueError, match="data is a file of another session"):
            opened.read_ranges([(file, 0, 10)], bytearray(10))


@pytest.mark.usefixtures("each_version")
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


@pytest.mark.usefixtures("each_version")
def test_coroutines_share_a_session(opened: Session) -> None:
    file = opened.open("data")

    async def main() -> list[bytes]:
        return await asyncio.gather(*(file.pread_async(1000, n * 1000) for n in range(60)))

    pieces = asyncio.run(main())
    assert b"".join(pieces) == DATA
    assert not opened._queue.busy
    # another event loop
    assert asyncio.run(main()) == pieces


@pytest.mark.usefixtures("each_version")
def test_a_call_between_takes_no_completion_from_a_coroutine(opened: Session) -> None:
    file = opened.open("data")

    async def main() -> bytes:
        task = asyncio.create_task(file.pread_async(50_001, 0))
        await asyncio.sleep(0)
        assert file.pread(1000, 5) == DATA[5:1005]
        return await asyncio.wait_for(task, 5)

    assert asyncio.run(main()) == DATA


@pytest.mark.usefixtures("each_version")
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


@pytest.mark.usefixtures("each_version")
def test_a_coroutine_gets_the_error_of_its_own_batch(device: Device, opened: Session) -> None:
    file = opened.open("data")
    device.error(READ, 70, offset=4096)

    async def main() -> list[Any]:
        reads = (file.pread_async(10, offset) for offset in (0, 4096, 100))
        return await asyncio.gather(*reads, return_exceptions=True)

    first, second, third = asyncio.run(main())
    assert (first, third) == (DATA[:10], DATA[100:110])
    assert second.errno == errno.ESTALE


def test_writes_of_coroutines(device: Device, opened: Session) -> None:
    file = opened.open("copy", "w")

    async def main() -> None:
        places = range(0, 50_001, 9999)
        await asyncio.gather(*(file.pwrite_async(DATA[n : n + 9999], n) for n in places))

    asyncio.run(main())
    assert device.get("/export/copy") == DATA


@pytest.mark.usefixtures("each_version")
def test_entries_know_their_kind(device: Device, opened: Session) -> None:
    device.put("/export/dir", kind=FOLDER)
    device.put("/export/link", b"data", kind=LINK)
    kinds = {e.name: (e.is_file(), e.is_dir(), e.is_symlink()) for e in opened.scandir()}
    assert kinds == {
        "data": (True, False, False), "dir": (False, True, False), "link": (False, False, True),
    }  # fmt: skip
    assert opened.readlink("link") == "data"
