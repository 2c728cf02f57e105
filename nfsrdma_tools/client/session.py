# SPDX-License-Identifier: Apache-2.0
"""Sessions, files and registered memory of a server that is reached without a mount."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import io
import operator
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Self

from nfsrdma_tools.client.library import Library, load
from nfsrdma_tools.client.memory import Dmabuf, Memory, behind, of_dmabuf, size_of
from nfsrdma_tools.client.transfer import (
    GRACE,
    Job,
    OpenFile,
    Owned,
    Queue,
    Ranges,
    Registration,
    Transfer,
    Uncopied,
    View,
)
from nfsrdma_tools.personalities import DEFAULT, PERSONALITIES

__all__ = ["Entry", "File", "Region", "Session", "Stats", "Terms", "connect"]

Path = str | bytes | os.PathLike[str]
"""Of a file on the server, below the directory of the session."""

_MODES = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "w+": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    "x+": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}
_VERSIONS = {"3": 3, "4.1": 41}
# bits of capabilities in the private data, see the list in kmod/personality.h
CAPABILITIES = tuple(name for name in PERSONALITIES if name != DEFAULT)
# NFSRDMA_OPTIMISTIC of lib/nfsrdma.h
_OPTIMISTIC = 0x40000000
_ARENA = 4 << 20
_DEPTH = 63
_BLOCK = 64 << 10
_LINK_MOST = 4097
_POSITION_MOST = 2**63 - 1
_LOOK_SECONDS = 0.25


class Terms(NamedTuple):
    """Properties of a connection; sizes are in bytes."""

    address: str
    """Of the server."""
    device: str
    """RDMA device of this host."""
    credits: int
    """Most requests that the server accepts at a time, from its last reply."""
    send_size: int
    """Largest message to the server without chunks (inline threshold)."""
    recv_size: int
    """Largest message from the server without chunks."""
    private_data: bool
    """Whether the server sent private data (RFC 8797)."""
    extended: bool
    """Whether the server is the module nfsrdma."""
    personalities: tuple[str, ...]
    """The requested one, if the server is nfsrdma and accepts it."""
    read_max: int
    """Largest read; 0 without an export."""
    write_max: int


class Stats(NamedTuple):
    """Counts of a session since it was opened; see struct nfsrdma_stats in lib/nfsrdma.h."""

    calls: int
    resent: int
    connects: int
    read_bytes: int
    written_bytes: int
    inlined: int
    direct: int
    copied: int
    doorbells: int
    by_reference: int
    no_reference: int
    renewals: int
    no_second: int
    paused: int
    refused: int
    second_lost: int
    second_connects: int
    grants: int
    revocations: int
    cached: int
    copied_bytes: int


class Entry(NamedTuple):
    """An entry of a directory."""

    name: str
    path: str
    inode: int
    stat: os.stat_result | None
    """Attributes of the entry itself; None if the server sent none."""

    def is_dir(self) -> bool:
        """Whether it is known to be a directory."""
        return self.stat is not None and stat.S_ISDIR(self.stat.st_mode)

    def is_file(self) -> bool:
        """Whether it is known to be a regular file."""
        return self.stat is not None and stat.S_ISREG(self.stat.st_mode)

    def is_symlink(self) -> bool:
        """Whether it is known to be a symbolic link."""
        return self.stat is not None and stat.S_ISLNK(self.stat.st_mode)


def connect(  # noqa: PLR0913 - the options of the library
    target: str,
    *,
    port: int = 0,
    depth: int = 0,
    inline_size: int = 0,
    timeout: float = 0,
    arena: int = 0,
    vers: str = "3",
    personality: str = "",
    optimistic: bool = False,
    cache: int = 0,
    direct: bool = False,
) -> Session:
    """Open a session with SERVER:/DIRECTORY, or with SERVER alone; an IPv6 address has brackets.

    ``timeout`` is in seconds.  ``vers`` is 3, or 4.1, which needs no mount daemon.
    A session that requests a ``personality`` of nfsrdma is for its terms only.  An ``optimistic``
    one reads the page cache of a server of nfsrdma by RDMA; ``cache`` is in bytes.  A ``direct``
    one has RDMA move all data of registered memory, however little it is.  0 selects the default of
    lib/nfsrdma.h, which explains the options.  OSError if the server cannot be reached, UserError
    if the library is not installed.
    """
    if vers not in _VERSIONS:
        raise ValueError(f"vers {vers!r}: one of {', '.join(_VERSIONS)}")
    library = load()
    options = {
        "size": library.ffi.sizeof("struct nfsrdma_options"),
        "port": port,
        "depth": depth,
        "inline_size": inline_size,
        "timeout": round(timeout * 1000),
        "arena": arena,
        "version": _VERSIONS[vers],
        "personality": 1 << CAPABILITIES.index(personality) if personality else 0,
        "optimistic": optimistic,
        "cache": cache,
        "interrupted": library.interrupts.callback,
        "direct": direct,
    }
    session = Session(library, target, arena or _ARENA, _OPTIMISTIC if optimistic else 0, depth)
    try:
        session._connect(library.ffi.new("struct nfsrdma_options *", options))
    except BaseException:
        session.close()
        raise
    return session


class Session(Uncopied):
    """A connection to a server.

    Threads may share a session, whose calls then wait for each other; for speed, open one in each.
    close() waits for a call in progress, and ends all transfers with an error.
    A process that was forked opens sessions of its own: calls fail with EOWNERDEAD there.
    """

    def __init__(
        self, library: Library, target: str, arena: int, open_flags: int = 0, depth: int = 0
    ) -> None:
        self.target, self._open_flags = target, open_flags
        self._library, self._ffi = library, library.ffi
        self._queue = Queue(library, depth or _DEPTH)
        self._pid = os.getpid()
        self._descriptor = -1
        self._timers: dict[asyncio.AbstractEventLoop, asyncio.TimerHandle | None] = {}
        # copies of data in the arena: room for several, so that they overlap
        self._part = max(_BLOCK, arena // 8)
        self._closing = False
        self._read_max = self._write_max = 0

    def _connect(self, options: Any) -> None:
        box = self._queue.session.box
        status = self._library.functions.nfsrdma_connect(_encoded(self.target), options, box)
        if status:
            raise self._library.error(status)
        self._library.interrupts.check()
        terms = self.terms
        self._read_max, self._write_max = terms.read_max, terms.write_max

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            # an interrupt: wait for nothing
            self._end()
        else:
            self.close()

    def __del__(self) -> None:
        # of a failed __init__, too; no other thread has the session, or it would not be deleted
        if getattr(self, "_timers", None) is None:
            return
        try:
            self._end()
        except BaseException:
            # Python drops an interrupt here, and nobody closes the session after this
            self._end()
            raise

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return not self._queue.session.exists

    @property
    def busy(self) -> bool:
        """Whether files or regions are open, or operations are unfinished."""
        queue = self._queue
        # not those that finalizers have dropped
        kept = (*queue.files.difference(queue.dropped), *queue.regions.difference(queue.dropped))
        return bool(kept) or queue.busy

    def close(self) -> None:
        """Close the session, its files and its regions.

        Transfers that are not done end with the error ECANCELED.  Data of files that are open is
        written to stable storage, as File.close() does: the first error is raised, when all are
        closed.  The server no longer reaches memory of this process then.
        """
        error = None
        if not self.closed and self._pid == os.getpid():
            queue = self._queue
            self._closing = True
            try:
                queue.settle(lambda _: True, "the session is closed", seconds=0)
                for file in [each for each in list(queue.files) if each.writable]:
                    # another thread may close the file, or the session
                    with contextlib.suppress(ValueError):
                        error = queue.commit(file) or error
            except BaseException:
                self._closing = False
                raise
        self._end()
        if error:
            raise error

    def _end(self) -> None:
        queue = self._queue
        if self._pid != os.getpid():
            # locks and transfers are those of the parent process
            queue.session.end("disconnect")
            return
        queue.want()
        with queue.lock:
            queue.have()
            if queue.session.exists:
                self._unwatch()
                for file in list(queue.files):
                    file.end("release")
            queue.session.end("disconnect")
            queue.end()
        self._library.interrupts.check()

    @property
    def terms(self) -> Terms:
        """The properties of the connection."""
        terms = self._library.sized("terms")
        self._call("terms", terms)
        bits = enumerate(CAPABILITIES)
        return Terms(
            address=self._ffi.string(terms.address).decode(),
            device=self._ffi.string(terms.device).decode(),
            credits=terms.credits,
            send_size=terms.send_size,
            recv_size=terms.recv_size,
            private_data=bool(terms.private_data),
            extended=bool(terms.extended),
            personalities=tuple(n for bit, n in bits if terms.personalities >> bit & 1),
            read_max=terms.read_max,
            write_max=terms.write_max,
        )

    @property
    def stats(self) -> Stats:
        """Counts of what the session did."""
        stats = self._library.sized("stats")
        self._call("stats", stats)
        return Stats(*(getattr(stats, name) for name in Stats._fields))

    def null(self) -> None:
        """Call the NULL procedure and wait for the reply."""
        self._call("null")

    # --- names ---

    def stat(self, path: Path) -> os.stat_result:
        """Attributes of a file; follows a symbolic link."""
        return self._stat("stat", path)

    def lstat(self, path: Path) -> os.stat_result:
        """Attributes of a file, or of a symbolic link itself."""
        return self._stat("lstat", path)

    def readlink(self, path: Path) -> str:
        """The text of a symbolic link."""
        buffer = self._ffi.new("char[]", _LINK_MOST)
        self._call("readlink", _encoded(path), buffer, _LINK_MOST)
        return os.fsdecode(self._ffi.string(buffer))

    def symlink(self, text: Path, path: Path) -> None:
        """Make a symbolic link that contains ``text``."""
        self._call("symlink", _encoded(text), _encoded(path))

    def mkdir(self, path: Path, mode: int = 0o777) -> None:
        """Make a directory; the umask applies."""
        self._call("mkdir", _encoded(path), mode)

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        self._call("rmdir", _encoded(path))

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        self._call("unlink", _encoded(path))

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or a directory; replaces an existing file."""
        self._call("rename", _encoded(source), _encoded(target))

    def truncate(self, path: Path, size: int) -> None:
        """Set the size of a file."""
        self._call("truncate", _encoded(path), size)

    def listdir(self, path: Path = "") -> list[str]:
        """The names in a directory, in the order of the server."""
        return [entry.name for entry in self.scandir(path)]

    def scandir(self, path: Path = "") -> Iterator[Entry]:
        """The entries of a directory, in the order of the server, without "." and ".."."""
        directory, text = Owned(self._library, "dir", "directory"), os.fsdecode(path)
        entry = self._library.sized("entry")
        try:
            self._call("opendir", _encoded(path), directory.box)
            while self._call("readdir", entry, of=directory):
                name = os.fsdecode(self._ffi.string(entry.name))
                # the library refuses them; no caller must ever join one with a folder of its own
                if name in ("", ".", "..") or "/" in name:
                    raise OSError(errno.EBADMSG, f"the server sent the name {name!r}")
                attributes = _attributes(entry.stat) if entry.has_stat else None
                yield Entry(name, os.path.join(text, name), entry.ino, attributes)  # noqa: PTH118
        finally:
            # the library keeps a directory without its session; it calls no server
            directory.end("closedir")

    def open(self, path: Path, mode: str | int = "r", permissions: int = 0o666) -> File:
        """Open a file for reading and writing bytes.

        ``mode`` is r, w, x, r+, w+ or x+ as for open(), with or without a b, or the flags of
        open(2).  The umask applies to ``permissions`` of a new file.
        """
        flags = _MODES.get(mode.replace("b", "")) if isinstance(mode, str) else mode
        if flags is None:
            raise ValueError(f"mode {mode!r}: one of {', '.join(_MODES)}")
        file = File(self, os.fsdecode(path), flags)
        words = (_encoded(path), flags | self._open_flags, permissions, file.opened.box)
        self._call("open", *words, keep=file.opened)
        return file

    # --- data ---

    def register(self, buffer: Any) -> Region:
        """Register the memory of a writable buffer, so that RDMA moves data without a copy.

        The buffer may be a tensor of a GPU, by __cuda_array_interface__ or DLPack: libcuda exports
        its memory, and reads and writes of the tensor, or of its parts, go there.  The caller waits
        for the GPU before.  OSError (EOPNOTSUPP) if the GPU or the RDMA device cannot do that.
        """
        return Region(self, buffer)

    def register_dmabuf(self, fd: int, offset: int, length: int, address: int) -> Region:
        """Register memory of a dma-buf, which Region.memory() names for reads and writes.

        ``address`` is any one that no other memory of the process has, such as a device pointer; as
        ``offset``, it is the address of a page plus the same number of bytes.  The processor does
        not touch it.  The descriptor may be closed after the call.
        """
        return Region(self, *of_dmabuf(fd, offset, length, address))

    def start_read(self, ranges: Iterable[tuple[File, int, int]], out: Any) -> Transfer:
        """Start to read ranges (file, offset, length) one behind the other into ``out``."""
        return self._started("read", ranges, out)

    def start_write(self, ranges: Iterable[tuple[File, int, int]], data: Any) -> Transfer:
        """Start to write ``data`` to ranges (file, offset, length), one behind the other."""
        return self._started("write", ranges, data)

    def read_ranges(self, ranges: Iterable[tuple[File, int, int]], out: Any) -> list[int]:
        """Read ranges (file, offset, length) one behind the other into ``out``.

        Returns the bytes read of each, fewer than requested at the end of a file.  ``out`` is a
        writable buffer, such as a bytearray, a memoryview or a numpy array.
        """
        return self._moved("read", ranges, out)

    def write_ranges(self, ranges: Iterable[tuple[File, int, int]], data: Any) -> list[int]:
        """Write ``data`` to ranges (file, offset, length); returns the bytes written of each."""
        return self._moved("write", ranges, data)

    async def read_ranges_async(
        self, ranges: Iterable[tuple[File, int, int]], out: Any
    ) -> list[int]:
        """As read_ranges(), without blocking the event loop."""
        return await self._finish(self.start_read(ranges, out))

    async def write_ranges_async(
        self, ranges: Iterable[tuple[File, int, int]], data: Any
    ) -> list[int]:
        """As write_ranges(), without blocking the event loop."""
        return await self._finish(self.start_write(ranges, data))

    def _read_once(self, file: OpenFile, buffer: Any, offset: int) -> tuple[int, bool]:
        """Read by a call that waits, if that takes one RPC.

        Returns the bytes read, and whether the buffer is full or the file ends with them.
        """
        view = View(self._library, buffer, writable=True)
        try:
            if offset < 0:
                raise ValueError("an offset is negative")
            self._check_process()
            queue = self._queue
            queue.want()
            with queue.lock:
                self._enter([file])
                is_long = view.size > self._part
                registered = (is_long or view.on_device) and queue.is_registered(view)
                if view.on_device:
                    view.check(registered)
                if view.size > self._read_max or (is_long and not registered):
                    return 0, False
                functions = self._library.functions
                count = int(functions.nfsrdma_pread(file.handle, view.memory, view.size, offset))
                if count < 0:
                    raise self._library.error(count, file.path)
                # completions of transfers that arrived meanwhile
                if queue.busy:
                    queue.take()
                self._library.interrupts.check()
                return count, count == view.size or functions.nfsrdma_eof(file.handle) == 1
        finally:
            view.release()

    def _started(self, kind: str, ranges: Iterable[tuple[File, int, int]], data: Any) -> Transfer:
        files, placed, view = self._placed(kind, ranges, data)
        return Transfer(self, self._queue, self._start(kind, placed, view), files)

    def _moved(self, kind: str, ranges: Iterable[tuple[File, int, int]], data: Any) -> list[int]:
        """The same, and wait: without an object that an interrupt could lose."""
        _, placed, view = self._placed(kind, ranges, data)
        queue = self._queue
        try:
            job = self._start(kind, placed, view)
            queue.wait(lambda: job.done)
        except BaseException:
            queue.settle(lambda job: job.view is view, "the transfer was stopped", GRACE)
            raise
        return job.counts()

    def _placed(
        self, kind: str, ranges: Iterable[tuple[File, int, int]], data: Any
    ) -> tuple[set[File], Ranges, View]:
        """The files, and what the library needs of ranges and memory."""
        files, offsets, lengths = tuple(zip(*ranges, strict=True)) or ((), (), ())
        if min(offsets, default=0) < 0 or min(lengths, default=0) < 0:
            raise ValueError("an offset or a length is negative")
        # no operation of the library would find it out
        if 0 in lengths:
            _check_mode(kind, files)
        total = sum(lengths)
        view = View(self._library, data, writable=kind == "read")
        if total > view.size:
            raise ValueError(f"the buffer has {view.size} bytes, the ranges have {total}")
        return set(files), Ranges([file.opened for file in files], offsets, lengths), view

    def _start(self, kind: str, ranges: Ranges, view: View) -> Job:
        self._check_process()
        queue = self._queue
        queue.want()
        with queue.lock:
            self._enter(set(ranges.files))
            most = self._write_max if kind == "write" else self._read_max
            registered = queue.is_registered(view)
            view.check(registered)
            most = most if registered else min(most, self._part)
            return queue.start(kind, ranges, view, most)

    def _enter(self, files: Iterable[OpenFile] = ()) -> Any:
        """Begin a call with the lock held; returns the session of the library.

        ValueError if the session is closed, or if it does not have one of the files.
        """
        queue = self._queue
        queue.have()
        if self._closing:
            raise ValueError("the session is closed")
        handle = queue.session.handle
        for file in files:
            if file not in queue.files:
                file.handle  # noqa: B018 - ValueError if it is closed
                raise ValueError(f"{file.path} is a file of another session")
        queue.recover()
        return handle

    # --- asyncio ---

    async def _finish(self, transfer: Transfer) -> list[int]:
        """Wait for a transfer in the running event loop."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        transfer.call_when_done(lambda: _wake(loop, future))
        try:
            while not transfer._job.done:
                self._watch(loop)
                await asyncio.wait([future], timeout=_LOOK_SECONDS * 4)
        except BaseException:
            # the server still writes to the memory: the caller gets it back after that
            transfer.stop()
            if not transfer._job.done:
                await asyncio.wait([future], timeout=GRACE)
            raise
        return transfer.counts()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have a loop, which is that of this thread, poll when the descriptor is readable."""
        if loop not in self._timers:
            for other in [each for each in self._timers if each.is_closed()]:
                self._timers.pop(other, None)
            with self._queue.lock:
                handle = self._queue.session.handle
                self._descriptor = self._library.functions.nfsrdma_fd(handle)
                self._timers[loop] = None
            loop.add_reader(self._descriptor, self._queue.poll)
        self._queue.poll()
        self._look_later(loop)

    def _unwatch(self) -> None:
        """With the lock held."""
        for loop, timer in list(self._timers.items()):
            if not loop.is_closed():
                _in_loop(loop, functools.partial(self._forget, loop, timer))
            self._timers.pop(loop, None)

    def _forget(self, loop: asyncio.AbstractEventLoop, timer: asyncio.TimerHandle | None) -> None:
        if timer:
            timer.cancel()
        loop.remove_reader(self._descriptor)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """Poll from time to time: timeouts make no event, and other calls take completions."""
        if loop in self._timers and not self._timers[loop] and self._queue.busy:
            self._timers[loop] = loop.call_later(_LOOK_SECONDS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop in self._timers:
            self._timers[loop] = None
            self._queue.poll()
            self._look_later(loop)

    # --- calls ---

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            text = "the session belongs to the parent process: open another one"
            raise OSError(errno.EOWNERDEAD, text)

    def _call(
        self, name: str, *words: Any, of: Owned | None = None, keep: Owned | None = None
    ) -> int:
        """Call a function of the library; OSError for a negative result.

        The first argument is the session, or ``of``; ``keep`` is a file or region that is made.
        """
        self._check_process()
        function: Callable[..., int] = getattr(self._library.functions, f"nfsrdma_{name}")
        queue = self._queue
        queue.want()
        with queue.lock:
            handle = self._enter()
            try:
                queue.keep(keep)
                result = function(of.handle if of else handle, *words)
                if result < 0:
                    raise self._library.error(result)
                self._library.interrupts.check()
            finally:
                queue.forget(keep)
        return result

    def _close_file(self, file: OpenFile, seconds: float | None = None) -> Exception | None:
        """Close a file on stable storage; returns an error of that.

        ``seconds``: wait so long for the operations that the server has, and for nothing else.
        """
        queue = self._queue
        if self._pid != os.getpid():
            file.end("release")
            return None
        queue.settle(lambda job: job.uses(file), "the file is closed", seconds)
        error = queue.commit(file) if file.writable and seconds is None else None
        with queue.lock:
            if queue.session.exists:
                file.end("release")
            queue.forget(file)
        return error

    def _close_region(self, region: Registration, seconds: float | None = None) -> int:
        queue = self._queue
        if self._pid != os.getpid():
            return 0

        def uses(job: Job) -> bool:
            return job.view is not None and job.view.overlaps(region.view)

        queue.settle(uses, "the region is closed", seconds)
        with queue.lock:
            queue.drop_users(region)
            status = region.unregister() if queue.session.exists else 0
            queue.forget(region)
        return status

    def _stat(self, name: str, path: Path) -> os.stat_result:
        box = self._ffi.new("struct stat *")
        self._call(name, _encoded(path), box)
        return _attributes(box)


class File(Uncopied, io.RawIOBase):
    """An open file of bytes with a position, as io.FileIO, and reads and writes at offsets."""

    def __init__(self, session: Session, path: str, flags: int) -> None:
        super().__init__()
        self._session, self._flags = session, flags
        self.path, self._position = path, 0
        self.opened = OpenFile(session._library, path, self.writable())
        """The library's open file."""

    def __del__(self) -> None:
        # runs in any thread, at any place
        opened: OpenFile | None = getattr(self, "opened", None)
        if opened and opened.exists:
            self._session._queue.dropped.append(opened)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        self._close(GRACE if interrupted else None)

    @property
    def name(self) -> str:
        """Server, directory and path."""
        return f"{self._session.target.rstrip('/')}/{self.path}"

    def close(self) -> None:
        """Close the file, and have the server write it to stable storage: OSError as fsync().

        Transfers that use the file are stopped, and raise an error; the call waits for the
        operations that the server has.  A file that is dropped is closed without all that.
        """
        self._close()

    def _close(self, seconds: float | None = None) -> None:
        # also after an __init__ that failed
        opened: OpenFile | None = getattr(self, "opened", None)
        error = None
        if opened and opened.exists:
            with contextlib.suppress(ValueError):
                error = self._session._close_file(opened, seconds)
        super().close()
        if error:
            raise error

    def readable(self) -> bool:
        """Whether it is open for reading."""
        return self._flags & os.O_ACCMODE != os.O_WRONLY

    def writable(self) -> bool:
        """Whether it is open for writing."""
        return self._flags & os.O_ACCMODE != os.O_RDONLY

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """The position."""
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position; returns it."""
        self._check_open()
        bases = {os.SEEK_SET: lambda: 0, os.SEEK_CUR: self.tell, os.SEEK_END: self.size}
        if whence not in bases:
            raise ValueError(f"whence {whence}: one of {', '.join(map(str, bases))}")
        position = operator.index(offset) + bases[whence]()
        if not 0 <= position <= _POSITION_MOST:
            raise OSError(errno.EINVAL, f"the position would be {position}")
        self._position = position
        return position

    def size(self) -> int:
        """Bytes of the file, as the server reports them now."""
        return self.stat().st_size

    def stat(self) -> os.stat_result:
        """Attributes of the file."""
        box = self._session._ffi.new("struct stat *")
        self._session._call("fstat", box, of=self.opened)
        return _attributes(box)

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file, by default to the position."""
        size = self._position if size is None else size
        self._session._call("ftruncate", size, of=self.opened)
        return size

    def fsync(self) -> None:
        """Have the server write the file to stable storage; OSError EIO if it lost data.

        Waits for the writes of this file that were started before.
        """
        self._session._check_process()
        error = self._session._queue.commit(self.opened)
        if error:
            raise error

    def readinto(self, buffer: Any) -> int:
        """Read at the position; returns the bytes read, fewer at the end of the file."""
        count = self.pread_into(buffer, self._position)
        self._position += count
        return count

    def read(self, size: int | None = -1, /) -> bytes:
        """Read at most ``size`` bytes at the position; to the end if it is None or negative."""
        if size is None or size < 0:
            return self.readall()
        data = self.pread(size, self._position)
        self._position += len(data)
        return data

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")

    def readall(self) -> bytes:
        """Read from the position to the end of the file."""
        data = self.pread(max(0, self.size() - self._position), self._position)
        self._position += len(data)
        return data

    def write(self, data: Any) -> int:
        """Write at the position; returns the bytes written."""
        count = self.pwrite(data, self._position)
        self._position += count
        return count

    def pread(self, count: int, offset: int) -> bytes:
        """Read bytes at an offset, fewer at the end of the file."""
        data = bytearray(count)
        return bytes(memoryview(data)[: self.pread_into(data, offset)])

    def pread_into(self, buffer: Any, offset: int) -> int:
        """Read at an offset until the buffer is full or the file ends; returns the bytes read."""
        session = self._session
        count, is_all = session._read_once(self.opened, buffer, offset)
        if is_all:
            return count
        # more than one RPC, or a later part failed
        size = size_of(buffer)
        rest = behind(buffer, count) if count else buffer
        if rest is None:
            count, rest = 0, buffer
        return count + session.read_ranges([(self, offset + count, size - count)], rest)[0]

    def pwrite(self, data: Any, offset: int) -> int:
        """Write all data at an offset; returns the bytes written."""
        size = size_of(data)
        return self._session.write_ranges([(self, offset, size)], data)[0]

    async def readinto_async(self, buffer: Any, offset: int) -> int:
        """As pread_into(), without blocking the event loop."""
        size = size_of(buffer)
        return (await self._session.read_ranges_async([(self, offset, size)], buffer))[0]

    async def pread_async(self, count: int, offset: int) -> bytes:
        """As pread(), without blocking the event loop."""
        data = bytearray(count)
        return bytes(memoryview(data)[: await self.readinto_async(data, offset)])

    async def pwrite_async(self, data: Any, offset: int) -> int:
        """As pwrite(), without blocking the event loop."""
        size = size_of(data)
        return (await self._session.write_ranges_async([(self, offset, size)], data))[0]


class Region(Uncopied):
    """Registered memory: RDMA moves data of reads and writes from and to it without a copy.

    The server of the session can read and write the memory until close().
    """

    def __init__(self, session: Session, buffer: Any, dmabuf: Dmabuf | None = None) -> None:
        self._session = session
        view = View(session._library, buffer, writable=True)
        self._owned = Registration(session._library, view)
        try:
            with view.to_register(dmabuf) as (name, words):
                session._call(name, *words, self._owned.box, keep=self._owned)
        except BaseException:
            self._close(0)
            raise

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        self._close(GRACE if interrupted else None)

    def __del__(self) -> None:
        # runs in any thread, at any place
        owned: Registration | None = getattr(self, "_owned", None)
        if owned and owned.exists:
            self._session._queue.dropped.append(owned)

    def memory(self, offset: int = 0, length: int | None = None) -> Memory:
        """A part of the memory, by default all, for reads and writes in place of a buffer."""
        return self._owned.view.part(offset, length, owner=self)

    def close(self) -> None:
        """End the registration.

        Transfers that use the memory are stopped, and raise an error; the call waits for the
        operations that the server has.
        """
        self._close()

    def _close(self, seconds: float | None = None) -> None:
        """The same; after ``seconds``, a later call of the session unregisters the memory."""
        status = self._session._close_region(self._owned, seconds) if self._owned.exists else 0
        if status == 0:
            self._owned.view.release()
        elif seconds is None:
            raise self._session._library.error(status)


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Call something in the thread of an event loop: at once, if that is this one."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop or not loop.is_running():
        call()
    else:
        # the loop may end meanwhile
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(call)


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    # a loop that has ended has nobody who waits
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_set_done, future)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _check_mode(kind: str, files: Iterable[File]) -> None:
    """OSError EBADF if a file is not open for reads, or writes."""
    for file in set(files):
        if not (file.writable() if kind == "write" else file.readable()):
            raise OSError(errno.EBADF, "the file is not open for this", file.path)


def _encoded(path: Path) -> bytes:
    text = os.fsencode(path)
    if b"\0" in text:
        raise ValueError("embedded null byte")
    return text


def _attributes(status: Any) -> os.stat_result:
    """A struct stat as Python's."""
    names = ("mode", "ino", "dev", "nlink", "uid", "gid", "size")
    times = [(name, getattr(status, f"st_{name[0]}tim")) for name in ("atime", "mtime", "ctime")]
    more = {f"st_{name}": t.tv_sec + t.tv_nsec / 1e9 for name, t in times}
    more |= {f"st_{name}_ns": t.tv_sec * 10**9 + t.tv_nsec for name, t in times}
    more |= {f"st_{name}": getattr(status, f"st_{name}") for name in ("blksize", "blocks", "rdev")}
    seconds = [t.tv_sec for _, t in times]
    return os.stat_result((*(getattr(status, f"st_{name}") for name in names), *seconds), more)
