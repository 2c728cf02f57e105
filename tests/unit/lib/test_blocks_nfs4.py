# SPDX-License-Identifier: Apache-2.0
"""Stores of blocks with NFSv4.1: the state of drafts, and what ends a COMPOUND in its middle."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable

import pytest

pytest.importorskip("device", reason="no tests/device; missed: stores of blocks with NFSv4.1")

from device import FOLDER, LINK, OPERATION, Device
from unit.device_fixtures import device, device_library
from unit.lib.stores import EXISTS, GET, PUT, REMOVE, Operation, Store
from unit.lib.test_blocks import LONG, Open, drafts, held, opened

__all__ = ["device", "device_library", "opened"]

# operations and errors of RFC 8881
CLOSE, COMMIT, GETATTR, GETFH, LOOKUP, OPEN, PUTFH, READ, RENAME = 4, 5, 9, 10, 15, 18, 22, 25, 29
RESTOREFH, SAVEFH, VERIFY, WRITE, EXCHANGE_ID = 31, 32, 37, 38, 42
NOENT, IO, STALE, DELAY, GRACE, BAD_STATEID = 2, 5, 70, 10008, 10013, 10025
OF_STORE = (SAVEFH, OPEN, GETFH, WRITE, VERIFY, CLOSE, RESTOREFH, RENAME)
# what it takes if one WRITE has no room for the block
OF_LARGE = (OPEN, GETFH, WRITE, COMMIT, CLOSE, SAVEFH, RENAME)
OF_STATEID = (OPEN, WRITE, CLOSE)
OLD, NEW = b"old", b"n" * 10_000


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch) -> int:
    """All stores have NFSv4.1."""
    monkeypatch.setattr(Store, "version", 41)
    return 41


def until(store: Store, condition: Callable[[], bool]) -> None:
    """Let the store handle what arrives until the server has come so far."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        store.turn()


def clean(store: Store, device: Device) -> None:
    """Wait until the server has neither a draft nor an open file."""
    until(store, lambda: not drafts(device) and not device.opens and not device.delegations)


# --- errors in the middle of a COMPOUND ---


@pytest.mark.parametrize(("large", "checksum"), ((False, 0), (True, 0), (True, 1)))
@pytest.mark.parametrize("status", (IO, STALE, DELAY, GRACE, BAD_STATEID))
def test_each_operation_of_a_put_fails_once(
    device: Device, opened: Open, status: int, checksum: int, large: bool
) -> None:
    """The put begins again, is made again, or fails: the old block is there then."""
    if large:
        device.set(write_max=4096)
    store = opened(1, checksum=checksum)
    operations: tuple[int, ...] = OF_LARGE if large else OF_STORE
    if status == BAD_STATEID:
        operations = OF_STATEID
    for operation in operations:
        device.put("/export/block", OLD)
        device.error(OPERATION | operation, status)
        result = store.one(PUT, "block", NEW)
        stored = device.get("/export/block", disk=True)
        if result < 0:
            assert result == -errno.EIO
            assert stored == OLD
        else:
            assert result == len(NEW)
            assert stored and stored[: len(NEW)] == NEW
        assert (result < 0) == (status == IO), operation
        device.no_errors()
        clean(store, device)


@pytest.mark.parametrize("large", (False, True))
def test_another_client_removes_the_draft(device: Device, opened: Open, large: bool) -> None:
    if large:
        device.set(write_max=4096)
    store = opened()
    device.error(OPERATION | RENAME, NOENT)
    assert store.one(PUT, "block", NEW) == len(NEW)
    assert device.get("/export/block", disk=True) == NEW
    clean(store, device)


def test_a_server_that_writes_fewer_bytes_does_not_replace_the_block(
    device: Device, opened: Open
) -> None:
    """It holds the first reply, of a COMPOUND that VERIFY has ended."""
    device.put("/export/block", OLD)
    device.set(shortened=1)
    store = opened()
    device.hold4(VERIFY)
    store.submit([Operation(PUT, "block", NEW)])
    held(store, device)
    assert device.get("/export/block") == OLD
    device.hold4()
    assert store.wait(1) == {0: len(NEW)}
    assert device.get("/export/block", disk=True) == NEW
    clean(store, device)


@pytest.mark.parametrize("status", (IO, STALE, DELAY, GRACE))
def test_each_operation_of_a_first_get_fails_once(
    device: Device, opened: Open, status: int
) -> None:
    device.put("/export/block", NEW)
    for operation in (PUTFH, LOOKUP, GETFH, GETATTR, READ):
        store = opened()
        device.error(OPERATION | operation, status)
        assert store.read("block") == (-errno.EIO if status == IO else NEW), operation
        device.no_errors()


def test_what_is_no_file_is_told_by_its_type(device: Device, opened: Open) -> None:
    device.put("/export/folder", kind=FOLDER)
    device.put("/export/link", b"folder", LINK)
    store = opened()
    assert [store.one(GET, name, bytearray(9)) for name in ("folder", "link", "none")] == [
        -errno.EISDIR, -errno.ELOOP, -errno.ENOENT,
    ]  # fmt: skip
    assert store.one(REMOVE, "folder") == -errno.EISDIR
    assert "folder" in device.names("/export")
    assert store.one(PUT, "folder", NEW) == -errno.EISDIR
    clean(store, device)


# --- what a get reads with the LOOKUP ---


@pytest.mark.parametrize("checksum", (0, 1))
@pytest.mark.parametrize("size", (0, 1, 31, 32, 5000))
def test_a_first_get_with_buffers_around_its_size(
    device: Device, opened: Open, size: int, checksum: int
) -> None:
    """One call if the trailer has room in the buffer, too; bytes behind the buffer stay."""
    data = os.urandom(size)
    assert opened(1, checksum=checksum).one(PUT, "block", data) == size
    for more in (0, 1, 31, 32, 33, 100):
        store = opened(1, checksum=checksum)
        memory = bytearray(b"\xee" * (size + more + 50))
        before = device.calls
        with memoryview(memory) as view:
            assert store.one(GET, "block", view[: size + more]) == size
            store._kept.clear()
        assert device.calls - before == (2 if checksum and more < 32 else 1), more
        assert memory[:size] == data
        assert memory[size + more :] == b"\xee" * 50
    store = opened(1, checksum=checksum)
    if size:
        assert store.one(GET, "block", bytearray(size - 1)) == -errno.EFBIG


# --- limits ---


@pytest.mark.parametrize(
    ("settings", "calls"),
    (
        ({}, (1, 4)), ({"operations_max": 10}, (1, 4)), ({"operations_max": 9}, (3, 4)),
        ({"operations_max": 8}, (3, 4)), ({"request_max": 12_000}, (3, 4)),
        ({"request_max": 12_100}, (1, 4)), ({"write_max": 9999}, (5, 6)),
    ),
)  # fmt: skip
def test_a_put_heeds_the_limits_of_the_session(
    device: Device, opened: Open, settings: dict[str, int], calls: tuple[int, int]
) -> None:
    device.set(**settings)
    for checksum in (0, 1):
        store = opened(1, checksum=checksum)
        assert store.one(EXISTS, "none") == -errno.ENOENT
        before = device.calls
        assert store.one(PUT, "block", NEW) == len(NEW)
        assert device.calls - before == calls[checksum]
        assert store.read("block") == NEW


def test_sessions_that_no_store_takes(device: Device, opened: Open) -> None:
    store = opened()
    functions, ffi = store.functions, store.ffi
    box = ffi.new("struct nfsrdma_blocks **")

    def open_with(*sessions: object) -> int:
        array = ffi.new("struct nfsrdma_session *[]", sessions)
        return int(functions.nfsrdma_blocks_open(array, len(sessions), ffi.NULL, box))

    four, three = store._connect({}), store._connect({"version": 3})
    assert open_with(four, three) == open_with(three, four) == -errno.EINVAL
    assert "one version" in store.message()
    device.set(operations_max=7)
    few = store._connect({})
    assert open_with(few) == -errno.EOPNOTSUPP
    assert "8 operations" in store.message()
    for session in (four, three, few):
        assert functions.nfsrdma_disconnect(session) == 0


# --- state ---


@pytest.mark.parametrize("forgets", ("expire", "revoke", "forget", "clients", "restart"))
@pytest.mark.parametrize("operation", (OPEN, WRITE, COMMIT, RENAME))
def test_a_server_forgets_an_open_draft(
    device: Device, opened: Open, operation: int, forgets: str
) -> None:
    """Behind each step of a put."""
    device.set(write_max=4096)
    store = opened()
    device.hold4(operation)
    store.submit([Operation(PUT, "block", NEW)])
    held(store, device)
    if forgets == "restart":
        device.restart()
    elif forgets == "clients":
        device.discard_clients()
    else:
        device.expire("", forgets == "revoke", forgets == "forget")
    device.hold4()
    assert store.wait(1) == {0: len(NEW)}
    assert device.get("/export/block", disk=True) == NEW
    clean(store, device)


@pytest.mark.parametrize("ends", ("deadline", "connection"))
@pytest.mark.parametrize("operation", (OPEN, WRITE, COMMIT, RENAME))
def test_a_put_that_is_stopped_leaves_nothing_open(
    device: Device, opened: Open, operation: int, ends: str
) -> None:
    device.set(write_max=4096)
    store = opened(1, timeout=LONG)
    device.hold4(operation)
    _, batch = store.submit([Operation(PUT, "block", NEW)], 0)
    held(store, device)
    if ends == "connection":
        device.end_connections()
    assert store.cancel(batch) == 1
    assert store.wait(1, 0) == {0: -errno.ECANCELED}
    store._kept.clear()
    device.hold4()
    clean(store, device)
    assert device.get("/export/block") == (NEW if operation == RENAME else None)


def test_a_draft_is_closed_by_a_session_that_is_away_for_longer_than_others_wait(
    device: Device, opened: Open
) -> None:
    """With NFSv3, the store gives the draft up after two seconds."""
    device.set(write_max=4096)
    store = opened(1, timeout=1000)
    device.hold4(WRITE)
    _, batch = store.submit([Operation(PUT, "block", NEW)], LONG)
    held(store, device)
    device.set(refuse=1)
    device.end_connections()
    assert store.cancel(batch) == 1
    end = time.monotonic() + 3
    while time.monotonic() < end:
        store.turn()
    assert device.opens == len(drafts(device)) == 1
    device.hold4()
    device.set(refuse=0)
    clean(store, device)


def test_more_drafts_than_operations_wait_for_their_removal(device: Device, opened: Open) -> None:
    device.set(write_max=4096)
    store = opened(1, in_flight=1, timeout=LONG)
    device.hold4(WRITE)
    # of the COMPOUND that removes a draft
    device.error(OPERATION | SAVEFH, DELAY, times=1_000_000)

    def put_and_cancel(number: int) -> None:
        _, batch = store.submit([Operation(PUT, f"block{number}", NEW)], LONG)
        until(store, lambda: device.opens == number + 1)
        assert store.cancel(batch) == 1
        assert store.wait(1) == {0: -errno.ECANCELED}

    for number in range(4):
        put_and_cancel(number)
    assert len(drafts(device)) == 4
    device.no_errors()
    device.hold4()
    clean(store, device)


def test_another_session_goes_on_with_a_put(device: Device, opened: Open) -> None:
    """The session that has opened the draft closes it when it is connected again."""
    device.set(write_max=4096)
    store = opened(2, timeout=LONG)
    device.hold4(WRITE)
    store.submit([Operation(PUT, f"block{number}", NEW) for number in range(2)])
    held(store, device, 6)
    assert device.opens == 2
    device.fail("resolve_addr", errno.ENETUNREACH, times=1_000_000)
    device.set(end_after=1)
    device.hold4()
    assert store.wait(2) == {0: len(NEW), 1: len(NEW)}
    assert device.connections == 1
    assert device.opens == 1
    device.heal()
    clean(store, device)
    assert [device.get(f"/export/block{number}", disk=True) for number in range(2)] == [NEW, NEW]


def test_a_cancel_leaves_the_calls_that_make_a_session(device: Device, opened: Open) -> None:
    """They have no number of an operation, of which 0 is the first."""
    device.put("/export/block", NEW)
    store = opened(1, timeout=LONG)
    memory = [bytearray(len(NEW)) for _ in range(2)]
    assert store.one(GET, "block", memory[0]) == len(NEW)
    device.discard_clients()
    device.hold4(EXCHANGE_ID)
    batches = [
        store.submit([Operation(GET, "block", each)], first=number)[1]
        for number, each in enumerate(memory)
    ]
    held(store, device)
    assert store.cancel(batches[0]) == 1
    device.hold4()
    assert store.wait(2) == {0: -errno.ECANCELED, 1: len(NEW)}


def test_files_of_the_same_session_stay_open(device: Device, opened: Open) -> None:
    """A file that is open to write: all state is lost, then a put replaces it, and another one."""
    device.set(write_max=4096)
    store = opened()
    functions, ffi = store.functions, store.ffi
    assert store.one(PUT, "block", OLD) == len(OLD)
    box = ffi.new("struct nfsrdma_file **")
    assert not functions.nfsrdma_open(store.sessions[0], b"block", os.O_RDWR, 0, box)
    device.expire("", False, True)
    assert store.one(PUT, "other", NEW) == len(NEW)
    for number, size in enumerate((0, 100, len(NEW))):
        if number:
            assert store.one(PUT, "block", NEW[:size]) == size
        assert functions.nfsrdma_pwrite(box[0], b"mine", 4, 4 * number) == 4
    room = bytearray(20)
    assert functions.nfsrdma_pread(box[0], ffi.from_buffer(room), 20, 0) == 12
    assert room[:12] == b"mine" * 3
    assert device.opens == 1
    assert functions.nfsrdma_close(box[0]) == 0
    assert device.get("/export/block") == NEW
    clean(store, device)


def test_a_put_waits_for_the_end_of_the_grace_period(device: Device, opened: Open) -> None:
    store = opened()
    device.set(grace=6)
    assert store.one(PUT, "block", NEW) == len(NEW)
    assert device.get("/export/block", disk=True) == NEW
    device.set(grace=1000)
    assert store.one(PUT, "block", OLD, deadline=300) == -errno.ETIMEDOUT
    device.set(grace=0)
    clean(store, device)
    assert device.get("/export/block", disk=True) == NEW


@pytest.mark.parametrize("delegate", (1, 2))
@pytest.mark.parametrize("size", (100, 10_000))
def test_a_delegation_that_nobody_wants_goes_back(
    device: Device, opened: Open, size: int, delegate: int
) -> None:
    device.set(write_max=4096, delegate=delegate)
    store = opened()
    assert store.one(PUT, "block", NEW[:size]) == size
    assert device.get("/export/block", disk=True) == NEW[:size]
    clean(store, device)
    assert device.delegreturns
