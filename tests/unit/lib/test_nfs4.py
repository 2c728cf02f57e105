# SPDX-License-Identifier: Apache-2.0
"""Open files over NFSv4.1: restarts, lost leases, lost connections, full slots, held replies."""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("device", reason="no tests/device; missed: open files over NFSv4.1")

from device import FOLDER, OPERATION, Change, Device, build
from unit.device_fixtures import DATA, device, device_library
from unit.lib.test_faults import Calls

from nfsrdma_tools.client import library

__all__ = ["device", "device_library"]

# of RFC 8881
CLOSE, OPEN, READ, WRITE, FREE_STATEID = 4, 18, 25, 38, 45
STALE, DELAY = 70, 10008
SIZE = 64
SOON = 1500
"""Milliseconds of a timeout that is to end."""

KEPT: list[Any] = []

Connect = Callable[..., Calls]


@pytest.fixture
def connected(device: Device) -> Iterator[Connect]:
    """Opens sessions with options; none of them leaves anything on the server."""
    made: list[Calls] = []

    def connect(**options: int) -> Calls:
        made.append(Calls(version=41, **options))
        return made[-1]

    yield connect
    for each in made:
        each.functions.nfsrdma_disconnect(each.session)
    left = {name: getattr(device, name) for name in ("opens", "delegations", "sessions", "clients")}
    assert left == dict.fromkeys(left, 0)
    assert not device.uncached_changes


@pytest.fixture
def calls(connected: Connect) -> Calls:
    return connected()


def batch_write(calls: Calls, file: Any, data: bytes, *offsets: int) -> None:
    """Submit WRITEs, whose memory stays."""
    memory = calls.ffi.new("char[]", data)
    for offset in offsets:
        assert not calls.functions.nfsrdma_prepare_write(file, memory, len(data), offset, offset)
    KEPT.append(memory)
    assert calls.functions.nfsrdma_submit(calls.session) == len(offsets)


def results(calls: Calls, count: int) -> list[int]:
    done = calls.ffi.new("struct nfsrdma_completion[]", count)
    assert calls.functions.nfsrdma_wait(calls.session, done, count, count, -1) == count
    return [each.result for each in done]


def until(calls: Calls, condition: Callable[[], bool]) -> None:
    """Let the session handle what arrives until the server has come so far."""
    end = time.monotonic() + 60
    done = calls.ffi.new("struct nfsrdma_completion[]", 1)
    while not condition():
        assert time.monotonic() < end
        # the library looks at the clock and at the connection from time to time only
        for _ in range(300):
            assert not calls.functions.nfsrdma_wait(calls.session, done, 1, 0, 0)
        time.sleep(0.001)


def on_disk(device: Device, name: str = "new") -> bytes | None:
    return device.get(f"/export/{name}", disk=True)


# --- without faults ---


def test_what_is_closed_is_on_the_disk(device: Device, calls: Calls) -> None:
    file = calls.open("new")
    calls.write(file, b"x" * SIZE)
    assert calls.read(file, 2 * SIZE) == b"x" * SIZE
    assert on_disk(device) == b""
    assert calls.functions.nfsrdma_close(file) == 0
    assert on_disk(device) == b"x" * SIZE
    until(calls, lambda: not device.opens)


def test_files_that_are_only_read_are_not_opened(device: Device, calls: Calls) -> None:
    file = calls.open("data", os.O_RDONLY)
    assert calls.read(file, len(DATA)) == DATA
    calls.close(file)
    assert device.opened == 0
    # but one that the call makes, whose state goes away at once
    file = calls.open("new", os.O_RDONLY | os.O_CREAT)
    until(calls, lambda: device.closed == 1)
    assert calls.read(file, SIZE) == b""
    calls.close(file)


def test_open_files_of_one_inode_share_a_state(device: Device, calls: Calls) -> None:
    files = [calls.open("new", os.O_WRONLY | os.O_CREAT) for _ in range(3)]
    assert (device.opened, device.opens) == (1, 1)
    files.append(calls.open("new", os.O_RDWR))
    assert (device.opened, device.opens) == (2, 1)
    for number, file in enumerate(files):
        calls.write(file, bytes([number]) * SIZE)
        assert calls.functions.nfsrdma_close(file) == 0
        # the CLOSE of the last one is on its way
        if number < 3:
            assert device.opens == 1
    until(calls, lambda: not device.opens)
    assert (on_disk(device), device.closed) == (b"\3" * SIZE, 1)


@pytest.mark.parametrize("exclusive_times", [0, 1])
@pytest.mark.parametrize("flag", [0, os.O_EXCL])
def test_new_files_have_their_mode(
    device: Device, calls: Calls, flag: int, exclusive_times: int
) -> None:
    device.set(exclusive_times=exclusive_times)
    old = os.umask(0o027)
    try:
        calls.close(calls.open("new", os.O_RDWR | os.O_CREAT | flag))
    finally:
        os.umask(old)
    st = calls.ffi.new("struct stat *")
    assert not calls.functions.nfsrdma_stat(calls.session, b"new", st)
    assert stat.S_IMODE(st.st_mode) == 0o640
    if flag:
        assert calls.try_open("new", os.O_RDWR | os.O_CREAT | flag)[0] == -errno.EEXIST


def test_unlink_and_rmdir_look_at_the_kind(device: Device, calls: Calls) -> None:
    device.put("/export/folder", kind=FOLDER)
    functions, session = calls.functions, calls.session
    assert functions.nfsrdma_unlink(session, b"folder") == -errno.EISDIR
    assert functions.nfsrdma_rmdir(session, b"data") == -errno.ENOTDIR
    assert functions.nfsrdma_rmdir(session, b"folder") == 0
    assert functions.nfsrdma_unlink(session, b"data") == 0
    assert functions.nfsrdma_unlink(session, b"data") == -errno.ENOENT


def test_a_write_as_long_as_the_session_allows(device: Device, connected: Connect) -> None:
    device.set(request_max=100_000)
    calls = connected()
    terms = calls.ffi.new("struct nfsrdma_terms *")
    terms.size = calls.ffi.sizeof("struct nfsrdma_terms")
    assert not calls.functions.nfsrdma_terms(calls.session, terms)
    assert 90_000 < terms.write_max < 100_000
    file = calls.open("new")
    calls.write(file, DATA * 3)
    calls.close(file)
    assert on_disk(device) == DATA * 3


def test_a_batch_closes_what_it_writes(device: Device, calls: Calls) -> None:
    file = calls.open("new")
    memory = calls.ffi.new("char[]", DATA)
    functions = calls.functions
    assert not functions.nfsrdma_prepare_write(file, memory, len(DATA), 0, 1)
    assert not functions.nfsrdma_prepare_fsync(file, 2)
    assert not functions.nfsrdma_prepare_close(file, 3)
    assert functions.nfsrdma_submit(calls.session) == 3
    assert sorted(results(calls, 3)) == [0, 0, len(DATA)]
    assert on_disk(device) == DATA
    until(calls, lambda: not device.opens)


@pytest.mark.parametrize("kind", [1, 2])
def test_a_delegation_goes_back(device: Device, calls: Calls, kind: int) -> None:
    device.set(delegate=kind)
    files = [calls.open("new"), calls.open("data")]
    until(calls, lambda: device.delegreturns == 2)
    for file in files:
        calls.write(file, b"x" * SIZE)
        calls.close(file)
    until(calls, lambda: not device.opens)


def test_an_open_waits_for_the_close_before_it(device: Device, calls: Calls) -> None:
    device.hold4(CLOSE)
    calls.close(calls.open("new"))
    until(calls, lambda: device.held == 1)
    # what reads does not wait, nor what has another file
    calls.close(calls.open("new", os.O_RDONLY))
    calls.write(other := calls.open("data"), b"x")
    device.set(late=50_000)
    device.hold4()
    file = calls.open("new")
    calls.write(file, b"x" * SIZE)
    assert device.opens == 2
    for each in (file, other):
        calls.close(each)


# --- the server restarts, or forgets ---


def lost(device: Device, way: str) -> None:
    """The server loses what it keeps for the client, or a part of it."""
    if way == "restart without grace":
        device.set(restart_grace=0)
    if way.startswith("restart"):
        device.restart()
    elif way == "discarded":
        device.discard_clients()
    else:
        device.expire(
            "/export/new" if "one" in way else "", "admin" in way, forgotten="forgotten" in way
        )


WAYS = (
    "restart", "restart without grace", "discarded", "all", "one", "one admin", "all admin",
    "one forgotten",
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_open_files_survive(device: Device, calls: Calls, way: str) -> None:
    names = ("new", "data", "third")
    files = [calls.open(name) for name in names]
    for file in files:
        calls.write(file, b"x" * SIZE)
        assert calls.functions.nfsrdma_fsync(file) == 0
    opened = device.opened
    lost(device, way)
    for file in files:
        calls.write(file, b"y" * SIZE)
        assert calls.read(file, SIZE) == b"y" * SIZE
        assert calls.functions.nfsrdma_fsync(file) == 0
    assert device.opens == 3
    assert device.reclaimed == (3 if way == "restart" else 0)
    assert device.opened == opened + (1 if "one" in way else 3)
    for file in files:
        assert calls.functions.nfsrdma_close(file) == 0


def test_a_restart_reports_what_it_lost(device: Device, calls: Calls) -> None:
    calls.write(file := calls.open("new"), b"x" * SIZE)
    device.restart()
    assert calls.functions.nfsrdma_fsync(file) == -errno.EIO
    calls.write(file, b"y" * SIZE)
    assert calls.functions.nfsrdma_close(file) == 0
    assert on_disk(device) == b"y" * SIZE


def test_two_restarts_in_a_row(device: Device, calls: Calls) -> None:
    """The second one comes while the first reclaim is on its way."""
    files = [calls.open(name) for name in ("new", "data", "third")]
    device.restart()
    device.hold4(OPEN)
    batch_write(calls, files[0], b"x" * SIZE, 0)
    until(calls, lambda: device.held == 1)
    device.restart()
    device.hold4()
    assert results(calls, 1) == [SIZE]
    assert device.opens == 3
    for file in files:
        calls.close(file)


def test_others_reclaim_first(device: Device, calls: Calls) -> None:
    """A new file waits for the end of the grace period, an open one does not."""
    file = calls.open("new")
    device.set(restart_grace=2**64 - 1)
    device.restart()
    calls.write(file, b"x" * SIZE)
    device.set(grace=4)
    other = calls.open("other")
    for each in (file, other):
        calls.close(each)


def test_a_file_that_is_gone_says_so_and_no_other(device: Device, calls: Calls) -> None:
    files = [calls.open(name) for name in ("new", "data")]
    device.error(OPERATION | OPEN, STALE, times=1)
    device.expire()
    memory = calls.ffi.new("char[]", b"x" * SIZE)

    def write(file: Any) -> int:
        return int(calls.functions.nfsrdma_pwrite(file, memory, SIZE, 0))

    assert sorted([write(each) for each in files]) == [-errno.ESTALE, SIZE]
    assert sorted([write(each) for each in files]) == [-errno.ESTALE, SIZE]
    # opened again, the others of the same inode work, too
    again = [calls.open(name) for name in ("new", "data")]
    assert [write(each) for each in (*files, *again)] == [SIZE] * 4
    for each in (*files, *again):
        calls.close(each)


def test_a_busy_server_opens_later(device: Device, calls: Calls) -> None:
    file = calls.open("new")
    device.expire()
    device.error(OPERATION | OPEN, DELAY, times=2)
    calls.write(file, b"x" * SIZE)
    calls.close(file)


def test_what_waits_for_a_reclaim_ends(device: Device, connected: Connect) -> None:
    calls = connected(timeout=SOON)
    file = calls.open("new")
    device.restart()
    device.hold4(OPEN)
    batch_write(calls, file, b"x" * SIZE, 0, SIZE)
    assert set(results(calls, 2)) == {-errno.ETIMEDOUT}
    device.hold4()
    calls.write(file, b"y" * SIZE)
    calls.close(file)


def test_a_close_without_a_reply_holds_nothing_up(device: Device, connected: Connect) -> None:
    calls = connected(timeout=SOON)
    file = calls.open("data")
    device.hold4(CLOSE)
    calls.close(calls.open("new"))
    until(calls, lambda: device.held == 1)
    calls.write(file, b"x")
    until(calls, lambda: device.connects > 2)
    calls.write(file, b"y")
    device.hold4()
    calls.close(file)


# --- connections, slots ---


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("way", ["restart", "all", "one forgotten"])
def test_full_slots_let_the_recovery_through(
    device: Device, connected: Connect, slots: int, way: str
) -> None:
    """All slots are busy when a file has to be opened again, and then the connection ends."""
    device.set(slots=slots)
    calls = connected()
    file = calls.open("new")
    device.hold4(WRITE)
    batch_write(calls, file, b"x" * SIZE, *(SIZE * each for each in range(20)))
    until(calls, lambda: device.held == slots)
    lost(device, way)
    device.end_connections()
    # one of them: a new connection has one credit
    until(calls, lambda: device.held > 0 or device.opened > 1)
    device.end_connections()
    device.hold4()
    assert results(calls, 20) == [SIZE] * 20
    assert calls.read(file, 20 * SIZE) == b"x" * 20 * SIZE
    # a restart may have lost some of the data
    assert calls.functions.nfsrdma_close(file) in (0, -errno.EIO)


def test_fewer_slots_from_now_on(device: Device, calls: Calls) -> None:
    file = calls.open("new")
    offsets = [SIZE * each for each in range(40)]
    batch_write(calls, file, b"x" * SIZE, *offsets)
    device.set(target_slots=1)
    assert results(calls, 40) == [SIZE] * 40
    batch_write(calls, file, b"y" * SIZE, *offsets)
    assert results(calls, 40) == [SIZE] * 40
    calls.close(file)


@pytest.mark.parametrize("keep_all", [0, 1])
def test_calls_that_were_executed_are_not_executed_again(
    device: Device, calls: Calls, keep_all: int
) -> None:
    device.set(keep_all=keep_all)
    functions, session = calls.functions, calls.session
    for number in range(3):
        for step in range(1, 4):
            device.set(end_behind=step)
            name, other = f"new{number}{step}".encode(), f"old{number}{step}".encode()
            assert functions.nfsrdma_mkdir(session, name, 0o755) == 0
            device.set(end_behind=step)
            assert functions.nfsrdma_rename(session, name, other) == 0
            device.set(end_behind=step)
            assert functions.nfsrdma_rmdir(session, other) == 0
            device.set(end_behind=step)
            rc, file = calls.try_open(name.decode(), os.O_RDWR | os.O_CREAT | os.O_EXCL)
            assert rc == 0
            calls.write(file, b"x")
            calls.close(file)
    assert device.replays
    assert bool(device.uncached) == (not keep_all)


def test_a_session_ends_while_files_are_open(device: Device, connected: Connect) -> None:
    """The server forgets all of it: see connected()."""
    calls = connected()
    for name in ("new", "data", "third"):
        calls.open(name)
    assert device.opens == 3


# --- the tests ---

MISTAKES: dict[str, tuple[Callable[..., None], Change]] = {
    "replies that the server keeps": (
        test_calls_that_were_executed_are_not_executed_again,
        Change("state.c", "put32(at, req->kept && nfs4->keeps);", "put32(at, 0);"),
    ),
    "more access": (
        test_open_files_of_one_inode_share_a_state,
        Change("nfs4.c", "(inode->open->access & access) == access)", "true)"),
    ),
    "a CLOSE on its way": (
        test_an_open_waits_for_the_close_before_it,
        Change("state.c", "nfs4->call == CALL_CLOSE && !rc", "0 && !rc"),
    ),
    "slots that the server takes back": (
        test_fewer_slots_from_now_on,
        Change("state.c", "if (target < nfs4->nslots - 1) {", "if (0) {"),
    ),
    "an error of one file": (
        test_a_file_that_is_gone_says_so_and_no_other,
        Change("state.c", "open->state = OPEN_FAILED;", "return true;"),
    ),
    "the data of a new file": (
        test_a_restart_reports_what_it_lost,
        Change("commit.c", "compare_verifier(session, inode, verifier);\n\t/*", ";\n\t/*"),
    ),
}


@pytest.mark.parametrize("what", sorted(MISTAKES))
def test_a_mistake_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test, change = MISTAKES[what]
    path = build(change=change)
    device = Device(path)
    monkeypatch.setenv("NFSRDMA_LIBRARY", str(path))
    library.load.cache_clear()
    device.put("/export", kind=FOLDER)
    device.put("/export/data", DATA)
    calls = Calls(version=41)
    more = {"keep_all": 0} if "keeps" in what else {}
    try:
        with pytest.raises(AssertionError):
            test(device=device, calls=calls, **more)
            assert not device.faults
    finally:
        device.hold4()
        calls.functions.nfsrdma_disconnect(calls.session)
        device.reset()
        library.load.cache_clear()
