# SPDX-License-Identifier: Apache-2.0
"""An NFS/RDMA server that forwards Calls to a real one, over TCP, and may change each Reply.

Calls are put together from what came inline and by chunk (RFC 8166, section 3.5), and the Replies
of the real server are sent as a responder has to; one in between is what a Trick makes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from wire.rpcrdma import RDMA_MSG, RDMA_NOMSG, Header, Segment, decode, encode

from testbed.node import channel
from testbed.peers import rpc, verbs
from testbed.peers.peer import Connection, GoneError, Host, Wish

NFSD = ("127.0.0.1", 2049)
CREDITS = 32
SIZE = 4096


@dataclass
class Exchange:
    """A Call that came, and the real server's Reply to it."""

    connection: Connection
    header: Header
    call: bytes
    reply: bytes
    notes: dict[str, Any]
    """values that a trick reports"""

    @property
    def xid(self) -> int:
        return self.header.xid

    @property
    def offered(self) -> tuple[Segment, ...]:
        """The segments of the first Write chunk or of the Reply chunk."""
        return self.header.writes[0] if self.header.writes else self.header.reply or ()

    def answer(self) -> tuple[Header, bytes]:
        """The header that is due, and what comes inline behind it; writes into the chunks."""
        empty = tuple(replace(segment, length=0) for segment in self.header.reply or ())
        head = Header(self.xid, CREDITS, RDMA_MSG, reply=empty if self.header.reply else None)
        place = self._read_data()
        if self.header.writes and place:
            rest, data = rpc.split(self.reply, place)
            writes = tuple(self._fill(chunk, data) for chunk in self.header.writes)
            return replace(head, writes=writes), rest
        writes = tuple(self._fill(chunk, b"") for chunk in self.header.writes)
        if self.header.reply and len(self.reply) + 500 > SIZE:
            filled = self._fill(self.header.reply, self.reply)
            return replace(head, proc=RDMA_NOMSG, writes=writes, reply=filled), b""
        return replace(head, writes=writes), self.reply

    def _read_data(self) -> rpc.Place | None:
        about = rpc.parse_call(self.call)
        is_read = about and (about.version, about.procedure) == (3, rpc.READ)
        return rpc.read_data(self.reply) if is_read else None

    def _fill(self, chunk: tuple[Segment, ...], data: bytes) -> tuple[Segment, ...]:
        filled = []
        for segment in chunk:
            part, data = data[: segment.length], data[segment.length :]
            if part and self.connection.write(part, segment.offset, segment.handle):
                raise GoneError("the client's memory could not be written")
            filled.append(replace(segment, length=len(part)))
        return tuple(filled)

    def honest(self) -> bytes:
        """The message that is due."""
        head, inline = self.answer()
        return encode(head) + inline


Play = Callable[[Exchange], None]


@dataclass
class Armed:
    """Action at the next Call of a kind."""

    matches: Callable[[rpc.Call], bool]
    play: Play
    answers: bool
    """the honest answer follows"""
    exchange: Exchange | None = None


@dataclass
class Peer:
    """A client's connection, and the stream to the real server that belongs to it."""

    connection: Connection
    stream: rpc.Stream | None = None
    """None until there is a Call, and again when the server has ended it"""
    kept: list[bytes] = field(default_factory=list)


class Proxy:
    """The server. ``accept`` accepts the next connections; it rejects one by returning None."""

    def __init__(self, host: Host, port: int, server: tuple[str, int] = NFSD) -> None:
        self.host, self.server = host, server
        self.peers: list[Peer] = []
        self.armed: Armed | None = None
        self.notes: dict[str, Any] = {}
        self.accept: Callable[[], Connection | None] = self.honest_accept
        host.listen(port)

    def honest_accept(self) -> Connection | None:
        return self.take(rpc.words(0xF6AB0E18) + bytes((1, 1, SIZE // 1024 - 1, SIZE // 1024 - 1)))

    def take(self, private: bytes, size: int = SIZE, receives: int = CREDITS * 2) -> Connection:
        """Accept the next connection."""
        wish = Wish(private=private, size=size, receives=receives)
        return self.host.accept(self.host.requests.popleft(), wish)

    def run(self) -> None:
        """Serve until the block of the test ends."""
        channel.send("listening")
        while not channel.ended():
            self.turn(0.5)

    def turn(self, seconds: float) -> None:
        """Wait for one thing to happen, and do what it asks for."""
        self.host.turn(seconds)
        while self.host.requests:
            self._request()
        for peer in list(self.peers):
            self._serve(peer)

    def _request(self) -> None:
        connection = self.accept()
        if connection:
            self.peers.append(Peer(connection))

    def _serve(self, peer: Peer) -> None:
        connection = peer.connection
        try:
            while connection.messages:
                self._received(peer, connection.messages.popleft().data)
        except GoneError as error:
            connection.ended = connection.ended or str(error)
        if connection.ended:
            self.drop(peer)

    def drop(self, peer: Peer) -> None:
        """End a connection."""
        self.peers.remove(peer)
        self._end_stream(peer)
        peer.connection.close()

    # --- the stream to the real server ---

    def _stream(self, peer: Peer) -> rpc.Stream:
        """The stream; a new one if there is none."""
        if peer.stream is None:
            peer.stream = rpc.Stream(*self.server)
            self.host.watched[peer.stream.socket.fileno()] = lambda: self._from_server(peer)
        return peer.stream

    def _end_stream(self, peer: Peer) -> None:
        if peer.stream:
            self.host.watched.pop(peer.stream.socket.fileno())
            peer.stream.socket.close()
            peer.stream = None

    # --- one message ---

    def _received(self, peer: Peer, message: bytes) -> None:
        header, size = decode(message)
        call = self._whole(peer.connection, header, message[size:])
        about = rpc.parse_call(call)
        self._stream(peer).send(call)
        if about is None:
            return
        exchange = Exchange(peer.connection, header, call, self._reply(peer, about.xid), self.notes)
        armed = self.armed
        if armed is None or armed.exchange or not armed.matches(about):
            peer.connection.send(exchange.honest())
            return
        armed.exchange = exchange
        armed.play(exchange)
        if armed.answers and not peer.connection.ended:
            peer.connection.send(exchange.honest())

    def _whole(self, connection: Connection, header: Header, inline: bytes) -> bytes:
        message = b"" if header.proc == RDMA_NOMSG else inline
        for chunk in header.reads:
            data = b"".join(self._fetch(connection, segment) for segment in chunk.segments)
            at = chunk.position
            message = message[:at] + (rpc.padded(data) if at else data) + message[at:]
        return message

    def _fetch(self, connection: Connection, segment: Segment) -> bytes:
        status, data = connection.read(segment.length, segment.offset, segment.handle)
        if status:
            raise GoneError(f"the client's memory could not be read: status {status}")
        return data

    def _reply(self, peer: Peer, xid: int) -> bytes:
        while True:
            record = self._stream(peer).receive()
            if rpc.is_reply(record) and record[:4] == rpc.words(xid):
                return record
            self._from_server_record(peer, record)

    def _from_server(self, peer: Peer) -> None:
        # an earlier event may have dropped the peer
        if peer.stream is None:
            return
        try:
            record = peer.stream.receive()
        except ConnectionError:
            # no Call waits for a Reply here, and servers end streams that are idle
            self._end_stream(peer)
            return
        self._from_server_record(peer, record)

    def _from_server_record(self, peer: Peer, record: bytes) -> None:
        """The real server calls the client."""
        if rpc.parse_call(record) and not peer.connection.ended:
            peer.connection.send(
                rpc.words(*(int.from_bytes(record[:4], "big"), 1, CREDITS, 0, 0, 0, 0)) + record
            )


def attempt(exchange: Exchange, kind: str, size: int, at: int, key: int) -> None:
    """Reach for the client's memory and note how it went, 10 for a remote access error."""
    try:
        if kind == "write":
            status = exchange.connection.try_write(b"\x66" * size, at, key)
        else:
            status = exchange.connection.try_read(size, at, key)[0]
    except (GoneError, verbs.VerbsError) as error:
        exchange.notes.setdefault("gone", []).append(str(error))
        return
    exchange.notes.setdefault("reached", []).append(status)
