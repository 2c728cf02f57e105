# SPDX-License-Identifier: Apache-2.0
"""Messages of lanes, as docs/dev/module-internals.md has them (pre-posted)."""

from __future__ import annotations

from wire.rpcrdma import RDMA_MSG, Header, Segment, decode, encode

from testbed.peers import rpc
from testbed.peers.private_data import extended

__all__ = [
    "HEAD",
    "LANE",
    "PAGE",
    "PRE_POSTED",
    "Answer",
    "asked",
    "called",
    "first",
    "read_call",
    "rooms",
]

PRE_POSTED, LANE = 1 << 2, 1 << 31
HEAD = 512
"""length of the first entry of a lane's receives"""
PAGE = 4096


def asked(token: int, pages: int = 1) -> bytes:
    """The private data of a lane."""
    return extended(PRE_POSTED | LANE | pages << 16, token)


def rooms(count: int, length: int = PAGE, head: int = HEAD) -> tuple[Segment, ...]:
    """The segments of a Call: one for each receive."""
    return tuple(Segment(0, length, 0 if n else head) for n in range(count))


def called(xid: int, call: bytes, segments: tuple[Segment, ...]) -> bytes:
    """A message for a lane."""
    return encode(Header(xid, 1, RDMA_MSG, writes=(segments,))) + call


def read_call(xid: int, file: bytes, offset: int, size: int) -> bytes:
    """NFSv3 READ."""
    return rpc.call(xid, rpc.READ, rpc.opaque(file) + rpc.hyper(offset) + rpc.words(size))


class Answer:
    """The messages of a Reply: what the server says of them, the RPC message, and the data."""

    def __init__(self, messages: list[bytes], head: int = HEAD) -> None:
        header, size = decode(messages[0])
        self.xid, self.segments = header.xid, header.writes[0]
        self.reply = messages[0][size : size + self.segments[0].offset]
        lengths = [segment.length for segment in self.segments]
        parts = [messages[0][head:] if lengths[0] else b"", *messages[1:]]
        assert [len(part) for part in parts] == lengths, (lengths, [len(part) for part in parts])
        self.data = b"".join(parts)


def first(header: Header, lengths: list[int], rest: bytes, room: int) -> bytes:
    """The first message of a Reply, without its data: the header and the rest, padded."""
    segments = tuple(Segment(0, length, 0 if n else len(rest)) for n, length in enumerate(lengths))
    message = encode(Header(header.xid, 1, RDMA_MSG, writes=(segments,))) + rest
    return message + bytes(max(room - len(message), 0)) if lengths[0] else message
