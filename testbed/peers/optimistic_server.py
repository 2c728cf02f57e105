# SPDX-License-Identifier: Apache-2.0
"""A server whose notices break the rules.

A real nfsd does the work, over TCP (proxy.py). Behind the first READ in MiB *n* of a file, the
server plays trick *n* on the second connection. All memory that it offers is poisoned, but that of
the honest grant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from wire import nfs3
from wire.notices import Credit, Grant, Notice, Revoke, encode
from wire.rpcrdma import Segment, decode
from wire.siphash import siphash

from testbed.peers import optimistic, private_data, rpc
from testbed.peers.lanes import LANE
from testbed.peers.optimistic import OPTIMISTIC
from testbed.peers.peer import Connection, GoneError, Host, Memory
from testbed.peers.proxy import Peer, Proxy
from testbed.peers.verbs import LOCAL_WRITE, REMOTE_READ, VerbsError

MIB, PAGE = 1 << 20, 4096
LENGTH = 1 << 16
"""bytes of memory in an ordinary grant"""


@dataclass
class Stage:
    """Where a trick is played: the second connection, and the READ before it."""

    side: Connection
    token: int
    memory: Memory
    read: nfs3.Read
    data: bytes

    def extent(self, length: int = LENGTH, at: int = 0) -> Segment:
        return Segment(self.memory.key, length, self.memory.address + at)

    def user(self) -> int:
        """Digest of the credential of the READ."""
        return siphash(self.read.credential, (self.token, 0))

    def grant(self, lifetime: int = 60, **changes: object) -> Grant:
        """A grant of poison for the extent of the READ."""
        position = self.read.position // MIB * MIB
        grant = Grant(lifetime, position, self.extent(), self.read.fh, False, self.user())
        return grant._replace(**changes)  # type: ignore[arg-type]

    def say(self, *notices: Notice | bytes) -> None:
        for notice in notices:
            message = notice if isinstance(notice, bytes) else encode(notice)
            # no more than the send queue and its buffers take
            self.side.finish(self.side.send(message))


Trick = Callable[[Stage], None]


def honest(x: Stage) -> None:
    """The data that the READ returned is at its place in the memory."""
    at = x.read.position % MIB
    memory = x.side.memory(MIB, LOCAL_WRITE | REMOTE_READ)
    memory.view[at : at + len(x.data)] = x.data
    position = x.read.position // MIB * MIB + at
    extent = Segment(memory.key, len(x.data), memory.address + at)
    x.say(Grant(60, position, extent, x.read.fh, False, x.user()))


def granting(**changes: object) -> Trick:
    return lambda x: x.say(x.grant(**changes))  # type: ignore[arg-type]


def saying(make: Callable[[Stage], bytes]) -> Trick:
    return lambda x: x.say(make(x))


def with_fh(change: Callable[[bytes], bytes]) -> Trick:
    return lambda x: x.say(x.grant(fh=change(x.read.fh)))


def at_position(change: Callable[[int], int]) -> Trick:
    return lambda x: x.say(x.grant(position=change(x.read.position // MIB * MIB)))


def of_length(length: int) -> Trick:
    return lambda x: x.say(x.grant(extent=x.extent(length)))


def fh_length(length: int) -> Trick:
    """The grant states another length of its file handle."""

    def play(x: Stage) -> None:
        message = encode(x.grant())
        x.say(message[:44] + rpc.words(length) + message[48:])

    return play


def flood(x: Stage) -> None:
    """More notices than the client has receives for, for extents that no application reads."""
    base = x.read.position + (1 << 40)
    x.say(*(x.grant(position=base + n * MIB) for n in range(400)))


def storm_of_revocations(x: Stage) -> None:
    x.say(*(Revoke(tuple(range(n * 16, n * 16 + 16))) for n in range(200)))


def leaves(x: Stage) -> None:
    x.side.ended = "the server leaves"


def reaches(x: Stage) -> None:
    """An RDMA Write and a Read, to memory that no client has offered."""
    x.side.try_write(b"\x66" * 64, 0x1000, 0x1234)


def private_memory(x: Stage) -> None:
    """The key is valid, but gives no access to read."""
    memory = x.side.memory(LENGTH, LOCAL_WRITE)
    x.say(x.grant(extent=Segment(memory.key, LENGTH, memory.address)))


def short_memory(x: Stage) -> None:
    memory = x.side.memory(256, LOCAL_WRITE | REMOTE_READ)
    x.say(x.grant(extent=Segment(memory.key, LENGTH, memory.address)))


def no_memory(x: Stage) -> None:
    x.say(x.grant(extent=Segment(0x1234, LENGTH, 0x1000)))


def revoked_before(x: Stage) -> None:
    """A grant that was revoked as soon as it was made, and its memory with it."""
    memory = x.side.memory(LENGTH, LOCAL_WRITE | REMOTE_READ)
    grant = x.grant(extent=Segment(memory.key, LENGTH, memory.address))
    memory.deregister()
    x.say(grant, Revoke((grant.extent.handle,)))


TRICKS: dict[str, Trick] = {
    "honest": honest,
    "another user": lambda x: x.say(x.grant(credential=x.user() ^ 1)),
    "another file": with_fh(lambda fh: fh[:-1] + bytes((fh[-1] ^ 1,))),
    "a longer file handle": with_fh(lambda fh: fh + bytes(4)),
    "a shorter file handle": with_fh(lambda fh: fh[:-4]),
    "another extent": at_position(lambda position: position + 1000 * MIB),
    "an extent that will be read": at_position(lambda position: position + MIB),
    "an end in the next extent": at_position(lambda position: position + MIB - PAGE),
    "more than an extent": of_length(2 * MIB),
    "4 GiB": of_length(0xFFFFFFFF),
    "no lifetime": granting(lifetime=0),
    "a revocation that nobody needs": lambda x: x.say(Revoke((1, 2, 3))),
    "many revocations": storm_of_revocations,
    "many grants": flood,
    "revoked before": revoked_before,
    "no bytes": of_length(0),
    "a position that wraps": granting(position=(1 << 64) - PAGE),
    "an address that wraps": lambda x: x.say(
        x.grant(extent=replace(x.extent(), offset=(1 << 64) - PAGE))
    ),
    "no file handle": saying(lambda x: encode(x.grant(fh=b""))),
    "a long file handle": saying(lambda x: encode(x.grant(fh=b"f" * 68))),
    "a file handle of 4 GiB": fh_length(0xFFFFFFFF),
    "a file handle behind the message": fh_length(48),
    "half a grant": saying(lambda x: encode(x.grant())[:20]),
    "a long grant": saying(lambda x: encode(x.grant()) + bytes(4)),
    "nothing revoked": saying(lambda _: rpc.words(2, 0)),
    "too many revoked": saying(lambda _: rpc.words(2, 17, *range(17))),
    "fewer revoked than stated": saying(lambda _: rpc.words(2, 4, 1)),
    "4 G revoked": saying(lambda _: rpc.words(2, 0xFFFFFFFF)),
    "credits": lambda x: x.say(Credit(1)),
    "an unknown kind": saying(lambda _: rpc.words(99, 1)),
    "one byte": saying(lambda _: b"x"),
    "noise": saying(lambda _: bytes(range(200))),
    "longer than the receive": saying(lambda _: bytes(3000)),
    "leaves": leaves,
    "reaches for memory": reaches,
    # the client tries these, and may pause for a while afterwards
    "no memory": no_memory,
    "memory that is private": private_memory,
    "short memory": short_memory,
}


class Server(Proxy):
    """The proxy, with second connections."""

    def __init__(self, port: int) -> None:
        super().__init__(Host(), port)
        self.accept = self.meet
        self.side: Connection | None = None
        self.played: set[int] = set()

    def meet(self) -> Connection | None:
        capabilities, token = private_data.parsed(self.host.requests[0].private)
        if not capabilities & LANE:
            return self.take(private_data.extended(capabilities & OPTIMISTIC, token))
        self.side = self.take(optimistic.offered(token))
        return self.side

    def _received(self, peer: Peer, message: bytes) -> None:
        capabilities, _ = private_data.parsed(peer.connection.wish.private)
        if capabilities & LANE:
            # credits, which nobody counts
            return
        super()._received(peer, message)
        header, size = decode(message)
        read = nfs3.arguments(self._whole(peer.connection, header, message[size:]))
        if read and self.side and self.side.established and not self.side.ended:
            self._play(self.side, read)

    def _play(self, side: Connection, read: nfs3.Read) -> None:
        number = read.position // MIB
        if number >= len(TRICKS) or number in self.played:
            return
        self.played.add(number)
        poison = side.memory(4 * MIB, LOCAL_WRITE | REMOTE_READ)
        poison.view[:] = b"\x66" * poison.size
        _, token = private_data.parsed(side.wish.private)
        stage = Stage(side, token, poison, read, self._content(read))
        try:
            list(TRICKS.values())[number](stage)
        except (GoneError, VerbsError):
            side.ended = side.ended or "the client left"

    def _content(self, read: nfs3.Read) -> bytes:
        """Data of the file: the server is on the host of nfsd."""
        with open("/export/tricks", "rb") as file:  # noqa: PTH123 - seeks
            file.seek(read.position)
            return file.read(read.count)


def serve(port: int) -> None:
    Server(port).run()
