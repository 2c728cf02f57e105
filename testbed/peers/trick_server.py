# SPDX-License-Identifier: Apache-2.0
"""A hostile server of a personality, and an application that reads from it, in one node.

The server has nfsd of this node do the work over TCP.  A module of a personality derives from
``TrickServer``, which plays a trick on the next READ; ``TRICKS`` are its tricks, by name, each with
what the application may see, and whether the connection ends.
"""

from __future__ import annotations

import errno
import mmap
import multiprocessing
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from wire.rdma5666 import RDMA_MSGP
from wire.rpcrdma import RDMA_MSG, RDMA_NOMSG, Header, RefusedError, decode

from testbed.node import channel
from testbed.peers import rpc
from testbed.peers.application import SIZE, Buffer
from testbed.peers.messages import Outcomes
from testbed.peers.mutate import mutated, shown
from testbed.peers.peer import SERVER, Connection, GoneError, Host
from testbed.peers.private_data import extended, parsed
from testbed.peers.proxy import Peer, Proxy
from testbed.peers.site import FOLDER
from testbed.peers.token_client import contents
from testbed.peers.verbs import VerbsError

__all__ = ["ENDED", "ERROR", "OK", "Answer", "Story", "Trick", "TrickServer", "Want", "again",
           "asking", "mutants", "played", "stranger"]  # fmt: skip

HERE, MESSAGE, PORT = Path("/mnt/tricks"), 4096, 20070
OPTIONS = "vers=3,nolock,actimeo=3600,soft,timeo=100,retrans=1,nosharecache,proto=rdma"
FORK = multiprocessing.get_context("fork")


class Answer:
    """The Reply to a READ."""

    connection: Connection
    xid: int

    def sound(self) -> bytes:
        """The message that is due."""
        raise NotImplementedError

    def send(self) -> None:
        self.connection.send(self.sound())


Trick = Callable[[Any], None]
Want = tuple[str, bool]
OK, ERROR, ENDED = ("ok", False), ("error", False), ("ok", True)


def again(answer: Answer) -> None:
    """The answer comes three times."""
    for _ in range(3):
        answer.send()


def stranger(answer: Answer) -> None:
    """An answer to another Call comes first."""
    for _ in range(2):
        answer.xid ^= 0x55
        answer.send()


@dataclass
class Story:
    """Outcome of a trick."""

    outcome: str = ""
    dones: int = 0
    ended: bool = False
    played: bool = False
    believable: bool = False
    want: Want = field(default=("", False))
    message: str = ""

    def fine(self) -> bool:
        return self.played and (self.outcome, self.ended) == self.want


class Forwarded(NamedTuple):
    """The Reply of nfsd, and where the data of a READ is in it."""

    xid: int
    reply: bytes
    place: rpc.Place | None


class TrickServer(Proxy):
    """A server; the work is done by nfsd of its node, over TCP.

    The application's buffer is ``memory``: flags of mmap(2).  The server receives messages of up to
    ``size`` bytes.
    """

    memory = mmap.MAP_SHARED
    size = MESSAGE

    def __init__(self) -> None:
        super().__init__(Host(), PORT)
        self.accept = self._agree
        self.trick: Trick | None = None
        self.story = Story()

    def header(self, message: bytes) -> Header:
        """The header of a Reply of the personality."""
        return decode(message)[0]

    def _agree(self) -> Connection:
        # the extension comes back, with the capability that the client requested
        return self.take(extended(*parsed(self.host.requests[0].private)), self.size)

    def forward(self, peer: Peer, header: Header, inline: bytes) -> Forwarded:
        """Have nfsd execute a Call."""
        call = self._whole(peer.connection, header, inline)
        about = rpc.parse_call(call)
        assert about
        self._stream(peer).send(call)
        reply = self._reply(peer, about.xid)
        place = rpc.read_data(reply) if about.procedure == rpc.READ else None
        return Forwarded(about.xid, reply, place)

    def play(self, answer: Any) -> None:
        """Play the trick on the answer, once; without one, send the answer."""
        trick, self.trick = self.trick, None
        self.story.played |= trick is not None
        if trick:
            trick(answer)
        else:
            answer.send()

    def drop(self, peer: Peer) -> None:
        self.story.ended = True
        super().drop(peer)

    def serve(self, until: Callable[[], bool]) -> None:
        while not until():
            self.turn(0.2)

    def _serve(self, peer: Peer) -> None:
        try:
            super()._serve(peer)
        except (RefusedError, VerbsError):
            self.drop(peer)


# --- the application ---


def reads(asks: Any, file: Path, data: bytes, memory: int) -> None:
    """For each message of the pipe, read SIZE bytes at that offset; in a process of its own."""
    buffer, opened = Buffer(memory), os.open(file, os.O_RDONLY | os.O_DIRECT)
    while (at := asks.recv()) is not None:
        buffer.middle[:] = bytes(SIZE)
        try:
            count = os.preadv(opened, [buffer.middle], at)
        except OSError as error:
            result = "error"
            if error.errno == errno.ESTALE:
                # NFS believed that the file is another one
                os.close(opened)
                opened = os.open(file, os.O_RDONLY | os.O_DIRECT)
        else:
            same = count == SIZE and buffer.middle == data[at : at + SIZE]
            result = "ok" if same else "wrong"
        asks.send(result if buffer.intact() else "beyond")


@contextmanager
def beside(server: TrickServer, work: Callable[[Any], None]) -> Iterator[Any]:
    """A process that works on the mount while the server serves it."""
    mine, theirs = FORK.Pipe()
    process = FORK.Process(target=work, args=(theirs,))
    process.start()
    server.host.watched[mine.fileno()] = lambda: None
    try:
        yield mine
    finally:
        mine.send(None)
        server.serve(lambda: not process.is_alive())
        del server.host.watched[mine.fileno()]


def run(server: TrickServer, *argv: str | Path) -> None:
    """A program that needs the server."""
    process = subprocess.Popen(argv)
    server.serve(lambda: process.poll() is not None)
    assert process.returncode == 0, argv


@contextmanager
def asking(server: TrickServer) -> Iterator[Callable[[int], str]]:
    """The mount of this server, and a read over it: of a block, how it ended."""
    data, file = contents("data"), HERE / FOLDER.name / "data"
    HERE.mkdir(exist_ok=True)
    run(server, "mount", "-t", "nfs", "-o", f"{OPTIONS},port={PORT}", f"{SERVER}:/export", HERE)
    try:
        with beside(server, lambda asks: reads(asks, file, data, server.memory)) as asks:

            def ask(number: int) -> str:
                asks.send(number * SIZE % len(data))
                server.serve(asks.poll)
                return str(asks.recv())

            yield ask
    finally:
        run(server, "umount", HERE)


def played(server: TrickServer, tricks: Mapping[str, tuple[Trick, Want]]) -> dict[str, Story]:
    """Read once for each trick, which is played on the first answer; returns their outcomes."""
    stories: dict[str, Story] = {}
    with asking(server) as ask:
        for number, (name, (trick, want)) in enumerate(tricks.items()):
            server.trick, server.story = trick, Story(want=want)
            server.story.outcome = ask(number)
            stories[name] = server.story
        # unmounting ends the connection
        server.story = Story()
    return stories


# --- mutated messages ---


def believable(server: TrickServer, message: bytes, xid: int) -> bool:
    """Whether a client may take it for the answer; the RPC message in it is not checked."""
    try:
        header = server.header(message)
    except RefusedError:
        return False
    return header.xid == xid and header.proc in (RDMA_MSG, RDMA_NOMSG, RDMA_MSGP)


def mutants(server: TrickServer, seed: str, count: int) -> Outcomes:
    """Send a mutated Reply and then the right one, for each number; an honest read follows.

    The read may fail; it may bring wrong data only if the message could be the answer.
    """
    outcomes, failures = Counter[str](), list[str]()
    bases: list[bytes] = []
    with asking(server) as ask:
        for number in range(count):
            server.trick = lambda answer, number=number: mutant(server, seed, number, bases, answer)
            server.story = story = Story()
            story.outcome = ask(number)
            server.trick = None
            again = ask(number + 1)
            outcomes[story.outcome] += 1
            may = {"ok", "error"} | ({"wrong"} if story.believable else set())
            if not story.played or story.outcome not in may or again != "ok":
                failures.append(f"mutant {number}: {story}, then {again}")
    return dict(outcomes), failures


def mutant(server: TrickServer, seed: str, number: int, bases: list[bytes], answer: Answer) -> None:
    sound = answer.sound()
    bases[:] = [sound, *bases[:7]]
    message = mutated(seed, number, [sound, *bases])
    server.story.message = message.hex()
    server.story.believable = believable(server, message, answer.xid)
    # the client may die of it
    channel.send(shown(number, message))
    try:
        answer.connection.send(message)
        answer.connection.send(sound)
    except (GoneError, VerbsError) as error:
        answer.connection.ended = answer.connection.ended or str(error)
