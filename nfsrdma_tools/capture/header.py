# SPDX-License-Identifier: Apache-2.0
"""Transport headers of RPC-over-RDMA version 1 (RFC 8166, section 4), and private data (RFC 8797).

Version 0 is the header of 2003, which personality `read-read` of nfsrdma has: a Read list only.

``header`` reads what a stranger sent: it raises ValueError for everything that is no header.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from nfsrdma_tools.capture import xdr

__all__ = [
    "DONE",
    "ERROR",
    "ERR_CHUNK",
    "ERR_VERS",
    "MSG",
    "MSGP",
    "NAMES",
    "NOMSG",
    "Header",
    "PrivateData",
    "ReadSegment",
    "Segment",
    "header",
    "packed",
    "private_data",
]

MSG, NOMSG, MSGP, DONE, ERROR = range(5)
"""rdma_proc."""
NAMES = ("RDMA_MSG", "RDMA_NOMSG", "RDMA_MSGP", "RDMA_DONE", "RDMA_ERROR")
ERR_VERS, ERR_CHUNK = 1, 2
_PRIVATE = 0xF6AB0E18


class Segment(NamedTuple):
    """A segment of memory that the peer may access."""

    handle: int
    length: int
    offset: int


class ReadSegment(NamedTuple):
    """A segment of the Read list, with its position in the XDR stream."""

    position: int
    handle: int
    length: int
    offset: int


class Header(NamedTuple):
    """A header; ``size`` is its length in bytes, where the inline part of the message begins."""

    xid: int
    version: int
    credits: int
    procedure: int
    reads: tuple[ReadSegment, ...] = ()
    writes: tuple[tuple[Segment, ...], ...] = ()
    reply: tuple[Segment, ...] | None = None
    error: int = 0
    versions: tuple[int, int] = (0, 0)
    size: int = 0

    @property
    def written(self) -> int:
        """Bytes in all Write chunks and the Reply chunk."""
        chunks = (*self.writes, self.reply or ())
        return sum(segment.length for chunk in chunks for segment in chunk)

    @property
    def read(self) -> int:
        """Bytes in the Read list."""
        return sum(segment.length for segment in self.reads)


class PrivateData(NamedTuple):
    """Private data of rpcrdma (RFC 8797, section 4): inline sizes in bytes."""

    version: int
    remote_invalidation: bool
    send_size: int
    receive_size: int


def header(message: bytes) -> Header:
    """The header that a message begins with.

    ValueError if it is none; a header of another version ends behind its fixed part.
    """
    reader = _Reader(message)
    xid, version, credits, procedure = reader.words(4)
    head = Header(xid, version, credits, procedure, size=16)
    if version == 0 and procedure in (MSG, NOMSG):
        reads = reader.reads_2003()
        return head._replace(reads=reads, size=reader.at)
    if version != 1 or procedure == DONE:
        return head
    if procedure == ERROR:
        error = reader.word()
        versions = (reader.word(), reader.word()) if error == ERR_VERS else (0, 0)
        return head._replace(error=error, versions=versions, size=reader.at)
    if procedure not in (MSG, NOMSG, MSGP):
        raise ValueError(f"procedure {procedure}")
    if procedure == MSGP:
        # alignment and threshold
        reader.words(2)
    reads, writes, reply = reader.reads(), reader.writes(), reader.reply()
    return head._replace(reads=reads, writes=writes, reply=reply, size=reader.at)


def packed(head: Header) -> bytes:
    """The bytes of a header of version 1: RDMA_MSG, RDMA_NOMSG or RDMA_DONE."""
    words = [struct.pack(">4I", head.xid, 1, head.credits, head.procedure)]
    if head.procedure == DONE:
        return words[0]
    words += [struct.pack(">IIIIQ", 1, *segment) for segment in head.reads]
    words.append(bytes(4))
    for chunk in head.writes:
        words.append(struct.pack(">II", 1, len(chunk)))
        words += [struct.pack(">IIQ", *segment) for segment in chunk]
    words.append(bytes(4))
    if head.reply is None:
        words.append(bytes(4))
    else:
        words.append(struct.pack(">II", 1, len(head.reply)))
        words += [struct.pack(">IIQ", *segment) for segment in head.reply]
    return b"".join(words)


def private_data(raw: bytes) -> PrivateData | None:
    """The private data of a peer; None if it sent none that rpcrdma defines."""
    if len(raw) < 8 or int.from_bytes(raw[:4], "big") != _PRIVATE:
        return None
    version, flags, send, receive = raw[4:8]
    return PrivateData(version, bool(flags & 1), (send + 1) * 1024, (receive + 1) * 1024)


class _Reader(xdr.Reader):
    """Reads the lists of chunks of a header."""

    def follows(self) -> bool:
        word = self.word()
        if word > 1:
            raise ValueError(f"a list goes on with {word}")
        return word == 1

    def chunk(self) -> tuple[Segment, ...]:
        words = self.words(4 * self.word())
        return tuple(
            Segment(words[n], words[n + 1], words[n + 2] << 32 | words[n + 3])
            for n in range(0, len(words), 4)
        )

    def reads(self) -> tuple[ReadSegment, ...]:
        segments = []
        while self.follows():
            position, handle, length, high, low = self.words(5)
            segments.append(ReadSegment(position, handle, length, high << 32 | low))
        return tuple(segments)

    def reads_2003(self) -> tuple[ReadSegment, ...]:
        segments = []
        while self.follows():
            position, length, handle, high, low = self.words(5)
            segments.append(ReadSegment(position, handle, length, high << 32 | low))
        return tuple(segments)

    def writes(self) -> tuple[tuple[Segment, ...], ...]:
        chunks = []
        while self.follows():
            chunks.append(self.chunk())
        return tuple(chunks)

    def reply(self) -> tuple[Segment, ...] | None:
        return self.chunk() if self.follows() else None
