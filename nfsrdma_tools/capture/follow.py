# SPDX-License-Identifier: Apache-2.0
"""Follows the messages in a capture: pairs each Call with its Reply.

A capture of any sniffer will do; a Send that is cut is followed as far as it goes.  What is kept is
bounded, so that a capture of any size and content can be read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nfsrdma_tools.capture.files import ETHERNET, INFINIBAND, STATISTICS, UNFINISHED, CapturedFrame
from nfsrdma_tools.capture.header import (
    DONE,
    ERR_VERS,
    ERROR,
    NOMSG,
    Header,
    PrivateData,
    header,
    private_data,
)
from nfsrdma_tools.capture.management import REJECT, REPLY, REQUEST, cm_message
from nfsrdma_tools.capture.roce import (
    ACKNOWLEDGE,
    READ_REQUEST,
    READ_RESPONSES,
    SENDS,
    UD_SEND,
    WRITES,
    Packet,
    packet,
)
from nfsrdma_tools.capture.rpc import CALL, Rpc, name, rpc

__all__ = ["Connection", "Exchange", "Follower", "exchanges"]

# last and only, with immediate data or invalidation
_ENDS = {0x02, 0x03, 0x04, 0x05, 0x16, 0x17}
_LAST, _ONLY = {0x02, 0x03, 0x16}, {0x04, 0x05, 0x17}
_MOST_PENDING, _MOST_FLOWS, _MOST_CONNECTIONS = 1 << 16, 1 << 14, 1 << 12
_LONGEST = 1 << 22
_RECENT = 1 << 12


@dataclass
class Exchange:
    """A Call with its Reply, which may be missing: ``answered`` is then 0.  Times in ns.

    ``call`` and ``reply`` are transport headers; ``call_size`` and ``reply_size`` inline bytes.
    """

    frame: int
    time: int
    client: str
    server: str
    call: Header
    head: Rpc | None
    procedure: str
    call_size: int
    notes: tuple[str, ...] = ()
    answered: int = 0
    reply: Header | None = None
    error: str = ""
    reply_size: int = 0
    resent: int = 0

    @property
    def duration(self) -> int | None:
        """Time between Call and Reply; None without a Reply."""
        return self.answered - self.time if self.answered else None


@dataclass
class Connection:
    """Counts the frames between two addresses; the client is the address that sends Calls."""

    client: str
    server: str
    versions: set[int] = field(default_factory=set)
    asked: int = 0
    granted: tuple[int, int] | None = None
    most_outstanding: int = 0
    outstanding: int = 0
    privates: dict[str, PrivateData] = field(default_factory=dict)
    port: int = 0
    calls: int = 0
    replies: int = 0
    chunk_bytes: dict[str, list[int]] = field(default_factory=dict)
    most_segments: dict[str, int] = field(default_factory=dict)
    most_chunks: dict[str, int] = field(default_factory=dict)
    most_inline: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    retransmitted: int = 0
    packets: int = 0
    receiver_not_ready: int = 0
    refused: dict[int, int] = field(default_factory=dict)

    def chunk(self, kind: str, sizes: Iterable[int], segments: int) -> None:
        """Count the chunks of a list."""
        many = self.chunk_bytes.setdefault(kind, [0, 0, 0])
        count = 0
        for size in sizes:
            count += 1
            many[0] += 1
            many[1] += size
            many[2] = max(many[2], size)
        self.most_chunks[kind] = max(self.most_chunks.get(kind, 0), count)
        self.most_segments[kind] = max(self.most_segments.get(kind, 0), segments)


class _Stream:
    """Packets of one direction of a connection."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.recent: OrderedDict[tuple[int, int], None] = OrderedDict()

    def repeated(self, rdma_packet: Packet) -> bool:
        """Whether this request was seen before: the sender got no acknowledgement."""
        key = (rdma_packet.opcode, rdma_packet.number)
        if key in self.recent:
            return True
        self.recent[key] = None
        if len(self.recent) > _RECENT:
            self.recent.popitem(last=False)
        return False

    def message(self, rdma_packet: Packet) -> bytes | None:
        """The message that this packet completes."""
        if rdma_packet.opcode in _ONLY:
            return rdma_packet.payload
        if rdma_packet.opcode == SENDS[0]:
            self.parts, self.size = [], 0
        elif not self.parts:
            return None
        self.parts.append(rdma_packet.payload)
        self.size += len(rdma_packet.payload)
        if self.size > _LONGEST:
            self.parts, self.size = [], 0
        elif rdma_packet.opcode in _LAST:
            whole = b"".join(self.parts)
            self.parts, self.size = [], 0
            return whole
        return None


class Follower:
    """Follows the frames of a capture; ``connections`` is what it has seen of each."""

    def __init__(self) -> None:
        self.connections: dict[tuple[str, str], Connection] = {}
        self.frames = 0
        self.rdma = 0
        self.cut = 0
        self.dropped = 0
        self.other_messages = 0
        self.rejects = 0
        self.unfinished = 0
        """The frame within which the file ends; 0: it ends behind a frame."""
        self._other_links: set[int] = set()
        self._streams: OrderedDict[tuple[str, str, int], _Stream] = OrderedDict()
        self._pending: OrderedDict[tuple[str, str, int], Exchange] = OrderedDict()
        self._requests: OrderedDict[tuple[str, int], str] = OrderedDict()

    def feed(self, frame: CapturedFrame) -> Iterator[Exchange]:
        """Read a frame; yields the exchange that it completes."""
        if frame.link == STATISTICS:
            # of all frames so far, so the counts in front of frames are part of it
            self.dropped = max(self.dropped, frame.dropped)
            return
        if frame.link == UNFINISHED:
            self.unfinished = frame.number
            return
        self.frames += 1
        self.dropped += frame.dropped
        rdma_packet = packet(frame.link, frame.data, frame.length)
        if rdma_packet is None:
            if frame.link not in (ETHERNET, INFINIBAND):
                self._other_links.add(frame.link)
            return
        self.rdma += 1
        if len(rdma_packet.payload) < rdma_packet.length:
            self.cut += 1
        if rdma_packet.opcode == UD_SEND:
            self._manage(rdma_packet)
        elif rdma_packet.opcode == ACKNOWLEDGE:
            self._acknowledge(rdma_packet)
        else:
            yield from self._transport(frame, rdma_packet)

    @property
    def fault(self) -> str:
        """Why there is nothing to follow; "" if frames of RDMA were found."""
        if self.rdma:
            return ""
        if self._other_links:
            links = f"{ETHERNET} (Ethernet) or {INFINIBAND} (InfiniBand)"
            return f"link type {min(self._other_links)} is not supported, expected {links}"
        return f"no RDMA frame among {self.frames} frames"

    def rest(self) -> Iterator[Exchange]:
        """The Calls without a Reply."""
        yield from self._pending.values()
        self._pending.clear()

    def connection(self, client: str, server: str) -> Connection | None:
        """The connection between the two; None beyond the limit of what is kept."""
        connection = self.connections.get((client, server))
        if connection is None and len(self.connections) < _MOST_CONNECTIONS:
            connection = self.connections[client, server] = Connection(client, server)
        return connection

    def _manage(self, rdma_packet: Packet) -> None:
        message = cm_message(rdma_packet.payload)
        if message is None:
            return
        if message.kind == REQUEST:
            connection = self.connection(rdma_packet.source, rdma_packet.destination)
            if connection:
                connection.port = message.port
        elif message.kind == REPLY:
            connection = self.connections.get((rdma_packet.destination, rdma_packet.source))
        else:
            self.rejects += message.kind == REJECT
            return
        private = private_data(message.private)
        if connection and private:
            side = "client" if message.kind == REQUEST else "server"
            connection.privates[side] = private

    def _either(self, host: str, peer: str) -> Connection | None:
        return self.connections.get((host, peer)) or self.connections.get((peer, host))

    def _acknowledge(self, rdma_packet: Packet) -> None:
        connection = self._either(rdma_packet.source, rdma_packet.destination)
        kind, code = (rdma_packet.syndrome or 0) >> 5 & 3, (rdma_packet.syndrome or 0) & 0x1F
        if connection is None or not kind:
            return
        if kind == 1:
            connection.receiver_not_ready += 1
        elif kind == 3:
            connection.refused[code] = connection.refused.get(code, 0) + 1

    def _transport(self, frame: CapturedFrame, rdma_packet: Packet) -> Iterator[Exchange]:
        key = (rdma_packet.source, rdma_packet.destination, rdma_packet.queue_pair)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream()
            if len(self._streams) > _MOST_FLOWS:
                self._streams.popitem(last=False)
        connection = self._either(rdma_packet.source, rdma_packet.destination)
        if connection:
            connection.packets += 1
        is_request = rdma_packet.opcode in {*_ENDS, *SENDS, *WRITES, READ_REQUEST}
        # responses of a repeated read repeat its numbers: not the fault of their sender
        if is_request and rdma_packet.opcode not in READ_RESPONSES and stream.repeated(rdma_packet):
            if connection:
                connection.retransmitted += 1
            return
        if rdma_packet.opcode in {*SENDS, *_ENDS}:
            whole = stream.message(rdma_packet)
            if whole is not None:
                yield from self._message(frame, rdma_packet, whole)

    def _message(
        self, frame: CapturedFrame, rdma_packet: Packet, whole: bytes
    ) -> Iterator[Exchange]:
        try:
            head = header(whole)
        except ValueError:
            self.other_messages += 1
            return
        if head.procedure == ERROR:
            yield from self._refused(frame, rdma_packet, head)
            return
        if head.procedure == DONE:
            return
        message = whole[head.size :]
        try:
            inner = rpc(message) if message else None
        except ValueError:
            inner = None
        # in a Reply, chunks are those of the Call; a long Call has a position-zero chunk
        pending = (rdma_packet.destination, rdma_packet.source, head.xid)
        is_call = inner.kind == CALL if inner else pending not in self._pending
        if inner is None and head.procedure != NOMSG:
            self.other_messages += 1
        elif is_call:
            self._call(frame, rdma_packet, head, inner, message)
        else:
            yield from self._reply(frame, pending, head, inner, len(message))

    def _call(
        self,
        frame: CapturedFrame,
        rdma_packet: Packet,
        head: Header,
        inner: Rpc | None,
        message: bytes,
    ) -> None:
        key = (rdma_packet.source, rdma_packet.destination, head.xid)
        before = self._pending.pop(key, None)
        text = name(inner, message) if inner else "in a position-zero chunk"
        sent = Exchange(
            frame.number, frame.time, *key[:2], head, inner, text, len(message), frame.comments
        )
        connection = self.connection(*key[:2])
        if connection:
            _count_call(connection, sent, resent=before is not None)
        if before:
            # the time of the first Call counts
            sent.time, sent.frame, sent.resent = before.time, before.frame, before.resent + 1
        self._pending[key] = sent
        if len(self._pending) > _MOST_PENDING:
            self._pending.popitem(last=False)

    def _reply(
        self,
        frame: CapturedFrame,
        pending: tuple[str, str, int],
        head: Header,
        inner: Rpc | None,
        size: int,
    ) -> Iterator[Exchange]:
        exchange = self._pending.pop(pending, None)
        connection = self.connections.get(pending[:2])
        if connection:
            _count_reply(connection, head, size, paired=exchange is not None)
        if exchange:
            exchange.answered, exchange.reply = frame.time, head
            exchange.error = inner.error if inner else ""
            exchange.reply_size = size
            exchange.notes += frame.comments
            yield exchange

    def _refused(
        self, frame: CapturedFrame, rdma_packet: Packet, head: Header
    ) -> Iterator[Exchange]:
        pending = (rdma_packet.destination, rdma_packet.source, head.xid)
        exchange = self._pending.pop(pending, None)
        text = "ERR_VERS" if head.error == ERR_VERS else "ERR_CHUNK"
        connection = self.connections.get(pending[:2])
        if connection:
            connection.errors[text] = connection.errors.get(text, 0) + 1
            connection.outstanding -= exchange is not None
        if exchange:
            exchange.answered, exchange.reply, exchange.error = frame.time, head, text
            yield exchange


def _count_call(connection: Connection, sent: Exchange, resent: bool) -> None:
    head = sent.call
    connection.calls += 1
    connection.versions.add(head.version)
    connection.asked = max(connection.asked, head.credits)
    connection.most_inline = max(connection.most_inline, head.size + sent.call_size)
    if not resent:
        connection.outstanding += 1
    connection.most_outstanding = max(connection.most_outstanding, connection.outstanding)
    reads: dict[int, list[int]] = {}
    for segment in head.reads:
        reads.setdefault(segment.position, []).append(segment.length)
    if reads:
        sizes = (sum(lengths) for lengths in reads.values())
        connection.chunk("read", sizes, max(map(len, reads.values())))
    if head.writes:
        sizes = (sum(s.length for s in chunk) for chunk in head.writes)
        connection.chunk("write", sizes, max(map(len, head.writes)))
    if head.reply:
        connection.chunk("reply", [sum(s.length for s in head.reply)], len(head.reply))


def _count_reply(connection: Connection, head: Header, size: int, paired: bool) -> None:
    connection.replies += 1
    connection.outstanding -= paired
    low, high = connection.granted or (head.credits, head.credits)
    connection.granted = min(low, head.credits), max(high, head.credits)
    connection.most_inline = max(connection.most_inline, head.size + size)


def exchanges(frames: Iterable[CapturedFrame], follower: Follower) -> Iterator[Exchange]:
    """The exchanges of a capture as they complete, then the Calls without a Reply."""
    for frame in frames:
        yield from follower.feed(frame)
    yield from follower.rest()
