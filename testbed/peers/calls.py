# SPDX-License-Identifier: Apache-2.0
"""Messages of a hostile client: one Case a line, each with the answers it may get.

The words for answers:
    ok       an RPC reply with accept status SUCCESS (the NFS status may be an error)
    rpc      an RPC reply that refuses: garbage arguments, denied, no such program
    chunk    RDMA_ERROR with ERR_CHUNK (RFC 8166, section 4.5.2)
    vers     RDMA_ERROR with ERR_VERS, versions 1 to 1 (section 4.5.1)
    dropped  nothing, and the connection goes on
    ended    the connection is over

A server may end the connection for anything that is malformed; only messages with nothing wrong
in their headers have to be answered ("ended" is not among their answers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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

from testbed.peers import rpc, verbs
from testbed.peers.connect_replies import PRIVATE
from testbed.peers.rpc import hyper, opaque, words
from testbed.peers.site import HUGE, Site

__all__ = ["CASES", "GOOD_PRIVATE", "Case"]

GOOD_PRIVATE = bytes.fromhex("f6ab0e1801000303")
XID = 0x0BAD0001
CREDITS = 32
Make = Callable[[Site], bytes]


def _set(*names: str) -> frozenset[str]:
    return frozenset(names)


OK = _set("ok")
CHUNK = _set("chunk", "ended")
# nothing is malformed: the result does not fit what was offered for it (section 4.5.3)
TOO_SMALL = _set("chunk")
DROPPED = _set("dropped", "ended")
ENDED = _set("ended")
# the header is sound, what is moved is not what the RPC layer or NFS expects
SENSELESS = _set("rpc", "chunk", "dropped", "ended")
# beyond what has to be supported, and harmless
EITHER = _set("ok", "chunk", "ended")
ANY = _set("ok", "rpc", "chunk", "dropped", "ended")


@dataclass(frozen=True)
class Case:
    """A message, the answers it may get, and the connection it is sent on."""

    name: str
    make: Make
    may: frozenset[str]
    private: bytes = GOOD_PRIVATE
    opcode: int = verbs.SEND
    imm: int = 0
    size: int = 4096
    """of the client's receive buffers, in bytes"""
    times: int = 1


# --- sound messages ---


def null(_: Site) -> bytes:
    return rpc.call(XID, rpc.NULL)


def getattr_(site: Site) -> bytes:
    return rpc.call(XID, rpc.GETATTR, opaque(site.file))


def read(site: Site, size: int = 4096) -> bytes:
    return rpc.call(XID, rpc.READ, opaque(site.file) + hyper(0) + words(size))


def write(site: Site, size: int = 1000) -> bytes:
    """Without its data, which comes at the end."""
    arguments = opaque(site.file) + hyper(0) + words(size, 0, size)
    return rpc.call(XID, rpc.WRITE, arguments)


def readdir(site: Site) -> bytes:
    """The answer is some 7,000 bytes long."""
    arguments = opaque(site.folder) + hyper(0) + hyper(0) + words(32768)
    return rpc.call(XID, rpc.READDIR, arguments)


Call = Callable[[Site], bytes]
Lists = dict[str, Any]


def message(call: Call, lists: Callable[[Site], Lists] = lambda _: {}, **fields: Any) -> Make:
    """A message with chunk lists; ``proc``, ``credits`` and ``xid`` are for the header."""

    def make(site: Site) -> bytes:
        head = {"xid": XID, "credits": CREDITS, "proc": RDMA_MSG, **fields, **lists(site)}
        inline = b"" if head["proc"] == RDMA_NOMSG else call(site)
        return encode(Header(**head)) + inline

    return make


def raw(*header: int, call: Call | None = None) -> Make:
    """The header's words as they are, then a Call."""
    return lambda site: words(*header) + (call(site) if call else b"")


def start(proc: int = RDMA_MSG, version: int = 1) -> tuple[int, int, int, int]:
    return XID, version, CREDITS, proc


# --- the fixed words ---


def versions() -> Iterator[Case]:
    vers = _set("vers", "ended")
    for value in (0, 2, 3, 255, 0x01000000, HUGE):
        yield Case(f"version {value}", raw(*start(version=value), 0, 0, 0, call=null), vers)
    yield Case("version 2, proc 99", raw(*start(99, version=2), 0, 0, 0, call=null), vers)
    yield Case("version 2, lists of noise", raw(*start(version=2), *[0xA5A5A5A5] * 40), vers)
    yield Case("version 2, header only", raw(*start(version=2), 0, 0, 0), vers)
    yield Case("version 2, too short", raw(*start(version=2)), DROPPED)


def procs() -> Iterator[Case]:
    for value in (2, 5, 6, 255, 0x80000000, HUGE):
        yield Case(f"proc {value}", raw(*start(value), 0, 0, 0, call=null), CHUNK)
    yield Case("MSGP as RFC 5666 has it", raw(*start(2), 64, 1024, 0, 0, 0, call=null), CHUNK)
    yield Case("DONE", raw(*start(3), 0, 0, 0, call=null), DROPPED)
    yield Case("DONE of four words", raw(*start(3)), DROPPED)
    yield Case("DONE with lists of noise", raw(*start(3), *[HUGE] * 20), DROPPED)
    yield Case("ERR_CHUNK to a server", raw(*start(RDMA_ERROR), ERR_CHUNK), DROPPED)
    yield Case("ERR_CHUNK with more", raw(*start(RDMA_ERROR), ERR_CHUNK, *[0] * 20), DROPPED)
    yield Case("ERR_VERS to a server", raw(*start(RDMA_ERROR), ERR_VERS, 1, 1), DROPPED)
    yield Case("error 77 to a server", raw(*start(RDMA_ERROR), 77, 0, 0), DROPPED)
    yield Case("ERROR with a call", raw(*start(RDMA_ERROR), 0, 0, 0, call=null), DROPPED)


def credit_words() -> Iterator[Case]:
    for value in (0, 1, 0x7FFFFFFF, 0x80000000, HUGE):
        yield Case(f"{value} credits asked for", message(null, credits=value), OK)
    yield Case("100 calls at once", message(null), _set("ok", "ended"), times=100)


def lengths() -> Iterator[Case]:
    whole = message(null)
    full = 28 + len(null(None))  # type: ignore[arg-type]
    for size in (0, 1, 3, *range(4, 28, 4), 27):
        yield Case(f"cut to {size} bytes", lambda s, n=size: whole(s)[:n], DROPPED)
    for size in (28, 29, *range(32, full, 8)):
        yield Case(f"RPC cut at {size} bytes", lambda s, n=size: whole(s)[:n], SENSELESS)
    listed = message(read, lambda s: {"writes": ((s.segment(4096),),)})
    for size in range(28, 52, 4):
        yield Case(f"lists cut at {size} bytes", lambda s, n=size: listed(s)[:n], CHUNK)
    both = message(
        write, lambda s: {"reads": (Read(100, (s.data(1000),)),), "reply": (s.segment(9),)}
    )
    for size in range(28, 72, 8):
        yield Case(f"Read list cut at {size} bytes", lambda s, n=size: both(s)[:n], CHUNK)
    for more, may in ((-1, ANY), (0, ANY), (1, ENDED), (4096, ENDED)):
        name = f"a call of {more:+} bytes beyond what is received"
        yield Case(name, lambda s, n=more: whole(s).ljust(s.received + n, b"\0"), may)
    for size in (28, 68, 1024):
        yield Case(f"{size} bytes of zeros", lambda _, n=size: bytes(n), _set("vers", "ended"))
        yield Case(f"{size} bytes of ones", lambda _, n=size: b"\xff" * n, _set("vers", "ended"))


# --- list words ---

SEGMENT = (0x1234, 64, 0, 0)


def booleans() -> Iterator[Case]:
    for value in (2, 0x80000000, HUGE):
        yield Case(f"{value} for a Read item", raw(*start(), value, 0, 0, call=null), CHUNK)
        yield Case(f"{value} for a Write chunk", raw(*start(), 0, value, 0, call=null), CHUNK)
        yield Case(f"{value} for a Reply chunk", raw(*start(), 0, 0, value, call=null), CHUNK)
        second = (*start(), 1, 4, *SEGMENT, value, 0, 0)
        yield Case(f"{value} for a second Read item", raw(*second, call=null), CHUNK)
        second = (*start(), 0, 1, 1, *SEGMENT, value, 0)
        yield Case(f"{value} for a second Write chunk", raw(*second, call=null), CHUNK)


def counts() -> Iterator[Case]:
    for count in (2, 0x10000000, 0x10000001, HUGE):
        chunk = (1, count, *SEGMENT)
        yield Case(f"{count} segments said in a Write chunk", raw(*start(), 0, *chunk), CHUNK)
        yield Case(f"{count} segments said in a Reply chunk", raw(*start(), 0, 0, *chunk), CHUNK)
    wrap = (1, 2, *(7, HUGE, 0, 0) * 2)
    yield Case("a Write chunk's lengths wrap", raw(*start(), 0, *wrap, 0, 0, call=read), EITHER)
    yield Case("a Reply chunk's lengths wrap", raw(*start(), 0, 0, *wrap, call=readdir), ANY)
    items = (1, 4, 7, HUGE, 0, 0) * 2
    yield Case("a Read chunk's lengths wrap", raw(*start(), *items, 0, 0, 0, call=write), CHUNK)
    chunks = (1, 0) * 400
    yield Case("400 Write chunks", raw(*start(), 0, *chunks, 0, 0, call=null), EITHER)


# --- Read chunks ---


def wrote(reads: Callable[[Site, int], tuple[Read, ...]], size: int = 1000, **fields: Any) -> Make:
    """A WRITE whose Read list is made from the site and the position that is right."""

    def call(site: Site) -> bytes:
        return write(site, size)

    return message(call, lambda site: {"reads": reads(site, len(call(site)))}, **fields)


def positions() -> Iterator[Case]:
    def moved(change: Callable[[int], int]) -> Make:
        return wrote(lambda s, at: (Read(change(at) & HUGE, (s.data(1000),)),))

    yield Case("a WRITE's data by chunk", moved(lambda at: at), OK)
    for off in (1, 2, 3):
        yield Case(f"position {off} too far", moved(lambda at, o=off: at + o), CHUNK)
    for off in (-4, -100, 4, 100, 4096, 1 << 20):
        yield Case(f"position {off:+} bytes", moved(lambda at, o=off: at + o), SENSELESS)
    for at in (0, 4, 8, 24, 0x7FFFFFFC, 0x80000000, 0xFFFFFFFC):
        yield Case(f"position {at}", moved(lambda _, p=at: p), SENSELESS)
    yield Case("position 2^32-1", moved(lambda _: HUGE), CHUNK)
    orders: dict[str, Callable[[int], tuple[int, ...]]] = {
        "two chunks of one WRITE": lambda at: (at, at + 500),
        "positions that go back": lambda at: (at, at - 4),
        "positions that go back far": lambda at: (at, 4),
        "a position between two others": lambda at: (at, at + 8, at + 4),
        "one position, then again": lambda at: (at, at + 500, at),
        "ten chunks": lambda at: tuple(at + 4 * n for n in range(10)),
        "a hundred chunks": lambda at: tuple(at + 4 * n for n in range(100)),
    }
    for name, order in orders.items():
        listed = lambda s, at, o=order: tuple(Read(p, (s.data(500),)) for p in o(at))  # noqa: E731
        yield Case(name, wrote(listed), ANY)


def read_segments() -> Iterator[Case]:
    def of(segments: Callable[[Site], tuple[Segment, ...]], size: int = 1000) -> Make:
        return wrote(lambda s, at: (Read(at, segments(s)),), size)

    yield Case("a Read chunk in ten segments", of(lambda s: (s.data(100),) * 10), OK)
    yield Case("a Read chunk in 140 segments", of(lambda s: (s.data(8),) * 140, 1120), EITHER)
    yield Case("a Read chunk of 0 bytes", of(lambda s: (s.data(0),), 0), EITHER | SENSELESS)
    parts = message(read, lambda s: {"reads": (Read(40, (s.data(0),)),)})
    yield Case("a Read chunk of 0 bytes after the RPC header", parts, EITHER | SENSELESS)
    yield Case("a Read chunk of 0 bytes for 1000", of(lambda s: (s.data(0),)), SENSELESS)
    yield Case("a Read chunk of 0 and 1000 bytes", of(lambda s: (s.data(0), s.data(1000))), ANY)
    # of 999 the last byte is taken for the padding that need not be sent
    for size, may in ((1, SENSELESS), (996, SENSELESS), (999, ANY)):
        name = f"a Read chunk of {size} bytes for 1000"
        yield Case(name, of(lambda s, n=size: (s.data(n),)), may)
    yield Case("a Read chunk of 30000 bytes for 1000", of(lambda s: (s.data(30000),)), ANY)
    for name, source in BAD_SOURCES.items():
        yield Case(f"reads from {name}", of(lambda s, o=source: (o(s),)), CHUNK)
    yield Case(
        "reads from a good and a stale key", of(lambda s: (s.data(500), s.stale(500))), CHUNK
    )
    yield Case(
        "a Read chunk for NULL", message(null, lambda s: {"reads": (Read(40, (s.data(8),)),)}), ANY
    )


BAD_SOURCES: dict[str, Callable[[Site], Segment]] = {
    "a stale key": lambda s: s.stale(1000),
    "a foreign key": lambda s: Segment(0x5A5A5A00, 1000, s.data(8).offset),
    "key 0": lambda s: Segment(0, 1000, s.data(8).offset),
    "the key's next life": lambda s: Segment(s.data(8).handle + 1, 1000, s.data(8).offset),
    "memory for writing only": lambda s: s.write_only(1000),
    "memory for nobody": lambda s: s.private(1000),
    "before the memory": lambda s: s.before(1000),
    "over its end": lambda s: s.over_end(1000),
    "address 0": lambda s: Segment(s.data(8).handle, 1000, 0),
    "2^32-1 bytes": lambda s: s.data(HUGE),
    "2^31 bytes": lambda s: s.data(1 << 31),
    "64 MiB": lambda s: s.data(64 << 20),
}


# --- a Call in a chunk ---


def nomsg() -> Iterator[Case]:
    def listed(**lists: Callable[[Site], Any]) -> Make:
        return message(null, lambda s: {k: make(s) for k, make in lists.items()}, proc=RDMA_NOMSG)

    def zero(call: Call, *cuts: int) -> Callable[[Site], tuple[Read, ...]]:
        return lambda s: (Read(0, s.placed(call(s), cuts)),)

    yield Case("NOMSG without chunks", listed(), CHUNK)
    yield Case("NOMSG without chunks but a call", raw(*start(1), 0, 0, 0, call=null), CHUNK)
    yield Case("NOMSG with a Write list only", listed(writes=lambda s: ((s.segment(64),),)), CHUNK)
    yield Case("NOMSG with a Reply chunk only", listed(reply=lambda s: (s.segment(64),)), CHUNK)
    yield Case("NOMSG at position 4", listed(reads=lambda s: (Read(4, (s.data(64),)),)), CHUNK)
    yield Case("NULL at position zero", listed(reads=zero(null)), OK)
    yield Case("NULL in two segments", listed(reads=zero(null, 20)), OK)
    yield Case("NULL in segments of odd sizes", listed(reads=zero(null, 1, 3, 21)), OK)
    yield Case(
        "READ at position zero",
        listed(reads=zero(read), writes=lambda s: ((s.segment(4096),),)),
        OK,
    )

    def long_write(site: Site) -> bytes:
        return write(site, 3000) + bytes(3000)

    yield Case("WRITE at position zero", listed(reads=zero(long_write)), OK)

    def with_more(site: Site) -> bytes:
        return listed(reads=zero(null))(site) + null(site)

    yield Case("position zero and bytes inline", with_more, EITHER)
    for size in (0, 1, 4, 8, 24, 39):
        cut = zero(lambda s, n=size: null(s)[:n])
        yield Case(f"{size} bytes at position zero", listed(reads=cut), SENSELESS)
    for name, source in list(BAD_SOURCES.items())[::2]:
        yield Case(
            f"a call from {name}", listed(reads=lambda s, o=source: (Read(0, (o(s),)),)), CHUNK
        )
    other = lambda s: words(0x0BAD0002) + null(s)[4:]  # noqa: E731
    yield Case("another xid at position zero", listed(reads=zero(other)), ANY)
    yield Case(
        "a reply at position zero",
        listed(reads=zero(lambda s: words(XID, 1, 0, 0, 0, 0))),
        SENSELESS,
    )
    yield Case("noise at position zero", listed(reads=lambda s: (Read(0, (s.data(400),)),)), ANY)
    twice = lambda s: (*zero(null)(s), Read(40, (s.data(8),)), Read(0, (s.data(8),)))  # noqa: E731
    yield Case("position zero twice", listed(reads=twice), ANY)


# --- Write chunks and the Reply chunk ---


def write_chunks() -> Iterator[Case]:
    def of(*chunks: Callable[[Site], tuple[Segment, ...]], call: Call = read) -> Make:
        return message(call, lambda s: {"writes": tuple(chunk(s) for chunk in chunks)})

    whole = lambda s: (s.segment(4096),)  # noqa: E731
    yield Case("READ into a Write chunk", of(whole), OK)
    yield Case("READ into 64 segments", of(lambda s: tuple(s.segments(64, 64))), EITHER)
    yield Case("READ into 200 segments", of(lambda s: tuple(s.segments(200, 32))), EITHER)
    yield Case("READ into segments of odd sizes", of(lambda s: tuple(s.segments(64, 65))), EITHER)
    yield Case("READ into a chunk of 4 GiB", of(lambda s: (s.segment(HUGE),)), EITHER)
    yield Case("READ into one place twice", of(lambda s: (s.segment(2048),) * 2), EITHER)
    yield Case(
        "READ into overlapping places",
        of(lambda s: (s.segment(2048), s.segment(2048, 1024))),
        EITHER,
    )
    for size in (0, 1, 1024, 4095):
        small = lambda s, n=size: (s.segment(n),)  # noqa: E731
        yield Case(f"READ of 4096 into {size} bytes", of(small), TOO_SMALL)
    yield Case("READ into no segments", of(lambda s: ()), CHUNK)
    yield Case(
        "READ of 100 into no segments",
        of(lambda s: (), call=lambda s: read(s, 100)),
        EITHER | CHUNK,
    )
    yield Case("READ with two Write chunks", of(whole, lambda s: (s.segment(4096, 8192),)), OK)
    yield Case("READ, the first chunk empty", of(lambda s: (), whole), ANY)
    yield Case("READ with 16 Write chunks", of(*[whole] * 16), EITHER)
    for call in (null, getattr_):
        name = call.__name__.strip("_").upper()
        yield Case(f"{name} with a Write chunk", of(whole, call=call), OK)
    for name, target in BAD_TARGETS.items():
        yield Case(f"writes to {name}", of(lambda s, o=target: (o(s, 4096),)), ENDED)
    yield Case(
        "writes to a good and a stale key", of(lambda s: (s.segment(2048), s.stale(2048))), ENDED
    )


BAD_TARGETS: dict[str, Callable[[Site, int], Segment]] = {
    "a stale key": lambda s, n: s.stale(n),
    "a foreign key": lambda s, n: Segment(0x5A5A5A00, n, s.segment(8).offset),
    "key 0": lambda s, n: Segment(0, n, s.segment(8).offset),
    "key 2^32-1": lambda s, n: Segment(HUGE, n, s.segment(8).offset),
    "memory for reading only": lambda s, n: s.read_only(n),
    "memory for nobody": lambda s, n: s.private(n),
    "before the memory": lambda s, n: s.before(n),
    "over its end": lambda s, n: s.over_end(n),
    "address 0": lambda s, n: Segment(s.segment(8).handle, n, 0),
    "the last address": lambda s, n: Segment(s.segment(8).handle, n, 2**64 - 100),
}


def reply_chunks() -> Iterator[Case]:
    def of(chunk: Callable[[Site], tuple[Segment, ...]], call: Call = readdir, **more: Any) -> Make:
        return message(call, lambda s: {"reply": chunk(s), **{k: v(s) for k, v in more.items()}})

    large = lambda s: (s.segment(30000),)  # noqa: E731
    yield Case("READDIR into a Reply chunk", of(large), OK)
    yield Case("READDIR into 30 segments", of(lambda s: tuple(s.segments(30, 1000))), EITHER)
    yield Case(
        "READDIR into segments of odd sizes", of(lambda s: tuple(s.segments(30, 999))), EITHER
    )
    yield Case("READDIR without a chunk", message(readdir), TOO_SMALL)
    yield Case("READ of 30000 without a chunk", message(lambda s: read(s, 30000)), TOO_SMALL)
    for size in (0, 4, 100, 1000):
        yield Case(f"READDIR into {size} bytes", of(lambda s, n=size: (s.segment(n),)), TOO_SMALL)
    yield Case("READDIR into no segments", of(lambda s: ()), CHUNK)
    for call in (null, getattr_):
        name = call.__name__.strip("_").upper()
        yield Case(f"{name} with a Reply chunk", of(large, call), OK)
        yield Case(f"{name} with an empty Reply chunk", of(lambda s: (), call), OK | CHUNK)
        yield Case(
            f"{name} with a stale Reply chunk",
            of(lambda s: (s.stale(64),), call),
            _set("ok", "chunk", "ended"),
        )
    both = of(large, read, writes=lambda s: ((s.segment(4096, 32768),),))
    yield Case("READ with a Write and a Reply chunk", both, OK)
    yield Case("READ with a Reply chunk only", of(large, lambda s: read(s, 20000)), OK)
    for name, target in BAD_TARGETS.items():
        yield Case(f"replies to {name}", of(lambda s, o=target: (o(s, 8192),)), ENDED)


# --- RPC, and Sends of other kinds ---


def rpcs() -> Iterator[Case]:
    def of(*body: int) -> Make:
        return message(lambda _: words(*body))

    yield Case("another xid inside", message(lambda s: words(0x0BAD0002) + null(s)[4:]), CHUNK)
    yield Case("another xid outside", message(null, xid=0x0BAD0003), CHUNK)
    yield Case("a reply to no call", of(XID, 1, 0, 0, 0, 0), DROPPED)
    yield Case("a denied reply to no call", of(XID, 1, 1, 0, 2, 2), DROPPED)
    yield Case("a reply cut short", of(XID, 1), DROPPED)
    for direction in (2, HUGE):
        yield Case(f"direction {direction}", of(XID, direction, *null(None)[8:]), SENSELESS)  # type: ignore[arg-type]
    yield Case("RPC version 3", of(XID, 0, 3, rpc.NFS, 3, 0, 0, 0, 0, 0), SENSELESS)
    yield Case("an unknown program", of(XID, 0, 2, 300000, 3, 0, 0, 0, 0, 0), _set("rpc"))
    yield Case("an unknown version", of(XID, 0, 2, rpc.NFS, 99, 0, 0, 0, 0, 0), _set("rpc"))
    yield Case("an unknown procedure", of(XID, 0, 2, rpc.NFS, 3, 99, 0, 0, 0, 0), _set("rpc"))
    yield Case("an unknown flavor", of(XID, 0, 2, rpc.NFS, 3, 1, 99, 0, 0, 0), SENSELESS)
    yield Case("credentials of 2^32-1 bytes", of(XID, 0, 2, rpc.NFS, 3, 1, 1, HUGE), SENSELESS)
    yield Case("a verifier of 2^32-1 bytes", of(XID, 0, 2, rpc.NFS, 3, 1, 0, 0, 0, HUGE), ANY)
    yield Case("READ without arguments", message(lambda _: rpc.call(XID, rpc.READ)), _set("rpc"))
    for size in (65, 0x10000000, HUGE):
        bad = lambda _, n=size: rpc.call(XID, rpc.GETATTR, words(n, 1, 2, 3))  # noqa: E731
        yield Case(f"a file handle of {size} bytes", message(bad), _set("rpc"))
    yield Case("NFSv4 of 2^32-1 operations", message(lambda _: compound(HUGE)), _set("ok", "rpc"))
    yield Case("one xid four times", message(getattr_), OK, times=4)


def compound(count: int) -> bytes:
    call = rpc.call(XID, rpc.COMPOUND, words(0, 1, count))
    return call[:16] + words(4) + call[20:]


def kinds() -> Iterator[Case]:
    sound = message(null)
    yield Case("a call with an immediate", sound, ANY, opcode=verbs.SEND_WITH_IMM, imm=7)
    inv = verbs.SEND_WITH_INV
    for key in (0, 1, 0x100, HUGE):
        yield Case(f"a call that invalidates {key}", sound, ANY, opcode=inv, imm=key)
    empty = lambda _: b""  # noqa: E731
    imm = verbs.RDMA_WRITE_WITH_IMM
    yield Case("a write of nothing with an immediate", empty, DROPPED, opcode=imm, imm=7)
    for name, private in PRIVATE.items():
        size = 1024 if len(private) < 8 or "wrong" in name or "version" in name else 4096
        yield Case(f"private data: {name}", sound, OK, private=private, size=size)
    yield from unknown_sizes()
    small = bytes.fromhex("f6ab0e1801000000")
    yield Case("a client of 1024 bytes", message(readdir), TOO_SMALL, private=small, size=1024)
    into_chunk = message(read, lambda s: {"writes": ((s.segment(4096),),)})
    inviting = bytes.fromhex("f6ab0e1801010303")
    yield Case(
        "a client that invites invalidation", into_chunk, _set("ok", "ended"), private=inviting
    )


def unknown_sizes() -> Iterator[Case]:
    """A client without private data, with receives of 4096 bytes and without a Reply chunk.

    The server sends a longer Reply, which ends the connection, and refuses the next one.
    """
    large = message(lambda s: read(s, 3900))
    for name in ("none", "wrong magic", "zeros"):
        private = PRIVATE[name]
        yield Case(f"private data: {name}, READ of 3900 inline", large, OK, private=private)
        yield Case(
            f"private data: {name}, a Reply of 7000", message(readdir), CHUNK, private=private
        )
        yield Case(
            f"private data: {name}, WRITE of 3800 inline",
            lambda s: message(lambda s: write(s, 3800))(s) + bytes(3800),
            OK,
            private=private,
        )
    small = bytes.fromhex("f6ab0e1801000000")
    of_1000 = message(lambda s: read(s, 1000))
    yield Case("a client of 1024 bytes reads 1000", of_1000, TOO_SMALL, private=small, size=1024)


def _all() -> dict[str, Case]:
    groups = (
        *(versions, procs, credit_words, lengths, booleans, counts, positions, read_segments),
        *(nomsg, write_chunks, reply_chunks, rpcs, kinds),
    )
    table: dict[str, Case] = {}
    for group in groups:
        for case in group():
            if case.name in table:
                raise ValueError(f"two cases are called {case.name!r}")
            table[case.name] = case
    return table


CASES = _all()
