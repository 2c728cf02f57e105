# SPDX-License-Identifier: Apache-2.0
"""A client of the server of tests/device that sends NFSv4.1 (RFC 8881) made by hand.

It shares no line with libnfsrdma: tests of the server send what no library would send, and tests of
the library have another client of the same files.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from device import Device

__all__ = ["ANONYMOUS", "CURRENT", "NONE", "Peer", "Reply", "Result", "op", "opaque", "u32", "u64"]

ACCESS, CLOSE, COMMIT, CREATE, DELEGRETURN, GETATTR, GETFH = 3, 4, 5, 6, 8, 9, 10
LOOKUP, OPEN, OPEN_DOWNGRADE, PUTFH, PUTROOTFH, READ, READDIR = 15, 18, 21, 22, 24, 25, 26
READLINK, REMOVE, RENAME, RESTOREFH, SAVEFH, SETATTR, WRITE = 27, 28, 29, 31, 32, 34, 38
BIND_CONN_TO_SESSION, EXCHANGE_ID, CREATE_SESSION, DESTROY_SESSION, FREE_STATEID = range(41, 46)
SEQUENCE, TEST_STATEID, DESTROY_CLIENTID, RECLAIM_COMPLETE = 53, 55, 57, 58
ANONYMOUS = bytes(16)
BYPASS = b"\xff" * 16
CURRENT = struct.pack(">I12x", 1)
NONE = struct.pack(">I12x", 2**32 - 1)
"""Stateids: see RFC 8881, section 8.2.3."""
READS, WRITES, BOTH = 1, 2, 3
NO_DELEGATION = 0x400
NULL, PREVIOUS, FH = 0, 1, 4
"""Claims of OPEN."""
UNCHECKED, GUARDED, EXCLUSIVE, EXCLUSIVE_1 = range(4)
_KEY = 0x70656572
_ROOM = 1 << 21


def u32(*values: int) -> bytes:
    return b"".join(struct.pack(">I", value) for value in values)


def u64(value: int) -> bytes:
    return struct.pack(">Q", value)


def opaque(data: bytes) -> bytes:
    return u32(len(data)) + data + bytes(-len(data) % 4)


def op(number: int, *parts: int | bytes) -> bytes:
    """An operation; numbers have 32 bits."""
    return u32(number) + b"".join(u32(part) if isinstance(part, int) else part for part in parts)


def bitmap(*numbers: int) -> bytes:
    words = [0] * (max(numbers, default=-1) // 32 + 1)
    for number in numbers:
        words[number // 32] |= 1 << number % 32
    return u32(len(words), *words)


def attributes(size: int | None = None, mode: int | None = None) -> bytes:
    """fattr4 of what is set."""
    values = b"" if size is None else u64(size)
    values += b"" if mode is None else u32(mode)
    numbers = [number for number, value in ((4, size), (33, mode)) if value is not None]
    return bitmap(*numbers) + opaque(values)


def open_file(
    name: bytes = b"",
    *,
    access: int = READS,
    deny: int = 0,
    how: bytes = b"",
    claim: int = NULL,
    owner: bytes = b"owner",
) -> bytes:
    """OPEN; ``how`` is createhow4, and by default no file is created."""
    claims = {NULL: opaque(name), PREVIOUS: u32(0), FH: b""}
    made = u32(1) + how if how else u32(0)
    return op(OPEN, 0, access, deny, u64(0), opaque(owner), made, claim, claims[claim])


def write(stateid: bytes, offset: int, data: bytes, stable: int = 2) -> bytes:
    return op(WRITE, stateid, u64(offset), stable, opaque(data))


def read(stateid: bytes, offset: int, size: int) -> bytes:
    return op(READ, stateid, u64(offset), size)


class Result(NamedTuple):
    """The results of an operation: what follows the status is None behind an error."""

    op: int
    status: int
    value: Any


@dataclass(frozen=True)
class Reply:
    """The results of a COMPOUND."""

    status: int
    results: list[Result]

    def __getitem__(self, number: Any) -> Any:
        """The value of the first operation of that number."""
        return next(each.value for each in self.results if each.op == number)

    @property
    def statuses(self) -> list[int]:
        return [each.status for each in self.results]


class Reader:
    """XDR; with data that is in Write chunks."""

    def __init__(self, data: bytes, chunks: list[bytes | None]) -> None:
        self.data = data
        self._chunks = chunks

    def raw(self, size: int) -> bytes:
        assert len(self.data) >= size
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def u32(self) -> int:
        return int.from_bytes(self.raw(4), "big")

    def u64(self) -> int:
        return int.from_bytes(self.raw(8), "big")

    def opaque(self) -> bytes:
        size = self.u32()
        data = self.raw(size)
        assert not any(self.raw(-size % 4))
        return data

    def placed(self) -> bytes:
        """Data that takes the next Write chunk, if there is one and it is not empty."""
        chunk = self._chunks.pop(0) if self._chunks else None
        if chunk is None:
            return self.opaque()
        assert self.u32() == len(chunk)
        return chunk

    def bitmap(self) -> list[int]:
        words = [self.u32() for _ in range(self.u32())]
        return [n for n in range(32 * len(words)) if words[n // 32] >> n % 32 & 1]

    def attributes(self) -> tuple[list[int], bytes]:
        return self.bitmap(), self.opaque()

    def change(self) -> tuple[int, int]:
        assert self.u32() == 1
        return self.u64(), self.u64()

    def channel(self) -> list[int]:
        values = [self.u32() for _ in range(6)]
        assert self.u32() == 0
        return values


class Opened(NamedTuple):
    stateid: bytes
    flags: int
    set: list[int]
    delegation: bytes | None
    why: int | None


def _opened(data: Reader) -> Opened:
    stateid, _change, flags, made = data.raw(16), data.change(), data.u32(), data.bitmap()
    kind = data.u32()
    if kind == 0:
        return Opened(stateid, flags, made, None, None)
    if kind == 3:
        why = data.u32()
        if why in {1, 2}:
            data.u32()
        return Opened(stateid, flags, made, None, why)
    delegation = data.raw(16)
    data.u32()
    if kind == 2:
        data.raw(12)
    data.raw(12)
    data.opaque()
    return Opened(stateid, flags, made, delegation, None)


def _entries(data: Reader) -> tuple[int, list[tuple[int, bytes, Any]], bool]:
    verifier, found = data.u64(), []
    while data.u32():
        found.append((data.u64(), data.opaque(), data.attributes()))
    return verifier, found, bool(data.u32())


def _exchanged(data: Reader) -> dict[str, Any]:
    made = {"client": data.u64(), "sequence": data.u32(), "flags": data.u32()}
    assert data.u32() == 0
    data.u64()
    return {**made, "owner": data.opaque(), "scope": data.opaque(), "implementations": data.u32()}


_DECODERS: dict[int, Callable[[Reader], Any]] = {
    ACCESS: lambda data: (data.u32(), data.u32()),
    CLOSE: lambda data: data.raw(16),
    COMMIT: lambda data: data.u64(),
    CREATE: lambda data: (data.change(), data.bitmap()),
    GETATTR: lambda data: data.attributes(),
    GETFH: lambda data: data.opaque(),
    OPEN: _opened,
    OPEN_DOWNGRADE: lambda data: data.raw(16),
    READ: lambda data: (bool(data.u32()), data.placed()),
    READDIR: _entries,
    READLINK: lambda data: data.placed(),
    REMOVE: lambda data: data.change(),
    RENAME: lambda data: (data.change(), data.change()),
    WRITE: lambda data: (data.u32(), data.u32(), data.u64()),
    BIND_CONN_TO_SESSION: lambda data: (data.raw(16), data.u32(), data.u32()),
    EXCHANGE_ID: _exchanged,
    CREATE_SESSION: lambda data: (
        data.raw(16),
        data.u32(),
        data.u32(),
        data.channel(),
        data.channel(),
    ),
    SEQUENCE: lambda data: (data.raw(16), *(data.u32() for _ in range(5))),
    TEST_STATEID: lambda data: [data.u32() for _ in range(data.u32())],
}


class Connection:
    """A connection to the server; ``send`` and ``receive`` move RPC-over-RDMA messages."""

    def __init__(self, device: Device) -> None:
        self._functions = device.functions
        self._functions.device_peer_open.restype = ctypes.c_void_p
        self._functions.device_peer_receive.restype = ctypes.c_int64
        self._at = ctypes.c_void_p(self._functions.device_peer_open())
        self._room = ctypes.create_string_buffer(_ROOM)
        self._xids = count(id(self) & 0xFFFF)
        self._chunks: list[Any] = []
        self._reply: Any = None
        self._memory: list[Any] = []

    def close(self) -> None:
        self._functions.device_peer_close(self._at)

    def _segment(self, memory: Any, at: int = 0, size: int | None = None) -> bytes:
        self._memory.append(memory)
        length = len(memory) - at if size is None else size
        return u32(_KEY, length) + u64(ctypes.addressof(memory) + at)

    def send(
        self,
        body: bytes,
        *,
        places: tuple[tuple[int, int], ...] = (),
        room: tuple[int, ...] = (),
        reply: int = 0,
        user: int = 1000,
        version: int = 4,
        long: bool = False,
    ) -> None:
        """Send a COMPOUND.

        ``places``: position and length of data that Read chunks have, in the whole of ``body``.
        ``room``: sizes of Write chunks.  ``reply``: size of the Reply chunk.  ``long``: the Call
        is in a chunk itself.
        """
        xid = next(self._xids) & 0xFFFFFFFF
        self._memory.clear()
        credential = u32(0) + opaque(b"peer") + u32(user, user, 0)
        head = u32(xid, 0, 2, 100003, version, 1, 1) + opaque(credential) + u32(0, 0)
        call, reads, taken = b"", b"", 0
        whole = head + body
        for at, size in places:
            position = len(head) + at
            memory = ctypes.create_string_buffer(whole[position : position + size], size)
            # two segments, so that the server has to put them together
            half = size // 2
            for start, length in ((0, half), (half, size - half)):
                reads += u32(1, position) + self._segment(memory, start, length)
            call += whole[taken:position]
            taken = position + size + -size % 4
        call += whole[taken:]
        if long:
            reads = u32(1, 0) + self._segment(ctypes.create_string_buffer(call, len(call))) + reads
            call = b""
        self._chunks = [ctypes.create_string_buffer(size) if size else None for size in room]
        writes = b"".join(
            u32(1, 0) if memory is None else u32(1, 1) + self._segment(memory)
            for memory in self._chunks
        )
        self._reply = ctypes.create_string_buffer(reply) if reply else None
        chunk = u32(1, 1) + self._segment(self._reply) if reply else u32(0)
        message = u32(xid, 1, 32, int(long)) + reads + u32(0) + writes + u32(0) + chunk + call
        self._functions.device_peer_send(self._at, message, ctypes.c_uint32(len(message)))

    def receive(self) -> bytes | None:
        """The reply from the status of the COMPOUND on; None: there is none."""
        size = self._functions.device_peer_receive(self._at, self._room, ctypes.c_uint32(_ROOM))
        if size <= 0:
            return None
        data = Reader(self._room.raw[:size], [])
        data.raw(12)
        kind = data.u32()
        if kind == 4:
            raise ConnectionError("ERR_CHUNK")
        assert data.u32() == 0
        lengths = []
        while data.u32():
            lengths.append(sum(self._used(data) for _ in range(data.u32())))
        used = sum(self._used(data) for _ in range(data.u32())) if data.u32() else 0
        rpc = Reader(self._reply.raw[:used] if kind == 1 else data.data, [])
        rpc.raw(8)
        assert rpc.u32() == 0
        rpc.raw(8)
        if rpc.u32():
            raise ConnectionError("not accepted")
        self.filled = [
            None if memory is None else memory.raw[:length]
            for memory, length in zip(self._chunks, lengths, strict=True)
        ]
        return rpc.data

    @staticmethod
    def _used(data: Reader) -> int:
        data.u32()
        size = data.u32()
        data.u64()
        return size


class Peer:
    """A client with a client ID and a session, once it has called ``start``."""

    def __init__(self, device: Device, name: bytes = b"peer", verifier: int = 1) -> None:
        self.device = device
        self.name = name
        self.verifier = verifier
        self.connection = Connection(device)
        self.client = 0
        self.sequence = 0
        self.session = b""
        self.next: dict[int, int] = {}

    def compound(self, *operations: bytes, **terms: Any) -> Reply | None:
        """Send these operations and nothing else; None: no reply has come."""
        minor = terms.pop("minor", 1)
        tag = opaque(terms.pop("tag", b""))
        shift = len(tag) + 8
        places = tuple((shift + at, size) for at, size in terms.pop("places", ()))
        body = tag + u32(minor, len(operations)) + b"".join(operations)
        self.connection.send(body, places=places, **terms)
        return self.reply()

    def reply(self) -> Reply | None:
        data = self.connection.receive()
        if data is None:
            return None
        reader = Reader(data, self.connection.filled)
        status, _tag = reader.u32(), reader.opaque()
        results = []
        for _ in range(reader.u32()):
            number, result = reader.u32(), reader.u32()
            value = None
            if number == SETATTR:
                value = reader.bitmap()
            elif not result and number in _DECODERS:
                value = _DECODERS[number](reader)
            results.append(Result(number, result, value))
        assert not reader.data
        return Reply(status, results)

    def only(self, operation: bytes, **terms: Any) -> Result:
        """The result of a COMPOUND of one operation."""
        reply = self.compound(operation, **terms)
        assert reply
        assert len(reply.results) == 1
        result = reply.results[0]
        assert result.status == reply.status
        return result

    def exchange(self, flags: int = 0, **terms: Any) -> Result:
        names = u64(self.verifier) + opaque(self.name)
        return self.only(op(EXCHANGE_ID, names, flags, 0, 0), **terms)

    def create(self, *fore: int, flags: int = 0, sequence: int | None = None) -> Result:
        """CREATE_SESSION with ca_maxrequestsize to ca_maxrequests, or with large values."""
        wanted = fore or (1 << 21, 1 << 21, 1 << 16, 100, 100)
        channel = u32(0, *wanted, 0)
        number = self.sequence if sequence is None else sequence
        words = (u64(self.client), number, flags, channel, channel, 0x40000000, 1, 0)
        return self.only(op(CREATE_SESSION, *words))

    def start(self, *fore: int, complete: bool = True) -> Peer:
        """Have a client ID and a session, and nothing to reclaim."""
        made = self.exchange().value
        self.client, self.sequence = made["client"], made["sequence"]
        self.session = self.create(*fore).value[0]
        self.sequence += 1
        self.next.clear()
        if complete:
            assert self(op(RECLAIM_COMPLETE, 0)).status == 0
        return self

    def slot(self, number: int = 0, sequence: int = 1, highest: int | None = None, *,
             cached: bool = True) -> bytes:  # fmt: skip
        top = number if highest is None else highest
        return op(SEQUENCE, self.session, sequence, number, top, int(cached))

    def __call__(self, *operations: bytes, slot: int = 0, cached: bool = True,
                 **terms: Any) -> Reply:  # fmt: skip
        """Send these operations behind SEQUENCE on the next sequence ID of a slot."""
        reply = self.try_call(*operations, slot=slot, cached=cached, **terms)
        assert reply
        return reply

    def try_call(self, *operations: bytes, slot: int = 0, cached: bool = True,
                 **terms: Any) -> Reply | None:  # fmt: skip
        """The same, and None if there is no reply."""
        number = self.next.get(slot, 1)
        head = self.slot(slot, number, cached=cached)
        places = tuple((len(head) + at, size) for at, size in terms.pop("places", ()))
        reply = self.compound(head, *operations, places=places, **terms)
        if not reply or reply.results[0].status == 0:
            self.next[slot] = number + 1
        return reply

    def reconnect(self) -> None:
        self.connection.close()
        self.connection = Connection(self.device)

    def handle(self, *names: str) -> bytes:
        """The file handle of a path below the root."""
        steps = [op(LOOKUP, opaque(name.encode())) for name in names]
        reply = self(op(PUTROOTFH), *steps, op(GETFH))
        assert reply.status == 0
        return bytes(reply[GETFH])

    def open(self, folder: bytes, name: bytes, **how: Any) -> tuple[Opened, bytes]:
        """OPEN by name: the results, and the file handle."""
        reply = self(op(PUTFH, opaque(folder)), open_file(name, **how), op(GETFH))
        assert reply.status == 0, reply
        return reply[OPEN], reply[GETFH]

    def at(self, handle: bytes, *operations: bytes, **terms: Any) -> Reply:
        """Operations on a file."""
        shift = 4 + len(opaque(handle))
        places = tuple((shift + at, size) for at, size in terms.pop("places", ()))
        return self(op(PUTFH, opaque(handle)), *operations, places=places, **terms)

    def close(self) -> None:
        """End the connection; client ID and session stay."""
        self.connection.close()
