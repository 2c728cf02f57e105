# SPDX-License-Identifier: Apache-2.0
"""Memory that only RDMA reaches: dma-bufs, and registered memory with the option direct."""

import errno
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from device import Change, Device, build
from unit.device_fixtures import device, device_library
from unit.lib.dmabufs import RawSession, Unreachable, plain
from unit.lib.stores import GET, PUT, Operation, Store

__all__ = ["device", "device_library"]

PAGE = mmap.PAGESIZE
MOST = 1 << 20
SPACE = 2 * MOST + 4 * PAGE
VERSIONS = (3, 41)
TESTS = Path(__file__).parents[2]
Opener = Callable[..., RawSession]


@pytest.fixture
def memory() -> Iterator[Unreachable]:
    made = Unreachable(SPACE)
    yield made
    made.close()


@pytest.fixture
def opener(device: Device) -> Iterator[Opener]:
    """Opens sessions, which are closed at the end."""
    del device
    sessions: list[RawSession] = []

    def open_session(**options: int) -> RawSession:
        sessions.append(RawSession(**options))
        return sessions[-1]

    yield open_session
    for each in sessions:
        each.close()


def registered(session: RawSession, memory: Unreachable) -> RawSession:
    status, _ = session.register_dmabuf(memory.fd, 0, memory.size, memory.address)
    assert status == 0, session.message()
    return session


def most_inline(device: Device, session: RawSession, kind: str) -> int:
    """Bytes of the longest read or write whose data is part of a message."""
    device.put("/export/limit", bytes(2 * PAGE))
    file = session.open("limit")
    kept, address = plain(session, 2 * PAGE)
    low, high = 0, 2 * PAGE
    while high - low > 1:
        middle, before = (low + high) // 2, session.stats.inlined
        assert getattr(session, kind)(file, address, middle) == middle
        low, high = (middle, high) if session.stats.inlined > before else (low, middle)
    session.release(file)
    del kept
    assert 0 < low < 2 * PAGE - 1
    return low


def sizes(limit: int) -> list[int]:
    return [0, 1, 3, 4, limit - 1, limit, limit + 1, PAGE, PAGE + 1, 3 * PAGE, MOST, MOST + 1]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shortened", (0, 1))
def test_reads_to_a_dmabuf_touch_nothing_else(
    device: Device, opener: Opener, memory: Unreachable, version: int, shortened: int
) -> None:
    limit = most_inline(device, opener(version=version), "read")
    device.set(shortened=shortened)
    session = registered(opener(version=version), memory)
    data = os.urandom(MOST + PAGE)
    device.put("/export/data", data)
    file = session.open("data")
    for size in sizes(limit):
        for at, offset in ((0, 0), (5, 3), (PAGE - 1, len(data) - size // 2)):
            before = os.urandom(memory.size)
            memory.fill(before)
            wanted = data[offset : offset + size]
            assert session.read(file, memory.address + at, size, offset) == len(wanted)
            assert memory.get() == before[:at] + wanted + before[at + len(wanted) :], (size, at)
    session.release(file)
    assert session.stats.copied_bytes == session.stats.inlined == session.stats.copied == 0


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shortened", (0, 1))
def test_writes_from_a_dmabuf_read_nothing_else(
    device: Device, opener: Opener, memory: Unreachable, version: int, shortened: int
) -> None:
    limit = most_inline(device, opener(version=version), "write")
    device.set(shortened=shortened)
    session = registered(opener(version=version), memory)
    data = os.urandom(memory.size)
    memory.fill(data)
    for size in sizes(limit):
        for at, offset in ((0, 0), (5, 3), (PAGE - 1, PAGE + 1)):
            device.put("/export/written", b"")
            file = session.open("written")
            assert session.write(file, memory.address + at, size, offset) == size
            session.release(file)
            written = bytes(offset if size else 0) + data[at : at + size]
            assert device.get("/export/written") == written, (size, at)
    assert memory.get() == data
    assert session.stats.copied_bytes == session.stats.inlined == session.stats.copied == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_region_may_be_any_part_of_a_dmabuf(
    device: Device, opener: Opener, memory: Unreachable, version: int
) -> None:
    session = opener(version=version)
    at, length = 2 * PAGE + 12, 5 * PAGE
    # the caller's address is another one than that of the start of the dma-buf
    address = memory.address + PAGE + 12
    assert session.register_dmabuf(memory.fd, at, length, address)[0] == 0, session.message()
    data = os.urandom(length)
    device.put("/export/data", data)
    file = session.open("data")
    assert session.read(file, address, length) == length
    assert memory.get() == bytes(at) + data + bytes(memory.size - at - length)
    assert session.read(file, address + 7, 100, 50) == 100
    assert memory.get(at, 107) == data[:7] + data[50:150]
    session.release(file)


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_mix_dmabufs_with_other_memory(
    device: Device, opener: Opener, memory: Unreachable, version: int
) -> None:
    session = registered(opener(version=version), memory)
    data = os.urandom(50 * 3001)
    device.put("/export/data", data)
    kept, address = plain(session, len(data))
    file = session.open("data")
    counts = [1 + number * 61 for number in range(50)]
    ranges = [
        ((memory.address, address)[number % 2] + number * 3001, count, number * 3001)
        for number, count in enumerate(counts)
    ]
    device.set(late=2000, credits=7)
    assert session.batch("read", file, ranges) == counts
    for number, count in enumerate(counts):
        at = number * 3001
        found = bytes(session.ffi.buffer(kept)[at : at + count])
        assert (memory.get(at, count), found)[number % 2] == data[at : at + count]
    assert session.stats.copied_bytes == sum(counts[1::2])
    memory.fill(bytes(reversed(data)))
    assert session.batch("write", file, ranges[::2]) == counts[::2]
    for number, count in list(enumerate(counts))[::2]:
        at = number * 3001
        written = device.get("/export/data")
        assert written and written[at : at + count] == memory.get(at, count)
    session.release(file)
    assert session.stats.copied_bytes == sum(counts[1::2])


@pytest.mark.parametrize("version", VERSIONS)
def test_no_cache_has_data_of_a_dmabuf(
    device: Device, opener: Opener, memory: Unreachable, version: int
) -> None:
    session = registered(opener(version=version, cache=MOST), memory)
    data = os.urandom(3 * PAGE + 100)
    device.put("/export/data", data)
    file = session.open("data", os.O_RDONLY)
    for offset, size in ((0, 3 * PAGE + 100), (10, 100), (PAGE, PAGE), (3 * PAGE, 200)) * 2:
        wanted = data[offset : offset + size]
        assert session.read(file, memory.address, size, offset) == len(wanted)
        assert memory.get(0, len(wanted)) == wanted
        assert session.batch("read", file, [(memory.address + MOST, size, offset)]) == [len(wanted)]
        assert memory.get(MOST, len(wanted)) == wanted
    assert session.stats.cached == session.stats.copied_bytes == 0
    # other memory of the session uses it, and the dma-buf does not see it
    kept, address = plain(session, PAGE)
    assert [session.read(file, address, 100, 10) for _ in range(2)] == [100, 100]
    assert session.stats.cached == 1
    copied = session.stats.copied_bytes
    assert session.read(file, memory.address, 100, 10) == 100
    assert session.stats.copied_bytes == copied
    session.release(file)
    del kept


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("direct", (0, 1))
def test_the_option_direct_copies_no_byte_of_registered_memory(
    device: Device, opener: Opener, version: int, direct: int
) -> None:
    limit = most_inline(device, opener(version=version), "read")
    session = opener(version=version, direct=direct)
    kept, address = plain(session, MOST + 1)
    assert session.register(address, MOST + 1)[0] == 0
    data = os.urandom(MOST + PAGE)
    device.put("/export/data", data)
    file = session.open("data")
    for size in sizes(limit):
        assert session.read(file, address, size, 7) == size
        assert bytes(session.ffi.buffer(kept)[:size]) == data[7 : 7 + size]
        assert session.write(file, address, size, 9) == size
        data = data[:9] + data[7 : 7 + size] + data[9 + size :]
        assert device.get("/export/data") == data
    # without the option, small ones are part of messages
    assert bool(session.stats.copied_bytes) == (not direct)
    assert bool(session.stats.inlined > (2 if direct else 0)) == (not direct)
    other, elsewhere = plain(session, 100)
    before = session.stats.copied_bytes
    assert session.read(file, elsewhere, 100) == 100
    assert session.stats.copied_bytes == before + 100
    session.release(file)
    del kept, other


def test_direct_is_0_or_1(device: Device) -> None:
    del device
    with pytest.raises(AssertionError, match="direct 2: 0 or 1"):
        RawSession(direct=2)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_new_connection_registers_a_descriptor_that_the_caller_has_closed(
    device: Device, opener: Opener, memory: Unreachable, version: int
) -> None:
    session = opener(version=version)
    copy = os.dup(memory.fd)
    assert session.register_dmabuf(copy, 0, memory.size, memory.address)[0] == 0
    os.close(copy)
    data = os.urandom(5000)
    device.put("/export/data", data)
    file = session.open("data", os.O_RDONLY)
    for number in range(4):
        # each other time, the memory is registered with another device
        device.set(second_device=number // 2)
        before = device.registered
        device.end_connections()
        assert session.read(file, memory.address + number, 5000) == 5000
        assert memory.get(number, 5000) == data
        assert (device.registered > before) == (number == 2)
    assert session.stats.connects > 4
    session.release(file)


def test_a_child_has_no_descriptor_of_a_dmabuf(opener: Opener, memory: Unreachable) -> None:
    def descriptors() -> int:
        folder = Path("/proc/self/fd")
        # that of the list itself is gone
        found = [each.readlink() for each in folder.iterdir() if each.is_symlink()]
        return sum(str(each).startswith("/memfd:dmabuf") for each in found)

    registered(opener(), memory)
    assert descriptors() == 2
    pid = os.fork()
    if not pid:
        os._exit(descriptors())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_unregister_gives_the_descriptor_back(opener: Opener, memory: Unreachable) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
    session = opener()
    opened = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    regions = [
        session.register_dmabuf(memory.fd, at * PAGE, PAGE, memory.address + at * PAGE)
        for at in range(8)
    ]
    assert {status for status, _ in regions} == {0}
    assert len(os.listdir("/proc/self/fd")) == opened + 8  # noqa: PTH208
    for _, region in regions[::-2]:
        assert session.unregister(region) == 0
    for _, region in regions[::2]:
        assert session.unregister(region) == 0
    assert len(os.listdir("/proc/self/fd")) == opened  # noqa: PTH208
    assert opened > before


# --- refusals ---


def test_a_region_that_overlaps_is_refused(opener: Opener, memory: Unreachable) -> None:
    session = opener()
    page = memory.address + 4 * PAGE
    assert session.register_dmabuf(memory.fd, 4 * PAGE, PAGE, page)[0] == 0
    for address, length in (
        (page, PAGE), (page + PAGE - 1, 1), (page - 1, 2), (page - PAGE, 3 * PAGE), (page + 5, 1),
    ):  # fmt: skip
        at = address % PAGE
        result = session.register_dmabuf(memory.fd, at, length, address)[0]
        assert result == -errno.EEXIST, (address - page, length)
        assert "a dma-buf and another region would overlap" in session.message()
        assert session.register(address, length)[0] == -errno.EEXIST
    for address in (page + PAGE, page - PAGE):
        assert session.register_dmabuf(memory.fd, 0, PAGE, address)[0] == 0
    # nor does a dma-buf come to the addresses of ordinary memory
    kept, address = plain(session, 2 * PAGE)
    assert session.register(address, PAGE)[0] == 0
    result = session.register_dmabuf(memory.fd, address % PAGE, 10, address)[0]
    assert result == -errno.EEXIST
    # which may overlap other ordinary memory, as ever
    assert session.register(address + 1, PAGE)[0] == 0
    del kept


def test_wrong_arguments_are_refused(opener: Opener, memory: Unreachable) -> None:
    session, most = opener(), 2**64 - 1
    read_end, write_end = os.pipe()
    for fd, offset, length, address in (
        (memory.fd, 0, memory.size + 1, memory.address),
        (memory.fd, memory.size, 1, memory.address),
        (memory.fd, 1, memory.size, memory.address + 1),
        (memory.fd, most, 2, memory.address),
        (memory.fd, 2**63, PAGE, memory.address),
        (memory.fd, PAGE, most, memory.address),
        (memory.fd, 0, 0, memory.address),
        (memory.fd, 0, PAGE, 0),
        (memory.fd, 0, 2 * PAGE, 2**64 - PAGE),
        (-1, 0, PAGE, memory.address),
        (read_end, 0, PAGE, memory.address),
        (1 << 20, 0, PAGE, memory.address),
    ):
        status, region = session.register_dmabuf(fd, offset, length, address)
        assert status == -errno.EINVAL, (fd, offset, length, address)
        assert not region and session.message()
    os.close(read_end)
    os.close(write_end)
    assert session.stats.connects == 1


def test_memory_that_is_partly_a_dmabuf_is_refused(
    device: Device, opener: Opener, memory: Unreachable
) -> None:
    device.put("/export/data", bytes(10 * PAGE))
    session = opener()
    start = memory.address + 4 * PAGE
    assert session.register_dmabuf(memory.fd, 0, PAGE, start)[0] == 0
    assert session.register_dmabuf(memory.fd, PAGE, PAGE, start + PAGE)[0] == 0
    file = session.open("data")
    for address, count in (
        (start - 1, 2), (start - 1, PAGE), (start + 1, 2 * PAGE), (start - PAGE, 6 * PAGE),
        (start + PAGE - 1, 2), (start + 1, 2 * MOST), (start + 1, 2**63), (start - 1, 2**64 - 1),
    ):  # fmt: skip
        for call in (session.read, session.write):
            assert call(file, address, count) == -errno.EOPNOTSUPP, (address - start, count)
            assert "a part of them is a dma-buf, which only RDMA reaches" in session.message()
        if count > MOST:
            continue
        for prepare in (
            session.functions.nfsrdma_prepare_read, session.functions.nfsrdma_prepare_write,
        ):  # fmt: skip
            words = (file, session.pointer(address), count, 0, 0)
            assert prepare(*words) == -errno.EOPNOTSUPP
    session.release(file)
    assert session.stats.copied_bytes == 0


@pytest.mark.parametrize("error", (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY))
def test_a_device_that_cannot_do_it(
    device: Device, opener: Opener, memory: Unreachable, error: int
) -> None:
    device.fail("reg_dmabuf_mr", error)
    session = opener()
    status, region = session.register_dmabuf(memory.fd, 0, PAGE, memory.address)
    assert (status, bool(region)) == (-errno.EOPNOTSUPP, False)
    assert "(by this device or its driver)" in session.message()
    # that has changed nothing
    registered(session, memory)


def test_a_registration_that_the_next_device_refuses(
    device: Device, opener: Opener, memory: Unreachable
) -> None:
    session = registered(opener(timeout=1500), memory)
    file = session.open("data", os.O_RDONLY)
    device.fail("reg_dmabuf_mr", errno.EOPNOTSUPP, times=1000)
    device.set(second_device=1)
    device.end_connections()
    assert session.read(file, memory.address, 100) == -errno.ETIMEDOUT
    device.heal()
    assert session.read(file, memory.address, 100) == 100
    session.release(file)


PROGRAM = f"""
import os, sys
sys.path[:0] = {[str(TESTS), str(TESTS.parent)]!r}
from device import FOLDER, Device
os.environ["NFSRDMA_LIBRARY"] = sys.argv[1]
from unit.lib.dmabufs import RawSession, Unreachable
device = Device(sys.argv[1])
device.put("/export", kind=FOLDER)
device.put("/export/data", b"x" * 10000)
memory = Unreachable(1 << 20)
session = RawSession(cache=1 << 20, timeout=5000)
status, _ = session.register_dmabuf(memory.fd, 0, memory.size, memory.address)
print(status, session.message() if status else "", flush=True)
if not status:
    file = session.open("data")
    start = memory.address
    print(session.read(file, start, 100), session.write(file, start, 100))
    print(session.read(file, start + 4096, 8192), session.write(file, start + 4096, 8192))
    print(session.read(file, start, 10, 20), session.batch("read", file, [(start, 4096, 0)]))
    print(session.read(file, start - 5, 10))
    session.release(file)
session.close()
print(device.faults, device.objects)
"""
GOOD = "0 \n100 100\n8192 8192\n10 [4096]\n-95\n[] {}\n"


def program(change: Change | None = None) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, "-c", PROGRAM, build(change=change))
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


def test_the_library_touches_nothing(device_library: Path) -> None:
    del device_library
    result = program()
    assert (result.returncode, result.stdout) == (0, GOOD), result.stderr


COPIES = {
    "a read in a message": Change("io.c", "if (req->io.direct || reply >", "if (reply >"),
    "a write in a message": Change("io.c", "if (!io->direct && NFR_WIRE", "if (NFR_WIRE"),
    "the cache is filled": Change("cache.c", "if (!file || io->direct ||", "if (!file ||"),
    "a part of a block": Change(
        "io.c", "	if (direct)\n		return transfer_all", "	if (0)\n		return transfer_all"
    ),
    "padding": Change(
        "io.c",
        "	rc = provide_memory(session, io, &req->read);",
        "	memset(io->buf + io->count, 0, padded(io->count) - io->count + 1);\n"
        "	rc = provide_memory(session, io, &req->read);",
    ),
    "memory that is partly a dma-buf": Change(
        "memory.c", "	if (!region && memory_has_dmabuf(session, addr, bytes))", "	if (0)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_a_touch_by_the_processor_is_found(device_library: Path, name: str) -> None:
    del device_library
    assert program(COPIES[name]).returncode == -signal.SIGSEGV


def test_a_libibverbs_without_the_function(device_library: Path) -> None:
    del device_library
    change = Change("memory.c", '"ibv_reg_dmabuf_mr")', '"ibv_reg_no_mr")')
    result = program(change)
    text = "-95 stand0: libibverbs has no ibv_reg_dmabuf_mr(3): rdma-core is older than 34"
    assert result.stdout == f"{text}\n[] {{}}\n"


# --- stores of blocks ---


def register_in_store(store: Store, memory: Unreachable) -> tuple[int, object]:
    box = store.ffi.new("struct nfsrdma_blocks_region **")
    address = store.ffi.cast("void *", memory.address)
    words = (store.handle, memory.fd, 0, memory.size, address, box)
    return int(store.functions.nfsrdma_blocks_register_dmabuf(*words)), box[0]


def at(store: Store, memory: Unreachable, place: int, length: int) -> object:
    """Memory of a dma-buf as a buffer of cffi, which names addresses and reads nothing."""
    return store.ffi.buffer(store.ffi.cast("char *", memory.address + place), length)


@pytest.mark.parametrize("shortened", (0, 1))
def test_blocks_of_a_dmabuf(device: Device, memory: Unreachable, shortened: int) -> None:
    store = Store(sessions=3)
    device.set(shortened=shortened, late=1000)
    status, region = register_in_store(store, memory)
    assert status == 0, store.message()
    lengths = [0, 1, 3, 700, 3900, PAGE, 3 * PAGE + 1, MOST + 1]
    places = [sum(lengths[:number]) for number in range(len(lengths))]
    data = os.urandom(memory.size)
    memory.fill(data)
    rows = list(zip(places, lengths, strict=True))
    puts = [Operation(PUT, f"d/{n}", at(store, memory, p, n)) for p, n in rows]
    assert store.run(*puts) == lengths
    for place, length in rows:
        assert device.get(f"/export/d/{length}") == data[place : place + length]
    memory.fill(bytes(memory.size))
    gets = [Operation(GET, f"d/{n}", at(store, memory, p, n)) for p, n in rows]
    assert store.run(*gets, Operation(GET, "d/none", at(store, memory, 0, 10))) == [
        *lengths, -errno.ENOENT,
    ]  # fmt: skip
    end = sum(lengths)
    assert memory.get() == data[:end] + bytes(memory.size - end)
    # while an operation waits for a session, too
    device.hold(6)
    store.submit([Operation(GET, "d/700", at(store, memory, 0, 700))] * 200)
    assert store.unregister(region) == -errno.EBUSY
    device.hold()
    assert set(store.wait(200).values()) == {700}
    assert store.unregister(region) == 0
    for session in store.sessions:
        kind = "struct nfsrdma_stats"
        stats = store.ffi.new(f"{kind} *", {"size": store.ffi.sizeof(kind)})
        assert not store.functions.nfsrdma_stats(session, stats)
        assert stats.copied_bytes == 0
    store.close()


def test_a_store_with_checksums_refuses_a_dmabuf(device: Device, memory: Unreachable) -> None:
    del device
    store = Store(checksum=1)
    assert register_in_store(store, memory)[0] == -errno.EOPNOTSUPP
    assert "the store has checksums" in store.message()
    # nor by a region of its session
    box = store.ffi.new("struct nfsrdma_region **")
    address = store.ffi.cast("void *", memory.address)
    words = (store.sessions[0], memory.fd, 0, memory.size, address, box)
    assert store.functions.nfsrdma_register_dmabuf(*words) == 0
    for kind in (PUT, GET):
        assert store.one(kind, "block", at(store, memory, 0, 100)) == -errno.EOPNOTSUPP
        assert "the store has checksums" in store.message()
    store.close()


@pytest.mark.parametrize("sessions", [1, 2])
def test_the_store_needs_the_region(device: Device, memory: Unreachable, sessions: int) -> None:
    """That of a session may go while an operation waits in the store."""
    device.put("/export/block", b"x" * 100)
    store = Store(sessions=sessions)
    box = store.ffi.new("struct nfsrdma_region **")
    address = store.ffi.cast("void *", memory.address)
    words = (store.sessions[0], memory.fd, 0, PAGE, address, box)
    assert store.functions.nfsrdma_register_dmabuf(*words) == 0
    assert store.one(GET, "block", at(store, memory, 0, 100)) == -errno.EOPNOTSUPP
    assert "the store has not" in store.message()
    assert store.one(PUT, "block", at(store, memory, PAGE - 1, 2)) == -errno.EOPNOTSUPP
    store.close()


def test_a_session_of_a_store_that_refuses_leaves_no_region(
    device: Device, memory: Unreachable
) -> None:
    store = Store(sessions=3)
    before = device.mrs
    device.fail("reg_dmabuf_mr", errno.ENOMEM, after=2)
    assert register_in_store(store, memory)[0] == -errno.ENOMEM
    assert device.mrs == before
    assert register_in_store(store, memory)[0] == 0
    store.close()
