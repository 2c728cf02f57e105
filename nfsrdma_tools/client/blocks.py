# SPDX-License-Identifier: Apache-2.0
"""Stores of blocks: files that are written once and read whole, with deadlines.

    from nfsrdma_tools.client.blocks import blocks

    with blocks("server:/export/kv", sessions=4) as store:
        store.put([("model/1f03", data)])
        sizes = store.get([("model/1f03", buffer)], timeout=0.05)

A batch is one call of the library to start it, and one or few to wait for it; both release the GIL.
Memory of a batch is kept until all of its operations have completed.  What interrupts a call, such
as KeyboardInterrupt or the cancellation of a task, cancels its batch, which waits for nothing: the
memory is the caller's when the exception arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import itertools
import math
import operator
import os
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from nfsrdma_tools.client.library import Library, load
from nfsrdma_tools.client.memory import Dmabuf, Memory, of_dmabuf
from nfsrdma_tools.client.session import Session, connect
from nfsrdma_tools.client.transfer import Owned, Uncopied, View, noted

__all__ = ["BlockRegion", "Blocks", "blocks"]

# operations that any store takes
_LEAST = 256
# 64-bit words of struct nfsrdma_block, and of struct nfsrdma_completion
_BLOCK_WORDS = 6
_COMPLETION_WORDS = 4
_INDEX_BITS = 32
# a token is read as a signed number
_SERIAL_MASK = (1 << (63 - _INDEX_BITS)) - 1
# Python handles signals between two waits, and lets another thread have the lock
_SLICE_MS = 200
# 24 days
_MOST_MS = 1 << 31
# results of a get that a cache counts as misses
_MISSES = (-errno.ENOENT, -errno.ETIMEDOUT, -errno.EBADMSG, -errno.ESTALE)
_LONGER = (-errno.EFBIG,)
# results of a put or a remove that is not done, and is no error
_LATE = (-errno.ETIMEDOUT,)
_ABSENT = (-errno.ENOENT, *_LATE)
# of the library
_IN_FLIGHT_MOST = 65536
TIMEOUT_MOST = 4_000_000
"""Most seconds of a timeout: the library counts milliseconds in 32 bits."""
_BELOW = "a signal handler uses the store whose call it interrupted"


def blocks(
    target: str | Sequence[str],
    *,
    sessions: int = 1,
    in_flight: int = 0,
    handles: int = 0,
    checksum: bool = False,
    trust: bool = False,
    **options: Any,
) -> Blocks:
    """Open a store of blocks in SERVER:/DIRECTORY.

    Several targets are addresses of one server; ``sessions`` is the number for each.
    ``in_flight`` to ``trust`` are options of struct nfsrdma_blocks_options in lib/nfsrdma.h, and 0
    selects the default; other ``options`` are those of connect().
    """
    if sessions < 1 or not 0 <= in_flight <= _IN_FLIGHT_MOST:
        text = f"sessions {sessions}: at least 1; in_flight {in_flight}: at most {_IN_FLIGHT_MOST}"
        raise ValueError(text)
    targets = [target] if isinstance(target, str) else list(target)
    library = load()
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(connect(each, **options))
            for each in targets for _ in range(sessions)
        ]  # fmt: skip
        given = {
            "size": library.ffi.sizeof("struct nfsrdma_blocks_options"), "in_flight": in_flight,
            "handles": handles, "checksum": checksum, "trust": trust,
        }  # fmt: skip
        store = Blocks(library, opened, max(in_flight, _LEAST), checksum)
        stack.push(store)
        store._open(library.ffi.new("struct nfsrdma_blocks_options *", given))
        stack.pop_all()
    return store


class _Batch:
    """Operations of one kind: an array of the library, and their results."""

    def __init__(
        self, table: Any, kept: Any, names: Sequence[str], tokens: range, views: Sequence[View]
    ) -> None:
        self.table, self.names, self.tokens = table, names, tokens
        self.serial = tokens.start >> _INDEX_BITS
        self.views = views
        """Memory that is not behind the buffer protocol."""
        self.kept = kept
        """Memory that the library uses."""
        self.results: dict[int, int] = {}
        """Those of completed operations by token: a search for the others would take long."""
        self.taken = 0
        """Operations that the library has, or has had."""
        self.numbers: list[Any] = []
        """Boxes for the numbers of the library's batches."""
        self.when_done: Callable[[], object] = _nothing

    @property
    def done(self) -> bool:
        """Whether all operations have completed."""
        return len(self.results) == len(self.names)

    @property
    def waiting(self) -> int:
        """Operations that the library has."""
        return self.taken - len(self.results)

    def in_order(self) -> list[int]:
        """The results of all operations, which have completed."""
        return list(map(self.results.__getitem__, self.tokens))


class BlockRegion:
    """Registered memory, which RDMA reads and writes without a copy."""

    def __init__(self, store: Blocks, view: View) -> None:
        self._store, self._view = store, view
        self.owned = Owned(store._library, "blocks_region", "region")

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def memory(self, offset: int = 0, length: int | None = None) -> Memory:
        """A part of the memory, by default all, for puts and gets in place of a buffer."""
        return self._view.part(offset, length, owner=self)

    def close(self) -> None:
        """End the registration; OSError (EBUSY) while operations use the memory."""
        self._store._unregister(self)

    def end(self) -> int:
        """The same; returns the library's result."""
        status = self.owned.end("blocks_unregister")
        if status < 0:
            self.owned._ended.clear()
        else:
            self._view.release()
        return status

    def void(self) -> None:
        """The library has ended it."""
        self.owned.void()
        self._view.release()


class Blocks(Uncopied):
    """A store of blocks.

    ``timeout`` of a call is in seconds; None or infinity selects the timeout of the sessions.
    Calls of several threads wait for each other, and tasks of event loops do not: for more threads,
    open a store in each.  A process that was forked opens stores of its own.
    """

    def __init__(
        self, library: Library, sessions: list[Session], most: int, checksum: bool
    ) -> None:
        self._library, self._ffi, self._sessions = library, library.ffi, sessions
        self._functions = library.functions
        # operations that the library takes
        self._most = most
        # one that is longer than its buffer is damaged, as far as the store can see
        self._misses = _LONGER if checksum else ()
        self._rlock = threading.RLock()
        self._store = Owned(library, "blocks", "store")
        self._serials = itertools.count(1)
        self._batches: dict[int, _Batch] = {}
        self._regions: set[BlockRegion] = set()
        self._done = library.ffi.new("struct nfsrdma_completion[]", most)
        # the same memory; token and result are the first words of a completion
        self._words = memoryview(library.ffi.buffer(self._done)).cast("q")
        # the result of a wait whose completions may have to be booked
        self._counts: list[int] = []
        self._pid, self._descriptor = os.getpid(), -1
        self._loops: dict[asyncio.AbstractEventLoop, int] = {}

    def _open(self, options: Any) -> None:
        handles = [session._queue.session.handle for session in self._sessions]
        array = self._ffi.new("struct nfsrdma_session *[]", handles)
        words = (array, len(handles), options, self._store.box)
        status = self._functions.nfsrdma_blocks_open(*words)
        if status:
            raise self._library.error(status)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # of a failed __init__, too; no other thread has the store, or it would not be deleted
        if getattr(self, "_loops", None) is not None:
            self._end()

    @property
    def _lock(self) -> threading.RLock:
        """The lock.  OSError (EDEADLK) if this thread has it: a handler below a call."""
        if self._pid != os.getpid():
            text = "the store belongs to the parent process: open another one"
            raise OSError(errno.EOWNERDEAD, text)
        if self._rlock._is_owned():  # type: ignore[attr-defined]
            raise OSError(errno.EDEADLK, _BELOW)
        return self._rlock

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return not self._store.exists

    def close(self) -> None:
        """Cancel what is unfinished, and close the store and its sessions."""
        if self._pid != os.getpid():
            self._end()
            return
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._store.end("blocks_close")
        for region in list(self._regions):
            region.void()
        self._regions.clear()
        for batch in list(self._batches.values()):
            self._forget(batch)
        for session in self._sessions:
            session.close()

    # --- calls ---

    def register(self, buffer: Any) -> BlockRegion:
        """Register the memory of a writable buffer, or of a tensor of a GPU, in all sessions.

        See Session.register(); a store with checksums refuses memory of a GPU.  Close the region,
        or the store: a region that is dropped stays.
        """
        return self._register(buffer, None)

    def register_dmabuf(self, fd: int, offset: int, length: int, address: int) -> BlockRegion:
        """Register memory of a dma-buf in all sessions; see Session.register_dmabuf()."""
        return self._register(*of_dmabuf(fd, offset, length, address))

    def _register(self, buffer: Any, dmabuf: Dmabuf | None) -> BlockRegion:
        view = View(self._library, buffer, writable=True)
        with self._lock, view.to_register(dmabuf) as (name, memory):
            region = BlockRegion(self, view)
            self._regions.add(region)
            words = (self._store.handle, *memory, region.owned.box)
            status = getattr(self._functions, f"nfsrdma_blocks_{name}")(*words)
            if status:
                self._regions.discard(region)
                raise self._library.error(status)
            return region

    def _unregister(self, region: BlockRegion) -> None:
        with self._lock:
            # what the library does not have yet would find no memory
            for batch in list(self._batches.values()) if region._view.on_device else ():
                if not batch.done and any(view.overlaps(region._view) for view in batch.views):
                    raise OSError(errno.EBUSY, "unfinished operations use the region")
            status = region.end() if region.owned.exists else 0
            if status < 0:
                raise self._library.error(status)
            self._regions.discard(region)

    def get(
        self,
        rows: Iterable[tuple[str, Any]],
        timeout: float | None = None,
        longer_is_a_miss: bool = False,
        damaged: list[str] | None = None,
    ) -> list[int | None]:
        """Read whole blocks into buffers: (name, buffer).

        Returns the size of each block, or None for a miss: there is no such block, it did not
        arrive within ``timeout`` seconds, or its checksum is wrong.  OSError for anything else,
        when all have completed: EFBIG for a block that is longer than its buffer, unless
        ``longer_is_a_miss`` or the store has ``checksum``.  Names of blocks with a wrong checksum
        are appended to ``damaged``.
        """
        batch = self._run(self._functions.NFSRDMA_BLOCK_GET, rows, timeout)
        return _sizes(batch, _LONGER if longer_is_a_miss else self._misses, damaged)

    def put(self, rows: Iterable[tuple[str, Any]], timeout: float | None = None) -> list[bool]:
        """Make or replace blocks: (name, buffer).

        Returns whether each is stored.  One that is not within ``timeout`` seconds is whole or not
        there.  OSError for anything else, when all have completed.
        """
        return _good(self._run(self._functions.NFSRDMA_BLOCK_PUT, rows, timeout), _LATE)

    def exists(self, names: Iterable[str], timeout: float | None = None) -> list[int | None]:
        """The size of each block, or None if there is none or the server did not say so in time."""
        rows = ((name, b"") for name in names)
        return _sizes(self._run(self._functions.NFSRDMA_BLOCK_EXISTS, rows, timeout))

    def remove(self, names: Iterable[str], timeout: float | None = None) -> list[bool]:
        """Remove blocks; returns whether each was there."""
        rows = ((name, b"") for name in names)
        return _good(self._run(self._functions.NFSRDMA_BLOCK_REMOVE, rows, timeout), _ABSENT)

    async def get_async(
        self,
        rows: Iterable[tuple[str, Any]],
        timeout: float | None = None,
        longer_is_a_miss: bool = False,
        damaged: list[str] | None = None,
    ) -> list[int | None]:
        """As get(), without blocking the event loop."""
        batch = await self._run_async(self._functions.NFSRDMA_BLOCK_GET, rows, timeout)
        return _sizes(batch, _LONGER if longer_is_a_miss else self._misses, damaged)

    async def put_async(
        self, rows: Iterable[tuple[str, Any]], timeout: float | None = None
    ) -> list[bool]:
        """As put(), without blocking the event loop."""
        kind = self._functions.NFSRDMA_BLOCK_PUT
        return _good(await self._run_async(kind, rows, timeout), _LATE)

    async def exists_async(
        self, names: Iterable[str], timeout: float | None = None
    ) -> list[int | None]:
        """As exists(), without blocking the event loop."""
        rows = ((name, b"") for name in names)
        return _sizes(await self._run_async(self._functions.NFSRDMA_BLOCK_EXISTS, rows, timeout))

    async def remove_async(self, names: Iterable[str], timeout: float | None = None) -> list[bool]:
        """As remove(), without blocking the event loop."""
        rows = ((name, b"") for name in names)
        kind = self._functions.NFSRDMA_BLOCK_REMOVE
        return _good(await self._run_async(kind, rows, timeout), _ABSENT)

    # --- batches ---

    def _run(self, kind: int, rows: Iterable[tuple[str, Any]], timeout: float | None) -> _Batch:
        batch, until = self._batch(kind, rows), _until(timeout)
        try:
            while not batch.done:
                with self._lock:
                    self._submit(batch, until)
                    # the others of a batch that has no room follow those that complete
                    least = min(batch.waiting, self._most // 2) or 1
                    slice_ms = max(1, min(_SLICE_MS, _milliseconds(until)))
                    self._wait(0 if batch.done else least, slice_ms)
        except BaseException:
            self._stop(batch)
            raise
        self._forget(batch)
        return batch

    async def _run_async(
        self, kind: int, rows: Iterable[tuple[str, Any]], timeout: float | None
    ) -> _Batch:
        batch, until = self._batch(kind, rows), _until(timeout)
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        batch.when_done = functools.partial(_wake, loop, changed)
        # a batch that the library has no room for
        timer = None if timeout is None else loop.call_later(timeout, changed.set)
        try:
            self._watch(loop)
            while not batch.done:
                changed.clear()
                with self._lock:
                    self._submit(batch, until)
                    self._wait(0, 0)
                if not batch.done:
                    await changed.wait()
        except BaseException:
            self._stop(batch)
            raise
        finally:
            self._unwatch(loop)
            if timer:
                timer.cancel()
        self._forget(batch)
        return batch

    def _batch(self, kind: int, rows: Iterable[tuple[str, Any]]) -> _Batch:
        names, buffers = tuple(zip(*rows, strict=True)) or ((), ())
        ffi = self._ffi
        raw = "\0".join([*names, ""]).encode(errors="surrogateescape")
        if raw.count(0) != len(names):
            raise ValueError("a name has a zero byte")
        lengths = map(len, names if raw.isascii() else raw.split(b"\0"))
        text = ffi.from_buffer("char[]", raw)
        start = int(ffi.cast("uintptr_t", text))
        # behind each name is a zero byte
        places = map(operator.add, itertools.accumulate(lengths, initial=start), itertools.count())
        writable = kind == self._functions.NFSRDMA_BLOCK_GET
        view = ffi.from_buffer
        views: list[View] = []
        try:
            memories = [view("char[]", buffer, writable) for buffer in buffers]
            sizes = list(map(len, memories))
        except TypeError:
            views = self._views(buffers, writable)
            memories, sizes = [each.memory for each in views], [each.size for each in views]
        # faster than a cast of each
        pointers = ffi.new("char *[]", memories)
        count, first = len(names), (next(self._serials) & _SERIAL_MASK) << _INDEX_BITS
        tokens = range(first, first + count)
        words = [0] * (_BLOCK_WORDS * count)
        words[0::_BLOCK_WORDS] = itertools.islice(places, count)
        words[1::_BLOCK_WORDS] = (
            memoryview(ffi.buffer(pointers)).cast("Q").tolist() if count else []
        )
        words[2::_BLOCK_WORDS] = sizes
        words[3::_BLOCK_WORDS] = tokens
        words[4::_BLOCK_WORDS] = [kind] * count
        table = ffi.from_buffer("struct nfsrdma_block[]", array("Q", words))
        return _Batch(table, (text, () if views else memories), names, tokens, views)

    def _views(self, buffers: Iterable[Any], writable: bool) -> list[View]:
        """The memory of buffers some of which have no buffer protocol."""
        views = [View(self._library, buffer, writable) for buffer in buffers]
        regions = [region._view for region in tuple(self._regions) if region.owned.exists]
        for view in views:
            view.check(any(view.within(region) for region in regions))
        return views

    def _submit(self, batch: _Batch, until: float) -> None:
        """Give the library what it has room for; with the lock held."""
        store = self._store.handle
        self._batches[batch.serial] = batch
        left = len(batch.names) - batch.taken
        if not left:
            return
        time_left = _milliseconds(until)
        # late: another part would only have the connections end once more
        if time_left > 1 or not batch.taken:
            deadline = 0 if until == math.inf else max(1, time_left)
            # the library stores the number by itself, so that no interrupt loses it
            box = self._ffi.new("uint64_t *")
            batch.numbers.append(box)
            words = (store, batch.table + batch.taken, left, deadline, box)
            status = self._functions.nfsrdma_blocks_submit(*words)
            if status >= 0:
                batch.taken += status
                return
            if status != -errno.EAGAIN:
                raise self._library.error(status)
        if time_left <= 1:
            late = batch.tokens[batch.taken :]
            batch.results.update(dict.fromkeys(late, -errno.ETIMEDOUT))
            batch.taken = len(batch.names)

    def _wait(self, least: int, timeout: int) -> None:
        """Take completions of all batches; with the lock held."""
        store = self._store.handle
        words = (store, self._done, self._most, least, timeout)
        self._book()
        noted(self._counts, self._functions.nfsrdma_blocks_wait, *words)
        self._book()
        self._library.interrupts.check()

    def _book(self) -> None:
        """Note results by their tokens; may be repeated."""
        if not self._counts:
            return
        count = self._counts[0]
        if count < 0:
            self._counts.clear()
            raise self._library.error(count)
        words = self._words[: count * _COMPLETION_WORDS]
        tokens, results = (words[place::_COMPLETION_WORDS].tolist() for place in (0, 1))
        touched = []
        for serial, some in _by_serial(dict(zip(tokens, results, strict=True))):
            if batch := self._batches.get(serial):
                batch.results.update(some)
                touched.append(batch)
        # those that had no room have some now
        waiting = [each for each in list(self._batches.values()) if each.taken < len(each.names)]
        for batch in (*touched, *waiting):
            batch.when_done()
        self._counts.clear()

    def _stop(self, batch: _Batch) -> None:
        """The library uses the memory of a batch no more when this returns."""
        with self._lock:
            if self._store.exists:
                for box in batch.numbers:
                    self._functions.nfsrdma_blocks_cancel(self._store.handle, box[0])
                with contextlib.suppress(OSError):
                    self._wait(0, 0)
        self._forget(batch)

    def _forget(self, batch: _Batch) -> None:
        """A batch has ended: give the memory back."""
        self._batches.pop(batch.serial, None)
        text, memories = batch.kept
        for memory in memories:
            self._ffi.release(memory)
        for view in batch.views:
            view.release()
        self._ffi.release(text)
        if not batch.done:
            canceled = dict.fromkeys(batch.tokens, -errno.ECANCELED)
            batch.results = canceled | batch.results
        batch.when_done()

    # --- asyncio ---

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            descriptor = self._functions.nfsrdma_blocks_fd(self._store.handle)
            if descriptor < 0:
                raise self._library.error(descriptor)
            self._loops[loop] = self._loops.get(loop, 0) + 1
            if self._loops[loop] == 1:
                loop.add_reader(descriptor, self._poll)
                self._descriptor = descriptor

    def _unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop not in self._loops:
            return
        self._loops[loop] -= 1
        if not self._loops[loop]:
            del self._loops[loop]
            loop.remove_reader(self._descriptor)

    def _poll(self) -> None:
        try:
            with self._lock:
                if self._store.exists:
                    self._wait(0, 0)
        except BaseException:
            # the tasks find the error
            for batch in list(self._batches.values()):
                batch.when_done()
            raise


def _by_serial(results: dict[int, int]) -> Iterable[tuple[int, dict[int, int]]]:
    """Results by token, of each batch."""
    if not results:
        return ()
    first = min(results) >> _INDEX_BITS
    # in most calls, those of one batch: a loop in Python costs more than all the rest
    if max(results) >> _INDEX_BITS == first:
        return ((first, results),)
    batches: dict[int, dict[int, int]] = {}
    for token, result in results.items():
        batches.setdefault(token >> _INDEX_BITS, {})[token] = result
    return batches.items()


def _until(timeout: float | None) -> float:
    if timeout is None or timeout == math.inf:
        return math.inf
    # not a number is not less
    if not timeout <= TIMEOUT_MOST:
        raise ValueError(f"timeout {timeout!r}: at most {TIMEOUT_MOST} seconds")
    return time.monotonic() + timeout


def _milliseconds(until: float) -> int:
    """Those that are left, as the library counts them."""
    seconds = until - time.monotonic()
    return _MOST_MS if seconds * 1000 > _MOST_MS else math.ceil(seconds * 1000)


def _checked(batch: _Batch, allowed: tuple[int, ...]) -> list[int]:
    """The results; OSError of the first one that is another error."""
    results = batch.in_order()
    if min(results, default=0) < 0:
        for name, result in zip(batch.names, results, strict=True):
            if result < 0 and result not in allowed:
                raise OSError(-result, os.strerror(-result), name)
    return results


def _sizes(
    batch: _Batch, more_misses: tuple[int, ...] = (), damaged: list[str] | None = None
) -> list[int | None]:
    if damaged is not None:
        rows = zip(batch.names, batch.in_order(), strict=True)
        damaged.extend(name for name, result in rows if result == -errno.EBADMSG)
    results = _checked(batch, _MISSES + more_misses)
    return [None if result < 0 else result for result in results]


def _good(batch: _Batch, allowed: tuple[int, ...]) -> list[bool]:
    return [result >= 0 for result in _checked(batch, allowed)]


def _wake(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    # the loop may have ended
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(changed.set)


def _nothing() -> None:
    pass
