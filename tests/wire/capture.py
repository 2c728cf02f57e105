# SPDX-License-Identifier: Apache-2.0
"""RDMA Sends out of a capture of RoCEv2 (UDP port 4791), without tshark's help.

The layout is the InfiniBand Architecture's base transport header: opcode, flags with the pad
count, and 10 more bytes. Reliable connections only; a Send that spans packets is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address
from typing import NamedTuple

# RC Send Only, with immediate, with invalidate: bytes of extended header before the payload
_SEND_ONLY = {0x04: 0, 0x05: 4, 0x17: 4}
_ETHERNET, _UDP, _BTH, _ICRC = 14, 8, 12, 4
_SOURCE = slice(26, 30)


class Send(NamedTuple):
    frame: int
    """counted from 1, as tshark does"""
    source: str
    payload: bytes
    number: tuple[int, int]
    """the receiver's queue pair, and the packet's sequence number"""


def once(packets: Iterable[Send]) -> Iterator[Send]:
    """Leave out packets that soft-RoCE sent again, as it does on a busy host."""
    seen = set[tuple[str, tuple[int, int]]]()
    for send in packets:
        key = (send.source, send.number)
        if key not in seen:
            seen.add(key)
            yield send


def sends(pcap: bytes) -> Iterator[Send]:
    for number, frame in enumerate(_frames(pcap), start=1):
        bth = _ETHERNET + 4 * (frame[_ETHERNET] & 0xF) + _UDP
        opcode, flags = frame[bth : bth + 2]
        if opcode in _SEND_ONLY:
            payload = frame[bth + _BTH + _SEND_ONLY[opcode] : len(frame) - _ICRC - (flags >> 4 & 3)]
            yield Send(number, str(IPv4Address(frame[_SOURCE])), payload, _number(frame, bth))


def _number(frame: bytes, bth: int) -> tuple[int, int]:
    # the upper byte of each word has reserved bits
    pair, packet = struct.unpack_from(">2I", frame, bth + 4)
    return pair & 0xFFFFFF, packet & 0xFFFFFF


def _frames(pcap: bytes) -> Iterator[bytes]:
    assert pcap[:4] == b"\xd4\xc3\xb2\xa1", "not a little-endian capture with microseconds"
    at = 24
    while at < len(pcap):
        length, on_wire = struct.unpack_from("<II", pcap, at + 8)
        assert length == on_wire, "a frame was cut"
        yield pcap[at + 16 : at + 16 + length]
        at += 16 + length
