# SPDX-License-Identifier: Apache-2.0
"""Replies of a hostile server: one Trick a line, with the outcomes that a call may have.

The application's call succeeds ("ok") when the client may drop the message, or end the connection
and call again, since the next Reply is honest.  It fails ("error") when the message ends an RPC.  A
Trick names both where RFC 8166 leaves it to the client, or to the RPC layer above it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from wire.rpcrdma import (
    ERR_CHUNK,
    ERR_VERS,
    RDMA_ERROR,
    RDMA_MSG,
    RDMA_NOMSG,
    Header,
    Read,
    Segment,
    encode,
)

from testbed.peers import verbs
from testbed.peers.proxy import CREDITS, Exchange, attempt
from testbed.peers.rpc import words

__all__ = ["TRICKS", "Trick"]

OK, ERROR, EITHER = frozenset({"ok"}), frozenset({"error"}), frozenset({"ok", "error"})
HUGE = 0xFFFFFFFF
Play = Callable[[Exchange], None]
Make = Callable[[Exchange], bytes]


@dataclass(frozen=True)
class Trick:
    """A misdeed at one Call of the kind ``on``."""

    name: str
    on: str
    """read (Write chunk), small (inline), list (Reply chunk), write (Read chunk), session (4.1)"""
    play: Play
    may: frozenset[str] = OK
    answers: bool = True
    """the honest answer follows, if the connection is still there"""
    later: Play | None = None
    """when the application's call is over"""
    reaches: bool = False
    """into memory that was not offered, which the keys have to refuse"""
    kept: bool = False
    """into memory of the Call, with other rights or later: allowed where it stays registered"""


def send(make: Make) -> Play:
    """Play that is one message."""
    return lambda exchange: ignore(exchange.connection.send(make(exchange)))


def ignore(_: object) -> None:
    pass


def start(x: Exchange, proc: int, version: int = 1, xid: int | None = None) -> bytes:
    return words(x.xid if xid is None else xid, version, CREDITS, proc)


# --- headers that cannot be read ---


def word_at(index: int, value: int) -> Make:
    """The honest message with a word of its header changed."""

    def make(x: Exchange) -> bytes:
        message = x.honest()
        return message[: 4 * index] + words(value) + message[4 * index + 4 :]

    return make


def cut(size: int) -> Make:
    return lambda x: x.honest()[:size]


def lists(*after_start: int) -> Make:
    """A MSG header whose lists are these words, with the honest message behind it."""
    return lambda x: start(x, RDMA_MSG) + words(*after_start) + x.answer()[1]


SEGMENT = (0x1234, 8, 0, 0)


def unreadable() -> Iterator[Trick]:
    for on, sizes in (("read", range(0, 52, 4)), ("list", (16, 32, 44))):
        for size in sizes:
            yield Trick(f"{on}: cut to {size} bytes", on, send(cut(size)))
    for size in (1, 3, 15, 27):
        yield Trick(f"small: cut to {size} bytes", "small", send(cut(size)))
    for value in (0, 2, 255, HUGE):
        yield Trick(f"version {value}", "read", send(word_at(1, value)))
    for value in (2, 3, 5, 256, HUGE):
        yield Trick(f"proc {value}", "read", send(word_at(3, value)))
    for value in (2, 0x80000000, HUGE):
        yield Trick(f"{value} for a Read list item", "read", send(word_at(4, value)))
        yield Trick(f"{value} for a Write chunk", "read", send(word_at(5, value)))
        yield Trick(f"{value} for a Reply chunk", "small", send(word_at(6, value)))


def unreadable_lists() -> Iterator[Trick]:
    for value in (2, 65, 0x10000000, HUGE):
        yield Trick(f"{value} segments said in a Write chunk", "read", send(word_at(6, value)))
    for name, after in LISTS.items():
        yield Trick(name, "small", send(lists(*after)))


LISTS = {
    "a Read list item at position 2": (1, 2, *SEGMENT, 0, 0, 0),
    "Read list items that go back": (1, 8, *SEGMENT, 1, 4, *SEGMENT, 0, 0, 0),
    "a Read chunk whose lengths wrap": (*(1, 4, 1, HUGE, 0, 0) * 2, 0, 0, 0),
    "a Write chunk whose lengths wrap": (0, 1, 2, *(1, HUGE, 0, 0) * 2, 0, 0),
    "a Reply chunk whose lengths wrap": (0, 0, 1, 2, *(1, HUGE, 0, 0) * 2),
    "more Write chunks than can be": (0, *(1, 0) * 100, 0, 0),
    "more segments than can be": (0, 1, 200, *SEGMENT * 200, 0, 0),
    "more Read chunks than can be": (
        *(w for i in range(60) for w in (1, 4 * i, *SEGMENT)),
        0,
        0,
        0,
    ),
}


# --- errors, transaction ids, credits ---


def refusals() -> Iterator[Trick]:
    def error(*after: int, xid: int | None = None, version: int = 1) -> Play:
        return send(lambda x: start(x, RDMA_ERROR, version, xid) + words(*after))

    yield Trick("ERR_CHUNK", "read", error(ERR_CHUNK), ERROR)
    yield Trick("ERR_CHUNK for a list", "list", error(ERR_CHUNK), ERROR)
    yield Trick("ERR_VERS 1 to 1", "read", error(ERR_VERS, 1, 1), ERROR)
    yield Trick("ERR_VERS 9 to 2", "read", error(ERR_VERS, 9, 2), ERROR)
    yield Trick("ERR_VERS with more behind it", "read", error(ERR_VERS, 1, 1, *[7] * 200), EITHER)
    yield Trick("ERR_CHUNK of version 2", "read", error(ERR_CHUNK, version=2))
    yield Trick("ERR_CHUNK of a call never made", "read", error(ERR_CHUNK, xid=0xDEAD))
    for value in (0, 3, HUGE):
        yield Trick(f"error {value}", "read", error(value))
    yield Trick("ERROR without a reason", "read", error())
    yield Trick("ERR_VERS without versions", "read", error(ERR_VERS))
    yield Trick("ERR_VERS with one version", "read", error(ERR_VERS, 1))


def strangers() -> Iterator[Trick]:
    def renumbered(make: Callable[[int], int]) -> Play:
        return send(lambda x: words(make(x.xid)) + x.honest()[4:])

    def rpc_of(make: Callable[[int], int]) -> Make:
        def made(x: Exchange) -> bytes:
            head, inline = x.answer()
            return encode(head) + words(make(x.xid)) + inline[4:]

        return made

    ids: dict[str, Callable[[int], int]] = {
        **{"the next xid": lambda xid: following(xid, 1), "xid 0": lambda xid: 0},
        **{
            "the xid upside down": lambda xid: ~xid,
            "an earlier xid": lambda xid: following(xid, -1),
        },
    }
    for name, make in ids.items():
        yield Trick(f"read: a reply for {name}", "read", renumbered(make))
        yield Trick(f"list: a reply for {name}", "list", renumbered(make))
        yield Trick(f"an RPC inside that has {name}", "small", send(rpc_of(make)), EITHER)
    yield Trick("the reply twice", "read", send(Exchange.honest))
    yield Trick("the list's reply twice", "list", send(Exchange.honest))
    for value in (0, 1, 0x80000000, HUGE):
        change = send(word_at(2, value))
        yield Trick(f"{value} credits", "read", change, answers=False)


# --- chunks that are not those of the Call ---


def header(change: Callable[[Header], Header]) -> Make:
    """The honest message with another header."""

    def make(x: Exchange) -> bytes:
        head, inline = x.answer()
        return encode(change(head)) + inline

    return make


def each_write(change: Callable[[Segment], Segment]) -> Callable[[Header], Header]:
    return lambda head: replace(
        head, writes=tuple(tuple(map(change, chunk)) for chunk in head.writes)
    )


def each_reply(change: Callable[[Segment], Segment]) -> Callable[[Header], Header]:
    return lambda head: replace(head, reply=tuple(map(change, head.reply or ())))


ONE = Segment(0x1234, 8, 0)
SEGMENTS: dict[str, Callable[[Segment], Segment]] = {
    "a longer segment": lambda s: replace(s, length=s.length + 4),
    "a segment of 2 GiB": lambda s: replace(s, length=1 << 31),
    "a segment of 4 GiB": lambda s: replace(s, length=HUGE),
    "a foreign key": lambda s: replace(s, handle=s.handle ^ 0xFF00),
    "a foreign offset": lambda s: replace(s, offset=s.offset ^ 1 << 40),
    "a shorter segment": lambda s: replace(s, length=max(s.length - 4, 0)),
    "an odd length": lambda s: replace(s, length=max(s.length - 3, 1)),
    "nothing written": lambda s: replace(s, length=0),
}


def chunks() -> Iterator[Trick]:
    for name, change in SEGMENTS.items():
        yield Trick(f"Write chunk: {name}", "read", send(header(each_write(change))), EITHER)
        yield Trick(f"Reply chunk: {name}", "list", send(header(each_reply(change))), EITHER)
    for name, (on, head) in HEADERS.items():
        yield Trick(f"{on}: {name}", on, send(header(head)), EITHER)
    yield Trick("NOMSG with a message", "list", send(lambda x: x.honest() + x.reply[:400]), EITHER)
    yield Trick("a Reply chunk of noise", "list", noise, EITHER, answers=False)
    yield Trick("the message in part, and the rest of the buffer", "list", beginning, EITHER)
    for size in (0, 4, 8, 12, 20, 24, 28):
        part = send(lambda x, size=size: encode(x.answer()[0]) + x.answer()[1][:size])
        yield Trick(f"{size} bytes of the RPC", "read", part, EITHER)
    for direction in (0, 2, HUGE):
        turned = send(lambda x, d=direction: with_direction(x, d))
        yield Trick(f"an RPC of direction {direction}", "read", turned, EITHER)


HEADERS: dict[str, tuple[str, Callable[[Header], Header]]] = {
    "no Write list": ("read", lambda h: replace(h, writes=())),
    "two Write chunks": ("read", lambda h: replace(h, writes=h.writes * 2)),
    "eight Write chunks": ("read", lambda h: replace(h, writes=((ONE,),) * 8)),
    "more segments": ("read", lambda h: replace(h, writes=((*h.writes[0], ONE),))),
    "thirty segments": ("read", lambda h: replace(h, writes=((ONE,) * 30,))),
    "an empty Write chunk": ("read", lambda h: replace(h, writes=((),))),
    "a Read list": ("read", lambda h: replace(h, reads=(Read(0, (ONE,)),))),
    "a Reply chunk too": ("read", lambda h: replace(h, reply=(ONE,))),
    "NOMSG": ("read", lambda h: replace(h, proc=RDMA_NOMSG)),
    "NOMSG and its Write chunk as Reply chunk": (
        "read",
        lambda h: replace(h, proc=RDMA_NOMSG, writes=(), reply=h.writes[0]),
    ),
    "MSG": ("list", lambda h: replace(h, proc=RDMA_MSG)),
    "no Reply chunk": ("list", lambda h: replace(h, reply=None)),
    "an empty Reply chunk": ("list", lambda h: replace(h, reply=())),
    "more Reply segments": ("list", lambda h: replace(h, reply=(*(h.reply or ()), ONE))),
    "its Reply chunk as Write chunk": ("list", lambda h: replace(h, writes=(h.reply or (),))),
    "the list's Reply chunk with a Read list": (
        "list",
        lambda h: replace(h, reads=(Read(4, (ONE,)),)),
    ),
    "a Write chunk never offered": ("small", lambda h: replace(h, writes=((ONE,),))),
    "a Reply chunk never offered": ("small", lambda h: replace(h, reply=(ONE,))),
    "NOMSG without chunks": ("small", lambda h: replace(h, proc=RDMA_NOMSG)),
    "NOMSG with a Reply chunk never offered": (
        "small",
        lambda h: replace(h, proc=RDMA_NOMSG, reply=(ONE,)),
    ),
    "a Read chunk in the reply to one": ("write", lambda h: replace(h, reads=(Read(64, (ONE,)),))),
    "a Write chunk in the reply": ("write", lambda h: replace(h, writes=((ONE,),))),
}


def noise(x: Exchange) -> None:
    """The header claims a full Reply chunk; the chunk holds noise."""
    segments = x.offered
    x.connection.write(
        b"\xa5" * min(segments[0].length, 60000), segments[0].offset, segments[0].handle
    )
    x.connection.send(encode(Header(x.xid, CREDITS, RDMA_NOMSG, reply=segments)))


def beginning(x: Exchange) -> None:
    """The server writes fifty bytes; the header claims the whole chunk."""
    segments = x.offered
    x.connection.write(x.reply[:50], segments[0].offset, segments[0].handle)
    x.connection.send(encode(Header(x.xid, CREDITS, RDMA_NOMSG, reply=segments)))


def with_direction(x: Exchange, direction: int) -> bytes:
    head, inline = x.answer()
    return encode(head) + inline[:4] + words(direction) + inline[8:]


# --- Sends of other kinds and sizes ---


def sends() -> Iterator[Trick]:
    for size in (4097, 8192, 60000):
        yield Trick(f"a message of {size} bytes", "read", send(padded_to(size)), EITHER)
    yield Trick("a message of 4096 bytes", "small", send(padded_to(4096)), EITHER)
    yield Trick("nothing with an immediate", "read", immediate(lambda x: b""))
    yield Trick("the reply with an immediate", "read", immediate(Exchange.honest))
    # the length of such a receive is that of the write, not of what is in its buffer
    for size in (0, 28, 8192):
        yield Trick(
            f"a write of {size} bytes with an immediate", "read", write_immediate(size), EITHER
        )
        yield Trick(
            f"list: a write of {size} bytes with an immediate",
            "list",
            write_immediate(size),
            EITHER,
        )
    # the two follow each other: what the first leaves in the client's buffers fits the second
    yield Trick("stale buffers: replies to a call to come", "read", leave_behind)
    yield Trick("stale buffers: one is taken for the answer", "read", write_immediate(8192))
    for name, key in KEYS.items():
        yield Trick(f"invalidates {name}", "read", invalidate(key), EITHER)
    yield Trick("invalidates its key twice", "read", twice, EITHER, answers=False)
    for count in (16, 63, 300):
        yield Trick(f"{count} replies nobody asked for", "read", flood(count), EITHER)
    yield Trick("goes without an answer", "read", leave, answers=False)
    yield Trick("goes after the data", "read", answer_and_leave, answers=False)
    yield Trick("says nothing", "read", ignore, EITHER, answers=False)


KEYS: dict[str, Callable[[Exchange], int]] = {
    "the key of the call": lambda x: x.offered[0].handle,
    "another key": lambda x: x.offered[0].handle ^ 0xFF,
    "the next region's key": lambda x: x.offered[0].handle + 0x100,
    "key 0": lambda x: 0,
    "key 2^32-1": lambda x: HUGE,
}


def padded_to(size: int) -> Make:
    return lambda x: x.honest().ljust(size, b"\0")


def immediate(make: Make) -> Play:
    return lambda x: ignore(x.connection.send(make(x), verbs.SEND_WITH_IMM, 0x01020304))


def write_immediate(size: int) -> Play:
    def play(x: Exchange) -> None:
        segment = x.offered[0]
        local = x.connection.put(bytes(min(size, segment.length)))
        number = x.connection.post(
            verbs.RDMA_WRITE_WITH_IMM, local, (segment.offset, segment.handle), 0x01020304
        )
        x.connection.finish(number)

    return play


def following(xid: int, count: int) -> int:
    """Linux counts in its own byte order."""
    ours = int.from_bytes(words(xid), sys.byteorder) + count & HUGE
    return int.from_bytes(ours.to_bytes(4, sys.byteorder), "big")


def leave_behind(x: Exchange) -> None:
    """Every receive buffer gets a short READ reply for the call after the next."""
    xid = following(x.xid, 2)
    # accepted; NFS3_OK, no attributes, and 8192 bytes of which none is there
    body = words(xid, 1, 0, 0, 0, 0) + words(0, 0, 8192, 0, 8192)
    for _ in range(200):
        message = start(x, RDMA_MSG, xid=xid) + words(0, 0, 0) + body
        if x.connection.ended or x.connection.finish(x.connection.send(message)):
            return


def invalidate(key: Callable[[Exchange], int]) -> Play:
    return lambda x: ignore(x.connection.send(x.honest(), verbs.SEND_WITH_INV, key(x) & HUGE))


def twice(x: Exchange) -> None:
    for _ in range(2):
        x.connection.send(x.honest(), verbs.SEND_WITH_INV, x.offered[0].handle)


def flood(count: int) -> Play:
    def play(x: Exchange) -> None:
        message = words(0xDEAD) + x.honest()[4:]
        for _ in range(count):
            if x.connection.ended or x.connection.finish(x.connection.send(message)):
                return

    return play


def leave(x: Exchange) -> None:
    x.connection.ended = "the server left"


def answer_and_leave(x: Exchange) -> None:
    x.answer()
    leave(x)


# --- memory that was not offered ---


def reach(kind: str, size: int, at: Callable[[Segment], tuple[int, int]]) -> Play:
    """``at`` makes an address and a key of a segment that was offered."""

    def play(x: Exchange) -> None:
        chunk = x.offered or x.header.reads[0].segments
        attempt(x, kind, size, *at(chunk[-1]))

    return play


PLACES: dict[str, Callable[[Segment], tuple[int, int]]] = {
    "behind the segment": lambda s: (s.offset + s.length, s.handle),
    "over its end": lambda s: (s.offset + s.length - 4, s.handle),
    "before it": lambda s: (s.offset - 8, s.handle),
    "over its beginning": lambda s: (s.offset - 4, s.handle),
    "at address 0": lambda s: (0, s.handle),
    "at the last address": lambda s: (2**64 - 8, s.handle),
    "with the key's next life": lambda s: (s.offset, s.handle + 1 & HUGE),
    "with its last life": lambda s: (s.offset, s.handle - 1 & HUGE),
    "with a neighbour's key": lambda s: (s.offset, s.handle ^ 0x100),
    "with key 0": lambda s: (s.offset, 0),
    "with the largest key": lambda s: (s.offset, HUGE),
}


def reaching() -> Iterator[Trick]:
    for name, place in PLACES.items():
        for kind, on in (("write", "read"), ("read", "write")):
            yield Trick(f"{kind}s {name}", on, reach(kind, 8, place), reaches=True)
    here = lambda s: (s.offset, s.handle)  # noqa: E731
    yield Trick("writes more than was offered", "read", reach("write", 60000, here), reaches=True)
    for name, on, kind in (
        ("reads a Write chunk", "read", "read"),
        ("reads a Reply chunk", "list", "read"),
        ("writes into a Read chunk", "write", "write"),
    ):
        yield Trick(name, on, reach(kind, 8, here), reaches=True, kept=True)
    for on, kind in (("read", "write"), ("list", "write"), ("write", "read")):
        name = f"{on}: {kind}s after the reply"
        stale = reach(kind, 8, here)
        yield Trick(name, on, ignore, later=stale, reaches=True, kept=True)


# --- the server calls ---


def callback(xid: int, procedure: int = 0, behind: bytes = b"") -> bytes:
    asked = words(xid, 0, 2, 0x40000000, 1, procedure, 0, 0, 0, 0)
    return words(xid, 1, CREDITS, 0, 0, 0, 0) + asked + behind


CALLBACKS: dict[str, Callable[[int], bytes]] = {
    "a callback": callback,
    "a CB_COMPOUND of nothing": lambda n: callback(n, 1),
    "a CB_COMPOUND of noise": lambda n: callback(n, 1, b"\xa5" * 900),
    "a CB_COMPOUND of 2^32-1 operations": lambda n: callback(n, 1, words(0, 1, 0, HUGE)),
    "a callback of another program": lambda n: words(n, 1, CREDITS, *[0] * 4, n, 0, 2, 7, *[0] * 6),
    "a callback of 4096 bytes": lambda n: callback(n, 1).ljust(4096, b"\0"),
    "a callback cut short": lambda n: callback(n)[:40],
    "a callback with a Read chunk": lambda n: (
        words(n, 1, CREDITS, 0, 1, 0, *SEGMENT, 0, 0, 0) + callback(n)[28:]
    ),
    "a callback in a chunk": lambda n: words(n, 1, CREDITS, 1, 1, 0, *SEGMENT, 0, 0, 0),
}


def calls() -> Iterator[Trick]:
    for name, make in CALLBACKS.items():
        yield Trick(f"session: {name}", "session", one_by_one(1, make), EITHER)
    for on, counts in (("session", (8, 64, 500)), ("small", (1, 100))):
        for count in counts:
            yield Trick(f"{on}: {count} callbacks", on, one_by_one(count, callback), EITHER)
            yield Trick(f"{on}: {count} callbacks at once", on, burst(count, callback), EITHER)


def one_by_one(count: int, make: Callable[[int], bytes]) -> Play:
    def play(x: Exchange) -> None:
        for number in range(count):
            if x.connection.ended or x.connection.finish(x.connection.send(make(number))):
                return

    return play


def burst(count: int, make: Callable[[int], bytes]) -> Play:
    """Faster than they can be answered."""

    def play(x: Exchange) -> None:
        for first in range(0, count, 16):
            if x.connection.ended:
                return
            numbers = [x.connection.send(make(first + n)) for n in range(min(16, count - first))]
            for number in numbers:
                x.connection.finish(number)

    return play


def _all(*groups: Iterable[Trick]) -> dict[str, Trick]:
    table: dict[str, Trick] = {}
    for group in groups:
        for trick in group:
            if trick.name in table:
                raise ValueError(f"two tricks are called {trick.name!r}")
            table[trick.name] = trick
    return table


TRICKS = _all(
    *(unreadable(), unreadable_lists(), refusals(), strangers(), chunks(), sends(), reaching()),
    calls(),
)
