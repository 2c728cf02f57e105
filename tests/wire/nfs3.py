# SPDX-License-Identifier: Apache-2.0
"""The RPC messages of an NFSv3 READ, from RFC 5531 and RFC 1813 alone.

kmod/wire/nfs3.c is tested against this; the two share no line and no table.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

__all__ = ["Call", "Read", "answer", "arguments", "credential", "is_answer", "reply"]

AUTH_NONE, AUTH_SYS = 0, 1


@dataclass(frozen=True)
class Read:
    """READ3args; ``position`` and ``count`` in bytes."""

    fh: bytes
    position: int
    count: int
    credential: bytes = field(default=bytes(20), kw_only=True)
    """Body of AUTH_SYS in the Call."""


@dataclass(frozen=True)
class Call:
    """A Call; the words of the header have the values of an NFSv3 READ with AUTH_SYS."""

    read: Read
    header: tuple[int, ...] = (7, 0, 2, 100003, 3, 6)
    """xid, msg_type, rpcvers, prog, vers and proc."""
    flavor: int = AUTH_SYS
    verifier: tuple[int, bytes] = field(default=(AUTH_NONE, b""))

    def encode(self) -> bytes:
        """The message."""
        return b"".join(
            (
                struct.pack(">6I", *self.header),
                *(
                    struct.pack(">I", flavor) + _opaque(body)
                    for flavor, body in ((self.flavor, self.read.credential), self.verifier)
                ),
                _opaque(self.read.fh),
                struct.pack(">QI", self.read.position, self.read.count),
            )
        )


def credential(name: bytes = b"", user: int = 0, group: int = 0, *groups: int) -> bytes:
    """Body of AUTH_SYS."""
    ids = struct.pack(f">3I{len(groups)}I", user, group, len(groups), *groups)
    return struct.pack(">I", 7) + _opaque(name) + ids


def arguments(message: bytes) -> Read | None:
    """The arguments of a Call of READ with AUTH_SYS; None if the message is another one."""
    try:
        return _arguments(message)
    except (struct.error, ValueError):
        return None


def reply(xid: int, count: int, eof: bool) -> bytes:
    """A Reply up to its data: accepted, AUTH_NONE, SUCCESS, NFS3_OK, no attributes."""
    accepted = struct.pack(">6I", xid, 1, 0, AUTH_NONE, 0, 0)
    return accepted + struct.pack(">5I", 0, 0, count, eof, count)


def answer(xid: int, attributes: bytes, count: int, eof: bool) -> bytes:
    """The same with attributes: fattr3, 84 bytes."""
    head = reply(xid, count, eof)
    return head[:28] + struct.pack(">I", 1) + attributes + head[32:]


def is_answer(message: bytes) -> bool:
    """Whether a message is such a Reply, up to its data."""
    if len(message) != 128:
        return False
    (xid,) = struct.unpack_from(">I", message)
    expected = answer(xid, message[32:116], 0, False)
    return message[:116] == expected[:116]


def _opaque(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def _arguments(message: bytes) -> Read:
    _, *words = struct.unpack_from(">7I", message)
    if words != [0, 2, 100003, 3, 6, AUTH_SYS]:
        raise ValueError(words)
    credential, at = _taken(message, 28, 400)
    _, name = struct.unpack_from(">2I", credential)
    groups = struct.unpack_from(">I", credential, 16 + name + -name % 4)[0]
    if name > 255 or groups > 16 or len(credential) != 20 + name + -name % 4 + 4 * groups:
        raise ValueError(credential)
    if struct.unpack_from(">2I", message, at) != (AUTH_NONE, 0):
        raise ValueError(message)
    at += 8
    fh, at = _taken(message, at, 64)
    position, count = struct.unpack_from(">QI", message, at)
    if not fh:
        raise ValueError(fh)
    return Read(fh, position, count, credential=credential)


def _taken(message: bytes, at: int, most: int) -> tuple[bytes, int]:
    """An opaque and the position behind it."""
    (length,) = struct.unpack_from(">I", message, at)
    end = at + 4 + length + -length % 4
    if length > most or end > len(message):
        raise ValueError(length)
    return message[at + 4 : at + 4 + length], end
