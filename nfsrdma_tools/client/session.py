# SPDX-License-Identifier: Apache-2.0
"""Sessions, files and registered memory of a server that is reached without a mount."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import stat
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

from nfsrdma_tools.client.library import Library, load
from nfsrdma_tools.client.transfer import Queue, Range, Transfer, View

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
# bit of a capability in the private data, see enum nfr_variant in kmod/variants.h
PERSONALITIES = ("read-read", "padded", "pre-posted", "cached", "optimistic")
# NFSRDMA_OPTIMISTIC of lib/nfsrdma.h
_OPTIMISTIC = 0x40000000
_ARENA = 4 << 20
_BLOCK = 64 << 10
_LINK_MOST = 4097
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
) -> Session:
    """Open a session with SERVER:/DIRECTORY, or with SERVER alone; an IPv6 address has brackets.

    ``timeout`` is in seconds.  ``vers`` is 3, or 4.1, which needs no mount daemon and only reads.
    A session that requests a ``personality`` of nfsrdma is for its terms only.  An ``optimistic``
    one reads the page cache of a server of nfsrdma by RDMA; ``cache`` is in bytes.  0 selects the
    default of lib/nfsrdma.h, which explains the options.  OSError if the server
    cannot be reached, UserError if the library is not installed.
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
        "personality": 1 << PERSONALITIES.index(personality) if personality else 0,
        "optimistic": optimistic,
        "cache": cache,
    }
    wanted = library.ffi.new("struct nfsrdma_options *", options)
    handle = library.ffi.new("struct nfsrdma_session **")
    status = library.functions.nfsrdma_connect(_encoded(target), wanted, handle)
    if status:
        raise library.error(status)
    flags = _OPTIMISTIC if optimistic else 0
    return Session(library, handle[0], target, arena or _ARENA, flags)


class Session:
    """A connection to a server.

    Threads may share a session, whose calls then wait for each other; for speed, open one in each.
    A process that was forked opens sessions of its own: calls fail with EOWNERDEAD there.
    """

    def __init__(
        self, library: Library, handle: Any, target: str, arena: int, open_flags: int = 0
    ) -> None:
        self.target, self._open_flags = target, open_flags
        self._library, self._ffi, self._handle = library, library.ffi, handle
        self._queue = Queue(library, handle)
        self._pid = os.getpid()
        self._opened: weakref.WeakSet[File | Region] = weakref.WeakSet()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        # copies of data in the arena: room for several, so that they overlap
        self._part = max(_BLOCK, arena // 8)
        self._read_max, self._write_max = self.terms.read_max, self.terms.write_max

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # of a failed __init__, too
        if getattr(self, "_handle", None):
            self.close()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return not self._handle

    def close(self) -> None:
        """Close the session, its files and its regions."""
        if not self._handle:
            return
        if self._pid == os.getpid():
            self._unwatch()
            self._queue.drain()
        with contextlib.ExitStack() as stack:
            handle, functions = self._handle, self._library.functions
            stack.callback(functions.nfsrdma_disconnect, handle)
            stack.callback(setattr, self, "_handle", None)
            # the first file whose close fails is the exception; all are closed
            if self._pid == os.getpid():
                for each in list(self._opened):
                    stack.callback(each.close)

    @property
    def terms(self) -> Terms:
        """The properties of the connection."""
        terms = self._library.sized("terms")
        self._void("terms", terms)
        bits = enumerate(PERSONALITIES)
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
        self._void("stats", stats)
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
        with contextlib.ExitStack() as stack:
            box = self._ffi.new("struct nfsrdma_dir **")
            self._call("opendir", _encoded(path), box)
            stack.callback(self._library.functions.nfsrdma_closedir, box[0])
            found, text = self._library.sized("entry"), os.fsdecode(path)
            while self._call("readdir", of=(box[0], found)):
                name = os.fsdecode(self._ffi.string(found.name))
                # the library refuses them; no caller must ever join one with a folder of its own
                if name in ("", ".", "..") or "/" in name:
                    raise OSError(errno.EBADMSG, f"the server sent the name {name!r}")
                attributes = _attributes(found.stat) if found.has_stat else None
                yield Entry(name, os.path.join(text, name), found.ino, attributes)  # noqa: PTH118

    def open(self, path: Path, mode: str | int = "r", permissions: int = 0o666) -> File:
        """Open a file for reading and writing bytes.

        ``mode`` is r, w, x, r+, w+ or x+ as for open(), with or without a b, or the flags of
        open(2).  The umask applies to ``permissions`` of a new file.
        """
        flags = _MODES.get(mode.replace("b", "")) if isinstance(mode, str) else mode
        if flags is None:
            raise ValueError(f"mode {mode!r}: one of {', '.join(_MODES)}")
        box = self._ffi.new("struct nfsrdma_file **")
        self._call("open", _encoded(path), flags | self._open_flags, permissions, box)
        return File(self, box[0], os.fsdecode(path), flags)

    # --- data ---

    def register(self, buffer: Any) -> Region:
        """Register the memory of a writable buffer, so that RDMA moves data without a copy."""
        return Region(self, buffer)

    def start_read(self, ranges: Sequence[tuple[File, int, int]], out: Any) -> Transfer:
        """Start to read ranges (file, offset, length) one behind the other into ``out``."""
        return self._start(ranges, out, write=False)

    def start_write(self, ranges: Sequence[tuple[File, int, int]], data: Any) -> Transfer:
        """Start to write ``data`` to ranges (file, offset, length), one behind the other."""
        return self._start(ranges, data, write=True)

    def read_ranges(self, ranges: Sequence[tuple[File, int, int]], out: Any) -> list[int]:
        """Read ranges (file, offset, length) one behind the other into ``out``.

        Returns the bytes read of each, fewer than requested at the end of a file.  ``out`` is a
        writable buffer, such as a bytearray, a memoryview or a numpy array.
        """
        return self.start_read(ranges, out).result()

    def write_ranges(self, ranges: Sequence[tuple[File, int, int]], data: Any) -> list[int]:
        """Write ``data`` to ranges (file, offset, length); returns the bytes written of each."""
        return self.start_write(ranges, data).result()

    async def read_ranges_async(
        self, ranges: Sequence[tuple[File, int, int]], out: Any
    ) -> list[int]:
        """As read_ranges(), without blocking the event loop."""
        return await self._finish(self.start_read(ranges, out))

    async def write_ranges_async(
        self, ranges: Sequence[tuple[File, int, int]], data: Any
    ) -> list[int]:
        """As write_ranges(), without blocking the event loop."""
        return await self._finish(self.start_write(ranges, data))

    def _start(self, ranges: Sequence[tuple[File, int, int]], buffer: Any, write: bool) -> Transfer:
        self._check()
        total = sum(length for _, _, length in ranges)
        if any(offset < 0 or length < 0 for _, offset, length in ranges):
            raise ValueError("an offset or a length is negative")
        view = View(self._library, buffer, writable=not write)
        if total > view.size:
            raise ValueError(f"the buffer has {view.size} bytes, the ranges have {total}")
        placed, place = [], 0
        for file, offset, length in ranges:
            placed.append(Range(file.handle, file.path, offset, length, place))
            place += length
        transfer = Transfer(self, self._queue, placed, view, write)
        most = self._write_max if write else self._read_max
        self._queue.start(transfer, most if self._is_registered(view) else min(most, self._part))
        return transfer

    def _is_registered(self, view: View) -> bool:
        regions = (each for each in self._opened if isinstance(each, Region))
        return any(region.has(view) for region in regions)

    # --- asyncio ---

    async def _finish(self, transfer: Transfer) -> list[int]:
        """Wait for a transfer in the running event loop."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        transfer.when_done = lambda: loop.call_soon_threadsafe(_set_done, future)
        if not transfer.done:
            self._watch(loop)
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError:
                # the server still writes to the memory: the caller gets it back after that
                transfer.stop()
                await asyncio.wait([future])
                raise
        return transfer.counts()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            self._unwatch()
            self._loop = loop
            loop.add_reader(self._library.functions.nfsrdma_fd(self._handle), self._readable)
        self._readable()
        self._look_later()

    def _unwatch(self) -> None:
        loop, self._loop = self._loop, None
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if loop and not loop.is_closed():
            loop.remove_reader(self._library.functions.nfsrdma_fd(self._handle))

    def _readable(self) -> None:
        self._queue.poll()

    def _look_later(self) -> None:
        """Poll from time to time: timeouts make no event, and other calls take completions."""
        if self._loop and not self._timer and self._queue.busy:
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        self._queue.poll()
        self._look_later()

    # --- calls ---

    def _check(self) -> None:
        if not self._handle:
            raise ValueError("the session is closed")
        if self._pid != os.getpid():
            text = "the session belongs to the parent process: open another one"
            raise OSError(errno.EOWNERDEAD, text)

    def _close_file(self, handle: Any) -> None:
        functions = self._library.functions
        if self._pid != os.getpid():
            functions.nfsrdma_release(handle)
            return
        self._queue.settle(handle)
        status = functions.nfsrdma_close(handle)
        if status < 0:
            raise self._library.error(status)

    def _void(self, name: str, box: Any) -> None:
        self._check()
        with self._queue.lock:
            getattr(self._library.functions, f"nfsrdma_{name}")(self._handle, box)

    def _call(self, name: str, *words: Any, of: tuple[Any, ...] = ()) -> int:
        """Call a function of the library; OSError for a negative result.

        The first argument is the session, or those are ``of``.
        """
        self._check()
        function: Callable[..., int] = getattr(self._library.functions, f"nfsrdma_{name}")
        with self._queue.lock:
            result = function(*(of or (self._handle,)), *words)
            if result < 0:
                raise self._library.error(result)
        return result

    def _stat(self, name: str, path: Path) -> os.stat_result:
        box = self._ffi.new("struct stat *")
        self._call(name, _encoded(path), box)
        return _attributes(box)


class File(io.RawIOBase):
    """An open file of bytes with a position, as io.FileIO, and reads and writes at offsets."""

    def __init__(self, session: Session, handle: Any, path: str, flags: int) -> None:
        super().__init__()
        self._session, self._handle, self._flags = session, handle, flags
        self.path, self._position = path, 0
        session._opened.add(self)

    @property
    def name(self) -> str:
        """Server, directory and path."""
        return f"{self._session.target.rstrip('/')}/{self.path}"

    @property
    def handle(self) -> Any:
        """The library's file.  ValueError if it is closed."""
        self._session._check()
        if self.closed:
            raise ValueError("the file is closed")
        return self._handle

    def close(self) -> None:
        """Close the file, and have the server write it to stable storage: OSError as fsync()."""
        try:
            # also after an __init__ that failed
            if not self.closed and getattr(self, "_handle", None):
                handle, self._handle = self._handle, None
                self._session._opened.discard(self)
                if not self._session.closed:
                    self._session._close_file(handle)
        finally:
            super().close()

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
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position; returns it."""
        bases = {os.SEEK_SET: lambda: 0, os.SEEK_CUR: self.tell, os.SEEK_END: self.size}
        position = bases[whence]() + offset
        if position < 0:
            raise OSError(errno.EINVAL, "a negative position")
        self._position = position
        return position

    def size(self) -> int:
        """Bytes of the file, as the server reports them now."""
        return self.stat().st_size

    def stat(self) -> os.stat_result:
        """Attributes of the file."""
        box = self._session._ffi.new("struct stat *")
        self._session._call("fstat", of=(self.handle, box))
        return _attributes(box)

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file, by default to the position."""
        size = self._position if size is None else size
        self._session._call("ftruncate", of=(self.handle, size))
        return size

    def fsync(self) -> None:
        """Have the server write the file to stable storage; OSError EIO if it lost data."""
        self._session._call("fsync", of=(self.handle,))

    def readinto(self, buffer: Any) -> int:
        """Read at the position; returns the bytes read, fewer at the end of the file."""
        count = self.pread_into(buffer, self._position)
        self._position += count
        return count

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
        size = memoryview(buffer).nbytes
        return self._session.read_ranges([(self, offset, size)], buffer)[0]

    def pwrite(self, data: Any, offset: int) -> int:
        """Write all data at an offset; returns the bytes written."""
        size = memoryview(data).nbytes
        return self._session.write_ranges([(self, offset, size)], data)[0]

    async def readinto_async(self, buffer: Any, offset: int) -> int:
        """As pread_into(), without blocking the event loop."""
        size = memoryview(buffer).nbytes
        return (await self._session.read_ranges_async([(self, offset, size)], buffer))[0]

    async def pread_async(self, count: int, offset: int) -> bytes:
        """As pread(), without blocking the event loop."""
        data = bytearray(count)
        return bytes(memoryview(data)[: await self.readinto_async(data, offset)])

    async def pwrite_async(self, data: Any, offset: int) -> int:
        """As pwrite(), without blocking the event loop."""
        size = memoryview(data).nbytes
        return (await self._session.write_ranges_async([(self, offset, size)], data))[0]


class Region:
    """Registered memory: RDMA moves data of reads and writes from and to it without a copy.

    The server of the session can read and write the memory until close().
    """

    def __init__(self, session: Session, buffer: Any) -> None:
        session._check()
        self._session, self._handle = session, None
        self._view = View(session._library, buffer, writable=True)
        box = session._ffi.new("struct nfsrdma_region **")
        try:
            session._call("register", self._view.memory, self._view.size, box)
        except BaseException:
            self._view.release()
            raise
        self._handle = box[0]
        session._opened.add(self)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def has(self, view: View) -> bool:
        """Whether all of a view is part of the region."""
        start = view.address - self._view.address
        return 0 <= start <= self._view.size - view.size

    def close(self) -> None:
        """End the registration.  OSError EBUSY while reads or writes use the memory."""
        if not self._handle:
            return
        if not self._session.closed and self._session._pid == os.getpid():
            self._session._call("unregister", of=(self._handle,))
        self._handle = None
        self._session._opened.discard(self)
        self._view.release()


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _encoded(path: Path) -> bytes:
    text = os.fsencode(path)
    if b"\0" in text:
        raise ValueError("embedded null byte")
    return text


def _attributes(found: Any) -> os.stat_result:
    """A struct stat as Python's."""
    names = ("mode", "ino", "dev", "nlink", "uid", "gid", "size")
    times = [(name, getattr(found, f"st_{name[0]}tim")) for name in ("atime", "mtime", "ctime")]
    more = {f"st_{name}": t.tv_sec + t.tv_nsec / 1e9 for name, t in times}
    more |= {f"st_{name}_ns": t.tv_sec * 10**9 + t.tv_nsec for name, t in times}
    more |= {f"st_{name}": getattr(found, f"st_{name}") for name in ("blksize", "blocks", "rdev")}
    seconds = [t.tv_sec for _, t in times]
    return os.stat_result((*(getattr(found, f"st_{name}") for name in names), *seconds), more)
