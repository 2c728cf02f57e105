# SPDX-License-Identifier: Apache-2.0
"""RPC-over-RDMA version 1 headers, from the XDR of RFC 8166 and from nothing else.

kmod/wire/*.c is tested against this; the two share no line and no table.
"""

from __future__ import annotations

import errno
import itertools
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

RDMA_MSG, RDMA_NOMSG, RDMA_ERROR = 0, 1, 4
ERR_VERS, ERR_CHUNK = 1, 2
_ABSENT, _PRESENT = struct.pack(">I", 0), struct.pack(">I", 1)


class RefusedError(Exception):
    """Bytes that are no header; ``errno`` is what the C code has to answer."""

    def __init__(self, number: int) -> None:
        super().__init__(errno.errorcode[number])
        self.errno = number


@dataclass(frozen=True)
class Segment:
    handle: int
    length: int
    offset: int


@dataclass(frozen=True)
class Read:
    """The Read list's segments of one position."""

    position: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Header:
    xid: int
    credits: int
    proc: int
    reads: tuple[Read, ...] = ()
    writes: tuple[tuple[Segment, ...], ...] = ()
    reply: tuple[Segment, ...] | None = None
    error: int = 0
    versions: tuple[int, int] = (0, 0)


def encode(header: Header) -> bytes:
    start = struct.pack(">4I", header.xid, 1, header.credits, header.proc)
    if header.proc == RDMA_ERROR:
        versions = struct.pack(">2I", *header.versions) if header.error == ERR_VERS else b""
        return start + struct.pack(">I", header.error) + versions
    reads = [
        _PRESENT + struct.pack(">I", read.position) + _segment(segment)
        for read in header.reads
        for segment in read.segments
    ]
    writes = [_PRESENT + _array(chunk) for chunk in header.writes]
    reply = _ABSENT if header.reply is None else _PRESENT + _array(header.reply)
    return b"".join((start, *reads, _ABSENT, *writes, _ABSENT, reply))


def _segment(segment: Segment) -> bytes:
    return struct.pack(">IIQ", segment.handle, segment.length, segment.offset)


def _array(chunk: tuple[Segment, ...]) -> bytes:
    return struct.pack(">I", len(chunk)) + b"".join(map(_segment, chunk))


def decode(message: bytes) -> tuple[Header, int]:
    """The header a message starts with, and its length in bytes."""
    reader = _Reader(message)
    xid, version, credit, proc = reader.take(">4I")
    if version != 1:
        raise RefusedError(errno.EPROTONOSUPPORT)
    if proc in (RDMA_MSG, RDMA_NOMSG):
        lists = (reader.read_list(), reader.write_list(), reader.reply_chunk())
        return Header(xid, credit, proc, *lists), reader.at
    if proc == RDMA_ERROR:
        error, versions = reader.error()
        return Header(xid, credit, proc, error=error, versions=versions), reader.at
    raise RefusedError(errno.EPROTO)


class _Reader:
    def __init__(self, message: bytes) -> None:
        self.message = message
        self.at = 0

    def take(self, layout: str) -> tuple[int, ...]:
        _need(self.at + struct.calcsize(layout) <= len(self.message))
        values = struct.unpack_from(layout, self.message, self.at)
        self.at += struct.calcsize(layout)
        return values

    def word(self) -> int:
        return self.take(">I")[0]

    def present(self) -> bool:
        word = self.word()
        _need(word in (0, 1))
        return word == 1

    def read_list(self) -> tuple[Read, ...]:
        items = []
        while self.present():
            items.append((self.word(), Segment(*self.take(">IIQ"))))
        positions = [position for position, _ in items]
        _need(positions == sorted(positions) and not any(p % 4 for p in positions))
        groups = itertools.groupby(items, itemgetter(0))
        return tuple(Read(p, _checked(segment for _, segment in group)) for p, group in groups)

    def chunk(self) -> tuple[Segment, ...]:
        count = self.word()
        return _checked(Segment(*self.take(">IIQ")) for _ in range(count))

    def write_list(self) -> tuple[tuple[Segment, ...], ...]:
        chunks = []
        while self.present():
            chunks.append(self.chunk())
        return tuple(chunks)

    def reply_chunk(self) -> tuple[Segment, ...] | None:
        return self.chunk() if self.present() else None

    def error(self) -> tuple[int, tuple[int, int]]:
        number = self.word()
        _need(number in (ERR_VERS, ERR_CHUNK))
        return number, (self.word(), self.word()) if number == ERR_VERS else (0, 0)


def _checked(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    chunk = tuple(segments)
    _need(sum(segment.length for segment in chunk) < 1 << 32)
    return chunk


def _need(condition: bool) -> None:
    if not condition:
        raise RefusedError(errno.EBADMSG)
