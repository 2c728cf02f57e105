# SPDX-License-Identifier: Apache-2.0
"""Messages from the parts that bpf/capture.c copies: what was sent inline, and what by RDMA.

The kernel keeps a message as a structure xdr_buf: head, pages, tail.  How much of it a Send has
depends on the chunk lists of its transport header (RFC 8166, section 3.4).
"""

from __future__ import annotations

import struct
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv6Address
from typing import NamedTuple

from nfsrdma_tools.capture.conversation import ConnectionName, Message
from nfsrdma_tools.capture.header import MSG, NOMSG, Header, ReadSegment, Segment, header, packed
from nfsrdma_tools.probes.maps import sockaddr

__all__ = ["ORIGINS", "PARTS", "Assembler", "Part", "part"]

# enum origin and enum part of bpf/capture.c
ORIGINS = (
    *("call sent", "reply received", "callback received", "call received", "reply sent"),
    *("result", "message sent", "message received"),
)
_CALL_SENT, _REPLY_RECEIVED, _CALLBACK, _CALL_RECEIVED, _REPLY_SENT, _RESULT = range(6)
_SENT, _RECEIVED = 6, 7
# numbers of nfsrdma's server connections (kmod/observe/trace_server.h)
_SERVER_NUMBERS = 0x80000000
PARTS = ("whole", "head", "pages", "tail")
_WHOLE, _HEAD, _PAGES, _TAIL = range(4)
# struct part_record without its bytes
_RECORD = struct.Struct("=QQ14I28s28s")
_MOST = 1 << 12
# a message is at most as long as the largest READ, and some
_LONGEST = 1 << 24


class Part(NamedTuple):
    """A record of the ring: ``captured`` bytes at position ``at`` of a part of ``total`` bytes."""

    time: int
    message: int
    origin: int
    part: int
    last: bool
    at: int
    total: int
    client: int
    task: int
    transport: int
    transmissions: int
    xid: int
    position: int
    records: int
    local: tuple[str, int]
    peer: tuple[str, int]
    captured: bytes


def part(raw: bytes) -> Part:
    """The part in a record of the ring."""
    fields = _RECORD.unpack_from(raw)
    captured = raw[_RECORD.size : _RECORD.size + fields[7]]
    ends = _address(fields[16]), _address(fields[17])
    # struct part_record has the same order; its count of captured bytes and reserved word go
    return Part._make((*fields[:4], fields[4] != 0, *fields[5:7], *fields[8:15], *ends, captured))


# of the connections that are busy
@lru_cache(maxsize=1024)
def _address(raw: bytes) -> tuple[str, int]:
    """Address and port in a structure sockaddr; that of IPv4 if IPv6 maps one."""
    address, port = sockaddr(raw)
    mapped = IPv6Address(address).ipv4_mapped if ":" in address else None
    return str(mapped or address), port


class _Bytes:
    """A part as far as it was captured; the rest is zeros."""

    def __init__(self, total: int) -> None:
        self.total = min(total, _LONGEST)
        self.captured: list[tuple[int, bytes]] = []

    def get(self) -> bytes:
        if len(self.captured) == 1:
            at, piece = self.captured[0]
            if not at and len(piece) == self.total:
                return piece
        data = bytearray(self.total)
        for at, piece in self.captured:
            data[at : at + len(piece)] = piece[: max(0, self.total - at)]
        return bytes(data)

    def first(self) -> bytes:
        """The bytes up to the last captured one."""
        end = max((at + len(piece) for at, piece in self.captured), default=0)
        return self.get()[:end] if end else b""

    @property
    def missing(self) -> int:
        return max(0, self.total - sum(len(piece) for _, piece in self.captured))


@dataclass
class _Gathered:
    """The parts of a message."""

    first: Part
    records: int = 0
    parts: dict[int, _Bytes] = field(default_factory=dict)

    def add(self, piece: Part) -> None:
        self.records += 1
        if piece.last:
            return
        known = self.parts.setdefault(piece.part, _Bytes(piece.total))
        if piece.captured:
            known.captured.append((piece.at, piece.captured))

    def get(self, which: int) -> bytes:
        return self.parts[which].get() if which in self.parts else b""

    def data(self) -> bytes:
        """The pages as far as they were captured."""
        return self.parts[_PAGES].first() if _PAGES in self.parts else b""

    def missing(self, *which: int) -> int:
        return sum(self.parts[number].missing for number in which if number in self.parts)


class Assembler:
    """Makes messages from the parts of the ring.

    ``complete`` counts messages of which all parts arrived, ``lost`` those that lack one, and
    ``unknown`` those without addresses: they cannot be written.  A message whose last part is lost
    is in none of them: ``complete`` against the probes' own count shows it.

    ``offset`` turns the probes' clock into nanoseconds since 1970.  Without ``data``, messages have
    no data of chunks, even if the probes copied some with the message.
    """

    def __init__(self, offset: int, data: bool = True) -> None:
        self.offset = offset
        self.data = data
        self.complete = 0
        self.lost = 0
        self.unknown = 0
        self._open: OrderedDict[int, _Gathered] = OrderedDict()
        self._results: OrderedDict[tuple[tuple[str, int], int], list[tuple[int, int]]]
        self._results = OrderedDict()

    def feed(self, piece: Part) -> Iterator[Message]:
        """Take a part; yields the message that it completes."""
        if piece.origin == _RESULT:
            self.complete += 1
            self._result(piece)
            return
        gathered = self._open.get(piece.message)
        if gathered is None:
            gathered = self._open[piece.message] = _Gathered(piece)
            if len(self._open) > _MOST:
                self._open.popitem(last=False)
        gathered.add(piece)
        if piece.last:
            del self._open[piece.message]
            if gathered.records != piece.records:
                self.lost += 1
                return
            self.complete += 1
            message = self._message(gathered)
            if message:
                yield message
            else:
                self.unknown += 1

    def _result(self, piece: Part) -> None:
        key = (piece.peer, piece.xid)
        self._results.setdefault(key, []).append((piece.position, piece.total))
        if len(self._results) > _MOST:
            self._results.popitem(last=False)

    def _message(self, gathered: _Gathered) -> Message | None:
        first = gathered.first
        if not first.local[0] or not first.peer[0] or first.origin >= len(ORIGINS):
            return None
        if first.origin == _CALLBACK:
            return self._made(gathered, _callback(gathered.get(_HEAD)))
        whole = gathered.get(_WHOLE)
        try:
            head = header(whole)
        except ValueError:
            return self._made(gathered, _Inline(whole, missing=gathered.missing(_WHOLE)))
        if first.origin == _CALL_SENT:
            return self._made(gathered, _call(gathered, head), head)
        if first.origin == _REPLY_SENT:
            # the key of a result has the XID as it is in memory
            xid = int.from_bytes(whole[:4], sys.byteorder)
            results = self._results.pop((first.peer, xid), [])
            return self._made(gathered, _reply(gathered, head, results), head)
        inline = _Inline(whole, missing=gathered.missing(_WHOLE))
        if first.origin == _REPLY_RECEIVED:
            inline = _received(gathered, head, inline)
        return self._made(gathered, inline, head)

    def _made(self, gathered: _Gathered, inline: _Inline, head: Header | None = None) -> Message:
        first = gathered.first
        ours = first.origin in (_SENT, _RECEIVED)
        is_client = first.origin in (_CALL_SENT, _REPLY_RECEIVED, _CALLBACK)
        if ours:
            is_client = first.transport < _SERVER_NUMBERS
        outbound = first.origin in (_CALL_SENT, _REPLY_SENT, _SENT)
        ends = (first.local[0], first.peer[0]) if is_client else (first.peer[0], first.local[0])
        number = first.transport if is_client or ours else first.peer[1]
        notes = list(inline.notes)
        if ours:
            notes.append(f"transport {first.transport & ~_SERVER_NUMBERS} of nfsrdma")
        elif is_client and first.origin != _CALLBACK:
            notes.append(f"transport {first.transport}, task {first.task}@{first.client}")
        if first.transmissions > 1:
            notes.append(f"transmission {first.transmissions}")
        return Message(
            time=first.time + self.offset,
            connection=_connection(*ends, number),
            from_client=is_client == outbound,
            payload=inline.payload,
            outbound=outbound,
            data=inline.data if self.data else {},
            long=inline.long,
            positions=inline.positions,
            missing=inline.missing,
            notes=tuple(notes),
            header=head,
        )


# the name of a connection is an object, because that takes long to make and to compare
@lru_cache(maxsize=1024)
def _connection(client: str, server: str, number: int) -> ConnectionName:
    return ConnectionName(client, server, number)


@dataclass
class _Inline:
    """The message of a Send, and the data that RDMA moves for it; see Message."""

    payload: bytes
    missing: int = 0
    long: bytes = b""
    data: dict[int, bytes] = field(default_factory=dict)
    positions: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()


def _callback(message: bytes) -> _Inline:
    xid = int.from_bytes(message[:4], "big")
    made = packed(Header(xid, 1, 1, MSG))
    return _Inline(made + message, notes=("the transport header is made up",))


def _call(gathered: _Gathered, head: Header) -> _Inline:
    whole, body = gathered.get(_WHOLE)[: head.size], _xdr(gathered)
    missing = gathered.missing(_HEAD, _PAGES, _TAIL)
    if head.procedure == NOMSG:
        return _Inline(whole, long=body if not missing else b"", notes=_incomplete(missing))
    positions = {segment.position for segment in head.reads}
    if not positions:
        return _Inline(whole + body, missing)
    tail = gathered.get(_TAIL)
    # a tail of up to 3 bytes is the padding of the data (rpcrdma_prepare_readch in rpc_rdma.c)
    tail = tail[len(tail) & 3 :] if len(tail) > 3 else b""
    data = _shared(gathered.data(), head.reads)
    inline = whole + gathered.get(_HEAD) + tail
    return _Inline(inline, gathered.missing(_HEAD, _TAIL), data=data)


def _received(gathered: _Gathered, head: Header, inline: _Inline) -> _Inline:
    if head.procedure == NOMSG and head.reply:
        length = sum(segment.length for segment in head.reply)
        body = _xdr(gathered)[:length]
        missing = max(0, gathered.missing(_HEAD, _PAGES, _TAIL) - (len(_xdr(gathered)) - length))
        return _Inline(inline.payload, long=body, notes=_incomplete(missing))
    segments = [segment for chunk in head.writes for segment in chunk]
    return _Inline(inline.payload, inline.missing, data=_shared(gathered.data(), segments))


def _reply(gathered: _Gathered, head: Header, results: list[tuple[int, int]]) -> _Inline:
    whole, body = gathered.get(_WHOLE)[: head.size], _xdr(gathered)
    missing = gathered.missing(_HEAD, _PAGES, _TAIL)
    if head.procedure == NOMSG:
        return _Inline(whole, long=body, notes=_incomplete(missing))
    chunks = [chunk for chunk in head.writes if any(segment.length for segment in chunk)]
    if not chunks:
        return _Inline(whole + body, missing)
    start, pages = len(gathered.get(_HEAD)), len(gathered.get(_PAGES))
    known = len(gathered.data())
    if not results:
        results = [(start, pages)]
    inline, at = [whole], 0
    positions: list[int] = []
    data: dict[int, bytes] = {}
    # the kernel fills the chunks in the order of the results
    for (position, length), chunk in zip(sorted(results), chunks, strict=False):
        inline.append(body[at:position])
        positions.append(sum(map(len, inline)) - len(whole))
        # behind the captured pages there are zeros up to the tail
        end = position + length
        if start <= position and end <= start + pages:
            end = min(end, start + known)
        data.update(_shared(body[position:end], chunk))
        at = position + length + -length % 4
    inline.append(body[at:])
    payload = b"".join(inline)
    # what the probe did not copy is data, as a rule
    lost = max(0, missing - sum(length for _, length in results))
    whole_list = tuple(positions) if len(positions) == len(head.writes) else None
    return _Inline(payload, lost, data=data, positions=whole_list)


def _incomplete(missing: int) -> tuple[str, ...]:
    return (f"{missing} bytes of the long message were not captured",) if missing else ()


def _xdr(gathered: _Gathered) -> bytes:
    return gathered.get(_HEAD) + gathered.get(_PAGES) + gathered.get(_TAIL)


def _shared(data: bytes, segments: Sequence[Segment | ReadSegment]) -> dict[int, bytes]:
    """The bytes of each segment by its key, without the zeros behind the captured ones."""
    pieces: dict[int, bytes] = {}
    at = 0
    for segment in segments:
        piece = data[at : at + segment.length].rstrip(b"\0")
        if piece:
            pieces[segment.handle] = piece
        at += segment.length
    return pieces
