# SPDX-License-Identifier: Apache-2.0
"""Messages of netlink family nfsd, by hand from the kernel's sources, and a kernel that sends them.

Documentation/netlink/specs/nfsd.yaml, include/uapi/linux/{netlink,genetlink,nfsd_netlink}.h; the
order of attributes is that of fs/nfsd/nfsctl.c.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Mapping, Sequence

CONTROL, FAMILY = 16, 31
ERROR, DONE = 2, 3
DUMP = 0x300
RPC_STATUS, THREADS, VERSION, LISTENER, POOL_MODE = 1, 3, 5, 7, 9


def attribute(number: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), number) + data + bytes(-len(data) % 4)


def u32(number: int, value: int) -> bytes:
    return attribute(number, struct.pack("=I", value))


def text(number: int, value: str) -> bytes:
    return attribute(number, value.encode() + b"\0")


def nest(number: int, *inside: bytes) -> bytes:
    return attribute(number | 0x8000, b"".join(inside))


def rpc(
    xid: int = 0x12345678,
    *,
    started_us: int,
    program: int = 100003,
    version: int = 3,
    procedure: int = 6,
    flags: int = 0x11,
    addresses: bytes | None = None,
    operations: Sequence[int] = (),
) -> bytes:
    """The attributes of an RPC: READ of NFSv3 from 10.9.1.2 port 703 to 10.9.1.1 port 20049."""
    if addresses is None:
        addresses = (
            attribute(8, bytes([10, 9, 1, 2]))
            + attribute(9, bytes([10, 9, 1, 1]))
            + attribute(12, (703).to_bytes(2, "big"))
            + attribute(13, (20049).to_bytes(2, "big"))
        )
    return b"".join(
        (
            attribute(1, xid.to_bytes(4, "big")),
            u32(2, flags),
            u32(3, program),
            u32(5, procedure),
            attribute(4, bytes([version])),
            attribute(6, struct.pack("=q", started_us)),
            addresses,
            *(u32(14, operation) for operation in operations),
        )
    )


def ipv6(client: bytes, server: bytes) -> bytes:
    return (
        attribute(10, client)
        + attribute(11, server)
        + attribute(12, (703).to_bytes(2, "big"))
        + attribute(13, (20049).to_bytes(2, "big"))
    )


def listener(transport: str, port: int, address: str) -> bytes:
    """A listener: struct sockaddr_storage has 128 bytes."""
    if ":" in address:
        head = struct.pack("=H", 10) + port.to_bytes(2, "big") + bytes(4)
        packed = socket.inet_pton(socket.AF_INET6, address)
    else:
        head = struct.pack("=H", 2) + port.to_bytes(2, "big")
        packed = socket.inet_pton(socket.AF_INET, address)
    storage = (head + packed).ljust(128, b"\0")
    return nest(1, text(2, transport), attribute(1, storage))


def version(major: int, minor: int, enabled: bool) -> bytes:
    return nest(1, u32(1, major), u32(2, minor), *([attribute(3, b"")] if enabled else []))


REPLIES = {
    # gracetime, leasetime, scope, then the pools' threads
    THREADS: u32(2, 90) + u32(3, 90) + text(4, "node") + u32(1, 4) + u32(1, 4),
    VERSION: version(3, 0, True) + version(4, 0, False) + version(4, 1, True) + version(4, 2, True),
    LISTENER: listener("rdma", 20049, "10.9.2.1")
    + listener("rdma", 20049, "::")
    + listener("tcp", 2049, "10.9.1.1"),
    POOL_MODE: text(1, "pernode") + u32(2, 2),
}
"""Of Linux 6.12, with two pools."""


def framed(kind: int, sequence: int, body: bytes) -> bytes:
    """A netlink message."""
    length = 16 + len(body)
    head = struct.pack("=IHHII", length, kind, 0, sequence, 4711)
    return head + body + bytes(-length % 4)


class Kernel:
    """A socket whose other end is nfsd.

    ``replies`` are the attributes by command, or an errno; ``rpcs`` those of each pending RPC, and
    ``datagrams`` replace the whole answer to rpc-status-get, SEQUENCE being that of the request.
    """

    def __init__(
        self,
        replies: Mapping[int, bytes | int] = REPLIES,
        rpcs: Sequence[bytes] | int = (),
        family: int = FAMILY,
        rest: Sequence[bytes] | None = None,
    ) -> None:
        self.replies, self.rpcs, self.family, self.rest = replies, rpcs, family, rest
        self.asked: list[tuple[int, int]] = []
        self.waiting: list[bytes] = []
        self.closed = False

    def __call__(self, family: int, kind: int, protocol: int) -> Kernel:
        assert (family, kind, protocol) == (socket.AF_NETLINK, socket.SOCK_RAW, 16)
        self.closed = False
        return self

    def bind(self, address: tuple[int, int]) -> None:
        assert address == (0, 0)

    def settimeout(self, seconds: float) -> None:
        assert 0 < seconds < 10

    def close(self) -> None:
        self.closed = True

    def sendto(self, data: bytes, address: tuple[int, int]) -> None:
        assert address == (0, 0)
        length, kind, flags, sequence, _ = struct.unpack_from("=IHHII", data)
        command, _, reserved = struct.unpack_from("=BBH", data, 16)
        assert length == len(data)
        assert flags & 1
        assert not reserved
        if kind == CONTROL:
            # CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME
            assert (command, data[20:]) == (3, b"\x09\x00\x02\x00nfsd\x00\0\0\0")
            self._answer_family(sequence)
            return
        assert kind == self.family
        assert not data[20:]
        self.asked.append((command, flags & DUMP))
        self._answer(command, sequence)

    def _answer_family(self, sequence: int) -> None:
        if not self.family:
            self._error(errno.ENOENT, sequence)
            return
        body = b"\x01\x02\0\0" + text(2, "nfsd") + attribute(1, struct.pack("=H", self.family))
        self.waiting.append(framed(CONTROL, sequence, body + u32(3, 1)))

    def _answer(self, command: int, sequence: int) -> None:
        head = bytes([command, 1, 0, 0])
        if command != RPC_STATUS:
            reply = self.replies.get(command, errno.EOPNOTSUPP)
            if isinstance(reply, int):
                self._error(reply, sequence)
            else:
                self.waiting.append(framed(self.family, sequence, head + reply))
        elif isinstance(self.rpcs, int):
            self._error(self.rpcs, sequence)
        else:
            # as many as fit in a datagram
            for at in range(0, len(self.rpcs), 100):
                some = self.rpcs[at : at + 100]
                self.waiting.append(
                    b"".join(framed(self.family, sequence, head + body) for body in some)
                )
            if self.rest is None:
                self.waiting.append(framed(DONE, sequence, bytes(4)))
            else:
                self.waiting += self.rest

    def _error(self, number: int, sequence: int) -> None:
        self.waiting.append(framed(ERROR, sequence, struct.pack("=i", -number) + bytes(16)))

    def recvfrom(self, size: int) -> tuple[bytes, tuple[int, int]]:
        if not self.waiting:
            # before Python 3.10, no TimeoutError
            raise socket.timeout  # noqa: UP041
        # another process may send to the port, too
        return self.waiting.pop(0)[:size], (0, 0)
