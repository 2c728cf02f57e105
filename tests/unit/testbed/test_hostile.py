# SPDX-License-Identifier: Apache-2.0
"""The tables of hostile messages, without a network: what they say, and that they can say it."""

import random
import select
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from wire.rpcrdma import RDMA_MSG, Header, Segment, decode, encode

from testbed.peers import calls, kernel, odd_reads
from testbed.peers.connect_replies import ACCEPTS, PRIVATE
from testbed.peers.mutate import LARGEST, mutated
from testbed.peers.peer import Message
from testbed.peers.proxy import Proxy
from testbed.peers.replies import TRICKS
from testbed.peers.rpc import accepted, call, opaque, parse_call, read_data, split, words
from testbed.peers.site import HUGE

KINDS = {"read", "small", "list", "write", "session"}
ANSWERS = {"ok", "rpc", "chunk", "vers", "dropped", "ended"}


class Site:
    """Memory with addresses and nothing behind them."""

    file, folder, received = b"f" * 28, b"d" * 28, 4096

    def segment(self, size: int, at: int = 0) -> Segment:
        return Segment(0x1200, size & HUGE, 0x7F0000000000 + at)

    data = stale = read_only = write_only = private = before = over_end = segment

    def segments(self, count: int, size: int) -> list[Segment]:
        return [self.segment(size, size * number) for number in range(count)]

    def placed(self, message: bytes, cuts: tuple[int, ...] = ()) -> tuple[Segment, ...]:
        return tuple(self.segment(len(message), at) for at in (0, *cuts))


@pytest.mark.parametrize("case", calls.CASES.values(), ids=calls.CASES)
def test_a_case_is_a_message_and_its_answers(case: calls.Case) -> None:
    message = case.make(Site())  # type: ignore[arg-type]
    assert case.may
    assert case.may <= ANSWERS
    assert len(message) <= 65536
    # what has to be answered well is a header that can be read
    if case.may == calls.OK:
        head, _ = decode(message)
        assert head.proc in (0, 1)


def test_there_are_enough_and_the_kernels_are_among_them() -> None:
    assert len(calls.CASES) >= 200
    assert len(TRICKS) >= 200
    assert set(kernel.ANSWERS) <= set(calls.CASES)
    # a deviation that is none is not one
    assert not any(word in calls.CASES[name].may for name, word in kernel.ANSWERS.items())
    assert {trick.on for trick in TRICKS.values()} == KINDS
    assert all(trick.may <= {"ok", "error"} for trick in TRICKS.values())
    assert all(len(data) <= 56 for data in PRIVATE.values())
    assert set(PRIVATE) < set(ACCEPTS)


def test_mutants_are_the_same_again_and_unlike_each_other() -> None:
    bases = [calls.message(calls.null)(Site()), bytes(range(200))]  # type: ignore[arg-type]
    made = [mutated("a", number, bases) for number in range(2000)]
    assert made == [mutated("a", number, bases) for number in range(2000)]
    assert made != [mutated("b", number, bases) for number in range(2000)]
    assert len(set(made)) > 1800
    assert max(map(len, made)) <= LARGEST
    assert sum(message in bases for message in made) < 50


def test_what_is_made_of_nothing() -> None:
    rng = random.Random(1)  # noqa: S311 - no secret
    for number in range(300):
        assert mutated("empty", number, [b"", rng.randbytes(3)]) is not None


def test_calls_and_replies_are_understood() -> None:
    there = parse_call(call(7, 6, opaque(b"abc")))
    assert there == (7, 100003, 3, 6)
    assert parse_call(words(7, 1, 0, 0, 0, 0)) is None
    reply = words(7, 1, 0, 0, 0, 0)
    assert accepted(reply)
    assert not accepted(words(7, 1, 0, 0, 0, 4))
    data = reply + words(0, 0, 5, 1, 5) + b"hello\0\0\0"
    assert read_data(data) == (44, 5)
    assert split(data + b"next", (44, 5)) == (data[:44] + b"next", b"hello")
    assert read_data(reply + words(70, 0)) is None


A, B, C, D, E = (bytes((1, 0, 1, 1)) + bytes((n,)) * 24 for n in range(5))
FILES = odd_reads.Files(A, B, C, D, E, 70003)


def permit(call: bytes) -> bytes:
    """The bytes that READs with one permit have in common: credential to file handle."""
    at = 28
    at += 4 + int.from_bytes(call[at : at + 4], "big") + 4
    at += 4 + int.from_bytes(call[at : at + 4], "big")
    return call[28 : at + 4 + int.from_bytes(call[at : at + 4], "big")]


@pytest.mark.parametrize("length", [12, 16, 20, 28, 64])
def test_odd_reads_have_names_of_their_own(length: int) -> None:
    first, second = (A * 3)[:length], (B * 3)[:length]
    files = odd_reads.Files(first, second, second, second, second, 70003)
    assert len(odd_reads.cases(files)) > 500


def test_odd_reads_are_like_their_honest_reads_where_they_are_sound() -> None:
    table = odd_reads.cases(FILES)
    sound = [case for case in table.values() if case.sound]
    assert len(sound) > len(table) / 3
    for case in sound:
        assert permit(case.call) == permit(case.honest), case.name
    # a file handle or a credential of another kind is another permission
    others = [name for name in table if name.startswith(("file handle", "another user"))]
    assert len(others) > 70
    for name in others:
        assert permit(table[name].call) != permit(table[name].honest), name
    assert len({case.call for case in table.values()}) > len(table) / 3


def test_a_read_with_two_meanings_has_one_permit() -> None:
    double = [case for case in odd_reads.cases(FILES).values() if case.forged]
    for case in double:
        assert permit(case.call) == permit(case.honest)
        # nfsd finds at most 16 groups, and a host name of at most 64 bytes
        count, length = (int.from_bytes(case.call[at : at + 4], "big") for at in (48, 36))
        assert (count if not length else length / 4) <= 16
    assert len({case.call for case in double}) == len(double) > 8


def test_chunks_of_odd_reads_are_in_their_memory() -> None:
    for case in odd_reads.cases(FILES).values():
        for chunk in case.segments(1, 0):
            assert all(s.offset + s.length <= odd_reads.ROOM for s in chunk), case.name
        for segment in case.reply_chunk(1, 0) or ():
            assert segment.offset >= odd_reads.ROOM, case.name
            assert segment.offset + segment.length <= odd_reads.ROOM + 4 * odd_reads.PAGE


class Wire:
    """A host without RDMA: one client has connected, and TCP is watched."""

    def __init__(self) -> None:
        self.client = Client()
        self.requests = deque([self.client])
        self.watched: dict[int, Callable[[], None]] = {}

    def listen(self, port: int) -> None:
        pass

    def turn(self, seconds: float) -> None:
        poller = select.poll()
        for file in self.watched:
            poller.register(file, select.POLLIN)
        for file, _ in poller.poll(seconds * 1000):
            self.watched[file]()


class Client:
    """The proxy's end of the client's connection."""

    def __init__(self) -> None:
        self.ended = ""
        self.messages = deque[Message]()
        self.sent: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def call(self, xid: int) -> None:
        self.messages.append(Message(encode(Header(xid, 32, RDMA_MSG)) + call(xid, 0)))


def answers_once(listener: socket.socket, xid: int) -> None:
    """Accept a stream, answer the Call that comes, and end the stream."""
    there, _ = listener.accept()
    with there, there.makefile("rb") as records:
        asked = call(xid, 0)
        assert records.read(4 + len(asked))[4:] == asked
        there.sendall(words(1 << 31 | 24, xid, 1, 0, 0, 0, 0))


def test_the_server_may_end_an_idle_stream() -> None:
    wire = Wire()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as server:
        listener.settimeout(60)
        proxy = Proxy(wire, 0, listener.getsockname())  # type: ignore[arg-type]
        proxy.accept = wire.requests.popleft  # type: ignore[assignment]
        client = wire.client
        for xid in (7, 8):
            answered = server.submit(answers_once, listener, xid)
            client.call(xid)
            proxy.turn(0)
            answered.result()
            assert client.sent.pop()[-24:] == words(xid, 1, 0, 0, 0, 0)
            # the stream's end is what happens next
            proxy.turn(60)
            assert not wire.watched
    assert not client.ended
