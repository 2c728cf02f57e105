# SPDX-License-Identifier: Apache-2.0
"""Frames of RoCEv2: writes them, and reads them from Ethernet, RoCEv1 and InfiniBand.

The headers are those of the InfiniBand Architecture Specification, volume 1: BTH (9.2), DETH,
RETH, AETH (9.3), and its annex A17 (RoCEv2) for UDP and the invariant CRC.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from nfsrdma_tools.capture.files import ETHERNET, INFINIBAND
from nfsrdma_tools.nfs_ports import ROCE_PORT

__all__ = [
    "ACKNOWLEDGE",
    "MTU",
    "READ_REQUEST",
    "READ_RESPONSES",
    "SENDS",
    "UD_SEND",
    "WRITES",
    "Address",
    "Endpoint",
    "Packet",
    "datagram",
    "frame",
    "packet",
]

Address = IPv4Address | IPv6Address
MTU = 4096
"""Largest payload of a frame, in bytes."""

# opcodes of a reliable connection: first, middle, last, only
SENDS = (0x00, 0x01, 0x02, 0x04)
WRITES = (0x06, 0x07, 0x08, 0x0A)
READ_REQUEST = 0x0C
READ_RESPONSES = (0x0D, 0x0E, 0x0F, 0x10)
ACKNOWLEDGE = 0x11
UD_SEND = 0x64

_RETH = {0x06, 0x0A, 0x0B, READ_REQUEST}
_AETH = {0x0D, 0x0F, 0x10, ACKNOWLEDGE}
# immediate data, or the key to invalidate: last and only, of Sends and Writes
_IMMEDIATE = {0x03, 0x05, 0x09, 0x0B, 0x16, 0x17}
_IPV4, _IPV6, _VLAN, _ROCE1 = 0x0800, 0x86DD, (0x8100, 0x88A8), 0x8915
_UDP, _BTH = 17, 0x1B


class Endpoint(NamedTuple):
    """One end of a connection: its queue pair, and a MAC address that is made up."""

    address: Address
    queue_pair: int
    mac: bytes

    def __hash__(self) -> int:
        # that of an address takes as long as a frame
        return self.queue_pair


class Packet(NamedTuple):
    """A packet: ``payload`` is what the frame holds of it, ``length`` what the wire held.

    ``key``, ``offset`` and ``size`` are those of an RDMA Read or Write; ``syndrome`` is that of an
    acknowledgement, ``invalidated`` a key.
    """

    source: str
    destination: str
    opcode: int
    queue_pair: int
    number: int
    payload: bytes
    length: int
    key: int = 0
    offset: int = 0
    size: int = 0
    syndrome: int | None = None
    invalidated: int | None = None
    source_queue_pair: int = 0


def frame(
    source: Endpoint,
    target: Endpoint,
    opcode: int,
    number: int,
    payload: bytes = b"",
    extension: bytes = b"",
) -> bytes:
    """A frame; ``extension`` has the headers behind BTH, ``number`` is the PSN."""
    pad = -len(payload) % 4
    # solicited event, migration state "migrated", pad count; the default partition
    head = struct.pack(
        ">BBHII", opcode, 0x40 | pad << 4, 0xFFFF, target.queue_pair & 0xFFFFFF, number & 0xFFFFFF
    )
    return _sealed(source, target, head + extension + payload + bytes(pad))


def datagram(source: Endpoint, target: Endpoint, number: int, payload: bytes) -> bytes:
    """A management datagram from queue pair 1 to queue pair 1."""
    deth = struct.pack(">II", 0x80010000, 1)
    receiver = target._replace(queue_pair=1)
    return frame(source, receiver, UD_SEND, number, payload, deth)


class _Envelope(NamedTuple):
    """The headers in front of BTH: of Ethernet with the network, and of UDP; and their CRC."""

    network: bytes
    udp: bytes
    crc: int


# of the connections and sizes that are busy: most messages of a mount have the same few
@lru_cache(maxsize=4096)
def _envelope(source: Endpoint, target: Endpoint, length: int) -> _Envelope:
    """The headers in front of ``length`` bytes of BTH, payload and CRC."""
    udp = struct.pack(">HHHH", 0xC000 | source.queue_pair & 0x3FFF, ROCE_PORT, length + 8, 0)
    if isinstance(source.address, IPv4Address):
        ether, network = _IPV4, _ipv4(source.address, target.address, length + 8)
    else:
        ether, network = _IPV6, _ipv6(source.address, target.address, length + 8)
    head = target.mac + source.mac + struct.pack(">H", ether)
    return _Envelope(head + network, udp, _headers_crc(network, udp))


def _sealed(source: Endpoint, target: Endpoint, transport: bytes) -> bytes:
    head, udp, crc = _envelope(source, target, len(transport) + 4)
    # congestion bits of BTH count as ones
    crc = zlib.crc32(transport[5:], zlib.crc32(transport[:4] + b"\xff", crc))
    rest = transport + crc.to_bytes(4, "little")
    if not isinstance(source.address, IPv4Address):
        # in IPv6 the checksum of UDP is not optional; the other CRC counts it as ones
        udp = udp[:6] + _udp_checksum(head[14:], udp + rest)
    return head + udp + rest


def _ipv4(source: Address, target: Address, length: int) -> bytes:
    fields = (0x45, 0, 20 + length, 0, 0x4000, 64, _UDP)
    head = struct.pack(">BBHHHBB", *fields)
    addresses = source.packed + target.packed
    total = sum(struct.unpack(">10H", head + bytes(2) + addresses))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return head + struct.pack(">H", total ^ 0xFFFF) + addresses


def _ipv6(source: Address, target: Address, length: int) -> bytes:
    head = struct.pack(">IHBB", 6 << 28, length, _UDP, 64)
    return head + source.packed + target.packed


def _udp_checksum(network: bytes, datagram: bytes) -> bytes:
    words = struct.pack(">II", len(datagram), _UDP) + network[8:] + datagram
    # the sum of 16-bit words in ones' complement is the rest of a division by 65535
    total = int.from_bytes(words + bytes(-len(words) % 2), "big") % 0xFFFF
    return struct.pack(">H", 0xFFFF - total)


def _headers_crc(network: bytes, udp: bytes) -> int:
    """CRC over the fields that no router changes; the others count as ones (A17.3.3)."""
    ip = bytearray(network)
    if len(ip) == 20:
        ip[1] = ip[8] = ip[10] = ip[11] = 0xFF
    else:
        ip[0] |= 0x0F
        ip[1] = ip[2] = ip[3] = ip[7] = 0xFF
    # the checksum of UDP, too
    return zlib.crc32(b"\xff" * 8 + ip + udp[:6] + b"\xff\xff")


def packet(link: int, data: bytes, length: int) -> Packet | None:
    """The packet in a frame; None if the frame is not of RDMA, or cut within its headers."""
    try:
        if link == ETHERNET:
            return _from_ethernet(data, length)
        if link == INFINIBAND:
            return _from_infiniband(data, length)
    except (struct.error, IndexError, ValueError):
        return None
    return None


def _from_ethernet(data: bytes, length: int) -> Packet | None:
    at, kind = 14, int.from_bytes(data[12:14], "big")
    while kind in _VLAN:
        kind = int.from_bytes(data[at + 2 : at + 4], "big")
        at += 4
    if kind == _ROCE1:
        return _behind_grh(data, at, length)
    if kind == _IPV4:
        return _from_ipv4(data, at, length)
    if kind == _IPV6 and data[at + 6] == _UDP:
        ends = str(IPv6Address(data[at + 8 : at + 24])), str(IPv6Address(data[at + 24 : at + 40]))
        return _from_udp(data, at + 40, length, ends)
    return None


def _from_ipv4(data: bytes, at: int, length: int) -> Packet | None:
    words, protocol = data[at] & 0xF, data[at + 9]
    if protocol != _UDP or words < 5:
        return None
    ends = str(IPv4Address(data[at + 12 : at + 16])), str(IPv4Address(data[at + 16 : at + 20]))
    return _from_udp(data, at + 4 * words, length, ends)


def _from_udp(data: bytes, at: int, length: int, ends: tuple[str, str]) -> Packet | None:
    _, port, size, _ = struct.unpack_from(">4H", data, at)
    if port != ROCE_PORT:
        return None
    # Ethernet pads short frames
    return _from_bth(data, at + 8, min(length, at + size), ends)


def _from_infiniband(data: bytes, length: int) -> Packet | None:
    next_header, at = data[1] & 3, 8
    if next_header == 3:
        return _behind_grh(data, at, length)
    if next_header != 2:
        return None
    target, source = struct.unpack(">H", data[2:4])[0], struct.unpack(">H", data[6:8])[0]
    # a variant CRC of 2 bytes ends the packet
    return _from_bth(data, at, length - 2, (f"LID {source}", f"LID {target}"))


def _behind_grh(data: bytes, at: int, length: int) -> Packet | None:
    if data[at + 6] != _BTH:
        return None
    size = int.from_bytes(data[at + 4 : at + 6], "big")
    ends = str(IPv6Address(data[at + 8 : at + 24])), str(IPv6Address(data[at + 24 : at + 40]))
    return _from_bth(data, at + 40, min(length, at + 40 + size), ends)


def _from_bth(data: bytes, at: int, end: int, ends: tuple[str, str]) -> Packet:
    opcode, flags, _, queue_pair, number = struct.unpack_from(">BBHII", data, at)
    at += 12
    parsed = Packet(*ends, opcode, queue_pair & 0xFFFFFF, number & 0xFFFFFF, b"", 0)
    if opcode == UD_SEND:
        sender = struct.unpack_from(">II", data, at)[1] & 0xFFFFFF
        parsed, at = parsed._replace(source_queue_pair=sender), at + 8
    if opcode in _RETH:
        offset, key, size = struct.unpack_from(">QII", data, at)
        parsed, at = parsed._replace(key=key, offset=offset, size=size), at + 16
    if opcode in _AETH:
        parsed, at = parsed._replace(syndrome=data[at]), at + 4
    if opcode in _IMMEDIATE:
        parsed, at = parsed._replace(invalidated=struct.unpack_from(">I", data, at)[0]), at + 4
    end = max(at, end - 4 - (flags >> 4 & 3))
    return parsed._replace(payload=data[at:end], length=end - at)
