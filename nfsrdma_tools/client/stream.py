# SPDX-License-Identifier: Apache-2.0
"""Whole files in pieces: while one buffer is used, RDMA moves the data of the next."""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from collections.abc import Callable, Iterator

from nfsrdma_tools.client.session import File, Session
from nfsrdma_tools.client.transfer import Transfer

__all__ = ["UNORDERED", "read_pieces", "write_pieces"]

_BUFFER = 4 << 20
_BUFFERS = 2
UNORDERED = _BUFFER * _BUFFERS
"""Bytes at the end of what an interrupted write_pieces() wrote that may have holes."""


def read_pieces(session: Session, file: File, start: int, end: int) -> Iterator[memoryview]:
    """The bytes of a file from ``start`` to ``end``, or to its end; each piece until the next."""
    pending: deque[tuple[memoryview, int, Transfer]] = deque()
    with _buffers(session, end - start) as free:
        try:
            while start < end or pending:
                while free and start < end:
                    buffer = free.pop()
                    count = min(len(buffer), end - start)
                    transfer = session.start_read([(file, start, count)], buffer)
                    pending.append((buffer, count, transfer))
                    start += count
                buffer, count, transfer = pending.popleft()
                (received,) = transfer.result()
                yield buffer[:received]
                if received < count:
                    return
                free.append(buffer)
        finally:
            _stop(transfer for _, _, transfer in pending)


def write_pieces(
    session: Session,
    file: File,
    start: int,
    fill: Callable[[memoryview, int], int],
    wrote: Callable[[int], object],
) -> int:
    """Write a file from ``start``; ``fill`` puts data for an offset into a buffer.

    It returns the number of bytes, 0 at the end.  ``wrote`` gets the bytes that the server took.
    Returns the offset behind the last byte.
    """
    pending: deque[tuple[memoryview, Transfer]] = deque()
    with _buffers(session, _BUFFER * _BUFFERS) as free:
        try:
            while count := fill(free[-1], start):
                buffer = free.pop()
                pending.append((buffer, session.start_write([(file, start, count)], buffer)))
                start += count
                if not free:
                    _finish(pending, free, wrote)
            while pending:
                _finish(pending, free, wrote)
        finally:
            _stop(transfer for _, transfer in pending)
    return start


def _finish(
    pending: deque[tuple[memoryview, Transfer]],
    free: list[memoryview],
    wrote: Callable[[int], object],
) -> None:
    buffer, transfer = pending.popleft()
    wrote(sum(transfer.result()))
    free.append(buffer)


def _stop(transfers: Iterator[Transfer]) -> None:
    """Stop transfers whose data nothing needs any more; the end of the regions waits for them."""
    for transfer in transfers:
        transfer.stop()


@contextlib.contextmanager
def _buffers(session: Session, total: int) -> Iterator[list[memoryview]]:
    """Buffers, registered if this process may lock as much memory."""
    size = max(1, min(_BUFFER, total))
    with contextlib.ExitStack() as stack:
        buffers = [memoryview(mmap.mmap(-1, size)) for _ in range(_BUFFERS)]
        # RLIMIT_MEMLOCK is often 8 MiB: the library copies data of other memory
        with contextlib.suppress(OSError):
            for buffer in buffers:
                stack.enter_context(session.register(buffer))
        yield buffers
