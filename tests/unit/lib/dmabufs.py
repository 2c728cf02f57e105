# SPDX-License-Identifier: Apache-2.0
"""A session by the functions of the library alone, which takes memory without an object of Python.

The device of tests/device takes the memfd of Unreachable for a dma-buf.
"""

from __future__ import annotations

import os
from typing import Any

from nfsrdma_tools.client import library
from testbed.node.dmabufs import Unreachable

__all__ = ["RawSession", "Unreachable", "plain"]

_MOST = 1024


class RawSession:
    """A session by the functions of the library alone: addresses need no object of Python."""

    def __init__(self, **options: int) -> None:
        self.ffi, self.functions, *_ = library.load()
        kind = "struct nfsrdma_options"
        box = self.ffi.new("struct nfsrdma_session **")
        given = self.ffi.new(f"{kind} *", {"size": self.ffi.sizeof(kind), **options})
        assert not self.functions.nfsrdma_connect(b"server:/export", given, box), self.message()
        self.handle = box[0]

    def close(self) -> None:
        """End it, with its registrations."""
        assert not self.functions.nfsrdma_disconnect(self.handle)

    def message(self) -> str:
        """The text of the last failure."""
        return bytes(self.ffi.string(self.functions.nfsrdma_message())).decode()

    def pointer(self, address: int) -> Any:
        """An address for the library."""
        return self.ffi.cast("void *", address)

    def open(self, path: str, flags: int = os.O_RDWR) -> Any:
        """An open file."""
        box = self.ffi.new("struct nfsrdma_file **")
        words = (self.handle, path.encode(), flags, 0o644, box)
        assert not self.functions.nfsrdma_open(*words), self.message()
        return box[0]

    def release(self, file: Any) -> None:
        """Close a file without a wait."""
        assert not self.functions.nfsrdma_release(file)

    def register(self, address: int, length: int) -> tuple[int, Any]:
        """The result, and the region."""
        box = self.ffi.new("struct nfsrdma_region **")
        words = (self.handle, self.pointer(address), length, box)
        return int(self.functions.nfsrdma_register(*words)), box[0]

    def register_dmabuf(self, fd: int, offset: int, length: int, address: int) -> tuple[int, Any]:
        """The result, and the region."""
        box = self.ffi.new("struct nfsrdma_region **")
        words = (self.handle, fd, offset, length, self.pointer(address), box)
        return int(self.functions.nfsrdma_register_dmabuf(*words)), box[0]

    def unregister(self, region: Any) -> int:
        """End a registration."""
        return int(self.functions.nfsrdma_unregister(region))

    def read(self, file: Any, address: int, count: int, offset: int = 0) -> int:
        """Read to an address."""
        words = (file, self.pointer(address), count, offset)
        return int(self.functions.nfsrdma_pread(*words))

    def write(self, file: Any, address: int, count: int, offset: int = 0) -> int:
        """Write from an address."""
        words = (file, self.pointer(address), count, offset)
        return int(self.functions.nfsrdma_pwrite(*words))

    def batch(self, kind: str, file: Any, ranges: list[tuple[int, int, int]]) -> list[int]:
        """Results of reads or writes (address, count, offset)."""
        prepare = getattr(self.functions, f"nfsrdma_prepare_{kind}")
        for number, (address, count, offset) in enumerate(ranges):
            words = (file, self.pointer(address), count, offset, number)
            assert not prepare(*words), self.message()
        assert self.functions.nfsrdma_submit(self.handle) == len(ranges)
        done = self.ffi.new("struct nfsrdma_completion[]", _MOST)
        words = (self.handle, done, _MOST, len(ranges), -1)
        assert self.functions.nfsrdma_wait(*words) == len(ranges), self.message()
        results = {done[i].user_data: int(done[i].result) for i in range(len(ranges))}
        return [results[number] for number in range(len(ranges))]

    @property
    def stats(self) -> Any:
        """Counts of the session."""
        kind = "struct nfsrdma_stats"
        stats = self.ffi.new(f"{kind} *", {"size": self.ffi.sizeof(kind)})
        assert not self.functions.nfsrdma_stats(self.handle, stats)
        return stats


def plain(session: RawSession, size: int) -> tuple[Any, int]:
    """Ordinary memory, and its address."""
    memory = session.ffi.new("char[]", size)
    return memory, int(session.ffi.cast("uintptr_t", memory))
