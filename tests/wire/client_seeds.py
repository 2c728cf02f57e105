# SPDX-License-Identifier: Apache-2.0
"""Honest replies to the calls of fuzz_client.c, as seeds: a call, flags, and a message."""

from __future__ import annotations

import struct
from pathlib import Path

from wire.rpcrdma import RDMA_MSG, RDMA_NOMSG, Header, Segment, encode

__all__ = ["write"]

# of fuzz_client.c
NULL, GETATTR, LOOKUP, READLINK, READDIRPLUS, READ, LONG_READ, WRITE, LONG_WRITE = range(9)
COMMIT, CREATE, BATCH = range(9, 12)
KEY, LENGTH = 0x1234, 20000
XIDS, ALL, REGISTERED, NFS4 = 3, 7, 15, 16


def words(*values: int) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


def opaque(data: bytes) -> bytes:
    return words(len(data)) + data + bytes(-len(data) % 4)


# RFC 5531, section 9: accepted, verifier of AUTH_NONE, success
ACCEPTED = words(0, 1, 0, 0, 0, 0)
# RFC 1813, section 2.5: type, mode, links, owner; size and used; device; ids; times
REST = words(0o644, 1, 0, 0) + struct.pack(">QQ", 40000, 40960) + words(0, 0)
REST += struct.pack(">QQ", 1, 2) + words(*[5] * 6)
ATTR, DIRECTORY, LINK = (words(kind) + REST for kind in (1, 2, 5))
AFTER = words(1) + ATTR
BEFORE = words(1) + struct.pack(">Q", 1) + words(*[5] * 4)
VERIFIER = b"verifier"
ENTRIES = b"".join(
    words(1) + struct.pack(">Q", number) + opaque(b"name%d" % number)
    + struct.pack(">Q", number) + AFTER + words(1) + opaque(b"fh%d" % number)
    for number in range(3)
)  # fmt: skip
SHORT = Header(1, 2, RDMA_MSG)
PLACED = Header(1, 2, RDMA_MSG, writes=((Segment(KEY, LENGTH, 0),),))
# RFC 8881: COMPOUND of SEQUENCE and PUTFH, then what follows
SEQUENCE = words(0, 0, 3, 53, 0) + bytes(36) + words(22, 0)
BITS = words(2, 1 << 1 | 1 << 4 | 1 << 8 | 1 << 20, 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5)
VALUES = (
    words(2)
    + struct.pack(">QQQQ", 5, 1, 2, 3)
    + words(0o755, 2)
    + opaque(b"1000")
    + opaque(b"root@x")
)
GOT = words(9, 0) + BITS + opaque(VALUES)
ENTRY = words(1) + struct.pack(">Q", 7) + opaque(b"name") + BITS + opaque(VALUES)
# the call, flags, header, what follows the accepted RPC header; None: nothing at all
REPLIES: dict[str, tuple[int, int, Header, bytes | None]] = {
    "null": (NULL, XIDS, SHORT, b""),
    "attributes": (GETATTR, XIDS, SHORT, words(0) + ATTR),
    "stale": (GETATTR, XIDS, SHORT, words(70)),
    "busy": (GETATTR, XIDS, SHORT, words(10008)),
    "lookup": (
        LOOKUP,
        XIDS,
        SHORT,
        words(0) + opaque(b"handle12") + words(1) + DIRECTORY + words(0),
    ),
    "link": (READLINK, XIDS, SHORT, words(0) + LINK + words(4) + b"link"),
    "directory": (READDIRPLUS, XIDS, SHORT, words(0) + DIRECTORY + bytes(20)),
    "list": (READDIRPLUS, XIDS, SHORT, words(0) + AFTER + VERIFIER + ENTRIES + words(0, 1)),
    "long list": (READDIRPLUS, ALL, Header(1, 2, RDMA_NOMSG, reply=(Segment(KEY, 500, 0),)), None),
    "read": (READ, XIDS, SHORT, words(0) + AFTER + words(512, 1) + opaque(bytes(512))),
    "long read": (LONG_READ, ALL, PLACED, words(0) + AFTER + words(LENGTH, 1, LENGTH)),
    "registered": (LONG_READ, REGISTERED, PLACED, words(0) + AFTER + words(LENGTH, 1, LENGTH)),
    "write": (WRITE, XIDS, SHORT, words(0) + BEFORE + AFTER + words(512, 2) + VERIFIER),
    "long write": (LONG_WRITE, ALL, SHORT, words(0) + BEFORE + AFTER + words(LENGTH, 0) + VERIFIER),
    "commit": (COMMIT, XIDS, SHORT, words(0) + BEFORE + AFTER + VERIFIER),
    "create": (CREATE, XIDS, SHORT, words(0, 1) + opaque(b"handle") + AFTER + BEFORE + AFTER),
    "v4 attributes": (GETATTR, XIDS | NFS4, SHORT, SEQUENCE + GOT),
    "v4 lookup": (LOOKUP, XIDS | NFS4, SHORT, SEQUENCE + words(15, 0, 10, 0) + opaque(b"fh") + GOT),
    "v4 link": (READLINK, XIDS | NFS4, SHORT, SEQUENCE + words(27, 0) + opaque(b"text")),
    "v4 list": (
        READDIRPLUS,
        XIDS | NFS4,
        SHORT,
        SEQUENCE + words(26, 0) + VERIFIER + ENTRY + words(0, 1),
    ),
    "v4 read": (READ, XIDS | NFS4, SHORT, SEQUENCE + words(25, 0, 1) + opaque(bytes(512))),
    "v4 long read": (LONG_READ, ALL | NFS4, PLACED, SEQUENCE + words(25, 0, 1, LENGTH)),
    "v4 lost": (READ, XIDS | NFS4, SHORT, words(10052, 0, 1, 53, 10052)),
    "v4 busy": (READ, XIDS | NFS4, SHORT, words(10008, 0, 1, 53, 10008)),
    "v4 batch": (
        BATCH,
        ALL | NFS4,
        PLACED,
        SEQUENCE + words(25, 0, 1, LENGTH),
    ),
    "batch": (BATCH, ALL, PLACED, words(0) + AFTER + words(LENGTH, 1, LENGTH)),
}


def write(folder: Path) -> list[Path]:
    """Write a file for each reply; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, (call, flags, header, results) in REPLIES.items():
        rpc = b"" if results is None else ACCEPTED + results
        files.append(folder / name.replace(" ", "-"))
        files[-1].write_bytes(bytes((call, flags)) + encode(header) + rpc)
    return files
