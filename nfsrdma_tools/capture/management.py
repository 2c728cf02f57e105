# SPDX-License-Identifier: Apache-2.0
"""Messages of InfiniBand's connection manager: REQ, REP and RTU (volume 1, 12.6), on RDMA IP CM."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address
from typing import NamedTuple

from nfsrdma_tools.capture.roce import Address, Endpoint
from nfsrdma_tools.nfs_ports import RDMA_PORT

__all__ = ["REJECT", "REPLY", "REQUEST", "CmMessage", "cm_message", "reply", "request", "use"]

REQUEST, REJECT, REPLY, _USE = 0x10, 0x12, 0x13, 0x14
_SIZE, _HEAD = 256, 24
# the service identifier of RDMA IP CM for TCP's port space
_SERVICE = 0x0000000001060000
_IP_HEADER = 36


class CmMessage(NamedTuple):
    """A message: ``queue_pair`` and ``private`` of its sender, ``port`` of a request."""

    kind: int
    local: int
    remote: int
    queue_pair: int
    private: bytes
    port: int = 0
    number: int = 0


def request(local: int, client: Endpoint, server: Endpoint, number: int, private: bytes) -> bytes:
    """A REQ from ``client``: ``local`` identifies the connection, ``number`` is the first PSN."""
    addresses = _gid(client.address) + _gid(server.address)
    data = struct.pack(
        ">I4xQQ4xIIIIII",
        local,
        _SERVICE | RDMA_PORT,
        client.queue_pair,
        0,
        client.queue_pair << 8 | 16,
        16,
        # response timeout, reliable connection, flow control
        20 << 3 | 1,
        # 7 retries
        number << 8 | 20 << 3 | 7,
        # default partition, MTU 4096, 7 RNR retries
        0xFFFF << 16 | 5 << 12 | 7 << 8 | 15 << 4,
    )
    data += bytes(4) + addresses + struct.pack(">IBBBB", 0, 0, 64, 8, 20 << 3) + bytes(44)
    return _datagram(REQUEST, local, data + _ip_header(client, server) + private)


def reply(local: int, remote: int, server: Endpoint, number: int, private: bytes) -> bytes:
    """A REP from ``server``."""
    words = (local, remote, 0, server.queue_pair << 8, 0, number << 8)
    data = struct.pack(">6I4BQ", *words, 16, 16, 1, 7 << 5, server.queue_pair)
    return _datagram(REPLY, remote, data + private)


def use(local: int, remote: int) -> bytes:
    """An RTU from the client."""
    return _datagram(_USE, local, struct.pack(">II", local, remote))


def _datagram(kind: int, transaction: int, data: bytes) -> bytes:
    # class communication management, version 2, method Send
    head = struct.pack(">BBBBHHQHHI", 1, 7, 2, 3, 0, 0, transaction, kind, 0, 0)
    return (head + data).ljust(_SIZE, b"\0")


def _gid(address: Address) -> bytes:
    return address.packed if len(address.packed) == 16 else bytes(10) + b"\xff\xff" + address.packed


def _ip_header(client: Endpoint, server: Endpoint) -> bytes:
    """The header of RDMA IP CM in front of the private data (annex A11)."""
    ipv4 = isinstance(client.address, IPv4Address)
    source, target = (end.address.packed.rjust(16, b"\0") for end in (client, server))
    port = 0xC000 | client.queue_pair & 0x3FFF
    return struct.pack(">BBH", 0, (4 if ipv4 else 6) << 4, port) + source + target


def cm_message(payload: bytes) -> CmMessage | None:
    """The message in a datagram to queue pair 1; None if it is another one, or cut."""
    try:
        return _read(payload)
    except struct.error:
        return None


def _read(payload: bytes) -> CmMessage | None:
    base, management, *_, kind = struct.unpack_from(">BBBBHHQH", payload)
    if (base, management) != (1, 7):
        return None
    data = payload[_HEAD:_SIZE]
    if kind == REQUEST:
        local, service = struct.unpack_from(">I4xQ", data)
        pair, number = (struct.unpack_from(">I", data, at)[0] >> 8 for at in (32, 44))
        # of another port space, the private data has no such header
        private = data[140 + _IP_HEADER :] if service & ~0xFFFF == _SERVICE else data[140:]
        return CmMessage(kind, local, 0, pair, private, service & 0xFFFF, number)
    local, remote = struct.unpack_from(">II", data)
    if kind == REPLY:
        pair, number = (struct.unpack_from(">I", data, at)[0] >> 8 for at in (12, 20))
        return CmMessage(kind, local, remote, pair, data[36:], 0, number)
    return CmMessage(kind, local, remote, 0, b"")
