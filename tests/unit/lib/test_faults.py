# SPDX-License-Identifier: Apache-2.0
"""Faults that libnfsrdma had, by its calls alone, over the device of tests/device.

The tests use what the library had before 0.1.0 as far as they can, and so fail over it.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("device", reason="no tests/device; missed: faults that the library had")

from device import READ, Device
from unit.device_fixtures import DATA, device, device_library

from nfsrdma_tools.client import library

__all__ = ["device", "device_library"]

SIZE = 64
BUSY = 10008
"""NFS3ERR_JUKEBOX."""


class Calls:
    """A session, and the calls of the library."""

    def __init__(self, **options: int) -> None:
        self.ffi, self.functions, *_ = library.load()
        given = self.ffi.new("struct nfsrdma_options *", options)
        if "size" in self.options():
            given.size = self.ffi.sizeof("struct nfsrdma_options")
        box = self.ffi.new("struct nfsrdma_session **")
        assert not self.functions.nfsrdma_connect(b"server:/export", given, box), self.message()
        self.session = box[0]

    def options(self) -> set[str]:
        return {name for name, _ in self.ffi.typeof("struct nfsrdma_options").fields}

    def message(self) -> str:
        return bytes(self.ffi.string(self.functions.nfsrdma_message())).decode()

    def try_open(self, name: str, flags: int) -> tuple[int, Any]:
        box = self.ffi.new("struct nfsrdma_file **")
        rc = self.functions.nfsrdma_open(self.session, name.encode(), flags, 0o644, box)
        return int(rc), box[0]

    def open(self, name: str, flags: int = os.O_RDWR | os.O_CREAT) -> Any:
        rc, file = self.try_open(name, flags)
        assert not rc, self.message()
        return file

    def read(self, file: Any, count: int, offset: int = 0) -> int | bytes:
        data = self.ffi.new("char[]", count)
        result = int(self.functions.nfsrdma_pread(file, data, count, offset))
        return result if result < 0 else bytes(self.ffi.buffer(data, result))

    def write(self, file: Any, data: bytes) -> None:
        assert self.functions.nfsrdma_pwrite(file, data, len(data), 0) == len(data)

    def close(self, file: Any) -> None:
        self.functions.nfsrdma_close(file)


Connect = Callable[..., Calls]


@pytest.fixture
def connected(device: Device) -> Iterator[Connect]:
    """Opens sessions with options."""
    del device
    made: list[Calls] = []

    def connect(**options: int) -> Calls:
        made.append(Calls(**options))
        return made[-1]

    yield connect
    for each in made:
        each.functions.nfsrdma_disconnect(each.session)


@pytest.fixture
def calls(connected: Connect) -> Calls:
    return connected()


# --- stable storage ---


def on_disk(device: Device) -> bytes | None:
    return device.get("/export/new", disk=True)


def test_fsync_waits_for_an_unfinished_write(device: Device, calls: Calls) -> None:
    file = calls.open("new")
    functions, data = calls.functions, calls.ffi.new("char[]", b"x" * SIZE)
    device.set(late=100_000)
    assert functions.nfsrdma_prepare_write(file, data, SIZE, 0, 1) == 0
    assert functions.nfsrdma_submit(calls.session) == 1
    assert functions.nfsrdma_fsync(file) == 0
    assert on_disk(device) == b"x" * SIZE
    done = calls.ffi.new("struct nfsrdma_completion[]", 1)
    assert functions.nfsrdma_wait(calls.session, done, 1, 1, -1) == 1
    functions.nfsrdma_close(file)


# --- NFSv4.1, the cache ---


def test_there_is_no_more_than_one_read_in_a_call(calls: Calls) -> None:
    """The option compound returned -EBADMSG for three; servers return wrong data for two."""
    assert "compound" not in calls.options()


def test_a_block_whose_later_part_fails_is_no_end_of_the_file(
    device: Device, connected: Connect
) -> None:
    device.set(read_max=2048)
    calls = connected(cache=1 << 20)
    file = calls.open("data", os.O_RDONLY)
    device.error(READ, errno.EIO, offset=2048, times=8)
    assert calls.read(file, 100, 2048) == -errno.EIO
    assert calls.read(file, 100) == DATA[:100]
    calls.close(file)


def test_a_cache_of_more_than_four_gigabytes(device: Device, connected: Connect) -> None:
    """Of addresses; what is used takes memory."""
    calls = connected(cache=(4 << 30) + 4096)
    file = calls.open("data", os.O_RDONLY)
    assert [calls.read(file, 4096, 4096) for _ in range(2)] == [DATA[4096:8192]] * 2
    assert device.reads == 1
    calls.close(file)


# --- small arenas ---


def test_a_read_that_no_arena_has_room_for_is_too_long(connected: Connect) -> None:
    calls = connected(arena=1 << 16)
    file, data = calls.open("data", os.O_RDONLY), calls.ffi.new("char[]", 100_000)
    status = calls.functions.nfsrdma_prepare_read(file, data, 100_000, 0, 1)
    assert status == -errno.EMSGSIZE, calls.message()
    calls.close(file)


def test_a_small_arena_makes_no_small_reads(device: Device, connected: Connect) -> None:
    large = os.urandom(1 << 20)
    device.put("/export/large", large)
    calls = connected(arena=1 << 16)
    file = calls.open("large", os.O_RDONLY)
    assert calls.read(file, len(large)) == large
    assert device.reads == 16
    calls.close(file)


# --- the rest ---


def test_a_server_that_is_busy_has_replied(device: Device, connected: Connect) -> None:
    calls = connected(timeout=1000)
    file = calls.open("data", os.O_RDONLY)
    device.error(READ, BUSY, times=1000)
    assert calls.read(file, 100) == -errno.ETIMEDOUT
    assert "busy" in calls.message()
    calls.close(file)


@pytest.mark.parametrize("flag", [os.O_APPEND, os.O_DIRECT, os.O_PATH, os.O_DIRECTORY])
def test_open_refuses_a_flag_that_it_would_ignore(calls: Calls, flag: int) -> None:
    rc, file = calls.try_open("data", os.O_RDWR | flag)
    if not rc:
        calls.functions.nfsrdma_close(file)
    assert rc == -errno.EINVAL


def test_a_wait_for_nothing_finds_what_has_arrived(device: Device, calls: Calls) -> None:
    file, data = calls.open("data", os.O_RDONLY), calls.ffi.new("char[]", 100)
    done = calls.ffi.new("struct nfsrdma_completion[]", 1)
    functions = calls.functions
    assert functions.nfsrdma_prepare_read(file, data, 100, 0, 1) == 0
    assert functions.nfsrdma_submit(calls.session) == 1
    end = time.monotonic() + 5
    while not (arrived := functions.nfsrdma_wait(calls.session, done, 1, 0, 0)):
        assert time.monotonic() < end
        time.sleep(0.005)
    assert (arrived, done[0].result) == (1, 100)
    functions.nfsrdma_close(file)


def test_no_bytes_need_the_mode_too(device: Device, calls: Calls) -> None:
    functions, ffi = calls.functions, calls.ffi
    box = ffi.new("struct nfsrdma_file **")
    for flags, bad, good in (
        (os.O_RDONLY, functions.nfsrdma_pwrite, functions.nfsrdma_pread),
        (os.O_WRONLY, functions.nfsrdma_pread, functions.nfsrdma_pwrite),
    ):
        assert not functions.nfsrdma_open(calls.session, b"data", flags, 0, box)
        before = device.calls
        assert bad(box[0], ffi.NULL, 0, 0) == -errno.EBADF
        assert good(box[0], ffi.NULL, 0, 0) == 0
        assert device.calls == before
        functions.nfsrdma_release(box[0])
