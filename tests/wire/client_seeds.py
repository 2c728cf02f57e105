# SPDX-License-Identifier: Apache-2.0
"""Honest replies to the calls of fuzz_client.c, as seeds: a call, flags, and a message."""

from __future__ import annotations

import struct
from pathlib import Path

from wire.rpcrdma import RDMA_MSG, RDMA_NOMSG, Header, Segment, encode

__all__ = ["write"]

# of fuzz_client.c
NULL, GETATTR, LOOKUP, READLINK, READDIRPLUS, READ, LONG_READ, WRITE, LONG_WRITE = range(9)
COMMIT, CREATE, BATCH, TRUNCATE, RENAME, REMOVE, MKDIR = range(9, 16)
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
# OPEN with a stateid, and a delegation behind it; GETFH
STATEID = words(1) + b"stateid12345"
OPENED = words(18, 0) + STATEID + words(1) + bytes(16) + words(4, 2, 16, 2)
ACE = words(0, 0, 0) + opaque(b"EVERYONE@")
READING = words(1) + STATEID + words(0) + ACE
WRITING = words(2) + STATEID + words(0, 1, 0, 4096) + ACE
MADE = words(10, 0) + opaque(b"new-file")
CHANGED = words(1) + bytes(16)
RENAMED = words(32, 0, 22, 0, 29, 0) + CHANGED + CHANGED
# some state is revoked
REVOKED = words(10011, 0, 3, 53, 0) + bytes(32) + words(16)
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
    "v4 write": (
        WRITE,
        XIDS | NFS4,
        SHORT,
        SEQUENCE + words(38, 0, 512, 2) + VERIFIER,
    ),
    "v4 long write": (
        LONG_WRITE,
        ALL | NFS4,
        SHORT,
        SEQUENCE + words(38, 0, LENGTH, 0) + VERIFIER,
    ),
    "v4 refused": (WRITE, XIDS | NFS4, SHORT, SEQUENCE + words(38, 10025)),
    "v4 commit": (COMMIT, XIDS | NFS4, SHORT, SEQUENCE + words(5, 0) + VERIFIER),
    "v4 create": (CREATE, XIDS | NFS4, SHORT, SEQUENCE + OPENED + words(0) + MADE),
    "v4 reading": (CREATE, XIDS | NFS4, SHORT, SEQUENCE + OPENED + READING + MADE),
    "v4 writing": (CREATE, XIDS | NFS4, SHORT, SEQUENCE + OPENED + WRITING + MADE),
    "v4 setattr": (TRUNCATE, XIDS | NFS4, SHORT, SEQUENCE + words(34, 0, 2, 16, 0)),
    "v4 rename": (RENAME, XIDS | NFS4, SHORT, SEQUENCE + RENAMED),
    "v4 revoked": (WRITE, XIDS | NFS4, SHORT, REVOKED + words(22, 0, 38, 10011)),
    "v4 lost": (READ, XIDS | NFS4, SHORT, words(10052, 0, 1, 53, 10052)),
    "v4 busy": (READ, XIDS | NFS4, SHORT, words(10008, 0, 1, 53, 10008)),
    "v4 batch": (
        BATCH,
        ALL | NFS4,
        PLACED,
        SEQUENCE + words(25, 0, 1, LENGTH),
    ),
    "truncate": (TRUNCATE, XIDS, SHORT, words(0) + BEFORE + AFTER),
    "rename": (RENAME, XIDS, SHORT, words(0) + BEFORE + AFTER + BEFORE + AFTER),
    "remove": (REMOVE, XIDS, SHORT, words(0) + BEFORE + AFTER),
    "mkdir": (MKDIR, XIDS, SHORT, words(0, 1) + opaque(b"handle") + AFTER + BEFORE + AFTER),
    "v4 remove": (
        REMOVE,
        XIDS | NFS4,
        SHORT,
        SEQUENCE + words(15, 0, 10, 0) + opaque(b"fh") + GOT,
    ),
    "v4 mkdir": (MKDIR, XIDS | NFS4, SHORT, SEQUENCE + words(6, 0) + CHANGED + words(0) + MADE),
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
