# SPDX-License-Identifier: Apache-2.0
"""The reader of the probes' ring buffer, on memory that looks like the kernel's."""

import itertools
import mmap
import os
import struct
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nfsrdma_tools import files
from nfsrdma_tools.capture import messages, probes
from nfsrdma_tools.capture.messages import Assembler
from nfsrdma_tools.capture.probes import Listener
from nfsrdma_tools.capture.ring import Ring, records

BUSY, DISCARDED = 1 << 31, 1 << 30
PAGE = mmap.PAGESIZE
SIZE = 4 * PAGE


class Kernel:
    """Writes the ring as the kernel does; the second mapping of the data is a copy here."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.descriptor = os.memfd_create("ring")
        os.truncate(self.descriptor, 2 * PAGE + 2 * size)
        self.produced = 0

    @property
    def consumed(self) -> int:
        return int.from_bytes(os.pread(self.descriptor, 8, 0), "little")

    def put(self, data: bytes, flags: int = 0) -> bool:
        """Add a record; False if it does not fit."""
        raw = struct.pack("=II", len(data) | flags, 0) + data
        raw += bytes(-len(raw) % 8)
        if self.produced + len(raw) - self.consumed > self.size:
            return False
        for n, byte in enumerate(raw):
            at = (self.produced + n) % self.size
            for copy in (0, self.size):
                os.pwrite(self.descriptor, bytes((byte,)), 2 * PAGE + at + copy)
        self.produced += len(raw)
        os.pwrite(self.descriptor, struct.pack("=Q", self.produced), PAGE)
        return True

    def commit(self, at: int, length: int) -> None:
        for copy in (0, self.size):
            os.pwrite(self.descriptor, struct.pack("=I", length), 2 * PAGE + at + copy)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    fake = Kernel()
    yield fake
    os.close(fake.descriptor)


def test_all_records_are_taken_once(kernel: Kernel) -> None:
    ring = Ring(kernel.descriptor, SIZE)
    assert ring.take() == b""
    written = [b"a", b"", b"12345678", b"x" * 1000]
    for data in written:
        assert kernel.put(data)
    assert list(records(ring.take())) == written
    assert ring.take() == b""
    assert kernel.consumed == kernel.produced


def test_records_over_the_end_are_in_one_piece(kernel: Kernel) -> None:
    ring = Ring(kernel.descriptor, SIZE)
    written: list[bytes] = []
    taken: list[bytes] = []
    for n in range(12):
        data = bytes((n,)) * (3000 + 7 * n)
        written.append(data)
        assert kernel.put(data)
        taken += records(ring.take())
    assert kernel.produced > 2 * SIZE
    assert taken == written


def test_a_record_that_is_written_is_left_with_those_behind_it(kernel: Kernel) -> None:
    ring = Ring(kernel.descriptor, SIZE)
    kernel.put(b"first")
    at = kernel.produced
    kernel.put(b"busy", BUSY)
    kernel.put(b"third")
    assert list(records(ring.take())) == [b"first"]
    assert ring.take() == b""
    kernel.commit(at, 4)
    assert list(records(ring.take())) == [b"busy", b"third"]


def test_records_that_were_given_up_are_left_out(kernel: Kernel) -> None:
    ring = Ring(kernel.descriptor, SIZE)
    kernel.put(b"given up", DISCARDED)
    kernel.put(b"kept")
    assert list(records(ring.take())) == [b"kept"]


@given(st.lists(st.binary(max_size=90), max_size=30))
def test_any_records_are_taken(written: list[bytes]) -> None:
    kernel = Kernel(PAGE)
    ring = Ring(kernel.descriptor, PAGE)
    taken: list[bytes] = []
    for data in written:
        while not kernel.put(data):
            taken += records(ring.take())
    assert taken + list(records(ring.take())) == written
    os.close(kernel.descriptor)


def raw(number: int, captured: bytes, last: bool) -> bytes:
    """A record of a message that is in two: its bytes, and the end."""
    address = struct.pack("=H", 2) + struct.pack(">H4s", 7, bytes((10, 0, 0, 1)))
    origin = messages.ORIGINS.index("message sent")
    sizes = (int(last), 0, len(captured), len(captured))
    words = (origin, 0, *sizes, 0, 0, 1, 0, 0, 0, 1 + last, 0)
    local, peer = address.ljust(28, b"\0"), address.ljust(28, b"\0")
    return messages._RECORD.pack(number, number, *words, local, peer) + captured


def listener(kernel: Kernel, began: int, programs: tuple[int, ...] = ()) -> Listener:
    """A listener with that number of messages begun, whose programs are these files."""
    tables = {
        "capture_ring": SimpleNamespace(map_fd=kernel.descriptor),
        "capture_numbers": {0: [began - 1, 0], 1: [0, 1]},
    }
    functions = {n: SimpleNamespace(fd=descriptor) for n, descriptor in enumerate(programs)}
    kind = type("Bpf", (), {"__getitem__": lambda _, name: tables[name], "funcs": functions})
    return Listener(kind(), Assembler(0), False, ())


def test_messages_wait_for_their_turn(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """More messages than one look finds come in their order, and a stop loses none."""
    monkeypatch.setattr(probes, "_RING", SIZE)
    monkeypatch.setattr(probes, "_AT_ONCE", 3)
    many = 100
    listening = listener(kernel, many)
    numbers = itertools.count(1)
    waiting = next(numbers)

    def fill() -> None:
        nonlocal waiting
        while waiting <= many and kernel.produced - kernel.consumed < SIZE - 1000:
            assert kernel.put(raw(waiting, b"payload", last=False))
            assert kernel.put(raw(waiting, b"", last=True))
            waiting = next(numbers)

    fill()
    assert waiting < many
    times = []
    for message in listening.messages(5):
        times.append(message.time)
        fill()
        if len(times) == many // 2:
            break
    # what was taken, but not yielded, is not lost
    fill()
    times += [message.time for message in listening.messages(0)]
    assert times == list(range(1, many + 1))
    assert listening.total_lost() == 0


def test_without_memory_the_ring_is_left_alone(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_RING", SIZE)
    listening = listener(kernel, 2)
    listening._room = 1
    for number in (1, 2):
        assert kernel.put(raw(number, b"payload", last=False))
        assert kernel.put(raw(number, b"", last=True))
        if number == 1:
            listening._take()
    took = kernel.consumed
    assert took
    assert listening._room < 0
    next(listening.messages(5))
    assert kernel.consumed == took
    # it is made into a message, and then there is room
    assert len(list(listening.messages(0))) == 1
    assert listening.total_lost() == 0


def test_programs_that_did_not_run_are_losses(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_RING", SIZE)
    fdinfo = {"3": "prog_id:\t7\nrecursion_misses:\t2\n", "4": "recursion_misses:\t1\n", "5": ""}
    listening = listener(kernel, 1, (3, 4, 5))
    monkeypatch.setattr(files, "read", lambda path: fdinfo[str(path).rsplit("/", 1)[1]])
    assert listening.total_lost() == 1 + 3
