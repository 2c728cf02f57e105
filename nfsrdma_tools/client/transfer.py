# SPDX-License-Identifier: Apache-2.0
"""Batches of reads or writes: a queue that is kept full, and the ranges that it serves.

The library has one queue for each session.  Transfers share it: each completion goes to its own
transfer, whichever call takes it from the library.  Memory of an operation is kept until the
operation has completed, also if its caller was interrupted.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from nfsrdma_tools.client.library import Library

__all__ = ["Queue", "Range", "Transfer", "View"]

_COMPLETIONS = 128
# Python handles signals between two waits
_SLICE_MS = 200


class View:
    """The memory of an object with the buffer protocol; not copied, and locked until released."""

    def __init__(self, library: Library, buffer: Any, writable: bool) -> None:
        self._ffi = library.ffi
        # multidimensional arrays are contiguous, or from_buffer() refuses them
        self.memory = self._ffi.from_buffer("char[]", buffer, require_writable=writable)
        self.size = len(self.memory)
        self.address = int(self._ffi.cast("uintptr_t", self.memory))

    def release(self) -> None:
        """Let the owner resize the memory again."""
        self._ffi.release(self.memory)


class Range(NamedTuple):
    """Bytes of a file, and their place in a view."""

    handle: Any
    """struct nfsrdma_file *"""
    path: str
    offset: int
    length: int
    place: int


class _Part(NamedTuple):
    """The part of a range that one RPC reads or writes."""

    number: int
    """Of its range."""
    handle: Any
    memory: Any
    size: int
    offset: int


class Transfer:
    """Ranges that are read or written; ``result()`` waits for them."""

    def __init__(
        self, session: object, queue: Queue, ranges: Iterable[Range], view: View, write: bool
    ) -> None:
        # the session exists as long as its transfers
        self._session = session
        self._queue, self._view, self._write = queue, view, write
        self.ranges = tuple(ranges)
        self.ends = [each.offset + each.length for each in self.ranges]
        self.parts: deque[_Part] = deque()
        self.unfinished = 0
        self.error: OSError | None = None
        self.done = False
        self.when_done: Callable[[], object] = _nothing

    def result(self) -> list[int]:
        """Wait; returns the bytes of each range, fewer than requested at the end of a file.

        OSError of the first operation that failed.  An exception, such as KeyboardInterrupt, stops
        the transfer.
        """
        try:
            self._queue.wait(self)
        except BaseException:
            self.stop()
            self._queue.wait(self)
            raise
        return self.counts()

    def counts(self) -> list[int]:
        """The same, of a transfer that is done."""
        if self.error:
            raise self.error
        return [end - each.offset for end, each in zip(self.ends, self.ranges, strict=True)]

    def stop(self) -> None:
        """Start no further operation; those that the server has are not taken back."""
        with self._queue.lock:
            self.parts.clear()
            self._end()

    def divide(self, most: int) -> None:
        """Divide the ranges into parts of at most ``most`` bytes."""
        for index, each in enumerate(self.ranges):
            for start in range(0, each.length, most):
                memory, count = (
                    self._view.memory + each.place + start,
                    min(most, each.length - start),
                )
                self.parts.append(_Part(index, each.handle, memory, count, each.offset + start))
        self._end()

    def completed(self, part: _Part, result: int) -> None:
        """Note the result of an operation: bytes, or a negative errno value."""
        self.unfinished -= 1
        if result < 0:
            self.fail(OSError(-result, os.strerror(-result), self.ranges[part.number].path))
        elif result == 0 and part.size:
            # the first byte that does not exist, of parts that complete in any order
            self.ends[part.number] = min(self.ends[part.number], part.offset)
        elif result < part.size and not self.error:
            rest = part.size - result
            self.parts.appendleft(
                part._replace(memory=part.memory + result, size=rest, offset=part.offset + result)
            )
        self._end()

    def fail(self, error: OSError) -> None:
        """End with an error when the operations that the server has are complete."""
        self.error = self.error or error
        self.parts.clear()
        self._end()

    def prepare(self, part: _Part, token: int) -> int:
        """Add an operation to the next batch of the library; returns its status."""
        functions = self._queue.library.functions
        call = functions.nfsrdma_prepare_write if self._write else functions.nfsrdma_prepare_read
        return int(call(part.handle, part.memory, part.size, part.offset, token))

    def _end(self) -> None:
        if not self.done and not self.parts and not self.unfinished:
            self.done = True
            self._view.release()
            self.when_done()


class Queue:
    """The queue of a session; ``lock`` serializes the calls of a session."""

    def __init__(self, library: Library, session: Any) -> None:
        self.library, self._session = library, session
        self.lock = threading.RLock()
        self._completions = library.ffi.new("struct nfsrdma_completion[]", _COMPLETIONS)
        self._transfers: list[Transfer] = []
        self._unfinished: dict[int, tuple[Transfer, _Part]] = {}
        self._token = 0

    @property
    def busy(self) -> bool:
        """Whether operations are unfinished."""
        return bool(self._unfinished)

    def start(self, transfer: Transfer, most: int) -> None:
        """Send as much of a transfer as there is room for."""
        with self.lock:
            transfer.divide(most)
            self._transfers.append(transfer)
            self._fill()

    def wait(self, transfer: Transfer) -> None:
        """Wait until a transfer is done."""
        while not transfer.done:
            with self.lock:
                if not transfer.done:
                    self._wait_once(transfer)

    def drain(self) -> None:
        """Wait until no operation is unfinished; the library ends each after its timeout."""
        with self.lock:
            for transfer in self._transfers:
                transfer.stop()
            while self._unfinished:
                self._wait(len(self._unfinished))

    def settle(self, handle: Any) -> None:
        """Stop the transfers of a file, and wait until no operation uses it."""
        with self.lock:
            for transfer in self._transfers:
                if any(each.handle == handle for each in transfer.ranges):
                    transfer.stop()
            while any(part.handle == handle for _, part in self._unfinished.values()):
                self._wait(1)

    def poll(self) -> None:
        """Handle the completions that have arrived.

        Afterwards, the next one makes the session's file descriptor readable.
        """
        with self.lock:
            # completions of what _fill() sent may already be there, and make no event
            while self._take(self._peek()):
                self._fill()

    def _wait_once(self, transfer: Transfer) -> None:
        # one wait for many completions, with enough unfinished operations to keep the server busy
        least = max(1, len(self._unfinished) // 4) if transfer.parts else transfer.unfinished
        self._wait(least)
        self._fill()

    def _wait(self, least: int) -> None:
        functions, most = self.library.functions, _COMPLETIONS
        self._take(functions.nfsrdma_wait(self._session, self._completions, most, least, _SLICE_MS))

    def _peek(self) -> int:
        functions = self.library.functions
        return int(functions.nfsrdma_peek(self._session, self._completions, _COMPLETIONS))

    def _take(self, count: int) -> int:
        """Pass completions on; ``count`` may be a negative errno value."""
        if count < 0:
            raise self.library.error(count)
        for completion in self._completions[0:count]:
            transfer, part = self._unfinished.pop(completion.user_data)
            transfer.completed(part, completion.result)
        return count

    def _fill(self) -> None:
        """Fill the library's queue, and ring the doorbell once."""
        before = self._token
        for transfer in self._transfers:
            if not self._fill_from(transfer):
                break
        self._transfers = [each for each in self._transfers if not each.done]
        if self._token != before:
            status = self.library.functions.nfsrdma_submit(self._session)
            if status < 0:
                raise self.library.error(status)

    def _fill_from(self, transfer: Transfer) -> bool:
        """Send parts of a transfer; returns whether there is room for more."""
        while transfer.parts:
            part = transfer.parts[0]
            status = transfer.prepare(part, self._token)
            if status == -errno.EAGAIN and self._unfinished:
                return False
            if status:
                transfer.fail(self.library.error(status, transfer.ranges[part.number].path))
                break
            transfer.parts.popleft()
            transfer.unfinished += 1
            self._unfinished[self._token] = (transfer, part)
            self._token += 1
        return True


def _nothing() -> None:
    pass
