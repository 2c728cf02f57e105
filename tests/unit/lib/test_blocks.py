# SPDX-License-Identifier: Apache-2.0
"""Stores of blocks: what a get, a put and the others do, and which calls they take."""

import errno
import os
import select
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("device", reason="no tests/device; missed: stores of blocks")

from device import (
    COMMIT,
    CREATE,
    FOLDER,
    GETATTR,
    LINK,
    LOOKUP,
    MKDIR,
    READ,
    RENAME,
    SANITIZER,
    WRITE,
    Change,
    Device,
    build,
)
from device import REMOVE as REMOVE_CALL
from unit.device_fixtures import device, device_library
from unit.lib.stores import EXISTS, GET, PUT, REMOVE, Operation, Store

from nfsrdma_tools.client import connect, library

__all__ = ["device", "device_library"]

ALL = (GETATTR, LOOKUP, READ, WRITE, CREATE, MKDIR, REMOVE_CALL, RENAME, COMMIT)
OP_GETATTR = 9
DENIED, NOSPC, STALE, BUSY = 13, 28, 70, 10008
SIZES = (0, 1, 500, 4096, 262_144, 3_000_001)
TRAILER = 32
# a test that hangs fails earlier
LONG = 60_000

Open = Callable[..., Store]


@pytest.fixture(params=(3, 41), autouse=True)
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The version of NFS that all stores have."""
    monkeypatch.setattr(Store, "version", request.param)
    return int(request.param)


@pytest.fixture
def opened(device: Device) -> Iterator[Open]:
    """Opens stores; none of them leaves anything on the server."""
    made: list[Store] = []

    def open_store(sessions: int = 1, **options: int) -> Store:
        of_session = {"timeout", "depth", "arena"} & set(options)
        session = {name: options.pop(name) for name in of_session}
        made.append(Store(sessions, session, **options))
        return made[-1]

    yield open_store
    # a session without a connection cannot say goodbye: the server drops it after its lease
    unconnected = max(0, sum(len(each.sessions) for each in made) - device.connections)
    for each in made:
        each.close()
    left = {name: getattr(device, name) for name in ("opens", "delegations")}
    assert left == dict.fromkeys(left, 0)
    assert device.sessions <= unconnected
    assert device.clients <= unconnected
    # the server keeps the replies of calls that it must not execute twice
    assert not device.uncached_changes


def drafts(device: Device, folder: str = "") -> list[str]:
    return [name for name in device.names(f"/export/{folder}") if name.startswith(".nfsrdma-")]


def crc32c(data: bytes) -> int:
    """Bit by bit, as RFC 3720 defines it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


# --- what they do ---


@pytest.mark.parametrize("checksum", (0, 1))
@pytest.mark.parametrize("registered", (False, True))
@pytest.mark.parametrize("settings", ({}, {"attributes": 0}, {"shortened": 1, "read_max": 65536}))
def test_a_get_returns_what_was_put(
    device: Device, opened: Open, settings: dict[str, int], registered: bool, checksum: int
) -> None:
    device.set(**settings)
    store = opened(2, checksum=checksum)
    slab = bytearray(2 * sum(SIZES))
    region = store.register(slab) if registered else None
    at, given, taken, blocks = 0, [], [], []
    view = memoryview(slab)
    for number, size in enumerate(SIZES):
        blocks.append(os.urandom(size))
        view[at : at + size] = blocks[-1]
        given.append(Operation(PUT, f"a/{number % 2}/{number}", view[at : at + size]))
        taken.append(Operation(GET, f"a/{number % 2}/{number}", view[at + size : at + 2 * size]))
        at += 2 * size
    assert store.run(*given) == list(SIZES)
    for number, block in enumerate(blocks):
        stored = device.get(f"/export/a/{number % 2}/{number}", disk=True)
        assert stored is not None
        assert stored[: len(block)] == block
        assert len(stored) == len(block) + TRAILER * checksum
    for _ in range(2):
        assert store.run(*taken) == list(SIZES)
        assert [bytes(each.memory) for each in taken] == blocks
        for each in taken:
            each.memory[:] = bytes(len(each.memory))
    names = [each.name for each in given]
    assert store.run(*(Operation(EXISTS, name) for name in names)) == list(SIZES)
    assert store.run(*(Operation(REMOVE, name) for name in names)) == [0] * len(names)
    for kind in (EXISTS, REMOVE, GET):
        missing = [Operation(kind, name) for name in names]
        assert store.run(*missing) == [-errno.ENOENT] * len(names)
    assert drafts(device, "a/0") == drafts(device, "a/1") == []
    if region:
        assert store.unregister(region) == 0
    for each in (*given, *taken):
        each.memory.release()
    store._kept.clear()
    view.release()


def test_a_get_that_is_too_long_reads_once(device: Device, opened: Open, version: int) -> None:
    """With NFSv4.1, the READ leaves with the LOOKUP that has the size."""
    store = opened()
    assert store.one(PUT, "block", b"x" * 5000) == 5000
    assert store.one(GET, "block", bytearray(4999)) == -errno.EFBIG
    assert device.reads == (version == 41)
    # what the store knows is of a longer one: it looks again
    device.put("/export/block", b"y" * 10)
    assert store.read("block", 4999) == b"y" * 10


def test_another_client_replaces_a_block(device: Device, opened: Open) -> None:
    one, two = opened(), opened()
    for version in (b"a" * 9000, b"b" * 20, b"", b"c" * 100_000):
        assert one.one(PUT, "sub/block", version) == len(version)
        assert [one.read("sub/block"), two.read("sub/block")] == [version, version]
    assert two.one(REMOVE, "sub/block") == 0
    assert one.read("sub/block") == -errno.ENOENT


@pytest.mark.parametrize("size", (0, 100, 9000))
def test_a_block_that_was_replaced_while_it_is_open(
    device: Device, opened: Open, size: int
) -> None:
    """The server keeps the old file: its file handle is good, and READ says that it has no name."""
    old, new = b"a" * size, b"b" * size
    device.set(read_max=4096)
    reader, writer = opened(), opened()
    assert writer.one(PUT, "block", old) == size
    assert reader.read("block") == old
    with connect("server:/export", vers="4.1") as other, other.open("block", "r+") as kept:
        assert writer.one(PUT, "block", new) == size
        assert reader.read("block") == new
        assert kept.read() == old
        assert writer.one(REMOVE, "block") == 0
        assert reader.read("block") == -errno.ENOENT


@pytest.mark.parametrize("size", (0, 100, 9000))
def test_a_file_that_changes_its_size_is_read_again(
    device: Device, opened: Open, size: int
) -> None:
    device.set(read_max=1024)
    store = opened()
    assert store.one(PUT, "block", b"x" * 3000) == 3000
    assert store.read("block") == b"x" * 3000
    device.put("/export/block", b"y" * size)
    assert store.read("block") == b"y" * size


def test_directories_go_and_come(device: Device, opened: Open) -> None:
    one, two = opened(), opened()
    assert one.one(PUT, "a/b/c/block", b"1") == 1
    with_path = (b"a/b/c", b"a/b", b"a")
    assert two.one(REMOVE, "a/b/c/block") == 0
    for path in with_path:
        assert two.functions.nfsrdma_rmdir(two.sessions[0], path) == 0
    # the store has handles of all of them
    assert one.read("a/b/c/block") == -errno.ENOENT
    assert one.one(PUT, "a/b/c/block", b"22") == 2
    assert one.read("a/b/c/block") == two.read("a/b/c/block") == b"22"


NAMES: dict[str | bytes, int] = {
    "": errno.EINVAL, "/x": errno.EINVAL, "x/": errno.EINVAL, "x//y": errno.EINVAL,
    ".": errno.EINVAL, "..": errno.EINVAL, "x/../y": errno.EINVAL, "./x": errno.EINVAL,
    ".nfsrdma-x": errno.EINVAL, ".nfsrdma-x/y": errno.EINVAL,
    "x" * 256: errno.ENAMETOOLONG, "x/" * 512: errno.ENAMETOOLONG, "x" * 5000: errno.ENAMETOOLONG,
    "data/x": errno.ENOTDIR, "link/x": errno.ELOOP, "link": errno.ELOOP, "folder": errno.EISDIR,
}  # fmt: skip


@pytest.mark.parametrize("kind", (GET, PUT, EXISTS, REMOVE))
def test_names_that_no_block_has(device: Device, opened: Open, kind: int) -> None:
    device.put("/export/folder", kind=FOLDER)
    device.put("/export/link", b"folder", LINK)
    store = opened()
    results = {name: store.one(kind, name, bytearray(9)) for name in NAMES}
    wanted = {name: -error for name, error in NAMES.items()}
    # those replace and remove the link itself
    if kind in (PUT, REMOVE):
        wanted["link"] = 9 if kind == PUT else 0
    assert results == wanted
    longest = "/".join(["x" * 255] * 4)
    assert len(longest) == 1023
    assert store.one(PUT, longest, b"x") == 1
    assert store.read(longest) == b"x"


def test_hidden_files_are_blocks(opened: Open) -> None:
    store = opened()
    for name in (".x", "..x", "x.", ".nfsrdma", "ü"):
        assert store.one(PUT, name, name.encode()) == len(name.encode())
        assert store.read(name) == name.encode()


def test_operations_that_are_none(opened: Open) -> None:
    store = opened()
    assert store.submit([Operation(5, "x")])[0] == -errno.EINVAL
    assert store.submit([Operation(0, "x")])[0] == -errno.EINVAL
    assert store.submit([])[0] == 0
    assert store.submit([Operation(EXISTS, "x"), Operation(5, "x")])[0] == 1
    assert store.wait(1) == {0: -errno.ENOENT}
    array = store.ffi.new("struct nfsrdma_block[]", 1)
    array[0].operation = EXISTS
    assert store.functions.nfsrdma_blocks_submit(store.handle, array, 1, 0, store.ffi.NULL) == 1
    assert store.wait(1) == {0: -errno.EINVAL}
    array[0].reserved[2] = 1
    array[0].name = store.ffi.from_buffer(b"x")
    status = store.functions.nfsrdma_blocks_submit(store.handle, array, 1, 0, store.ffi.NULL)
    assert status == -errno.EINVAL


def test_more_operations_than_there_is_room_for(device: Device, opened: Open) -> None:
    """Ten have calls, 256 are taken: the others wait in the store."""
    store = opened(1, in_flight=10)
    device.put("/export/block", b"x" * 100)
    memory = [bytearray(100) for _ in range(400)]
    rows = [Operation(GET, "block", each) for each in memory]
    device.hold(READ)
    assert store.submit(rows)[0] == 256
    assert store.submit(rows[256:])[0] == -errno.EAGAIN
    assert "256 operations" in store.message()
    held(store, device, 10)
    for _ in range(100):
        store.turn()
        assert device.held == 10
    device.hold()
    results = store.wait(4)
    taken = 256 + store.submit(rows[256:], first=256)[0]
    assert taken == min(256 + len(results), 400)
    while len(results) < taken:
        results.update(store.wait(1, LONG))
    assert results == dict.fromkeys(range(taken), 100)
    assert memory[:taken] == [b"x" * 100] * taken


def test_a_small_table_of_handles(device: Device, opened: Open) -> None:
    store = opened(2, handles=3)
    names = [f"{number % 3}/{number}" for number in range(20)]
    assert store.run(*(Operation(PUT, name, name.encode()) for name in names)) == list(
        map(len, names)
    )
    for _ in range(3):
        assert [store.read(name) for name in names] == [name.encode() for name in names]


def test_a_full_table_drops_the_handle_that_was_not_used_for_longest(
    device: Device, opened: Open, version: int
) -> None:
    for name in "abc":
        device.put(f"/export/{name}", name.encode())
    store = opened(1, handles=2)
    calls = []
    for name in "ababacab":
        before = device.calls
        assert store.read(name) == name.encode()
        calls.append(device.calls - before)
    # LOOKUP and READ, which are one COMPOUND with NFSv4.1, or READ
    both = 2 if version == 3 else 1
    assert calls == [both, both, 1, 1, 1, both, 1, both]


def test_a_session_is_in_one_state(device: Device, opened: Open) -> None:
    del device
    store = opened(2)
    functions, ffi = store.functions, store.ffi
    box = ffi.new("struct nfsrdma_blocks **")

    def open_with(sessions: list[object], **options: int) -> int:
        array = ffi.new("struct nfsrdma_session *[]", sessions)
        given = store._options("blocks_options", options)
        return int(functions.nfsrdma_blocks_open(array, len(sessions), given, box))

    assert open_with([]) == -errno.EINVAL
    assert open_with(store.sessions) == -errno.EBUSY
    assert "another store" in store.message()
    free = [store._connect({}) for _ in range(2)]
    assert open_with(free * 40) == -errno.EINVAL
    for name, value in (
        ("in_flight", 65537), ("handles", 1 << 25), ("checksum", 2), ("trust", 2), ("size", 8),
    ):  # fmt: skip
        assert open_with(free, **{name: value}) == -errno.EINVAL
    other = ffi.new("struct nfsrdma_session **")
    assert functions.nfsrdma_mkdir(free[0], b"folder", 0o755) == 0
    for target in (b"server", b"server:/export/folder"):
        assert not functions.nfsrdma_connect(target, ffi.NULL, other)
        assert open_with([free[0], other[0]]) == -errno.EINVAL
        assert functions.nfsrdma_disconnect(other[0]) == 0
    assert open_with(free) == 0
    assert functions.nfsrdma_blocks_close(box[0]) == 0
    assert open_with(free[:1] * 2) == -errno.EINVAL
    assert "sessions 0 and 1 are the same" in store.message()
    # a store gives its sessions back
    assert open_with(free) == 0
    assert functions.nfsrdma_blocks_close(box[0]) == 0
    for session in free:
        assert functions.nfsrdma_disconnect(session) == 0


def test_a_session_of_a_store_is_not_closed_and_has_no_other_batch(opened: Open) -> None:
    store = opened(2)
    functions, ffi, (session, _) = store.functions, store.ffi, store.sessions
    assert store.one(PUT, "block", b"data") == 4
    file, done = ffi.new("struct nfsrdma_file **"), ffi.new("struct nfsrdma_completion[]", 4)
    assert functions.nfsrdma_open(session, b"block", os.O_RDWR, 0, file) == 0
    room = ffi.new("char[]", 4)
    ranges = ffi.new("struct nfsrdma_range *", {"file": file[0], "buf": room, "count": 4})
    for status in (
        functions.nfsrdma_disconnect(session),
        functions.nfsrdma_prepare_read(file[0], room, 4, 0, 1),
        functions.nfsrdma_prepare_write(file[0], room, 4, 0, 1),
        functions.nfsrdma_prepare_reads(ranges, 1),
        functions.nfsrdma_prepare_fsync(file[0], 1),
        functions.nfsrdma_prepare_close(file[0], 1),
        functions.nfsrdma_submit(session),
        functions.nfsrdma_peek(session, done, 4),
        functions.nfsrdma_wait(session, done, 4, 1, 0),
    ):
        assert status == -errno.EBUSY
        assert "a store of blocks has the session" in store.message()
    # calls of one file at a time are not batches
    assert functions.nfsrdma_pread(file[0], room, 4, 0) == 4
    assert bytes(ffi.buffer(room)) == store.read("block") == b"data"
    assert functions.nfsrdma_close(file[0]) == 0


# --- the calls that they take ---


@pytest.mark.parametrize("checksum", (0, 1))
def test_a_get_takes_reads_and_nothing_else(device: Device, opened: Open, checksum: int) -> None:
    store = opened(3, checksum=checksum, in_flight=100)
    blocks = {f"a/b/{number}": os.urandom(1500 * number) for number in range(100)}
    rows = [Operation(PUT, name, data) for name, data in blocks.items()]
    assert store.run(*rows) == [len(data) for data in blocks.values()]
    memory = [bytearray(len(data)) for data in blocks.values()]
    for other in (store, opened(2, checksum=checksum, in_flight=100)):
        rows = [Operation(GET, name, out) for name, out in zip(blocks, memory, strict=True)]
        # a put leaves the file handle
        if other is not store:
            other.run(*rows)
        calls, reads = device.calls, device.reads
        other.run(*rows)
        assert device.calls - calls == device.reads - reads == 100 * (1 + checksum) - checksum
    assert memory == list(blocks.values())


@pytest.mark.parametrize(
    ("size", "calls", "checksum"),
    (
        (262_144, (3, 1), 0), (262_144, (4, 4), 1), (0, (3, 1), 0), (0, (3, 3), 1),
        (1 << 20, (3, 1), 0), ((1 << 20) + 1, (5, 5), 0),
    ),
)  # fmt: skip
def test_a_put_takes_few_calls(
    device: Device, opened: Open, size: int, calls: tuple[int, int], checksum: int, version: int
) -> None:
    """CREATE, WRITE, RENAME; one more WRITE and a COMMIT if one WRITE has not room for it.

    With NFSv4.1, one COMPOUND does the first three, if there is no trailer.
    """
    store = opened(1, checksum=checksum)
    data = bytes(size)
    region = store.register(bytearray(1))
    slab = bytearray(size or 1)
    both = store.register(slab)
    assert store.one(PUT, "first", b"") == 0
    before, commits = device.calls, device.commits
    with memoryview(slab) as view:
        assert store.one(PUT, "block", view[:size]) == size
    store._kept.clear()
    assert device.calls - before == calls[version == 41]
    assert device.commits - commits == (size > 1 << 20)
    stored = device.get("/export/block", disk=True)
    assert stored is not None and stored[:size] == data
    assert store.unregister(region) == store.unregister(both) == 0


def test_exists_asks_the_server_unless_it_is_to_trust(device: Device, opened: Open) -> None:
    for trust in (0, 1):
        store = opened(1, trust=trust)
        assert store.one(PUT, f"block{trust}", b"xyz") == 3
        before = device.calls
        assert store.one(EXISTS, f"block{trust}") == 3
        assert device.calls - before == 1 - trust


# --- checksums ---


def test_a_block_that_is_damaged_is_an_error(device: Device, opened: Open) -> None:
    store = opened(1, checksum=1)
    assert store.one(PUT, "block", b"123456789") == 9
    stored = device.get("/export/block")
    assert stored is not None
    # the check value of RFC 3720's polynomial
    expected = (
        b"NFSRBLK\0" + (1).to_bytes(4) + (0xE3069283).to_bytes(4) + (9).to_bytes(8) + bytes(8)
    )
    assert stored == b"123456789" + expected
    for place in range(len(stored)):
        damaged = bytearray(stored)
        damaged[place] ^= 0x20
        device.put("/export/block", bytes(damaged))
        assert store.read("block") == -errno.EBADMSG, place
    for shorter in (0, 5, len(stored) - 1):
        device.put("/export/block", stored[:shorter])
        assert store.read("block") == -errno.EBADMSG
    device.put("/export/block", stored)
    assert store.read("block") == b"123456789"


def test_checksums_without_the_instruction(
    device: Device, monkeypatch: pytest.MonkeyPatch, opened: Open
) -> None:
    """The tables of other processors give the same values."""
    lengths = [*range(20), 1000, 4097]
    data = os.urandom(5000)
    by_instruction = opened(1, checksum=1)
    rows = [Operation(PUT, str(length), data[1 : 1 + length]) for length in lengths]
    assert by_instruction.run(*rows) == lengths
    for length in lengths:
        stored = device.get(f"/export/{length}")
        assert stored is not None
        assert int.from_bytes(stored[length + 12 : length + 16]) == crc32c(data[1 : 1 + length])
    files = {length: device.get(f"/export/{length}") for length in lengths}
    change = Change("crc32c.c", "has_instruction() ?", "0 ?")
    other_path = build(SANITIZER, change)
    monkeypatch.setenv("NFSRDMA_LIBRARY", str(other_path))
    library.load.cache_clear()
    other = Device(other_path)
    other.put("/export", kind=FOLDER)
    by_table = Store(1, checksum=1)
    assert by_table.run(*rows) == lengths
    assert {length: other.get(f"/export/{length}") for length in lengths} == files
    by_table.close()
    assert not other.faults
    library.load.cache_clear()


# --- faults ---


@pytest.mark.parametrize("procedure", (LOOKUP, CREATE, WRITE, COMMIT, RENAME))
@pytest.mark.parametrize(("status", "error"), ((NOSPC, errno.ENOSPC), (DENIED, errno.EACCES)))
def test_a_put_that_fails_leaves_the_old_block(
    device: Device, opened: Open, procedure: int, status: int, error: int
) -> None:
    device.set(write_max=4096)
    store = opened()
    assert store.one(PUT, "a/block", b"old") == 3
    other = opened()
    device.error(procedure, status)
    assert other.one(PUT, "a/block", b"n" * 10_000) == -error
    assert device.get("/export/a/block", disk=True) == b"old"
    assert drafts(device, "a") == []
    assert other.one(PUT, "a/block", b"n" * 10_000) == 10_000


@pytest.mark.parametrize("procedure", (LOOKUP, READ, CREATE, WRITE, COMMIT, RENAME, GETATTR))
def test_a_handle_that_is_gone_is_looked_up_once_more(
    device: Device, opened: Open, procedure: int
) -> None:
    device.set(write_max=4096, attributes=int(procedure != GETATTR))
    store, other = opened(), opened()
    for each in (store, other):
        device.error(procedure, STALE)
        assert each.one(PUT, "a/b/block", b"n" * 10_000) == 10_000
        assert each.read("a/b/block") == b"n" * 10_000
        device.no_errors()
    assert drafts(device, "a/b") == []
    device.error(READ, STALE, times=100)
    assert store.read("a/b/block") == -errno.ESTALE
    device.no_errors()


def test_a_busy_server_gets_the_call_again(device: Device, opened: Open) -> None:
    store = opened()
    for procedure in (CREATE, RENAME, READ):
        device.error(procedure, BUSY)
    assert store.one(PUT, "block", b"x") == 1
    assert store.read("block") == b"x"


@pytest.mark.parametrize("calls", range(1, 8))
@pytest.mark.parametrize("restarts", (False, True))
def test_a_connection_ends_at_each_call_of_a_put(
    device: Device, opened: Open, calls: int, restarts: bool
) -> None:
    """LOOKUP, MKDIR, CREATE, three WRITEs, COMMIT and RENAME, or their replies."""
    device.set(write_max=4096)
    store = opened()
    device.set(end_after=calls)
    count, _ = store.submit([Operation(PUT, "a/block", b"n" * 10_000)])
    if restarts:
        end = time.monotonic() + 60
        while device.end_after and time.monotonic() < end:
            store.turn()
        device.restart()
    assert count == 1
    assert store.wait(1) == {0: 10_000}
    assert device.get("/export/a/block", disk=True) == b"n" * 10_000
    assert drafts(device, "a") == []


def held(store: Store, device: Device, count: int = 1) -> None:
    """Wait until the server holds so many replies."""
    end = time.monotonic() + 60
    while device.held < count:
        assert time.monotonic() < end
        store.turn()


def test_a_rename_that_was_executed_before_a_restart(device: Device, opened: Open) -> None:
    """The reply cache is gone: the server says that the draft does not exist."""
    store = opened()
    device.hold(RENAME)
    store.submit([Operation(PUT, "block", b"new")])
    held(store, device)
    device.restart()
    device.hold()
    assert store.wait(1) == {0: 3}
    assert store.read("block") == b"new"


@pytest.mark.parametrize("procedure", (WRITE, COMMIT))
def test_a_restart_that_loses_data_has_it_written_again(
    device: Device, opened: Open, procedure: int
) -> None:
    device.set(write_max=4096)
    store = opened()
    data = os.urandom(10_000)
    for restarts in (1, 2):
        device.hold(procedure)
        store.submit([Operation(PUT, "block", data)])
        for _ in range(restarts):
            held(store, device, 3 if procedure == WRITE else 1)
            if procedure == WRITE:
                # some of the data is from before the restart
                device.hold(COMMIT)
                held(store, device, 1)
            device.restart()
            device.hold(procedure)
        device.hold()
        assert store.wait(1)[0] in (10_000, -errno.EIO)
        if device.get("/export/block"):
            assert device.get("/export/block", disk=True) == data
    assert drafts(device) == []


def test_a_server_that_never_keeps_data_is_an_error(device: Device, opened: Open) -> None:
    """Two restarts, each between WRITE and COMMIT."""
    device.set(write_max=4096)
    store = opened()
    device.hold(COMMIT)
    store.submit([Operation(PUT, "block", b"x" * 10_000)])
    held(store, device)
    device.restart()
    # the COMMIT is sent again, and has another verifier
    device.hold(WRITE)
    held(store, device, 3)
    device.hold(COMMIT)
    held(store, device)
    device.restart()
    device.hold()
    assert store.wait(1) == {0: -errno.EIO}
    assert device.names("/export") == ["data"]


# --- deadlines and cancels ---


def fill(memory: bytearray, seed: int) -> bytes:
    """A canary."""
    memory[:] = bytes((seed + place) % 251 for place in range(251)) * (len(memory) // 251 + 1)
    del memory[len(memory) // 251 * 251 :]
    return bytes(memory)


@pytest.mark.parametrize("late", (False, True))
@pytest.mark.parametrize("registered", (False, True))
@pytest.mark.parametrize("ends", ("deadline", "cancel"))
@pytest.mark.parametrize("procedure", ALL)
def test_an_operation_without_a_reply_ends(
    device: Device,
    opened: Open,
    procedure: int,
    ends: str,
    registered: bool,
    late: bool,
    version: int,
) -> None:
    """Its memory is the caller's then: ``late``: the server executes the calls afterwards."""
    device.set(attributes=int(procedure != GETATTR), write_max=4096)
    store = opened(1, timeout=LONG)
    assert store.one(PUT, "old", b"o" * 9000) == 9000
    memory = [bytearray(10_000) for _ in range(3)]
    regions = [store.register(each) for each in memory] if registered else []
    other = opened(1)
    other.one(PUT, "new", b"n" * 9000)
    # so that the READ leaves at once
    assert store.read("new") == b"n" * 9000
    rows = [Operation(GET, "new", memory[0]), Operation(PUT, "a/put", memory[1])]
    rows += [Operation(REMOVE, "old"), Operation(GET, "old", memory[2])]
    rows += [Operation(EXISTS, "new")]
    if late:
        device.set(late_calls=1_500_000)
    if (version, procedure) == (41, GETATTR):
        device.hold4(OP_GETATTR)
    else:
        device.hold(procedure)
    before = time.monotonic()
    count, batch = store.submit(rows, 200 if ends == "deadline" else 0)
    assert count == 5
    if ends == "cancel" and not late:
        held(store, device)
    if ends == "cancel":
        assert store.cancel(batch) > 0
        results = store.wait(5, 0)
    else:
        results = store.wait(5)
    # generous: the machine is busy; the timeout of the session is a minute
    assert time.monotonic() - before < 30
    error = -errno.ETIMEDOUT if ends == "deadline" else -errno.ECANCELED
    assert len(results) == 5
    assert error in results.values()
    assert {result for result in results.values() if result < 0} <= {error, -errno.ENOENT}
    store._kept.clear()
    for region in regions:
        assert store.unregister(region) == 0
    canaries = [fill(each, seed) for seed, each in enumerate(memory)]
    device.hold4()
    device.hold()
    if late:
        time.sleep(1.6)
        device.set(late_calls=0)
    # the session goes on
    assert other.one(PUT, "last", b"x") == 1
    assert store.read("last") == b"x"
    assert [bytes(each) for each in memory] == canaries
    assert device.get("/export/a/put") in (None, bytes(10_000))


def test_a_put_that_began_again_has_its_draft_removed(device: Device, opened: Open) -> None:
    """It is in the directory of the block, and not in that of the LOOKUP that is canceled."""
    device.set(write_max=4096)
    store = opened()
    assert store.one(PUT, "a/old", b"x") == 1
    device.error(WRITE, STALE)
    device.hold(LOOKUP)
    _, batch = store.submit([Operation(PUT, "a/block", b"n" * 10_000)])
    held(store, device)
    assert len(drafts(device, "a")) == 1
    assert store.cancel(batch) == 1
    device.hold()
    end = time.monotonic() + 60
    while drafts(device, "a"):
        assert time.monotonic() < end
        store.turn()


def test_what_no_session_has_taken_ends_too(device: Device, opened: Open) -> None:
    store = opened(1, depth=2)
    device.put("/export/block", b"x" * 100)
    memory = [bytearray(100) for _ in range(20)]
    device.hold(*ALL)
    connects = device.connects
    rows = [Operation(GET, "block", each) for each in memory]
    _, soon = store.submit(rows[:10], 300)
    _, later = store.submit(rows[10:], first=10)
    results = store.wait(10)
    assert results == dict.fromkeys(range(10), -errno.ETIMEDOUT)
    device.hold()
    # those of the other batch are sent again, or for the first time
    assert store.wait(10) == dict.fromkeys(range(10, 20), 100)
    assert device.connects > connects
    assert (store.cancel(soon), store.cancel(later), store.cancel(later + 1)) == (0, 0, 0)


def test_a_device_that_completes_nothing(device: Device, opened: Open) -> None:
    store = opened(2)
    assert store.one(PUT, "block", b"x" * 5000) == 5000
    device.set(late_sends=3_600_000_000)
    device.hold(*ALL)
    before = time.monotonic()
    for kind in (GET, PUT, EXISTS, REMOVE) * 10:
        assert store.one(kind, "block", bytearray(5000), deadline=20) == -errno.ETIMEDOUT
    # generous: 0.8 seconds, and half a minute without an event for each deadline
    assert time.monotonic() - before < 12
    device.set(late_sends=0)
    device.hold()
    assert store.one(PUT, "block", b"y" * 5000) == 5000


def test_the_rest_of_a_read_ends_with_its_operation(device: Device, opened: Open) -> None:
    """Each READ moves half of the bytes; no Send completes, so that no request becomes free."""
    device.set(shortened=1)
    device.put("/export/block", b"x" * 5000)
    store = opened(1, depth=1)
    assert store.read("block") == b"x" * 5000
    device.set(late_sends=3_600_000_000)
    memory = bytearray(5000)
    before = device.reads
    assert store.one(GET, "block", memory, deadline=300) == -errno.ETIMEDOUT
    assert device.reads > before
    canary = fill(memory, 1)
    device.set(late_sends=0)
    device.end_connections()
    assert store.read("block") == b"x" * 5000
    assert memory == canary


def test_a_server_that_is_gone(device: Device, opened: Open) -> None:
    store = opened(2)
    assert store.one(PUT, "block", b"x" * 5000) == 5000
    device.set(refuse=1)
    device.end_connections()
    for kind in (GET, PUT, EXISTS, REMOVE):
        assert store.one(kind, "block", bytearray(5000), deadline=20) == -errno.ETIMEDOUT
    device.set(refuse=0)
    assert store.read("block") == b"x" * 5000


def test_a_put_that_missed_its_deadline_is_whole_or_not_there(device: Device, opened: Open) -> None:
    device.set(write_max=4096)
    store = opened()
    for procedure in (CREATE, WRITE, RENAME):
        device.hold(procedure)
        data = bytearray(b"n" * 10_000)
        assert store.one(PUT, "block", data, deadline=50) == -errno.ETIMEDOUT
        data[:] = b"?" * 10_000
        device.hold()
        # what is left of it is removed
        end = time.monotonic() + 60
        while drafts(device):
            assert time.monotonic() < end
            store.turn()
        assert device.get("/export/block") == (b"n" * 10_000 if procedure == RENAME else None)


def test_a_put_that_failed_keeps_its_deadline(device: Device, opened: Open) -> None:
    """It waits for the removal of its draft no longer than a get of the same batch for its data."""
    store = opened()
    device.put("/export/block", b"x" * 100)
    device.error(WRITE, NOSPC)
    device.hold(READ, REMOVE_CALL)
    rows = [Operation(PUT, "new", b"n" * 100), Operation(GET, "block", bytearray(100))]
    # two seconds are the time of a removal
    store.submit(rows, 1000)
    assert store.wait(1) == {0: -errno.ENOSPC, 1: -errno.ETIMEDOUT}
    device.hold()


def test_closing_a_store_removes_drafts(device: Device) -> None:
    device.set(write_max=4096)
    store = Store(1)
    device.hold(WRITE)
    store.submit([Operation(PUT, "block", b"x" * 10_000)])
    held(store, device)
    assert len(drafts(device)) == 1
    store.close()
    assert drafts(device) == []


@pytest.mark.parametrize("hold", (False, True))
def test_a_store_is_closed_with_operations(device: Device, hold: bool) -> None:
    store = Store(3)
    device.put("/export/block", b"x" * 100_000)
    memory = [bytearray(100_000) for _ in range(50)]
    for each in memory[:20]:
        store.register(each)
    if hold:
        device.hold(*ALL)
    store.submit([Operation(GET, "block", each) for each in memory])
    store.submit([Operation(PUT, f"b{i}", each) for i, each in enumerate(memory)])
    before = time.monotonic()
    store.close()
    assert time.monotonic() - before < 30


def test_one_session_of_several_goes_on(device: Device, opened: Open) -> None:
    """A session that has lost its connection, and gets no other one for some time."""
    store = opened(2, timeout=LONG)
    device.put("/export/block", b"x" * 100_000)
    memory = [bytearray(100_000) for _ in range(20)]
    rows = [Operation(GET, "block", each) for each in memory]
    assert store.run(*rows) == [100_000] * 20
    device.hold(READ)
    store.submit(rows)
    held(store, device, 20)
    device.fail("resolve_addr", errno.ENETUNREACH, times=1_000_000)
    device.set(end_after=1)
    device.hold()
    assert store.wait(20) == dict.fromkeys(range(20), 100_000)
    assert store.run(*rows) == [100_000] * 20
    assert device.connections == 1
    device.heal()


# --- the descriptor ---


def test_the_descriptor_says_when_to_go_on(device: Device, opened: Open) -> None:
    # no deadline of the session before poll() ends
    store = opened(2, timeout=10 * LONG)
    fd = store.functions.nfsrdma_blocks_fd(store.handle)
    assert fd >= 0 and fd == store.functions.nfsrdma_blocks_fd(store.handle)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    device.put("/export/block", b"x" * 5000)
    memory = [bytearray(5000) for _ in range(30)]

    def collect(count: int) -> dict[int, int]:
        results: dict[int, int] = {}
        while len(results) < count:
            assert poll.poll(LONG)
            results.update(store.wait(0, 0))
        return results

    device.set(late=3000, spurious=3)
    for _ in range(20):
        store.submit([Operation(GET, "block", each) for each in memory])
        assert collect(30) == dict.fromkeys(range(30), 5000)
    device.end_connections()
    store.submit([Operation(GET, "block", each) for each in memory])
    assert collect(30) == dict.fromkeys(range(30), 5000)
    # a deadline, and what a cancel ends
    device.hold(*ALL)
    store.submit([Operation(GET, "block", memory[0])], 50)
    assert collect(1) == {0: -errno.ETIMEDOUT}
    _, batch = store.submit([Operation(GET, "block", memory[0])])
    store.cancel(batch)
    assert collect(1) == {0: -errno.ECANCELED}
    device.hold()
    # what ends without a message
    while poll.poll(200):
        assert store.wait(0, 0) == {}
    store.submit([Operation(GET, "")])
    assert collect(1) == {0: -errno.EINVAL}
    # nothing to do: it sleeps when the connection is there
    end = time.monotonic() + 60
    while poll.poll(200):
        assert time.monotonic() < end
        assert store.wait(0, 0) == {}


# --- processes ---


def test_a_child_process_has_no_store(device: Device, opened: Open) -> None:
    store = opened()
    assert store.one(PUT, "block", b"x") == 1
    pid = os.fork()
    if not pid:
        memory = bytearray(5)
        good = store.submit([Operation(GET, "block", memory)])[0] == -errno.EOWNERDEAD
        good &= store.functions.nfsrdma_blocks_close(store.handle) == 0
        os._exit(0 if good else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert store.read("block") == b"x"
