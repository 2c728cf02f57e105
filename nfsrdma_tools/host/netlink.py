# SPDX-License-Identifier: Apache-2.0
"""Netlink: requests to the kernel, and the attributes of messages, in plain Python.

The kernel's side is net/netlink/af_netlink.c and lib/nlattr.c; include/uapi/linux/netlink.h has the
structures.  Readers wait at most some seconds, and a reply has a limit: before "nfsd: fix netlink
dumpit error handling for rpc_status_get", a long list ends in a part of a message and without an
end.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = [
    "ACK",
    "DUMP",
    "LIST_ENDS_EARLY",
    "LIST_TOO_LONG",
    "Attributes",
    "CutError",
    "NetlinkSocket",
]

ACK, DUMP = 0x4, 0x300
"""Flags of a request: NLM_F_ACK, NLM_F_DUMP."""
LIST_ENDS_EARLY = "the kernel's list ends early"
LIST_TOO_LONG = "the kernel's list is too long"
_REQUEST = 0x1
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_TYPE = 0x3FFF
"""NLA_TYPE_MASK: without the flags for nested attributes and for the byte order."""
_AT_ONCE = 32 << 10
"""Bytes of a datagram.  The kernel fills as much of a list at once as the last reader wanted: so
all is read with this size (max_recvmsg_len in net/netlink/af_netlink.c)."""
_MOST_BYTES = 4 << 20
"""Bytes of a reply: 8192 threads (NFSD_MAXSERVS in fs/nfsd/nfssvc.c) of 300 bytes have fewer."""
_SECONDS = 5.0
"""The time for a reply."""
_NUMBERS = {
    "uint8": "=B",
    "uint16": "=H",
    "uint32": "=I",
    "uint64": "=Q",
    "int64": "=q",
    "be16": ">H",
    "be32": ">I",
}


class CutError(OSError):
    """The rest of a reply is missing, or no netlink message."""


class Attributes:
    """The attributes of a message, or those nested in one.

    A subclass lists those that it knows in ``KNOWN``: number, name, and the kind of the value: a
    number (``uint32``, ``be16`` ...), ``text``, ``bytes``, ``flag``, or a subclass.  Others are
    skipped: the kernel adds some.
    """

    KNOWN: ClassVar[Sequence[tuple[int, str, str | type[Attributes]]]] = ()

    def __init__(self, values: Sequence[tuple[str, Any]] = ()) -> None:
        self.values = list(values)

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Attributes with these values, in this order."""
        return cls(list(values.items()))

    @classmethod
    def decoded(cls, data: bytes) -> Self:
        """The attributes in ``data``; ValueError or struct.error if they are invalid."""
        known = {number: (name, kind) for number, name, kind in cls.KNOWN}
        found: list[tuple[str, Any]] = []
        at = 0
        while len(data) - at >= _ATTRIBUTE.size:
            length, number = _ATTRIBUTE.unpack_from(data, at)
            if not _ATTRIBUTE.size <= length <= len(data) - at:
                raise ValueError(f"an attribute of {length} bytes in {len(data) - at}")
            if named := known.get(number & _TYPE):
                name, kind = named
                found.append((name, _value(kind, data[at + _ATTRIBUTE.size : at + length])))
            at += _aligned(length)
        return cls(found)

    def encoded(self) -> bytes:
        """The bytes of the attributes."""
        known = {name: (number, kind) for number, name, kind in self.KNOWN}
        parts = []
        for name, value in self.values:
            number, kind = known[name]
            data = _bytes(kind, value)
            head = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(data), number)
            parts.append(head + data + bytes(-len(data) % 4))
        return b"".join(parts)

    def get_attr(self, name: str, default: Any = None) -> Any:
        """The first value of this name."""
        return next((value for known, value in self.values if known == name), default)

    def get_attrs(self, name: str) -> list[Any]:
        """All values of this name."""
        return [value for known, value in self.values if known == name]


def _value(kind: str | type[Attributes], data: bytes) -> Any:
    if not isinstance(kind, str):
        return kind.decoded(data)
    if kind == "text":
        return data.partition(b"\0")[0].decode()
    if kind == "flag":
        return True
    return data if kind == "bytes" else struct.unpack_from(_NUMBERS[kind], data)[0]


def _bytes(kind: str | type[Attributes], value: Any) -> bytes:
    if not isinstance(kind, str):
        data: bytes = value.encoded()
        return data
    if kind == "text":
        return f"{value}\0".encode()
    if kind == "flag":
        return b""
    return bytes(value) if kind == "bytes" else struct.pack(_NUMBERS[kind], value)


def _aligned(length: int) -> int:
    return (length + 3) & ~3


class NetlinkSocket:
    """A netlink socket of a protocol, such as NETLINK_GENERIC."""

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self._sequence = 0
        try:
            self._socket.bind((0, 0))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def ask(self, kind: int, body: bytes, flags: int = 0) -> Iterator[bytes]:
        """The bodies of the replies to a request of this type: those of a list with DUMP.

        Raises OSError if the kernel refuses it, and CutError at the end of what is there of a list.
        """
        self._sequence += 1
        length = _HEADER.size + len(body)
        head = _HEADER.pack(length, kind, flags | _REQUEST, self._sequence, 0)
        self._socket.sendto(head + body, (0, 0))
        size = 0
        for answer, message in self._received(time.monotonic() + _SECONDS):
            if answer in (_ERROR, _DONE):
                _raise_for(message)
                if answer == _DONE or flags & ACK:
                    return
            elif answer == kind:
                size += len(message)
                if size > _MOST_BYTES:
                    raise CutError(LIST_TOO_LONG)
                yield message
                if not flags & DUMP:
                    return
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    def _received(self, deadline: float) -> Iterator[tuple[int, bytes]]:
        """Type and body of each message from the kernel to the last request."""
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                data, (sender, _) = self._socket.recvfrom(_AT_ONCE)
            # Python 3.9 has two exceptions
            except TimeoutError:
                return
            if sender == 0:
                yield from _messages(data, self._sequence)


def _messages(data: bytes, sequence: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise CutError(LIST_ENDS_EARLY)
        length, kind, _, of_request, _ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= length <= len(data) - at:
            raise CutError(LIST_ENDS_EARLY)
        # what another request left behind
        if of_request == sequence:
            yield kind, data[at + _HEADER.size : at + length]
        at += _aligned(length)


def _raise_for(message: bytes) -> None:
    """Raise OSError for the error number in a message."""
    if len(message) < 4:
        raise CutError(LIST_ENDS_EARLY)
    (code,) = struct.unpack_from("=i", message)
    if code < 0:
        raise OSError(-code, os.strerror(-code))
