# SPDX-License-Identifier: Apache-2.0
"""Messages of a connection, for tests of captures: recorded in labs, and made from the RFCs."""

from __future__ import annotations

import io
import struct
from pathlib import Path

from nfsrdma_tools.capture.conversation import ConnectionName, Conversations, Message
from nfsrdma_tools.capture.files import Writer
from wire import rpcrdma
from wire.rpcrdma import Header, Read, Segment

__all__ = ["CALLS", "CLIENT", "NAME", "SERVER", "messages", "written"]

SEEDS = Path(__file__).parent / "seeds"
CLIENT, SERVER = "10.9.1.11", "10.9.1.1"
NAME = ConnectionName(CLIENT, SERVER)
START = 1_700_000_000_000_000_000
STEP = 1_000_000
# bytes between the head of a Call and its arguments
_AUTH = struct.pack(">II", 1, 20) + bytes(20) + bytes(8)


def opaque(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


HANDLE = opaque(bytes(range(28)))


def call(xid: int, procedure: int, arguments: bytes, version: int = 3) -> bytes:
    return struct.pack(">6I", xid, 0, 2, 100003, version, procedure) + _AUTH + arguments


def reply(xid: int, results: bytes) -> bytes:
    return struct.pack(">6I", xid, 1, 0, 0, 0, 0) + results


def recorded(name: str, xid: int) -> bytes:
    """A message of a lab, with another XID, and so with other offsets: rpcrdma's have the XID."""
    message = (SEEDS / f"{name}.bin").read_bytes()
    return message.replace(message[:4], struct.pack(">I", xid))


class _Talk:
    def __init__(self) -> None:
        self.messages: list[Message] = []

    def say(self, from_client: bool, payload: bytes, long: bytes = b"", **more: object) -> None:
        time = START + STEP * len(self.messages)
        message = Message(time, NAME, from_client, payload, from_client, long=long, **more)  # type: ignore[arg-type]
        self.messages.append(message)

    def call(self, xid: int, body: bytes, long: bytes = b"", **lists: object) -> None:
        head = Header(xid, 128, int(bool(long)), **lists)  # type: ignore[arg-type]
        self.say(True, rpcrdma.encode(head) + body, long)

    def reply(self, xid: int, body: bytes, long: bytes = b"", **lists: object) -> None:
        head = Header(xid, 64, int(bool(long)), **lists)  # type: ignore[arg-type]
        self.say(False, rpcrdma.encode(head) + body, long)


def _version_3(talk: _Talk) -> None:
    # a NULL and a READ as a client sent them; the server's Replies are made
    talk.say(True, recorded("client-call-inline", 1))
    talk.reply(1, reply(1, b""))
    # twice the same key, as personality cached has it
    for xid in (2, 3):
        talk.say(True, recorded("client-call-write1", xid))
        head, _ = rpcrdma.decode(talk.messages[-1].payload)
        room = head.writes[0][0]
        short = (Segment(room.handle, 9999, room.offset),)
        talk.reply(xid, reply(xid, struct.pack(">5I", 0, 0, 9999, 1, 9999)), writes=(short,))
    # a WRITE: its data are read by the server
    talk.say(True, recorded("client-call-read1", 4))
    talk.reply(4, reply(4, struct.pack(">5I", 0, 0, 0, 9999, 2) + bytes(8)))
    names = b"".join(
        struct.pack(">IQ", 1, n) + opaque(b"name%04d" % n) + struct.pack(">QII", n, 0, 0)
        for n in range(200)
    )
    entries = reply(5, bytes(16) + names + struct.pack(">II", 0, 1))
    arguments = HANDLE + bytes(16) + struct.pack(">II", 4096, 8192)
    talk.call(5, call(5, 17, arguments), reply=(Segment(0x333, 9000, 0x7000),))
    talk.reply(5, b"", entries, reply=(Segment(0x333, len(entries), 0x7000),))
    link = call(6, 10, HANDLE + opaque(b"link") + bytes(24) + opaque(b"t" * 5000))
    talk.call(6, b"", link, reads=(Read(0, (Segment(0x444, len(link), 0x6000),)),))
    talk.reply(6, reply(6, struct.pack(">I", 13) + bytes(8)))


def _compound(talk: _Talk, xid: int, lengths: tuple[int, ...]) -> None:
    """READs in one COMPOUND, each with a Write chunk."""
    count = 2 + len(lengths)
    start = opaque(b"") + struct.pack(">II", 1, count)
    sequence = struct.pack(">I", 53) + bytes(16) + struct.pack(">4I", 1, 0, 0, 0)
    reads = b"".join(struct.pack(">I16xQI", 25, 0, length) for length in lengths)
    arguments = start + sequence + struct.pack(">I", 22) + HANDLE + reads
    chunks = tuple(
        (Segment(xid << 16 | n, length, 0x10000 * (n + 1)),) for n, length in enumerate(lengths)
    )
    talk.call(xid, call(xid, 1, arguments, version=4), writes=chunks)
    results = struct.pack(">I", 0) + opaque(b"") + struct.pack(">I", count)
    results += struct.pack(">II16x5I", 53, 0, 1, 0, 0, 0, 0) + struct.pack(">II", 22, 0)
    results += b"".join(struct.pack(">4I", 25, 0, 1, length) for length in lengths)
    talk.reply(xid, reply(xid, results), writes=chunks)


def messages() -> list[Message]:
    """A conversation of NFSv3 and NFSv4.1 with every kind of chunk."""
    talk = _Talk()
    _version_3(talk)
    _compound(talk, 7, (5000,))
    _compound(talk, 8, (4096, 4001, 9998))
    return talk.messages


CALLS = 8


def written(sent: list[Message], lost: int = 0) -> bytes:
    """The capture of messages."""
    file = io.BytesIO()
    conversations = Conversations(Writer(file, "rpcrdma", "a test"))
    if lost:
        conversations.lose(lost)
    for message in sent:
        conversations.write(message)
    conversations.end(sent[-1].time)
    return file.getvalue()
