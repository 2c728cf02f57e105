# SPDX-License-Identifier: Apache-2.0
"""Batches of reads or writes: a queue that is kept full, and the ranges that it serves.

The library has one queue for each session.  Transfers share it: each completion goes to its own
transfer, whichever call takes it from the library.

**Locks.**  ``Queue.lock`` protects the library's session and all state of this file; each call of
the library, the ones that wait included, is made with it held, and so is each check whether the
session or a file is open.  ``close()`` of another thread therefore waits for a call in progress.
Finalizers run in any thread at any place, so they take no lock and call nothing: they put what they
drop into ``Queue.dropped``, and the next call ends it.

**Interrupts.**  KeyboardInterrupt, or what another signal handler raises, may come between any two
bytecodes.  Three rules keep the state consistent:

1. A call of the library and the note of its result are one bytecode: ``noted()``.
2. What is noted is booked by steps that may be repeated: the note is removed after the last one.
3. ``Queue.recover()`` books what an interrupted call has left, before anything else happens.

Memory of an operation is kept until the operation has completed, also if its caller was
interrupted.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from nfsrdma_tools.client.library import Library

__all__ = [
    "GRACE", "Job", "OpenFile", "Owned", "Queue", "Range", "Registration", "Transfer", "View",
]  # fmt: skip

_COMPLETIONS = 128
# Python handles signals between two waits
_SLICE_MS = 200
GRACE = 0.3
"""Seconds that an interrupted call waits for the operations that the server has."""
# for another thread to take the lock
_YIELD_SECONDS = 1e-4


def noted(log: list[Any], function: Callable[..., Any], *words: Any) -> Any:
    """Call a function and append its result to ``log``: an interrupt comes before or after both."""
    log.extend(map(function, *((each,) for each in words)))
    return log[-1]


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


class Owned:
    """An object of the library that is freed once: a file, a directory or a region.

    The library stores the object in ``box`` by itself, so that no interrupt loses it.
    """

    def __init__(self, library: Library, kind: str, what: str) -> None:
        self.box = library.ffi.new(f"struct nfsrdma_{kind} **")
        self._what = what
        self._functions = library.functions
        self._ended: list[Any] = []

    @property
    def handle(self) -> Any:
        """The object; with the lock held.  ValueError if it is freed, or never was."""
        if self._ended or not self.box[0]:
            raise ValueError(f"the {self._what} is closed")
        return self.box[0]

    @property
    def exists(self) -> bool:
        """Whether the library has it."""
        return bool(self.box[0]) and not self._ended

    def void(self) -> None:
        """Note that it does not exist any more: the library has ended its session."""
        self._ended.append(0)

    def end(self, function: str) -> int:
        """Free it by a function of the library, unless that is done; returns the result."""
        if self.exists:
            noted(self._ended, getattr(self._functions, f"nfsrdma_{function}"), self.box[0])
        status = self._ended[0] if self._ended else 0
        return status or 0


class Registration(Owned):
    """Registered memory, which stays locked as long as the library has it."""

    def __init__(self, library: Library, view: View) -> None:
        super().__init__(library, "region", "region")
        self.view = view

    def has(self, view: View) -> bool:
        """Whether all of a view is part of the region."""
        start = view.address - self.view.address
        return 0 <= start <= self.view.size - view.size

    def overlaps(self, view: View) -> bool:
        """Whether some of a view is."""
        start = view.address - self.view.address
        return -view.size < start < self.view.size

    def unregister(self) -> int:
        """End it, and unlock the memory; returns EBUSY as a negative value while it is used."""
        status = self.end("unregister")
        if status < 0:
            self._ended.clear()
        else:
            self.view.release()
        return status


class OpenFile(Owned):
    """An open file."""

    def __init__(self, library: Library, path: str, writable: bool) -> None:
        super().__init__(library, "file", "file")
        self.path, self.writable = path, writable


class Range(NamedTuple):
    """Bytes of a file, and their place in a view."""

    file: OpenFile
    offset: int
    length: int
    place: int


class _Operation:
    """The part of a range that one RPC reads or writes, or a COMMIT."""

    __slots__ = ("job", "memory", "number", "offset", "size", "token")

    def __init__(
        self, job: Job, token: int, number: int, memory: Any, size: int, offset: int
    ) -> None:
        self.job, self.token, self.number = job, token, number
        self.memory, self.size, self.offset = memory, size, offset


class Job:
    """The state of a transfer, or of an fsync() if it has no memory.

    Its methods are called with the queue's lock held, and may be repeated.
    """

    def __init__(
        self, tokens: Iterator[int], kind: str, ranges: Iterable[Range], view: View | None = None
    ) -> None:
        self._tokens, self.kind, self.view = tokens, kind, view
        self.ranges = tuple(ranges)
        self.ends = [each.offset + each.length for each in self.ranges]
        self.waiting: dict[int, _Operation] = {}
        """What the library does not have yet, by token."""
        self.sent: dict[int, _Operation] = {}
        """What it has, by token."""
        self.error: Exception | None = None
        self.when_done: Callable[[], object] = _nothing

    @property
    def done(self) -> bool:
        """Whether nothing will happen any more."""
        return not self.waiting and not self.sent

    @property
    def moved(self) -> list[int]:
        """Bytes of each range that have been moved, from its start and without a gap."""
        unfinished = [*self.waiting.values(), *self.sent.values()]
        ends = list(self.ends)
        for each in unfinished:
            ends[each.number] = min(ends[each.number], each.offset)
        return [max(0, end - each.offset) for end, each in zip(ends, self.ranges, strict=True)]

    def counts(self) -> list[int]:
        """The same, of a transfer that is done; or its error."""
        if self.error:
            raise self.error
        return [end - each.offset for end, each in zip(self.ends, self.ranges, strict=True)]

    def uses(self, file: Owned) -> bool:
        """Whether a range is one of this file."""
        return any(each.file is file for each in self.ranges)

    def divide(self, most: int) -> None:
        """Divide the ranges into operations of at most ``most`` bytes."""
        made = {}
        if self.view is None:
            token = next(self._tokens)
            self.waiting = {token: _Operation(self, token, 0, None, 0, 0)}
            return
        for number, each in enumerate(self.ranges):
            for start in range(0, each.length, most):
                memory = self.view.memory + each.place + start
                size = min(most, each.length - start)
                token = next(self._tokens)
                made[token] = _Operation(self, token, number, memory, size, each.offset + start)
        self.waiting = made

    def completed(self, operation: _Operation, result: int, eof: int) -> None:
        """Note the result of an operation: bytes, or a negative errno value."""
        number, offset, size = operation.number, operation.offset, operation.size
        if result < 0:
            self._lose(number, offset)
            path = self.ranges[number].file.path
            self.fail(OSError(-result, os.strerror(-result), path))
        elif result < size and (eof or self.error or not result):
            # the first byte that does not exist, of parts that complete in any order
            self._lose(number, offset + result)
        elif result < size:
            # twice, if this is repeated: the same bytes at the same place
            token, memory = next(self._tokens), operation.memory + result
            rest = _Operation(self, token, number, memory, size - result, offset + result)
            self.waiting[token] = rest

    def fail(self, error: Exception) -> None:
        """Start no further operation; the transfer ends with an error unless it is complete."""
        if self.done:
            return
        self.error = self.error or error
        self.drop()

    def drop(self) -> None:
        """Give up what the library does not have."""
        for token, operation in list(self.waiting.items()):
            if token not in self.sent:
                self._lose(operation.number, operation.offset)
                self.waiting.pop(token, None)
        self.report()

    def abort(self, error: Exception) -> None:
        """The session has ended: no operation will complete."""
        if not self.done:
            self.error = self.error or error
        for operation in (*self.waiting.values(), *self.sent.values()):
            self._lose(operation.number, operation.offset)
        self.waiting.clear()
        self.sent.clear()
        self.report()

    def report(self) -> None:
        """Give the memory back at the end, and wake who waits."""
        if self.done:
            if self.view:
                self.view.release()
            self.when_done()

    def _lose(self, number: int, offset: int) -> None:
        self.ends[number] = min(self.ends[number], offset)


class Transfer:
    """Ranges that are read or written; ``result()`` waits for them.

    A transfer that is forgotten is stopped.
    """

    def __init__(self, session: object, queue: Queue, job: Job, files: Iterable[object]) -> None:
        # the session and the files exist as long as the transfer
        self._session, self._files = session, tuple(files)
        self._queue, self._job = queue, job

    def __del__(self) -> None:
        job: Job | None = getattr(self, "_job", None)
        if job and not job.done:
            self._queue.dropped.append(job)

    @property
    def done(self) -> bool:
        """Whether all operations have ended."""
        return self._job.done

    @property
    def moved(self) -> list[int]:
        """Bytes of each range that have arrived, or that the server took, from its start.

        Those of a transfer that ended with an error, too.
        """
        return self._job.moved

    def result(self) -> list[int]:
        """Wait; returns the bytes of each range, fewer than requested at the end of a file.

        OSError of the first operation that failed, ECANCELED if the transfer was stopped or its
        file closed.  An exception, such as KeyboardInterrupt, stops the transfer and waits a moment
        for the operations that the server has; a server that does not reply may write to the
        memory later, until the session is closed: it stays locked so long.
        """
        try:
            self._queue.wait(lambda: self._job.done)
        except BaseException:
            self._queue.stop(self._job)
            self._queue.wait(lambda: self._job.done, GRACE)
            raise
        return self.counts()

    def counts(self) -> list[int]:
        """The same, of a transfer that is done."""
        return self._job.counts()

    def stop(self) -> None:
        """Start no further operation; those that the server has are not taken back."""
        self._queue.stop(self._job)

    def call_when_done(self, call: Callable[[], object]) -> None:
        """Have a function called at the end, in any thread and perhaps more than once."""
        self._job.when_done = call


class Queue:
    """The queue of a session; ``lock`` serializes the calls of a session."""

    def __init__(self, library: Library, depth: int) -> None:
        self.library, self._depth = library, depth
        self.lock = threading.RLock()
        self.session = Owned(library, "session", "session")
        self.dropped: deque[Job | Owned] = deque()
        """What finalizers have dropped."""
        self.files: set[OpenFile] = set()
        self.regions: set[Registration] = set()
        self._tokens = itertools.count()
        self._completions = library.ffi.new("struct nfsrdma_completion[]", _COMPLETIONS)
        self._jobs: dict[Job, None] = {}
        self._sent: dict[int, _Operation] = {}
        # notes of calls that may have to be booked
        self._batch: tuple[tuple[_Operation, ...], list[int]] | None = None
        self._counts: list[int] = []
        self._unsubmitted = False
        # threads that want the lock
        self._wanting: set[int] = set()

    @property
    def busy(self) -> bool:
        """Whether operations are unfinished."""
        return bool(self._sent)

    def want(self) -> None:
        """Say that this thread wants the lock: those that wait in a loop let it pass."""
        self._wanting.add(threading.get_ident())

    def have(self) -> None:
        """Say that this thread has it."""
        self._wanting.discard(threading.get_ident())

    def keep(self, owned: Owned | None) -> None:
        """Note an object before the library makes it."""
        if isinstance(owned, Registration):
            self.regions.add(owned)
        elif isinstance(owned, OpenFile):
            self.files.add(owned)

    def forget(self, owned: Owned | None) -> None:
        """Forget an object that the library does not have."""
        if isinstance(owned, Registration) and not owned.exists:
            self.regions.discard(owned)
        elif isinstance(owned, OpenFile) and not owned.exists:
            self.files.discard(owned)

    # --- transfers ---

    def start(self, kind: str, ranges: Iterable[Range], view: View | None, most: int) -> Job:
        """Send as much of a new transfer as there is room for; with the lock held."""
        job = Job(self._tokens, kind, ranges, view)
        job.divide(most)
        try:
            self._jobs[job] = None
            self._fill()
        except BaseException:
            job.fail(_canceled("the transfer was stopped"))
            raise
        return job

    def stop(self, job: Job, why: str = "the transfer was stopped") -> None:
        """Start no further operation of a transfer."""
        with self.lock:
            self.recover()
            job.fail(_canceled(why))

    def wait(self, done: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait until a condition is met, or for so many seconds."""
        until = None if seconds is None else time.monotonic() + seconds
        while not done():
            self.want()
            with self.lock:
                self.have()
                self.recover()
                if done():
                    return
                self._wait_once(until)
            if until is not None and time.monotonic() >= until:
                return
            if self._wanting:
                time.sleep(_YIELD_SECONDS)

    def settle(self, uses: Callable[[Job], bool], why: str, seconds: float | None = None) -> None:
        """Stop transfers, and wait until the library has no operation of them."""
        with self.lock:
            self.recover()
            jobs = [job for job in list(self._jobs) if uses(job)]
            for job in jobs:
                job.fail(_canceled(why))
        self.wait(lambda: all(job.done for job in jobs), seconds)

    def commit(self, file: OpenFile) -> Exception | None:
        """Have the server write a file to stable storage, after the writes started before.

        Returns the error.
        """
        with self.lock:
            jobs = [job for job in list(self._jobs) if job.kind == "write" and job.uses(file)]
        self.wait(lambda: all(job.done for job in jobs))
        with self.lock:
            self.recover()
            file.handle  # noqa: B018 - ValueError if it is closed
            job = self.start("fsync", [Range(file, 0, 0, 0)], None, 1)
        try:
            self.wait(lambda: job.done)
        except BaseException:
            self.stop(job)
            raise
        return job.error

    def poll(self) -> None:
        """Handle the completions that have arrived.

        Afterwards, the next one makes the session's file descriptor readable.
        """
        with self.lock:
            self.recover()
            functions = self.library.functions
            # completions of what _fill() sent may already be there, and make no event
            while self.session.exists and self._jobs:
                found = noted(
                    self._counts, functions.nfsrdma_peek,
                    self.session.handle, self._completions, _COMPLETIONS,
                )  # fmt: skip
                self._book_completions()
                if not found:
                    break
                self._fill()

    def is_registered(self, view: View) -> bool:
        """Whether RDMA can move the data of a view without a copy."""
        return any(region.has(view) for region in tuple(self.regions))

    # --- the end ---

    def end(self) -> None:
        """Nothing completes any more: the session is closed.  With the lock held; repeatable."""
        error = _canceled("the session is closed")
        self._batch = None
        self._counts.clear()
        for job in list(self._jobs):
            job.abort(error)
        for region in list(self.regions):
            region.void()
            region.view.release()
        for file in list(self.files):
            file.void()
        self._sent.clear()
        self._jobs.clear()
        self.regions.clear()
        self.files.clear()
        self.dropped.clear()

    def recover(self) -> None:
        """Book what an interrupted call has left, and end what was dropped.  With the lock held."""
        self._book_batch()
        self._book_completions()
        if self._unsubmitted and self.session.exists:
            self._submit()
        for _ in range(len(self.dropped)):
            self._end_dropped(self.dropped[0])

    def _end_dropped(self, dropped: Job | Owned) -> None:
        again = False
        if isinstance(dropped, Job):
            dropped.fail(_canceled("the transfer was stopped"))
        elif isinstance(dropped, Registration):
            again = dropped.unregister() < 0
            self.forget(dropped)
        else:
            dropped.end("release")
            self.forget(dropped)
        # memory that is used is tried again
        if again:
            self.dropped.append(dropped)
        self.dropped.popleft()

    # --- the library's queue ---

    def _wait_once(self, until: float | None) -> None:
        # one wait for many completions, with enough unfinished operations to keep the server busy
        full = any(job.waiting for job in self._jobs)
        least = max(
            1, len(self._sent) // 4 if full else min(map(_unfinished, self._jobs), default=1)
        )
        left = _SLICE_MS if until is None else min(_SLICE_MS, (until - time.monotonic()) * 1000)
        noted(
            self._counts, self.library.functions.nfsrdma_wait,
            self.session.handle, self._completions, _COMPLETIONS, least, max(0, round(left)),
        )  # fmt: skip
        self._book_completions()
        self.library.interrupts.check()
        self._fill()

    def _book_completions(self) -> None:
        """Pass completions on; the note may be a negative errno value."""
        if not self._counts:
            return
        count = self._counts[0]
        if count < 0:
            self._counts.clear()
            raise self.library.error(count)
        for completion in self._completions[0:count]:
            operation = self._sent.get(completion.user_data)
            if operation is None:
                continue
            job, token = operation.job, operation.token
            job.completed(operation, completion.result, completion.eof)
            job.sent.pop(token, None)
            job.report()
            self._sent.pop(token, None)
        self._counts.clear()

    def _fill(self) -> None:
        """Fill the library's queue, and ring the doorbell once."""
        for job in list(self._jobs):
            if job.error:
                job.drop()
            if not self._fill_from(job):
                break
        for job in list(self._jobs):
            if job.done:
                self._jobs.pop(job, None)
        if self._unsubmitted:
            self._submit()

    def _fill_from(self, job: Job) -> bool:
        """Send operations of a job; returns whether there is room for more."""
        while job.waiting:
            room = self._depth - len(self._sent)
            operations = tuple(itertools.islice(job.waiting.values(), max(0, room)))
            if not operations:
                return False
            sent = self._prepare(job, operations)
            if sent == len(operations):
                continue
            if self._sent:
                return False
            # nothing is unfinished that would make room
            self._book_failure(operations[sent], -errno.EAGAIN)
        return True

    def _prepare(self, job: Job, operations: tuple[_Operation, ...]) -> int:
        """Add operations to the next batch of the library, up to the first without room."""
        call = getattr(self.library.functions, f"nfsrdma_prepare_{job.kind}")
        handles = [job.ranges[each.number].file.handle for each in operations]
        memories = [each.memory for each in operations]
        sizes = [each.size for each in operations]
        offsets = [each.offset for each in operations]
        tokens = [each.token for each in operations]
        words = (memories, sizes, offsets) if job.view else ()
        statuses: list[int] = []
        self._batch = (operations, statuses)
        # before the library has them: an interrupt may come behind the call
        self._unsubmitted = True
        job.sent.update(zip(tokens, operations, strict=True))
        self._sent.update(zip(tokens, operations, strict=True))
        calls = map(call, handles, *words, tokens)
        statuses.extend(iter(_next_of(calls), -errno.EAGAIN))
        return self._book_batch()

    def _book_batch(self) -> int:
        """Note what the library has of the last batch; returns the operations it was called for."""
        if self._batch is None:
            return 0
        operations, statuses = self._batch
        for operation, status in zip(operations, statuses, strict=False):
            if status:
                self._take_back(operation)
                self._book_failure(operation, status)
            else:
                operation.job.waiting.pop(operation.token, None)
        for operation in operations[len(statuses) :]:
            self._take_back(operation)
        if operations[0].job.error:
            operations[0].job.drop()
        self._batch = None
        return len(statuses)

    def _take_back(self, operation: _Operation) -> None:
        operation.job.sent.pop(operation.token, None)
        self._sent.pop(operation.token, None)

    def _book_failure(self, operation: _Operation, status: int) -> None:
        job = operation.job
        # the text is that of the last call: all calls of a batch fail for one reason
        job.fail(self.library.error(status, job.ranges[operation.number].file.path))

    def _submit(self) -> None:
        status = self.library.functions.nfsrdma_submit(self.session.handle)
        if status < 0:
            raise self.library.error(status)
        self._unsubmitted = False


def _next_of(calls: Any) -> Callable[[], int]:
    """A function that returns the next result; in C, so that no interrupt comes between."""
    return calls.__next__  # type: ignore[no-any-return]


def _unfinished(job: Job) -> int:
    return len(job.sent) or 1


def _canceled(why: str) -> OSError:
    return OSError(errno.ECANCELED, why)


def _nothing() -> None:
    pass
