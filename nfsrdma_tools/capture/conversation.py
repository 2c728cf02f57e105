# SPDX-License-Identifier: Apache-2.0
"""Messages of RPC-over-RDMA as frames of RoCEv2, so that Wireshark shows NFS.

The kernel's probes see messages, not packets.  This module makes the packets that would carry
them: messages of the connection manager in front, by which Wireshark pairs the two directions;
RDMA Reads and Writes of the chunks, because it reassembles a message only from all its data.

Frames differ from the wire in these ways, and a comment of the packet says so:

* data that were not captured are zeros; so is a long Reply, behind a head that is made up, so that
  Wireshark finds its Call;
* a key that an earlier Call of the connection had is replaced by a new one: Wireshark takes it for
  that of the earlier Call;
* a Reply with data in several Write chunks is written whole, in Sends: Wireshark gives all chunks
  of a list the same fragment numbers;
* a header of 2003 (personality read-read) is written as one of version 1, which Wireshark knows;
* data behind padding (personality padded) are written where they belong.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from nfsrdma_tools.capture import management, roce
from nfsrdma_tools.capture.files import INBOUND, OUTBOUND, Writer
from nfsrdma_tools.capture.header import (
    DONE,
    MSG,
    MSGP,
    NOMSG,
    Header,
    ReadSegment,
    Segment,
    header,
    packed,
)
from nfsrdma_tools.capture.roce import Endpoint
from nfsrdma_tools.capture.rpc import REPLY, result_positions

__all__ = ["ConnectionName", "Conversations", "Message"]

_MOST_KEYS = 1 << 16
# Wireshark finds a message only if all its data are there, so zeros stand for what was not seen; a
# header of some bytes may claim any length.  Linux has NFSSVC_MAXBLKSIZE of 4 MiB.
_MOST_ZEROS = 1 << 22
_MOST_ZEROS_IN_ALL = 1 << 28
_LEFT_OUT = "data of the chunks were not seen, and are more than a capture shows: left out"
_NEW_KEY = 0xFE000000
_REPLY = REPLY.to_bytes(4, "big")


@dataclass(frozen=True)
class ConnectionName:
    """A connection: the addresses of both ends, and a number that distinguishes the others.

    ``private`` are the private data of client and server; empty if the capture began later.
    """

    client: str
    server: str
    number: int = 0
    private: tuple[bytes, bytes] = field(default=(b"", b""), compare=False)


@dataclass
class Message:
    """A message that was sent: ``time`` in ns since 1970; ``payload`` is header and inline part.

    ``data`` has the first bytes of segments by key.  ``long`` is the message that a position-zero
    Read chunk or Reply chunk conveys, as far as it is known.  ``positions`` are where the data of
    Write chunks belong in the inline part, if the probe saw it.  ``missing`` is the number of
    bytes of the inline part that are zeros because the probe could not read them.  ``header`` is
    that of the payload, if it has been read before.
    """

    time: int
    connection: ConnectionName
    from_client: bool
    payload: bytes
    outbound: bool = True
    data: Mapping[int, bytes] = field(default_factory=dict)
    long: bytes = b""
    positions: tuple[int, ...] | None = None
    missing: int = 0
    notes: tuple[str, ...] = ()
    header: Header | None = field(default=None, compare=False)


class _Zeros:
    """How many bytes a file may have that were not seen: in one message, and in all."""

    def __init__(self) -> None:
        self._left = _MOST_ZEROS_IN_ALL

    def allow(self, count: int) -> bool:
        """Whether a message may have ``count`` of them."""
        return count <= min(_MOST_ZEROS, self._left)

    def spend(self, count: int) -> None:
        """Count those that are written."""
        self._left -= count


class Conversations:
    """Writes messages of any number of connections into one file.

    At most 4 MiB of a message and 256 MiB of the file are data that were not seen.
    """

    def __init__(self, writer: Writer, mtu: int = roce.MTU) -> None:
        self._writer = writer
        self._mtu = mtu
        self._zeros = _Zeros()
        self._open: dict[ConnectionName, _Connection] = {}
        self.written = 0
        self.lost = 0
        self._dropped = 0

    def lose(self, count: int) -> None:
        """Count messages that the probes lost in front of the next one."""
        self.lost += count
        self._dropped += count

    def write(self, message: Message) -> None:
        """Write the frames of a message."""
        connection = self._open.get(message.connection)
        if connection is None:
            number = len(self._open) + 1
            put = self._writer.frame
            connection = _Connection(message.connection, number, self._mtu, put, self._zeros)
            self._open[message.connection] = connection
            connection.connect(message.time, message.from_client == message.outbound)
        connection.write(message, self._dropped)
        self._dropped = 0
        self.written += 1

    def end(self, time: int) -> None:
        """Write the counts."""
        comment = f"{self.written} messages, {self.lost} lost"
        self._writer.statistics(time, self.written + self.lost, self.lost, comment)
        self._writer.flush()


def _mac(number: int, side: int) -> bytes:
    # locally administered
    return struct.pack(">BBI", 2, side, number)


class _Connection:
    """One connection: its two ends, the next PSN of each, and keys in use."""

    def __init__(
        self,
        name: ConnectionName,
        number: int,
        mtu: int,
        put: Callable[..., None],
        zeros: _Zeros,
    ) -> None:
        pair = 0x100 + 2 * number
        self.name = name
        self.client = Endpoint(ip_address(name.client), pair, _mac(number, 0))
        self.server = Endpoint(ip_address(name.server), pair + 1, _mac(number, 1))
        self.numbers = {self.client: 1, self.server: 1}
        self.id = number
        self.mtu = mtu
        self.put = put
        self.zeros = zeros
        self.seen: OrderedDict[int, None] = OrderedDict()
        self.replaced: OrderedDict[int, dict[int, int]] = OrderedDict()
        self.next_key = _NEW_KEY

    def connect(self, time: int, client_is_here: bool) -> None:
        """Write the connection manager's messages."""
        ours, theirs = 2 * self.id, 2 * self.id + 1
        private = self.name.private
        note = "made up: the capture began after the connection" if not any(private) else ""
        away, back = (OUTBOUND, INBOUND) if client_is_here else (INBOUND, OUTBOUND)
        client, server = self.client, self.server
        sent = (
            (client, server, management.request(ours, client, server, 1, private[0]), away),
            (server, client, management.reply(theirs, ours, server, 1, private[1]), back),
            (client, server, management.use(ours, theirs), away),
        )
        for number, (source, target, payload, direction) in enumerate(sent):
            data = roce.datagram(source, target, number, payload)
            self.put(max(0, time - 3 + number), data, direction, note if not number else "")

    def write(self, message: Message, dropped: int) -> None:
        """Write a message: what it writes, itself, what the peer reads."""
        source, target = self.client, self.server
        if not message.from_client:
            source, target = target, source
        flow = _Flow(self, message, source, target, dropped)
        try:
            head = message.header or header(message.payload)
        except ValueError:
            flow.send(message.payload, ["the header is cut or wrong"])
            return
        flow.write(head)

    def renamed(self, head: Header, is_reply: bool) -> tuple[Header, dict[int, int]]:
        """The header with new keys instead of used ones, and the old ones by new one."""
        if is_reply:
            names = self.replaced.pop(head.xid, {})
        else:
            names = {key: self._new_key() for key in _keys(head) if key in self.seen}
            self._remember(head, names)
        if not names:
            return head, {}
        return _with_keys(head, names), {new: old for old, new in names.items()}

    def _new_key(self) -> int:
        self.next_key += 1
        return self.next_key & 0xFFFFFFFF

    def _remember(self, head: Header, names: dict[int, int]) -> None:
        for key in _keys(head):
            self.seen[key] = None
        if names:
            self.replaced[head.xid] = names
        for kept in (self.seen, self.replaced):
            while len(kept) > _MOST_KEYS:
                kept.popitem(last=False)


class _Flow:
    """The frames of one message, from ``source`` to ``target``."""

    def __init__(
        self,
        connection: _Connection,
        message: Message,
        source: Endpoint,
        target: Endpoint,
        dropped: int,
    ) -> None:
        self.connection = connection
        self.message = message
        self.source, self.target = source, target
        self.dropped = dropped

    def write(self, head: Header) -> None:
        """Write all frames."""
        message, notes = self.message, list(self.message.notes)
        inline = message.payload[head.size :]
        is_padded = head.procedure == MSGP
        if is_padded:
            head, inline = _without_padding(head, message.payload)
        if message.missing:
            notes.append(f"{message.missing} bytes of the message were not captured: zeros")
        is_reply = _is_reply(head, inline)
        head, old = self.connection.renamed(head, is_reply)
        if old:
            notes.append(f"keys on the wire: {_named(old)}")
        changes = _changes(head, is_padded)
        notes += changes
        payload = packed(head) + inline if old or changes else message.payload
        if is_reply:
            payload = self._replied(head, inline, old, notes) or payload
        has_reads = self._spend(self._unread(head, old))
        if not has_reads:
            notes.append(_LEFT_OUT)
        self.send(payload, notes)
        if has_reads:
            self._rdma_reads(head, old)

    def _replied(
        self, head: Header, inline: bytes, old: Mapping[int, int], notes: list[str]
    ) -> bytes | None:
        """Write the RDMA Writes of a Reply; or return the Reply with their data."""
        whole = self._whole(head, inline)
        if whole is None:
            self._rdma_writes(head, old, notes)
            return None
        count = sum(1 for chunk in head.writes if _length(chunk))
        notes.append(f"data in {count} Write chunks on the wire, written inline here")
        return whole

    def send(self, payload: bytes, notes: Sequence[str] = ()) -> None:
        """Write the Send, in as many frames as it takes."""
        parts = _parts(payload, self.connection.mtu)
        for n, (opcode, part) in enumerate(_opcodes(roce.SENDS, parts)):
            # Wireshark shows the message with the last frame
            comment = "\n".join(notes) if n == len(parts) - 1 else ""
            self._put(self.source, self.target, opcode, part, comment=comment)

    def _whole(self, head: Header, inline: bytes) -> bytes | None:
        """The Reply with the data of all its Write chunks; None if they need not be inserted."""
        lengths = [_length(chunk) for chunk in head.writes]
        if sum(1 for length in lengths if length) < 2:
            return None
        segments = [segment for chunk in head.writes for segment in chunk]
        if not self.connection.zeros.allow(self._unseen(segments, {})):
            return None
        positions = self.message.positions or result_positions(inline, lengths)
        if positions is None or len(positions) != len(lengths):
            return None
        parts, at = [packed(head._replace(writes=(), reply=None))], 0
        for position, length, chunk in zip(positions, lengths, head.writes, strict=True):
            if not at <= position <= len(inline):
                return None
            data = b"".join(self._data(s.handle, s.length) for s in chunk)
            parts += [inline[at:position], data, bytes(-length % 4)]
            at = position
        self.connection.zeros.spend(self._unseen(segments, {}))
        return b"".join((*parts, inline[at:]))

    def _unseen(
        self, segments: Iterable[Segment | ReadSegment], old: Mapping[int, int], seen: int = 0
    ) -> int:
        """Count the bytes of segments without data in the message, less ``seen``."""
        data = self.message.data
        lengths = (
            max(s.length - len(data.get(old.get(s.handle, s.handle), b"")), 0) for s in segments
        )
        return max(sum(lengths) - seen, 0)

    def _spend(self, count: int) -> bool:
        if not self.connection.zeros.allow(count):
            return False
        self.connection.zeros.spend(count)
        return True

    def _rdma_writes(self, head: Header, old: Mapping[int, int], notes: list[str]) -> None:
        segments = [segment for chunk in head.writes for segment in chunk]
        unseen = self._unseen(segments, old)
        if head.reply and head.procedure == NOMSG:
            unseen += self._unseen(head.reply, {}, len(self.message.long))
        if not self._spend(unseen):
            notes.append(_LEFT_OUT)
            return
        for chunk in head.writes:
            for segment in chunk:
                self._rdma_write(segment, self._data(old.get(segment.handle, segment.handle),
                                                     segment.length))  # fmt: skip
        if head.reply and head.procedure == NOMSG:
            self._long_reply(head.xid, head.reply, notes)

    def _long_reply(self, xid: int, chunk: Sequence[Segment], notes: list[str]) -> None:
        message = self.message.long
        if not message:
            notes.append("the Reply in the Reply chunk was not captured: made up, zeros")
            message = _empty_reply(xid)
        at = 0
        for segment in chunk:
            data = message[at : at + segment.length]
            self._rdma_write(segment, data.ljust(segment.length, b"\0"))
            at += segment.length

    def _rdma_write(self, segment: Segment, data: bytes) -> None:
        parts = _parts(data, self.connection.mtu) if data else []
        reth = struct.pack(">QII", segment.offset, segment.handle, len(data))
        for n, (opcode, part) in enumerate(_opcodes(roce.WRITES, parts)):
            self._put(self.source, self.target, opcode, part, reth if n == 0 else b"")

    def _rdma_reads(self, head: Header, old: Mapping[int, int]) -> None:
        """The target reads the chunks of the Read list."""
        at = 0
        for segment in head.reads:
            data = self._data(old.get(segment.handle, segment.handle), segment.length)
            if segment.position == 0:
                if not self.message.long:
                    continue
                data = self.message.long[at : at + segment.length].ljust(segment.length, b"\0")
                at += segment.length
            self._rdma_read(segment, data)

    def _unread(self, head: Header, old: Mapping[int, int]) -> int:
        """Bytes of the Read list that are written and were not seen."""
        long = self.message.long
        unseen = self._unseen((s for s in head.reads if s.position), old)
        if long:
            first = (s for s in head.reads if not s.position)
            unseen += self._unseen(first, {}, len(long))
        return unseen

    def _rdma_read(self, segment: ReadSegment, data: bytes) -> None:
        if not data:
            return
        parts = _parts(data, self.connection.mtu)
        reth = struct.pack(">QII", segment.offset, segment.handle, len(data))
        first = self.connection.numbers[self.target]
        self._put(self.target, self.source, roce.READ_REQUEST, b"", reth)
        # the responses have the numbers that the request reserves
        self.connection.numbers[self.target] = first + len(parts)
        for n, (opcode, part) in enumerate(_opcodes(roce.READ_RESPONSES, parts)):
            aeth = b"" if opcode == roce.READ_RESPONSES[1] else struct.pack(">I", n + 1)
            self._put(self.source, self.target, opcode, part, aeth, number=first + n)

    def _data(self, key: int, length: int) -> bytes:
        return self.message.data.get(key, b"")[:length].ljust(length, b"\0")

    def _put(
        self,
        source: Endpoint,
        target: Endpoint,
        opcode: int,
        part: bytes,
        extension: bytes = b"",
        number: int | None = None,
        comment: str = "",
    ) -> None:
        if number is None:
            number = self.connection.numbers[source]
            self.connection.numbers[source] += 1
        data = roce.frame(source, target, opcode, number, part, extension)
        here = self.source if self.message.outbound else self.target
        direction = OUTBOUND if source == here else INBOUND
        self.connection.put(self.message.time, data, direction, comment, self.dropped)
        self.dropped = 0


def _without_padding(head: Header, payload: bytes) -> tuple[Header, bytes]:
    """A message of nfsrdma's personality padded, with its data where they belong.

    docs/dev/module-internals.md has the format: the key of the only chunk is 0, and its offset is
    the length of the RPC message without data.  Others stay as they are.
    """
    inline = payload[head.size :]
    chunks = [(s.position, Segment(*s[1:])) for s in head.reads]
    chunks += [(-1, s) for chunk in head.writes for s in chunk]
    if len(chunks) != 1 or chunks[0][1].handle:
        return head, inline
    position, segment = chunks[0]
    (align,) = struct.unpack_from(">I", payload, 16)
    message, data = inline[: segment.offset], payload[align : align + segment.length]
    if len(message) < segment.offset or len(data) < segment.length:
        return head, inline
    if position < 0:
        # of NFSv3, the data end the Reply
        positions = result_positions(message, [segment.length])
        position = positions[0] if positions else len(message)
    pad = bytes(-len(data) % 4)
    whole = message[:position] + data + pad + message[position:]
    return head._replace(procedure=MSG, reads=(), writes=(), reply=None), whole


def _changes(head: Header, is_padded: bool) -> list[str]:
    """Describe how the written header differs from the one on the wire, except for keys."""
    changes = []
    if head.version == 0 and head.procedure in (MSG, NOMSG, DONE):
        changes.append("the header on the wire is that of 2003, written as version 1 here")
    if is_padded and head.procedure == MSG:
        changes.append("data behind padding on the wire (RDMA_MSGP), written in place here")
    return changes


def _is_reply(head: Header, inline: bytes) -> bool:
    if head.procedure == NOMSG:
        # a long Call is in a position-zero chunk; the design of 2003 has Replies there, but they
        # have no Reply chunk either, and nothing is written for them
        return not head.reads
    # the whole head of the RPC takes longer to read, and tells no more
    return inline[4:8] == _REPLY


def _empty_reply(xid: int) -> bytes:
    """The head of a Reply that succeeded; zeros behind it are an empty result of NFS."""
    accepted, flavor, length, success = 0, 0, 0, 0
    return struct.pack(">6I", xid, REPLY, accepted, flavor, length, success)


def _keys(head: Header) -> set[int]:
    chunks = (*head.writes, head.reply or ())
    return {s.handle for s in head.reads} | {s.handle for chunk in chunks for s in chunk}


def _with_keys(head: Header, names: Mapping[int, int]) -> Header:
    def renamed(chunk: tuple[Segment, ...]) -> tuple[Segment, ...]:
        return tuple(s._replace(handle=names.get(s.handle, s.handle)) for s in chunk)

    reads = tuple(s._replace(handle=names.get(s.handle, s.handle)) for s in head.reads)
    reply = None if head.reply is None else renamed(head.reply)
    return head._replace(reads=reads, writes=tuple(map(renamed, head.writes)), reply=reply)


def _named(old: Mapping[int, int]) -> str:
    return ", ".join(f"0x{was:08x} for 0x{new:08x}" for new, was in sorted(old.items()))


def _length(chunk: Sequence[Segment]) -> int:
    return sum(segment.length for segment in chunk)


def _parts(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)] or [b""]


def _opcodes(kinds: Sequence[int], parts: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """The opcode of each part: first, middle and last, or only."""
    first, middle, last, only = kinds
    if len(parts) < 2:
        return [(only, part) for part in parts]
    return [
        (first, parts[0]),
        *((middle, part) for part in parts[1:-1]),
        (last, parts[-1]),
    ]
