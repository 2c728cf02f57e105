# SPDX-License-Identifier: Apache-2.0
"""Memory as that of a GPU: RDMA reaches it by a descriptor, and the processor not by its address.

The descriptor is a memfd, which the device of tests/device takes for a dma-buf.  Nothing is mapped
at the address: a byte that the library reads or writes there ends the process with SIGSEGV.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

from nfsrdma_tools.client import library

__all__ = ["Memory", "RawSession", "plain"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_NO_ACCESS, _MOST = 0, 1024


class Memory:
    """A memfd, and a range of addresses of the same size without access."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.fd = os.memfd_create("dmabuf", os.MFD_CLOEXEC)
        os.truncate(self.fd, size)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.address = int(_LIBC.mmap(None, size, _NO_ACCESS, flags, -1, 0))

    def fill(self, data: bytes, at: int = 0) -> None:
        """Store bytes, by the descriptor."""
        assert os.pwrite(self.fd, data, at) == len(data)

    def get(self, at: int = 0, length: int | None = None) -> bytes:
        """The bytes, by the descriptor."""
        return os.pread(self.fd, self.size - at if length is None else length, at)

    def close(self) -> None:
        """Give both back."""
        os.close(self.fd)
        assert not _LIBC.munmap(self.address, self.size)


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
