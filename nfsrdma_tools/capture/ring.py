# SPDX-License-Identifier: Apache-2.0
"""Reads the BPF ring buffer of the probes in large pieces.

The BPF compiler's own reader calls a Python function for each record.  That takes longer than an
RPC, so that a busy mount would fill the ring.  This one copies all records that are there at once;
``records`` splits the copy later (kernel/bpf/ringbuf.c in Linux describes the memory).
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Iterator

__all__ = ["Ring", "records"]

_BUSY, _DISCARDED = 1 << 31, 1 << 30
_LENGTH = ~(_BUSY | _DISCARDED) & 0xFFFFFFFF
# length and flags, and a page offset that only the kernel needs
_HEAD = struct.Struct("=II")


class Ring:
    """A ring of ``size`` bytes, a power of two, that a file descriptor of a map stands for."""

    def __init__(self, descriptor: int, size: int) -> None:
        page = mmap.PAGESIZE
        self._size = size
        ours = mmap.mmap(descriptor, page)
        # a page with the kernel's position, and the data twice, so that no record is in two pieces
        theirs = mmap.mmap(descriptor, page + 2 * size, prot=mmap.PROT_READ, offset=page)
        self._consumed = memoryview(ours).cast("Q")
        self._produced = memoryview(theirs)[:8].cast("Q")
        self._data = memoryview(theirs)[page:]
        self._heads = self._data.cast("I")
        self._order = threading.Lock()
        self._order.acquire()

    def take(self) -> bytes:
        """Remove all complete records; returns them with their heads."""
        begin, end = self._consumed[0], self._produced[0]
        self._barrier()
        first = begin & (self._size - 1)
        at = first
        heads, last = self._heads, first + end - begin
        while at < last:
            length = heads[at >> 2]
            if length & _BUSY:
                break
            at += (length & _LENGTH) + 15 & ~7
        taken = bytes(self._data[first:at])
        self._barrier()
        self._consumed[0] = begin + at - first
        return taken

    def _barrier(self) -> None:
        """Keep memory accesses before this before those after it, where the processor does not."""
        self._order.release()
        self._order.acquire()


def records(taken: bytes) -> Iterator[bytes]:
    """The records of what was taken."""
    at = 0
    while at < len(taken):
        length, _ = _HEAD.unpack_from(taken, at)
        at += _HEAD.size
        if not length & _DISCARDED:
            yield taken[at : at + (length & _LENGTH)]
        at += (length & _LENGTH) + 7 & ~7
