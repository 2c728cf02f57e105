# SPDX-License-Identifier: Apache-2.0
"""A client whose lanes break the rules, on the host of the server.

Each misdeed may end its lane; the connection that it belongs to has to answer afterwards.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from wire.rpcrdma import RDMA_MSG, RDMA_NOMSG, Header, Read, Segment, encode

from testbed.node import channel
from testbed.node.grants import totals
from testbed.node.programs import until
from testbed.peers import lanes, private_data, rpc
from testbed.peers.lanes import PAGE, PRE_POSTED, Answer, asked, called, read_call, rooms
from testbed.peers.messages import Outcomes
from testbed.peers.mutate import mutated, shown
from testbed.peers.peer import Connection, GoneError, Wish
from testbed.peers.site import FOLDER, handles
from testbed.peers.token_client import TokenClient, contents, host
from testbed.peers.verbs import VerbsError

LIMIT = 64
# seconds for the answer to a mutated message, or for the end of its lane
PATIENCE = 3.0


class Home(TokenClient):
    """A connection that lanes may join, and what they read."""

    def __init__(self) -> None:
        super().__init__(PRE_POSTED)
        assert self.agreed == PRE_POSTED
        (self.file,), self.content = handles(FOLDER, "data"), contents("data")

    def lane(self, wish: Wish | None = None, token: int = 0, pages: int = 1) -> Connection:
        wish = wish or Wish(size=8192, receives=32)
        return host().connect(replace(wish, private=asked(token or self.token, pages)))

    def first_lane(self, wish: Wish) -> Connection:
        """A lane, as soon as the server has ended the earlier ones."""
        end = time.monotonic() + 60
        while True:
            try:
                return self.lane(wish)
            except GoneError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)


def refused(connect: Callable[[], Connection]) -> bool:
    try:
        connect().close()
    except GoneError:
        return True
    return False


def messages(lane: Connection, count: int) -> list[bytes]:
    received = [lane.next() for _ in range(count)]
    return [message.data for message in received if message]


# --- honest lanes ---


def reads(at: Home) -> bool:
    """Data in one message, in several, less than there is room for, and none."""
    lane, good = at.lane(), []
    for offset, size, count in ((0, 4096, 1), (100, 8192, 3), (65000, 8192, 2), (70000, 4096, 2)):
        xid = at.next_xid()
        lane.send(called(xid, read_call(xid, at.file, offset, size), rooms(count)))
        answer = Answer(messages(lane, count))
        wanted = at.content[offset : offset + size]
        good.append(answer.xid == xid and answer.data == wanted and rpc.accepted(answer.reply))
    lane.close()
    return all(good)


# --- lanes that nobody asked for ---


def wrong_token(at: Home) -> bool:
    return refused(lambda: at.lane(token=at.token + 1))


def no_pages(at: Home) -> bool:
    try:
        lane = at.lane(pages=0)
    except GoneError:
        return True
    return ends(lane)


def too_many(at: Home) -> bool:
    """Whether the server refuses one more than a client may have."""
    before = totals()["connections"]
    made = [at.first_lane(Wish(size=1024, receives=1)) for _ in range(LIMIT)]
    good = refused(at.lane)
    for lane in made:
        lane.close()
    at.first_lane(Wish(size=1024, receives=1)).close()
    # the next cases need a lane at once
    until("the end of the lanes", lambda: totals()["connections"] <= before)
    return good


# --- Calls that no lane carries ---


def ends(lane: Connection) -> bool:
    lane.next()
    lane.host.wait(lambda: bool(lane.ended), late=False)
    good = bool(lane.ended)
    lane.close()
    return good


def sends(make: Callable[[Home, int], bytes]) -> Callable[[Home], bool]:
    """Whether a lane ends when it is sent this."""

    def play(at: Home) -> bool:
        lane = at.lane()
        lane.send(make(at, at.next_xid()))
        return ends(lane)

    return play


def with_segments(*segments: Segment) -> Callable[[Home, int], bytes]:
    return lambda at, xid: called(xid, read_call(xid, at.file, 0, 4096), segments)


def with_header(**changes: Any) -> Callable[[Home, int], bytes]:
    def make(at: Home, xid: int) -> bytes:
        head = Header(xid, 1, RDMA_MSG, writes=(rooms(1),))
        return encode(replace(head, **changes)) + read_call(xid, at.file, 0, 4096)

    return make


def two_at_once(at: Home) -> bool:
    """Calls that wait for no Reply: the lane ends, or each was answered before the next came."""
    lane, xids = at.lane(), [at.next_xid() for _ in range(20)]
    with suppress(GoneError):
        for xid in xids:
            lane.send(called(xid, read_call(xid, at.file, 0, 4096), rooms(1)))
    answers = [Answer([data]) for data in messages(lane, len(xids))]
    for answer, xid in zip(answers, xids, strict=False):
        if answer.xid != xid or answer.data != at.content[:4096]:
            return False
    return len(answers) == len(xids) or ends(lane)


def short_receives(at: Home) -> bool:
    """More data than was posted."""
    lane = at.lane(Wish(size=1024, receives=4))
    xid = at.next_xid()
    lane.send(called(xid, read_call(xid, at.file, 0, 4096), rooms(1)))
    return ends(lane)


def no_receives(at: Home) -> bool:
    """Fewer receives than the Call states."""
    lane = at.lane(Wish(size=8192, receives=1, deaf=True, rnr_retry=0))
    xid = at.next_xid()
    lane.send(called(xid, read_call(xid, at.file, 0, 8192), rooms(2)))
    return ends(lane)


def leaves(at: Home) -> bool:
    """The client leaves with a Call under way."""
    lane = at.lane()
    xid = at.next_xid()
    lane.send(called(xid, read_call(xid, at.file, 0, 4096), rooms(1)))
    lane.close()
    return True


ONE = rooms(1)[0]
CASES: dict[str, Callable[[Home], bool]] = {
    "reads": reads,
    "wrong token": wrong_token,
    "no pages": no_pages,
    "too many": too_many,
    "no segments": sends(with_segments()),
    "too many segments": sends(with_segments(*rooms(21, 16))),
    "a key": sends(with_segments(replace(ONE, handle=1))),
    "more room than agreed": sends(with_segments(replace(ONE, length=PAGE + 1))),
    "no room for a head": sends(with_segments(replace(ONE, offset=0))),
    "a head without room for the Reply": sends(with_segments(replace(ONE, offset=56))),
    "a head beyond the inline size": sends(with_segments(replace(ONE, offset=1 << 20))),
    "a head beyond 32 bits": sends(with_segments(replace(ONE, offset=(1 << 32) + lanes.HEAD))),
    "two heads": sends(with_segments(ONE, ONE)),
    "no Write list": sends(with_header(writes=())),
    "two Write chunks": sends(with_header(writes=(rooms(1), rooms(1)))),
    "a Reply chunk": sends(with_header(reply=rooms(1))),
    "a Read list": sends(with_header(reads=(Read(4, rooms(1)),))),
    "NOMSG": sends(with_header(proc=RDMA_NOMSG)),
    "a reply": sends(lambda at, xid: called(xid, rpc.words(xid, 1, 0, 0, 0, 0), rooms(1))),
    "another xid": sends(lambda at, xid: called(xid + 1, rpc.call(xid, rpc.NULL), rooms(1))),
    "less data than asked": sends(lambda at, xid: called(xid, b"", rooms(1))),
    "noise": sends(lambda at, xid: bytes(range(200))),
    "one byte": sends(lambda at, xid: b"x"),
    "smaller room than the data": sends(
        lambda at, xid: called(xid, read_call(xid, at.file, 0, 4096), rooms(1, 100))
    ),
    "two at once": two_at_once,
    "short receives": short_receives,
    "no receives": no_receives,
    "leaves": leaves,
}


def misbehave() -> list[str]:
    """Play each case; returns the failures."""
    at, failures = Home(), []
    for name, case in CASES.items():
        channel.send(name)
        if not case(at):
            failures.append(name)
        elif not at.answers():
            failures.append(f"{name}: its home does not answer")
    if not without_home(at):
        failures.append("without a home")
    if not home_leaves(at):
        failures.append("its home leaves")
    return failures


def without_home(at: Home) -> bool:
    """A lane alone, and a lane of a connection without the personality."""
    token = at.token + 77
    alone = refused(lambda: at.lane(token=token))
    plain = host().connect(Wish(private=private_data.extended(0, token)))
    beside = refused(lambda: at.lane(token=token))
    plain.close()
    return alone and beside


def home_leaves(at: Home) -> bool:
    """The connection ends, and its lanes with it."""
    made = [at.lane(Wish(size=1024, receives=1)) for _ in range(3)]
    at.connection.close()
    good = [ends(lane) for lane in made]
    return all(good)


# --- mutated messages ---


def mutant(lane: Connection, message: bytes) -> str:
    """Send a message; returns its outcome: "answered", "ended" or "silent"."""
    with suppress(GoneError, VerbsError):
        lane.finish(lane.send(message))
        if lane.next(PATIENCE):
            return "answered"
    return "ended" if lane.ended else "silent"


def mutants(seed: str, count: int) -> Outcomes:
    """Send mutated messages, each on a lane of its own; the home has to answer after each."""
    at, words, failures = Home(), Counter[str](), list[str]()
    wish = Wish(size=8192, receives=32)
    lane = at.first_lane(wish)
    for number in range(count):
        xid = at.next_xid()
        reads = [called(xid, read_call(xid, at.file, at_, 4096 * n), rooms(n))
                 for at_, n in ((0, 1), (100, 2), (70000, 1))]  # fmt: skip
        bases = [*reads, called(xid, rpc.call(xid, rpc.NULL), rooms(1))]
        message = mutated(seed, number, bases)
        # the server may die of it
        channel.send(shown(number, message))
        word = mutant(lane, message)
        words[word] += 1
        if not at.answers():
            failures.append(f"mutant {number}: {message.hex()}")
        # an answer may have more messages than were waited for
        lane.close()
        lane = at.first_lane(wish)
    lane.close()
    return dict(words), failures
