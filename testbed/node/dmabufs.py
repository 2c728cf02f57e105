# SPDX-License-Identifier: Apache-2.0
"""Memory that a device reaches by a descriptor, and the processor not by its address."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Unreachable", "memory_of", "udmabuf"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_NO_ACCESS = 0
# linux/udmabuf.h: UDMABUF_CREATE takes memfd, flags, offset and size
_CREATE, _CREATE_FORM, _CLOEXEC = 0x40187542, "=IIQQ", 1


class Unreachable:
    """A memfd, and a range of addresses of the same size without access.

    A byte that a program reads or writes at the address ends it with SIGSEGV.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.fd = os.memfd_create("dmabuf", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
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


@contextmanager
def udmabuf(memory: Unreachable) -> Iterator[int]:
    """A descriptor of a dma-buf that has the pages of a memfd."""
    # the exporter takes no file that may become shorter
    fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    # a buffer that ioctl() may change: it returns the result of the call
    words = bytearray(struct.pack(_CREATE_FORM, memory.fd, _CLOEXEC, 0, memory.size))
    with open("/dev/udmabuf", "rb+", buffering=0) as exporter:  # noqa: PTH123 - a device
        fd = fcntl.ioctl(exporter, _CREATE, words)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def memory_of(size: int) -> Iterator[tuple[Unreachable, int]]:
    """Memory, and the dma-buf of it."""
    memory = Unreachable(size)
    try:
        with udmabuf(memory) as fd:
            yield memory, fd
    finally:
        memory.close()
