# SPDX-License-Identifier: Apache-2.0
"""Honest RPCs: the bytes of Calls and Replies (RFC 5531), NFSv3 (RFC 1813), and TCP's records."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

NFS, MOUNT = 100003, 100005
NULL, GETATTR, LOOKUP, READ, WRITE, READDIR, READDIRPLUS = 0, 1, 3, 6, 7, 16, 17
COMPOUND = 1
CALL, REPLY = 0, 1
NOBODY = struct.pack(">2I", 0, 0)
ROOT = struct.pack(">2I", 1, 20) + struct.pack(">5I", 0, 0, 0, 0, 0)
"""AUTH_SYS: no stamp, no machine, root, in no groups"""
# position and size of data
Place = tuple[int, int]


def words(*values: int) -> bytes:
    """XDR words; numbers are taken modulo 2^32."""
    return struct.pack(f">{len(values)}I", *(value % (1 << 32) for value in values))


def opaque(data: bytes) -> bytes:
    """With its length before it and its padding behind."""
    return words(len(data)) + padded(data)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def hyper(value: int) -> bytes:
    return struct.pack(">Q", value)


def call(xid: int, procedure: int, arguments: bytes = b"", program: int = NFS) -> bytes:
    """A Call of version 3 of a program, as root."""
    return words(xid, CALL, 2, program, 3, procedure) + ROOT + NOBODY + arguments


class Call(NamedTuple):
    """The procedure that a Call requests."""

    xid: int
    program: int
    version: int
    procedure: int


def parse_call(rpc: bytes) -> Call | None:
    """None for what is no Call."""
    if len(rpc) < 24:
        return None
    xid, direction, _, program, version, procedure = struct.unpack_from(">6I", rpc)
    return Call(xid, program, version, procedure) if direction == CALL else None


def is_reply(rpc: bytes) -> bool:
    return len(rpc) >= 8 and struct.unpack_from(">2I", rpc)[1] == REPLY


def accepted(rpc: bytes) -> bool:
    """Whether a Reply has accept status SUCCESS."""
    return len(rpc) >= 24 and struct.unpack_from(">6I", rpc)[1:] == (REPLY, 0, 0, 0, 0)


def split(reply: bytes, place: Place) -> tuple[bytes, bytes]:
    """The reply to a READ without its data and their padding, and the data."""
    at, size = place
    return reply[:at] + reply[at + size + -size % 4 :], reply[at : at + size]


def read_data(reply: bytes) -> Place | None:
    """Where the data of an NFSv3 READ reply is, and its length; None when it failed."""
    if not accepted(reply) or struct.unpack_from(">I", reply, 24)[0]:
        return None
    # attributes may be left out; count, eof and the data's own length stand before it
    at = 32 + 84 * struct.unpack_from(">I", reply, 28)[0] + 12
    return at, struct.unpack_from(">I", reply, at - 4)[0]


def data_of(reply: bytes) -> bytes:
    """The data of an NFSv3 READ reply; AssertionError when it failed."""
    place = read_data(reply)
    assert place, reply.hex()
    return split(reply, place)[1]


class Stream:
    """RPC over TCP: records with their length before them."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=60)

    def send(self, rpc: bytes) -> None:
        self.socket.sendall(words(1 << 31 | len(rpc)) + rpc)

    def receive(self) -> bytes:
        """The next record."""
        whole, last = b"", False
        while not last:
            (mark,) = struct.unpack(">I", self._exactly(4))
            last = bool(mark >> 31)
            whole += self._exactly(mark & 0x7FFFFFFF)
        return whole

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            some = self.socket.recv(size - len(data))
            if not some:
                raise ConnectionError("the server ended the stream")
            data += some
        return data
