# SPDX-License-Identifier: Apache-2.0
"""A hostile client's memory and file handles: what it offers a server, and what it guards.

Every region is filled with a pattern.  What a server may write to is what its message offered;
``intact`` says whether every other byte is as it was, also in memory that no message names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from wire.rpcrdma import Segment

from testbed.peers import rpc
from testbed.peers.peer import SERVER, Connection, Memory
from testbed.peers.verbs import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE

# a folder with a file "data", which peers may damage
FOLDER = Path("/export/hostile")
HUGE = 0xFFFFFFFF
REGION = 1 << 18
# what is offered lies in the middle of a region, what is read from in its last quarter
_MIDDLE, _DATA = REGION // 4, REGION * 3 // 4
_PATTERN = bytes(range(1, 252)) * (REGION // 251 + 1)
_WHOLE = _PATTERN[:REGION]


class Site:
    """Memory registered on one connection, in every way there is."""

    def __init__(self, connection: Connection, file: bytes, folder: bytes) -> None:
        self.file, self.folder = file, folder
        # RFC 8797: what the server says of its receive buffers, in bytes
        self.received = (connection.private[7] + 1) * 1024
        both = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE
        access = {
            **{"all": both, "read": REMOTE_READ, "write": LOCAL_WRITE | REMOTE_WRITE},
            **{"none": LOCAL_WRITE, "stale": both, "hidden": both},
        }
        self.memory = {name: connection.memory(REGION, how) for name, how in access.items()}
        for memory in self.memory.values():
            memory.view[:] = _WHOLE
        self.memory["stale"].deregister()

    def _at(self, name: str, at: int, size: int) -> Segment:
        memory = self.memory[name]
        return Segment(memory.key, size & HUGE, memory.address + at)

    # --- segments ---

    def segment(self, size: int, at: int = 0) -> Segment:
        """To be written to."""
        return self._at("all", _MIDDLE + at, size)

    def segments(self, count: int, size: int) -> Iterator[Segment]:
        return (self.segment(size, size * number) for number in range(count))

    def data(self, size: int) -> Segment:
        """To be read from."""
        return self._at("all", _DATA, size)

    def placed(self, message: bytes, cuts: tuple[int, ...] = ()) -> tuple[Segment, ...]:
        """A message in memory, in pieces that end at ``cuts``."""
        at = _DATA + 32768
        self.memory["all"].view[at : at + len(message)] = message
        edges = pairwise((0, *cuts, len(message)))
        return tuple(self._at("all", at + first, last - first) for first, last in edges)

    def stale(self, size: int) -> Segment:
        return self._at("stale", _MIDDLE, size)

    def read_only(self, size: int) -> Segment:
        return self._at("read", _MIDDLE, size)

    def write_only(self, size: int) -> Segment:
        return self._at("write", _MIDDLE, size)

    def private(self, size: int) -> Segment:
        return self._at("none", _MIDDLE, size)

    def before(self, size: int) -> Segment:
        return self._at("all", -size // 2, size)

    def over_end(self, size: int) -> Segment:
        return self._at("all", REGION - size // 2, size)

    # --- what became of it ---

    def restore(self, memory: Memory, at: int, size: int) -> None:
        memory.view[at : at + size] = _PATTERN[at : at + size]

    def intact(self, message: bytes) -> bool:
        """Whether a server that was sent this has written to nothing else; all is as new then."""
        for memory in (self.memory["all"], self.memory["write"]):
            for segment in _segments(message, memory.key):
                # what lies over its end must have been refused as a whole
                at = segment.offset - memory.address
                if at >= 0:
                    self.restore(memory, at, min(segment.length, REGION - at))
        at = _DATA + 32768
        self.restore(self.memory["all"], at, 8192)
        # views are compared byte by byte, which takes forty times as long
        return all(memory.view.tobytes() == _WHOLE for memory in self.memory.values())


def _segments(message: bytes, key: int) -> Iterator[Segment]:
    """Everything in a message that could be taken for a segment with a key."""
    handle = struct.pack(">I", key)
    at = message.find(handle)
    while at >= 0:
        if at % 4 == 0 and at + 16 <= len(message):
            yield Segment(*struct.unpack_from(">2IQ", message, at))
        at = message.find(handle, at + 1)


def handles(folder: Path, *names: str) -> list[bytes]:
    """File handles below an export, as mountd and nfsd give them over TCP."""
    (port,) = _words(_ask(111, 100000, 2, 3, rpc.words(rpc.MOUNT, 3, 6, 0)), 1)
    root = _handle(_ask(port, rpc.MOUNT, 3, 1, rpc.opaque(bytes(folder))))
    return [
        _handle(_ask(2049, rpc.NFS, 3, rpc.LOOKUP, rpc.opaque(root) + rpc.opaque(name.encode())))
        for name in names
    ]


def _ask(port: int, program: int, version: int, procedure: int, body: bytes) -> bytes:
    stream = rpc.Stream(SERVER, port)
    call = rpc.call(1, procedure, body, program)
    stream.send(call[:16] + rpc.words(version) + call[20:])
    reply = stream.receive()
    stream.socket.close()
    if not rpc.accepted(reply):
        raise ConnectionError(f"program {program} refused: {reply.hex()}")
    return reply[24:]


def _words(body: bytes, count: int) -> list[int]:
    return [int.from_bytes(body[4 * n : 4 * n + 4], "big") for n in range(count)]


def _handle(body: bytes) -> bytes:
    status, size = _words(body, 2)
    if status:
        raise ConnectionError(f"no file handle: status {status}")
    return body[8 : 8 + size]
