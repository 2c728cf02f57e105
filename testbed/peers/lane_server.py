# SPDX-License-Identifier: Apache-2.0
"""A server whose lanes break the rules.

A real nfsd does the work, over TCP (proxy.py). A READ on a lane that begins at block *n* of 64 KiB
is answered by trick *n*; a READ on an ordinary connection, and one behind the tricks, gets an
honest Reply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wire.rpcrdma import ERR_CHUNK, RDMA_ERROR, RDMA_NOMSG, Header, decode, encode

from testbed.peers import lanes, private_data, rpc
from testbed.peers.lanes import LANE, PRE_POSTED, first
from testbed.peers.mutate import mutated
from testbed.peers.peer import Connection, GoneError, Host
from testbed.peers.proxy import Peer, Proxy
from testbed.peers.verbs import VerbsError

BLOCK = 1 << 16
PAGES = 4


@dataclass
class Answer:
    """A Reply on a lane."""

    lane: Connection
    header: Header
    rest: bytes
    data: bytes

    @property
    def room(self) -> int:
        return self.header.writes[0][0].offset

    def parts(self) -> list[bytes]:
        """The data of each message."""
        data, parts = self.data, []
        for segment in self.header.writes[0]:
            parts.append(data[: segment.length])
            data = data[segment.length :]
        return parts

    def send(self, parts: list[bytes], stated: list[int] | None = None) -> None:
        """All messages; ``stated`` are lengths that the header has instead of the right ones."""
        head = first(self.header, stated or [len(part) for part in parts], self.rest, self.room)
        self.post(head, parts)

    def post(self, head: bytes, parts: list[bytes]) -> None:
        self.lane.send(head + parts[0])
        for part in parts[1:]:
            self.lane.send(part)

    def honest(self) -> None:
        self.send(self.parts())

    def lengths(self) -> list[int]:
        return [len(part) for part in self.parts()]


def with_lengths(change: Callable[[list[int]], list[int]]) -> Callable[[Answer], None]:
    """The header states other lengths than the messages have."""
    return lambda x: x.send(x.parts(), change(x.lengths()))


def with_parts(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Answer], None]:
    """The messages have other lengths than the header states."""
    return lambda x: x.send(change(x.parts()), x.lengths())


def with_header(**changes: object) -> Callable[[Answer], None]:
    """Another header, in front of honest messages."""

    def play(x: Answer) -> None:
        head = first(x.header, x.lengths(), x.rest, x.room)
        header, size = decode(head)
        other = encode(replace(header, **changes)) + head[size:]  # type: ignore[arg-type]
        x.post(other[: x.room].ljust(x.room, b"\0"), x.parts())

    return play


def with_inline(length: int) -> Callable[[Answer], None]:
    """The header states another length of the RPC message."""

    def play(x: Answer) -> None:
        head = first(x.header, x.lengths(), x.rest, x.room)
        header, size = decode(head)
        segments = (replace(header.writes[0][0], offset=length), *header.writes[0][1:])
        x.post(encode(replace(header, writes=(segments,))) + head[size:], x.parts())

    return play


def once_more(x: Answer) -> None:
    x.honest()
    x.lane.send(b"one message too many")


def again(x: Answer) -> None:
    x.honest()
    x.honest()


def garbage(x: Answer) -> None:
    x.post(b"\xa5" * x.room, x.parts())


def leaves(x: Answer) -> None:
    x.lane.ended = "the server leaves"


def leaves_between(x: Answer) -> None:
    x.lane.send(first(x.header, x.lengths(), x.rest, x.room) + x.parts()[0])
    leaves(x)


def reaches(x: Answer) -> None:
    x.lane.try_write(b"\x66" * 64, 0x1000, 0x1234)


def silent(_: Answer) -> None:
    """No Reply at all."""


def silent_after_one(x: Answer) -> None:
    x.lane.send(first(x.header, x.lengths(), x.rest, x.room) + x.parts()[0])


def early(x: Answer) -> None:
    """Nothing but the data of the first message."""
    x.lane.send(x.parts()[0])
    leaves(x)


TRICKS: dict[str, Callable[[Answer], None]] = {
    "honest": Answer.honest,
    "less data than stated": with_parts(lambda p: [*p[:-1], p[-1][:-4]]),
    "more data than stated": with_lengths(lambda n: [*n[:-1], n[-1] - 4]),
    "nothing is stated": with_lengths(lambda n: [0] * len(n)),
    "more than there is room for is stated": with_lengths(lambda n: [n[0] + 1, *n[1:]]),
    "lengths that wrap are stated": with_lengths(lambda n: [0xFFFFFFFF, *n[1:]]),
    "more than was posted": with_parts(lambda p: [p[0] + bytes(4096), *p[1:]]),
    "more than was posted at the end": with_parts(lambda p: [*p[:-1], p[-1] + b"x"]),
    "a gap": lambda x: x.send([x.parts()[0][:-4096], *x.parts()[1:]]),
    "fewer segments": with_lengths(lambda n: n[:-1]),
    "more segments": with_lengths(lambda n: [*n, 0]),
    "another xid": lambda x: replace(x, header=replace(x.header, xid=x.header.xid + 1)).honest(),
    "garbage": garbage,
    "no Write list": with_header(writes=()),
    "a Reply chunk": with_header(reply=()),
    "NOMSG": with_header(proc=RDMA_NOMSG),
    "an error": with_header(proc=RDMA_ERROR, error=ERR_CHUNK),
    "no RPC message": with_inline(0),
    "an RPC message as long as the data": with_inline(BLOCK),
    "an RPC message beyond 32 bits": with_inline(1 << 32 | 100),
    "one message too many": once_more,
    "twice": again,
    "silent": silent,
    "silent after the first message": silent_after_one,
    "leaves": leaves,
    "leaves between messages": leaves_between,
    "the data first": early,
    "reaches for memory": reaches,
}


def mutant(seed: str, number: int) -> Callable[[Answer], None]:
    """A mutated head in front of honest data."""

    def play(x: Answer) -> None:
        sound = first(x.header, x.lengths(), x.rest, x.room)
        x.post(mutated(seed, number, [sound]), x.parts())

    return play


class Server(Proxy):
    """The proxy, with lanes. ``plays`` are for the first blocks of a file."""

    def __init__(self, port: int, plays: Sequence[Callable[[Answer], None]]) -> None:
        super().__init__(Host(), port)
        self.accept, self.plays = self.meet, plays

    def meet(self) -> Connection | None:
        capabilities, token = private_data.parsed(self.host.requests[0].private)
        if capabilities & LANE:
            pages = min(capabilities >> 16 & 0xFF, PAGES)
            return self.take(lanes.asked(token, pages), receives=8)
        return self.take(private_data.extended(capabilities & PRE_POSTED, token))

    def _received(self, peer: Peer, message: bytes) -> None:
        capabilities, _ = private_data.parsed(peer.connection.wish.private)
        if not capabilities & LANE:
            super()._received(peer, message)
            return
        header, size = decode(message)
        call = message[size:]
        about = rpc.parse_call(call)
        assert about
        self._stream(peer).send(call)
        reply = self._reply(peer, about.xid)
        place = rpc.read_data(reply)
        at, length = place or (len(reply), 0)
        answer = Answer(peer.connection, header, reply[:at], reply[at : at + length])
        number = int.from_bytes(call[-12:-4], "big") // BLOCK
        play = self.plays[number] if number < len(self.plays) else Answer.honest
        try:
            play(answer)
        except VerbsError as error:
            raise GoneError(str(error)) from error


def serve(port: int, seed: str = "", mutants: int = 0) -> None:
    """Answer a READ of block *n* by trick *n*, or by mutated Reply *n*."""
    plays = [mutant(seed, number) for number in range(mutants)] or list(TRICKS.values())
    Server(port, plays).run()
