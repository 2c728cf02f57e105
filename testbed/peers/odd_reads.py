# SPDX-License-Identifier: Apache-2.0
"""READs that a threadless read must not answer in another way than nfsd: one Case a line.

A case is a Call, and the Call that lets nfsd permit it, if anything does: one that an honest client
sends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from wire.rpcrdma import Segment

from testbed.peers import rpc
from testbed.peers.rpc import NOBODY, ROOT, hyper, opaque, words

__all__ = ["INLINE", "PAGE", "ROOM", "Case", "Files", "cases", "read"]

PAGE = 4096
INLINE = 512
"""bytes that a message has room for, beside a Call or a Reply"""
ROOM = 1 << 17
"""of the memory that Write chunks are in, in bytes; a Reply chunk follows it"""
HANDLE_MAX = 64

# position in the memory, and length
Pieces = tuple[tuple[int, int], ...]


class Files(NamedTuple):
    """File handles. Root has read all files before, for which the mode of one is 0600."""

    file: bytes
    private: bytes
    """of mode 0600"""
    other: bytes
    folder: bytes
    elsewhere: bytes
    """on another file system that is exported"""
    size: int
    """of ``file``, in bytes"""


@dataclass(frozen=True)
class Case:
    """A Call, with an XID of 0."""

    name: str
    call: bytes
    honest: bytes
    """the Call that nfsd answers before"""
    writes: tuple[Pieces, ...] = ()
    reply: Pieces | None = None
    sound: bool = False
    """whether it reads a file in a way in which it may be read"""
    may_drop: bool = False
    """whether nfsd may leave it without a Reply"""
    long: bool = False
    """whether the Call is in a Read chunk"""
    forged: bool = False
    """whether the honest Call is none: nfsd believes it, the module may refuse it"""

    def segments(self, key: int, address: int) -> tuple[tuple[Segment, ...], ...]:
        """The Write chunks, in memory with a key at an address."""
        return tuple(_placed(pieces, key, address) for pieces in self.writes)

    def reply_chunk(self, key: int, address: int) -> tuple[Segment, ...] | None:
        return None if self.reply is None else _placed(self.reply, key, address)


def _placed(pieces: Pieces, key: int, address: int) -> tuple[Segment, ...]:
    return tuple(Segment(key, length, address + at) for at, length in pieces)


def read(
    file: bytes,
    position: int = 0,
    count: int = INLINE,
    credential: bytes = ROOT,
    verifier: bytes = NOBODY,
    fields: tuple[int, ...] = (rpc.CALL, 2, rpc.NFS, 3, rpc.READ),
) -> bytes:
    """NFSv3 READ, with an XID of 0."""
    arguments = opaque(file) + hyper(position) + words(count)
    return words(0, *fields) + credential + verifier + arguments


def user(number: int, *groups: int, name: bytes = b"") -> bytes:
    """AUTH_SYS of a user with groups."""
    body = words(0) + opaque(name) + words(number, number, len(groups), *groups)
    return words(1) + opaque(body)


# --- credentials ---


def credentials(files: Files) -> Iterator[Case]:
    own = read(files.private)
    denied = {
        "another user": user(1000),
        "another user in root's group": words(1, 20, 0, 0, 1000, 0, 0),
        "nobody": user(65534),
        "a user in more groups": user(1000, *range(16)),
        "too many groups": user(0, *range(17)),
        "no credential": NOBODY,
        "Kerberos": words(6, 20, 0, 0, 0, 0, 0),
        "AUTH_SHORT": words(2, 20, 0, 0, 0, 0, 0),
    }
    for name, credential in denied.items():
        yield Case(name, read(files.private, credential=credential), own)
    for name, credential in {
        "one more group": user(0, 5),
        "another host name": user(0, name=b"host"),
        "another stamp": words(1, 20, 1, 0, 0, 0, 0),
    }.items():
        yield Case(name, read(files.private, credential=credential), own)
    for name, verifier in {
        "a verifier of another flavor": words(1, 0),
        "a verifier with a body": words(0, 4, 0),
        "a verifier that is too long": words(0, 404) + bytes(404),
    }.items():
        yield Case(name, read(files.private, verifier=verifier), own)


def splits(files: Files) -> Iterator[Case]:
    """The same bytes, in other parts."""
    grouped = read(files.file, credential=user(0, 0, 0, 28))
    for length in (0, 4, 12, 16, 28, 32, 36, 40, 60, 400, 404, 0xFFFFFFFC, 0xFFFFFFFF):
        if length != 32:
            changed = grouped[:28] + words(length) + grouped[32:]
            yield Case(f"a credential of {length} bytes, not 32", changed, grouped)
    plain = read(files.file)
    for length in (4, 8, 12, 16, 36, 400, 0xFFFFFFFC):
        changed = plain[:56] + words(length) + plain[60:]
        yield Case(f"a verifier of {length} bytes, not 0", changed, plain)


def hidden(file: bytes) -> bytes:
    """The rest of a READ, behind its credential: at most 16 words."""
    return NOBODY + opaque(file) + hyper(0) + words(INLINE)


def hidden_in_groups(files: Files) -> Iterator[Case]:
    """Calls whose groups are the rest of a READ, for a server that believes a wrong length.

    nfsd does not look at the length of a credential, which says here that groups are not part of
    it. The first Call reads the same file in both meanings.
    """

    def double(outer: bytes, count: int = INLINE) -> bytes:
        rest = hidden(files.file)
        whole = user(0, *struct.unpack(f">{len(rest) // 4}I", rest))
        return read(outer, 0, count, whole[:4] + words(20) + whole[8:])

    honest = double(files.file)
    for name, call in {
        "the same file": honest,
        "another file": double(files.other),
        "a folder": double(files.folder),
        "no file": double(b""),
        "another count": double(files.file, 100),
    }.items():
        yield Case(f"groups that are a READ, and {name}", call, honest, forged=True)


def hidden_in_name(files: Files) -> Iterator[Case]:
    """The same with the host name, which precedes the user."""

    def double(number: int, outer: bytes) -> bytes:
        whole = user(number, name=hidden(files.private))
        return read(outer, credential=whole[:4] + words(8) + whole[8:])

    honest = double(0, files.private)
    for name, call in {
        "the same file": honest,
        "another user": double(1000, files.private),
        "another file": double(0, files.other),
        "another user and file": double(1000, files.file),
    }.items():
        yield Case(f"a host name that is a READ, and {name}", call, honest, forged=True)


# --- file handles ---


def changed_handles(handle: bytes) -> Iterator[tuple[str, bytes]]:
    """Version, types of the ids, id of the file system, id and generation of the file."""
    for at in range(len(handle)):
        for bit in (0, 7):
            changed = bytearray(handle)
            changed[at] ^= 1 << bit
            yield f"bit {bit} of byte {at} changed", bytes(changed)
    for length in sorted({0, 1, 3, 4, 8, 12, len(handle) - 4, len(handle) - 1}):
        yield f"cut to {length} bytes", handle[:length]
    for more in sorted({1, 4, HANDLE_MAX - len(handle), HANDLE_MAX + 1 - len(handle), 400}):
        yield f"{more} bytes longer", handle + bytes(more)


def file_handles(files: Files) -> Iterator[Case]:
    honest = read(files.file)
    for name, handle in changed_handles(files.file):
        yield Case(f"file handle, {name}", read(handle), honest)
    for name, handle in {
        "another file": files.other,
        "a file of mode 0600": files.private,
        "a file on another file system": files.elsewhere,
    }.items():
        yield Case(f"file handle of {name}", read(handle), honest)
    yield Case("file handle of a folder", read(files.folder), honest)
    foreign = files.file[: len(files.file) // 2] + files.elsewhere[len(files.elsewhere) // 2 :]
    yield Case("file handle of two halves", read(foreign), honest)


# --- ranges ---

COUNTS = (0, 1, 2, 3, 4, 1000, 1023, 1024, 1025, 3000, 4095, 4096, 4097, 65535, 65536, 65537,
          1 << 17, 1 << 31, (1 << 32) - 1)  # fmt: skip


def there(files: Files, position: int, count: int) -> int:
    """Bytes that a READ returns."""
    return min(count, max(files.size - position, 0))


def sized(files: Files) -> Iterator[Case]:
    honest = read(files.file)
    for count in COUNTS:
        call, room = read(files.file, 0, count), there(files, 0, count)
        yield Case(f"{count} bytes", call, honest, sound=room < PAGE - INLINE)
        whole = (((0, room),),)
        yield Case(f"{count} bytes into a chunk", call, honest, whole, sound=True)
        if room:
            less = (((0, room - 1),),)
            yield Case(f"{count} bytes into a chunk of one less", call, honest, less)


def positions(size: int) -> list[int]:
    pages = range(PAGE, size + PAGE, PAGE)
    edges = {0, 1, *(at + by for at in (*pages, size) for by in (-1, 0, 1))}
    far = (1 << 31, 1 << 32, *((1 << 63) + by for by in (-PAGE, -1, 0)), (1 << 64) - 1)
    return [*sorted(edges), *far]


def placed(files: Files) -> Iterator[Case]:
    honest = read(files.file)
    for at in positions(files.size):
        for count in (3, 1500):
            yield Case(f"{count} bytes at {at}", read(files.file, at, count), honest, sound=True)
        room = there(files, at, PAGE)
        chunk, call = (((0, room),),), read(files.file, at, PAGE)
        yield Case(f"a page at {at} into a chunk", call, honest, chunk, sound=True)
        chunk, call = (((0, 2 * PAGE),),), read(files.file, at, 2 * PAGE)
        yield Case(f"two pages at {at} into a chunk", call, honest, chunk, sound=True)


# --- chunks ---


def pieces(count: int, length: int, gap: int = 0) -> Pieces:
    return tuple((number * (length + gap), length) for number in range(count))


def chunks(files: Files) -> Iterator[Case]:
    honest, call, short = read(files.file), read(files.file, 0, PAGE), read(files.file, 0, 100)
    behind = ((ROOM, 4 * PAGE),)
    good: dict[str, tuple[Pieces, ...]] = {
        "two pieces": (pieces(2, PAGE // 2),),
        "16 pieces with gaps": (pieces(16, PAGE // 16, 64),),
        "64 pieces": (pieces(64, PAGE // 64),),
        "pieces of odd lengths": (((1, 1), (5, 4093), (8192, 2)),),
        "pieces, one without room": (((0, 100), (100, 0), (200, PAGE)),),
        "more room than data": (((0, ROOM),),),
        "two chunks": (((0, PAGE),), ((PAGE, PAGE),)),
        "a chunk and one without pieces": (((0, PAGE),), ()),
    }
    for name, writes in good.items():
        yield Case(f"Write list: {name}", call, honest, writes, sound=True)
        yield Case(f"Write list: {name}; a Reply chunk", call, honest, writes, behind)
        yield Case(f"Write list: {name}; 100 bytes", short, honest, writes, sound=True)
    bad: dict[str, tuple[Pieces, ...]] = {
        "64 pieces, a byte less": ((*pieces(63, PAGE // 64), (PAGE, 63)),),
        "no pieces": ((),),
        "one piece without room": (((0, 0),),),
        "the second of two chunks": ((), ((0, PAGE),)),
        "half in each of two chunks": (((0, PAGE // 2),), ((PAGE // 2, PAGE // 2),)),
        "three chunks": (((0, PAGE),), ((PAGE, PAGE),), ((2 * PAGE, PAGE),)),
    }
    for name, writes in bad.items():
        yield Case(f"Write list: {name}", call, honest, writes)
        yield Case(f"Write list: {name}; 100 bytes", short, honest, writes)
        yield Case(f"Write list: {name}; a Reply chunk", call, honest, writes, behind)
    for name, reply in {
        "enough": behind,
        "pieces": tuple((ROOM + at, length) for at, length in pieces(32, 256)),
        "a byte less": ((ROOM, PAGE + 127),),
        "no pieces": (),
    }.items():
        yield Case(f"Reply chunk: {name}", call, honest, (), reply)
        yield Case(f"Reply chunk: {name}; 100 bytes", short, honest, (), reply)
    yield Case("a Call in a Read chunk", short, honest, long=True)
    yield Case("a Call in a Read chunk, with a Write chunk", call, honest, (((0, PAGE),),),
               long=True)  # fmt: skip


# --- lengths and words of the Call ---


def lengths(files: Files) -> Iterator[Case]:
    whole, chunk = read(files.file, 0, PAGE), (((0, PAGE),),)
    honest = read(files.file)
    for size in range(0, len(whole), 4):
        yield Case(f"cut to {size} bytes", whole[:size], honest, chunk, may_drop=True)
    for size in (len(whole) - 1, len(whole) - 3, 1, 5):
        yield Case(f"cut to {size} bytes", whole[:size], honest, chunk, may_drop=True)
    for more in (1, 2, 3, 4, 8, 100, 1000, 3000):
        for name, content in (("zeros", bytes(more)), ("ones", b"\xff" * more)):
            yield Case(f"{more} {name} behind it", whole + content, honest, chunk)
            yield Case(f"{more} {name} behind it, no chunk", honest + content, honest)
    yield Case("the same again behind it", whole + whole, honest, chunk)


def fields(files: Files) -> Iterator[Case]:
    honest, sound = read(files.file), (rpc.CALL, 2, rpc.NFS, 3, rpc.READ)
    for number, values in enumerate(((1, 2), (0, 1, 3), (rpc.MOUNT, 0), (2, 4, 5), (5, 7, 22))):
        for value in values:
            changed = (*sound[:number], value, *sound[number + 1 :])
            yield Case(
                f"word {number + 1} of the Call is {value}",
                read(files.file, fields=changed),
                honest,
                may_drop=True,
            )


def cases(files: Files) -> dict[str, Case]:
    """All cases by their names; ValueError if two have one name."""
    groups = (
        *(credentials, splits, hidden_in_groups, hidden_in_name, file_handles, sized, placed),
        *(chunks, lengths, fields),
    )
    table: dict[str, Case] = {}
    for group in groups:
        for case in group(files):
            if case.name in table:
                raise ValueError(f"two cases have the name {case.name!r}")
            table[case.name] = case
    return table
