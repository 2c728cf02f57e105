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
interrupted.  A handler that uses the session below a call of the session is refused: EDEADLK.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from nfsrdma_tools.client import memory
from nfsrdma_tools.client.library import Library

__all__ = [
    "GRACE", "Job", "OpenFile", "Owned", "Queue", "Ranges", "Registration", "Transfer", "Uncopied",
    "View",
]  # fmt: skip

_COMPLETIONS = 128
# 64-bit words of struct nfsrdma_range, and of struct nfsrdma_completion
_RANGE_WORDS = 6
_COMPLETION_WORDS = 4
# the third word of a completion has eof, and reserved bits
_EOF = 0xFFFFFFFF
_INDEX_BITS = 32
# Python handles signals between two waits
_SLICE_MS = 200
GRACE = 0.3
"""Seconds that an interrupted call waits for the operations that the server has."""
# for another thread to take the lock
_YIELD_SECONDS = 1e-4
_BELOW = "a signal handler uses the session whose call it interrupted"


def noted(log: list[Any], function: Callable[..., Any], *words: Any) -> Any:
    """Call a function and append its result to ``log``: an interrupt comes before or after both."""
    log.extend(map(function, *zip(words, strict=True)))
    return log[-1]


class Uncopied:
    """An object that ends something of the library when it is dropped, so that a copy would."""

    def __reduce__(self) -> NoReturn:
        """For copy and pickle."""
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled")


class View:
    """The memory of an object; not copied, and kept until released.

    The object has the buffer protocol, which also locks it, or is one of ``memory.found()``.
    """

    # most memory is behind the buffer protocol: only other one pays for them
    _found: memory.Memory | None = None
    on_device = False
    """Only RDMA reaches it."""

    def __init__(self, library: Library, buffer: Any, writable: bool) -> None:
        self._ffi = library.ffi
        try:
            # multidimensional arrays are contiguous, or from_buffer() refuses them
            self.memory = self._ffi.from_buffer("char[]", buffer, require_writable=writable)
            self.size = len(self.memory)
        except TypeError:
            self._found = memory.found(buffer, writable)
            if not self._found:
                raise
            self.memory = self._ffi.cast("char *", self._found.address)
            self.size, self.on_device = self._found.size, self._found.on_device
        self.address = int(self._ffi.cast("uintptr_t", self.memory))

    def release(self) -> None:
        """Let the owner resize the memory again."""
        if self._found is None:
            self._ffi.release(self.memory)
        else:
            self._found = self._found._replace(owner=None)

    def part(self, offset: int, length: int | None, owner: object) -> memory.Memory:
        """A part of it, by default all behind the offset, which ``owner`` keeps."""
        size = self.size - offset if length is None else length
        if not 0 <= offset <= self.size or not 0 <= size <= self.size - offset:
            raise ValueError(f"the region has {self.size} bytes")
        return memory.Memory(self.address + offset, size, self.on_device, owner=owner)

    @contextmanager
    def to_register(self, dmabuf: memory.Dmabuf | None) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """The function of the library that registers the memory, and its words.

        libcuda exports memory of a GPU for that long, unless there is a dma-buf.
        """
        if not self.on_device:
            yield "register", (self.memory, self.size)
        elif dmabuf:
            yield "register_dmabuf", (*dmabuf, self.size, self.memory)
        else:
            with memory.exported(self.address, self.size) as made:
                yield "register_dmabuf", (*made, self.size, self.memory)

    def within(self, region: View) -> bool:
        """Whether all of it is part of another one, which is registered."""
        start = self.address - region.address
        return 0 <= start <= region.size - self.size

    def overlaps(self, region: View) -> bool:
        """Whether some of it is."""
        return -self.size < self.address - region.address < region.size

    def check(self, is_registered: bool) -> None:
        """OSError (EOPNOTSUPP) for memory of a GPU that no region has."""
        if self.on_device and self.size and not is_registered:
            raise OSError(errno.EOPNOTSUPP, "the memory of the GPU is not registered")


class Owned:
    """An object of the library that is freed once: a file, a directory or a region.

    The library stores the object in ``box`` by itself, so that no interrupt loses it.
    """

    def __init__(self, library: Library, kind: str, noun: str) -> None:
        self.box = library.ffi.new(f"struct nfsrdma_{kind} **")
        self._what = noun
        self._functions = library.functions
        self._ended: list[int] = []

    @property
    def handle(self) -> Any:
        """The object; with the lock held.  ValueError if it is freed, or never was."""
        handle = self.box[0]
        if self._ended or not handle:
            raise ValueError(f"the {self._what} is closed")
        return handle

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
        if status == -errno.EBUSY:
            # it still exists; a store of blocks ends its sessions itself
            self._ended.clear()
        return status


class Registration(Owned):
    """Registered memory, which stays locked as long as the library has it."""

    def __init__(self, library: Library, view: View) -> None:
        super().__init__(library, "region", "region")
        self.view = view

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


class Ranges(NamedTuple):
    """Bytes of files, one behind the other in a view: a column for each property."""

    files: Sequence[OpenFile]
    offsets: Sequence[int]
    lengths: Sequence[int]


class _Operations(NamedTuple):
    """The READs or WRITEs of a job: each is a row, and each property a column."""

    numbers: list[int]
    """Of the range."""
    addresses: list[int]
    sizes: list[int]
    offsets: list[int]

    def add(self, number: int, address: int, size: int, offset: int) -> int:
        """Add a row; returns its index."""
        self.numbers.append(number)
        self.addresses.append(address)
        self.offsets.append(offset)
        self.sizes.append(size)
        return len(self.sizes) - 1


class Job:
    """The state of a transfer, or of an fsync() if it has no memory.

    An operation is one RPC.  ``table`` has the first ones as an array of the library, which takes
    them in their order.  The others, which replace short reads and writes, are in ``rests``.  A
    token, which the library returns with a result, is the job's number and an index.

    The methods are called with the queue's lock held, and may be repeated.
    """

    def __init__(
        self, library: Library, serial: int, kind: str, ranges: Ranges, view: View | None, most: int
    ) -> None:
        self._library, self.kind, self.view = library, kind, view
        self.files, self.offsets, lengths = ranges
        self._counts = list(lengths)
        self.base = serial << _INDEX_BITS
        self._used = set(self.files)
        if view is None:
            self.operations = _Operations([0], [0], [0], [0])
        else:
            self.operations = _divided(ranges, view.address, most)
        self.size = len(self.operations.sizes)
        self.table = self._tabled()
        self.taken = 0
        """Operations of the table that the library has taken, or that are given up."""
        self.rests: dict[int, None] = {}
        """Indexes of other operations that the library does not have yet."""
        self.sent: dict[int, int] = {}
        """Sizes of those that the library has, and of those that it gets now, by token."""
        self.error: Exception | None = None
        self.when_done: Callable[[], object] = _nothing

    def _tabled(self) -> Any:
        numbers, *columns = self.operations
        ffi, files, used = self._library.ffi, self.files, list(self._used)
        # faster than a cast of each
        pointers = ffi.new("struct nfsrdma_file *[]", [file.handle for file in used])
        known = dict(zip(used, memoryview(ffi.buffer(pointers)).cast("Q"), strict=True))
        # a range of no bytes has no operation, a long one has several
        handles = [known[files[number]] for number in numbers]
        tokens = list(range(self.base, self.base + self.size))
        words = [0] * (_RANGE_WORDS * self.size)
        # faster by columns than by rows
        for place, column in enumerate((handles, *columns, tokens)):
            words[place::_RANGE_WORDS] = column
        return ffi.from_buffer("struct nfsrdma_range[]", array("Q", words))

    def row(self, index: int) -> Any:
        """An operation as an array of the library with one element."""
        numbers, addresses, sizes, offsets = self.operations
        file, memory = self.files[numbers[index]].handle, addresses[index]
        ffi = self._library.ffi
        words = (file, ffi.cast("void *", memory), sizes[index], offsets[index], self.base + index)
        return ffi.new("struct nfsrdma_range[]", [words])

    @property
    def waits(self) -> bool:
        """Whether there are operations that the library does not have yet."""
        return self.taken < self.size or bool(self.rests)

    @property
    def done(self) -> bool:
        """Whether nothing will happen any more."""
        return not self.sent and self.taken >= self.size and not self.rests

    @property
    def moved(self) -> list[int]:
        """Bytes of each range that have been moved, from its start and without a gap."""
        counts = list(self._counts)
        sent = (token - self.base for token in tuple(self.sent))
        for index in (*range(self.taken, self.size), *tuple(self.rests), *sent):
            self._limit(counts, index)
        return counts

    def counts(self) -> list[int]:
        """The same, of a transfer that is done; or its error."""
        if self.error:
            raise self.error
        return list(self._counts)

    def uses(self, file: Owned) -> bool:
        """Whether a range is one of this file."""
        return file in self._used

    def path(self, index: int) -> str:
        """Path of the file of an operation."""
        return self.files[self.operations.numbers[index]].path

    def completed(self, token: int, result: int, eof: int) -> None:
        """Note the result of an operation: bytes, or a negative errno value."""
        if token in self.sent:
            self._book(token - self.base, result, eof)
            self.sent.pop(token, None)
        # an interrupt may have come before it
        self.report()

    def _book(self, index: int, result: int, eof: int) -> None:
        numbers, addresses, sizes, offsets = self.operations
        size = sizes[index]
        if result < 0:
            self._limit(self._counts, index)
            self.fail(OSError(-result, os.strerror(-result), self.path(index)))
        elif eof or (result < size and (self.error or not result)):
            # the first byte that does not exist, of parts that complete in any order
            self._limit(self._counts, index, result)
            # the library takes operations in order: the next ones may be of this range
            self.taken = bisect_right(numbers, numbers[index], self.taken, self.size)
        elif result < size:
            # twice, if this is repeated: the same bytes at the same place
            at = addresses[index] + result
            offset = offsets[index] + result
            rest = self.operations.add(numbers[index], at, size - result, offset)
            self.rests[rest] = None

    def fail(self, error: Exception) -> None:
        """Start no further operation; the transfer ends with an error unless it is complete."""
        if self.done:
            return
        self.error = self.error or error
        self.drop()

    def drop(self) -> None:
        """Give up what the library does not have."""
        for index in (*range(self.taken, self.size), *tuple(self.rests)):
            if self.base + index not in self.sent:
                self._limit(self._counts, index)
                self.rests.pop(index, None)
        self.taken = self.size
        self.report()

    def abort(self, error: Exception) -> None:
        """The session has ended: no operation will complete."""
        if not self.done:
            self.error = self.error or error
        for token in tuple(self.sent):
            self._limit(self._counts, token - self.base)
        self.sent.clear()
        self.drop()

    def report(self) -> None:
        """Give the memory back at the end, and wake who waits."""
        if self.done:
            if self.view:
                self.view.release()
            self.when_done()

    def _limit(self, counts: list[int], index: int, count: int = 0) -> None:
        """Limit the count of a range to what precedes an operation, and ``count`` bytes of it."""
        number = self.operations.numbers[index]
        start = self.operations.offsets[index] - self.offsets[number]
        counts[number] = min(counts[number], start + count)


def _divided(ranges: Ranges, address: int, most: int) -> _Operations:
    """Operations of at most ``most`` bytes, for memory at an address."""
    lengths = ranges.lengths
    places = list(itertools.accumulate(lengths, initial=address))
    if lengths and min(lengths) > 0 and max(lengths) <= most:
        places.pop()
        return _Operations(list(range(len(lengths))), places, list(lengths), list(ranges.offsets))
    made = _Operations([], [], [], [])
    for number, (place, offset, length) in enumerate(
        zip(places, ranges.offsets, lengths, strict=False)
    ):
        for start in range(0, length, most):
            made.add(number, place + start, min(most, length - start), offset + start)
    return made


class Transfer(Uncopied):
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
        """Whether all operations have ended; handles what has arrived, and does not wait."""
        return self._job.done or self._queue.look(self._job)

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
        """The same, of a transfer that is done; ValueError if it is not."""
        if not self._job.done:
            raise ValueError("the transfer is not done: result() waits for it")
        return self._job.counts()

    def stop(self) -> None:
        """Start no further operation; those that the server has are not taken back."""
        self._queue.stop(self._job)

    def call_when_done(self, call: Callable[[], object]) -> None:
        """Have a function called at the end, in any thread and perhaps more than once."""
        self._job.when_done = call


class _Batch(NamedTuple):
    """A call of the library that adds operations to the next batch, and its result."""

    job: Job
    tokens: range
    statuses: list[int]


class Queue:
    """The queue of a session; ``lock`` serializes the calls of a session."""

    def __init__(self, library: Library, depth: int) -> None:
        self.library, self._depth = library, depth
        self._lock = threading.RLock()
        self.session = Owned(library, "session", "session")
        self.dropped: deque[Job | Owned] = deque()
        """Transfers and objects of the library that finalizers have dropped."""
        self.files: set[OpenFile] = set()
        self.regions: set[Registration] = set()
        self._serials = itertools.count()
        self._completions = library.ffi.new("struct nfsrdma_completion[]", _COMPLETIONS)
        # the same memory; token, result and eof are the first words of a completion
        self._words = memoryview(library.ffi.buffer(self._completions)).cast("q")
        self._jobs: dict[int, Job] = {}
        # notes of calls that may have to be booked
        self._batch: _Batch | None = None
        self._counts: list[int] = []
        self._unsubmitted = False
        # threads that want the lock
        self._wanting: set[int] = set()

    @property
    def lock(self) -> threading.RLock:
        """The lock.  OSError (EDEADLK) if this thread has it: a handler below a call."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise OSError(errno.EDEADLK, _BELOW)
        return self._lock

    @property
    def busy(self) -> bool:
        """Whether operations are unfinished."""
        return self._unfinished > 0

    @property
    def _unfinished(self) -> int:
        return sum([len(job.sent) for job in list(self._jobs.values())])

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

    def start(self, kind: str, ranges: Ranges, view: View | None, most: int) -> Job:
        """Send as much of a new transfer as there is room for; with the lock held."""
        serial = next(self._serials)
        job = Job(self.library, serial, kind, ranges, view, most)
        try:
            self._jobs[serial] = job
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
        """Wait until a condition is met, but no longer than ``seconds``."""
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
            jobs = [job for job in list(self._jobs.values()) if uses(job)]
            for job in jobs:
                job.fail(_canceled(why))
        self.wait(lambda: all(job.done for job in jobs), seconds)

    def commit(self, file: OpenFile) -> Exception | None:
        """Have the server write a file to stable storage, after the writes started before.

        Returns the error.
        """
        with self.lock:
            jobs = [
                job for job in list(self._jobs.values()) if job.kind == "write" and job.uses(file)
            ]
        self.wait(lambda: all(job.done for job in jobs))
        with self.lock:
            self.recover()
            file.handle  # noqa: B018 - ValueError if it is closed
            job = self.start("fsync", Ranges([file], [0], [0]), None, 1)
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
            self.take()

    def take(self) -> None:
        """The same with the lock held."""
        # completions of what _fill() sent may already be there, and make no event
        while self.session.exists and self._jobs:
            completed = noted(
                self._counts, self.library.functions.nfsrdma_peek,
                self.session.handle, self._completions, _COMPLETIONS,
            )  # fmt: skip
            self._book_completions()
            if not completed:
                break
            self._fill()

    def look(self, job: Job) -> bool:
        """Whether a transfer is done, after a poll unless another thread calls the library."""
        lock, has = self.lock, list[bool]()
        try:
            if noted(has, lock.acquire, False):
                self.recover()
                self.take()
        finally:
            if has and has[0]:
                lock.release()
        return job.done

    def is_registered(self, view: View) -> bool:
        """Whether RDMA can move the data of a view without a copy."""
        # an interrupt may have left one here that has ended
        return any(region.exists and view.within(region.view) for region in tuple(self.regions))

    def drop_users(self, region: Registration) -> None:
        """Start no further operation with memory of a GPU, whose region ends; with the lock held.

        Without the region, the library would have the processor copy its data.
        """
        for job in list(self._jobs.values()) if region.view.on_device else ():
            if job.view and job.view.overlaps(region.view):
                job.fail(_canceled("the region is closed"))

    # --- the end ---

    def end(self) -> None:
        """Nothing completes any more: the session is closed.  With the lock held; repeatable."""
        error = _canceled("the session is closed")
        self._batch = None
        self._counts.clear()
        for job in list(self._jobs.values()):
            job.abort(error)
        for region in list(self.regions):
            region.void()
            region.view.release()
        for file in list(self.files):
            file.void()
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
            self.drop_users(dropped)
            again = dropped.unregister() < 0
            self.forget(dropped)
        else:
            # no table of a job has its address any more
            for job in list(self._jobs.values()):
                if job.uses(dropped):
                    job.fail(_canceled("the file is closed"))
            dropped.end("release")
            self.forget(dropped)
        # memory that is used is tried again
        if again:
            self.dropped.append(dropped)
        self.dropped.popleft()

    # --- the library's queue ---

    def _wait_once(self, until: float | None) -> None:
        # one wait for many completions, with enough unfinished operations to keep the server busy
        jobs = self._jobs.values()
        full = any(job.waits for job in jobs)
        sent = [len(job.sent) for job in jobs]
        least = max(1, sum(sent) // 2 if full else min(sent, default=1))
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
        words = self._words[: count * _COMPLETION_WORDS]
        tokens, results = (words[place::_COMPLETION_WORDS].tolist() for place in (0, 1))
        ends = words[2::_COMPLETION_WORDS]
        if not self._book_complete(tokens, results, ends):
            for token, result, eof in zip(tokens, results, ends, strict=True):
                job = self._jobs.get(token >> _INDEX_BITS)
                if job:
                    job.completed(token, result, eof & _EOF)
        self._counts.clear()

    def _book_complete(self, tokens: list[int], results: list[int], ends: memoryview) -> bool:
        """Book operations if all are of one job, and have moved all their bytes.

        Not if a file ends, and there are operations that the library does not have yet.
        """
        job = self._jobs.get(tokens[0] >> _INDEX_BITS) if tokens else None
        if not job or results != list(map(job.sent.get, tokens)):
            return False
        if job.waits and any(ends.tolist()):
            return False
        # one bytecode: an interrupt comes before or after all of them
        list(map(job.sent.pop, tokens))
        job.report()
        return True

    def _fill(self) -> None:
        """Fill the library's queue, and ring the doorbell once."""
        room = self._depth - self._unfinished
        for job in list(self._jobs.values()):
            if job.error:
                job.drop()
            room = self._fill_from(job, room)
        for serial, job in list(self._jobs.items()):
            if job.done:
                self._jobs.pop(serial, None)
        if self._unsubmitted:
            self._submit()

    def _fill_from(self, job: Job, room: int) -> int:
        """Send operations of a job; returns the room for more."""
        while job.waits and room > 0:
            if job.taken < job.size:
                first, count = job.taken, min(room, job.size - job.taken)
                sent = self._prepare(job, job.table + first, first, count)
            else:
                first = next(iter(job.rests))
                sent = self._prepare(job, job.row(first), first, 1)
            # the next call says why it was fewer
            room -= sent
            if not sent and self._unfinished:
                return 0
            if not sent:
                # nothing is unfinished that would make room
                self._book_failure(job, first, -errno.EAGAIN)
        return room

    def _prepare(self, job: Job, rows: Any, first: int, count: int) -> int:
        """Add operations to the next batch; returns their number, also if the first one failed."""
        tokens = range(job.base + first, job.base + first + count)
        sizes = job.operations.sizes[first : first + count]
        if job.view:
            call = getattr(self.library.functions, f"nfsrdma_prepare_{job.kind}s")
            words = (rows, count)
        else:
            call = self.library.functions.nfsrdma_prepare_fsync
            words = (job.files[0].handle, tokens[0])
        batch = _Batch(job, tokens, [])
        self._batch = batch
        # before the library has them: an interrupt may come behind the call
        self._unsubmitted = True
        job.sent.update(zip(tokens, sizes, strict=True))
        noted(batch.statuses, call, *words)
        return self._book_batch()

    def _book_batch(self) -> int:
        """Note what the library has of the last batch; returns 0 if there was no room."""
        if self._batch is None:
            return 0
        job, tokens, statuses = self._batch
        status = statuses[0] if statuses else -errno.EAGAIN
        # nfsrdma_prepare_fsync() returns 0
        taken = max(0, status if job.view else int(status == 0))
        first = tokens[0] - job.base
        if first >= job.size:
            if taken:
                job.rests.pop(first, None)
        else:
            job.taken = first + taken
        for token in tokens[taken:]:
            job.sent.pop(token, None)
        failed = status < 0 and status != -errno.EAGAIN
        if failed:
            self._book_failure(job, first, status)
        if job.error:
            job.drop()
        self._batch = None
        return taken or int(failed)

    def _book_failure(self, job: Job, index: int, status: int) -> None:
        job.fail(self.library.error(status, job.path(index)))

    def _submit(self) -> None:
        status = self.library.functions.nfsrdma_submit(self.session.handle)
        if status < 0:
            raise self.library.error(status)
        self._unsubmitted = False


def _canceled(why: str) -> OSError:
    return OSError(errno.ECANCELED, why)


def _nothing() -> None:
    pass
