# SPDX-License-Identifier: Apache-2.0
"""A stand-in for libnfsrdma: the functions of its header over a tree of files in memory.

It completes operations in another order than they were prepared in, and has a small queue.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cffi

from nfsrdma_tools.client.library import Interrupts, Library, declarations

__all__ = ["Node", "StandIn"]


@functools.cache
def ffi() -> Any:
    made = cffi.FFI()
    made.cdef(declarations())
    return made


@dataclass
class Node:
    """A file, a directory or a link of the server."""

    data: bytearray = field(default_factory=bytearray)
    mode: int = stat.S_IFREG | 0o644
    mtime: int = 1_700_000_000

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


@dataclass
class StandIn:
    """Functions that cffi would find in the library; a name without ``nfsrdma_`` is a method."""

    nodes: dict[str, Node] = field(default_factory=dict)
    """By path; the server exports "/export"."""
    depth: int = 5
    read_max: int = 4096
    short: bool = False
    """Whether the server returns fewer bytes than requested."""
    failing: dict[int, int] = field(default_factory=dict)
    """Errors of operations by their offset."""
    names: dict[str, list[bytes]] = field(default_factory=dict)
    """Names that a hostile server lists in a directory."""
    exports: tuple[str, ...] = ("/export",)
    mount_daemon: int = 0
    """The error of NFSv3, if any."""
    refuses: int = 0
    """The error of connect(), if any."""
    fsync_errors: list[int] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    waits: int = 0
    text: bytes = b""

    def __post_init__(self) -> None:
        self.nodes.setdefault("/export", Node(mode=stat.S_IFDIR | 0o755))
        self.roots: dict[int, str] = {}
        self.files: dict[int, str] = {}
        self.dirs: dict[int, list[str]] = {}
        self.open_flags: list[int] = []
        self.registered: list[tuple[int, int]] = []
        self.prepared: list[tuple[int, int]] = []
        self.completed: list[tuple[int, int]] = []
        self.next = 1
        self.random = random.Random(47)  # noqa: S311
        self.event = os.eventfd(0, os.EFD_NONBLOCK)

    @property
    def library(self) -> Library:
        return Library(ffi(), self, Interrupts(ffi()))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nfsrdma_"):
            raise AttributeError(name)
        function = getattr(self, "do_" + name.removeprefix("nfsrdma_"))

        def called(*words: Any) -> Any:
            self.calls.append(name.removeprefix("nfsrdma_"))
            return function(*words)

        return called

    def _fail(self, error: int, text: str = "") -> int:
        self.text = (text or os.strerror(error)).encode()
        return -error

    def _handle(self, kind: str, table: dict[int, Any], value: Any) -> Any:
        self.next += 1
        table[self.next] = value
        return ffi().cast(f"struct nfsrdma_{kind} *", self.next)

    def _of(self, table: dict[int, Any], handle: Any) -> Any:
        return table[int(ffi().cast("uintptr_t", handle))]

    def _path(self, session: Any, path: bytes) -> str:
        root = self._of(self.roots, session)
        return f"{root}/{os.fsdecode(path)}".rstrip("/")

    # --- sessions ---

    def do_message(self) -> Any:
        self.kept = ffi().new("char[]", self.text)
        return self.kept

    def do_connect(self, target: bytes, options: Any, box: Any) -> int:
        names = ("port", "timeout", "arena", "version", "personality", "optimistic", "cache")
        self.options = {name: getattr(options, name) for name in names}
        if self.refuses:
            return self._fail(self.refuses, "the server refuses")
        if self.mount_daemon and options.version == 3:
            return self._fail(self.mount_daemon, "the mount daemon refuses this port")
        directory = os.fsdecode(target).partition(":/")[2]
        path = f"/{directory}".rstrip("/")
        if directory and not any(f"{path}/".startswith(f"{each}/") for each in self.exports):
            return self._fail(errno.EACCES, "the mount daemon refuses it")
        if directory and path not in self.nodes:
            return self._fail(errno.ENOENT)
        box[0] = self._handle("session", self.roots, path)
        return 0

    def do_disconnect(self, session: Any) -> int:
        del self.roots[int(ffi().cast("uintptr_t", session))]
        assert not self.files
        assert not self.dirs
        assert not self.registered
        return 0

    def do_null(self, _session: Any) -> int:
        return 0

    def do_terms(self, _session: Any, terms: Any) -> int:
        terms.credits, terms.send_size, terms.recv_size = 32, 4096, 8192
        terms.private_data = terms.extended = 1
        # padded and optimistic
        terms.personalities = 0b10010 & self.options["personality"]
        terms.read_max = terms.write_max = self.read_max
        terms.address, terms.device = b"10.9.1.1", b"rxe0"
        return 0

    def do_stats(self, _session: Any, stats: Any) -> int:
        stats.calls, stats.doorbells = 7, 3
        return 0

    def do_fd(self, _session: Any) -> int:
        return self.event

    # --- names ---

    def _fill(self, node: Node, found: Any) -> int:
        found.st_mode, found.st_size, found.st_nlink = node.mode, len(node.data), 1
        found.st_ino, found.st_mtim.tv_sec, found.st_mtim.tv_nsec = id(node), node.mtime, 5
        return 0

    def do_stat(self, session: Any, path: bytes, found: Any) -> int:
        node = self.nodes.get(self._path(session, path))
        return self._fill(node, found) if node else self._fail(errno.ENOENT)

    do_lstat = do_stat

    def do_mkdir(self, session: Any, path: bytes, mode: int) -> int:
        name = self._path(session, path)
        if name in self.nodes:
            return self._fail(errno.EEXIST)
        self.nodes[name] = Node(mode=stat.S_IFDIR | mode)
        return 0

    def do_unlink(self, session: Any, path: bytes) -> int:
        del self.nodes[self._path(session, path)]
        return 0

    def do_rename(self, session: Any, source: bytes, target: bytes) -> int:
        self.nodes[self._path(session, target)] = self.nodes.pop(self._path(session, source))
        return 0

    def do_readlink(self, session: Any, path: bytes, buffer: Any, size: int) -> int:
        text = bytes(self.nodes[self._path(session, path)].data)
        assert len(text) < size
        ffi().memmove(buffer, text + b"\0", len(text) + 1)
        return len(text)

    def do_opendir(self, session: Any, path: bytes, box: Any) -> int:
        name = self._path(session, path)
        if name not in self.nodes or not self.nodes[name].is_folder:
            return self._fail(errno.ENOTDIR if name in self.nodes else errno.ENOENT)
        below = [each for each in self.nodes if os.path.split(each)[0] == name]
        rows = [(os.fsencode(each.rpartition("/")[2]), self.nodes[each]) for each in below]
        rows += [(hostile, Node()) for hostile in self.names.get(name, [])]
        box[0] = self._handle("dir", self.dirs, rows)
        return 0

    def do_readdir(self, directory: Any, entry: Any) -> int:
        rows = self._of(self.dirs, directory)
        if not rows:
            return 0
        name, node = rows.pop(0)
        self.entry = ffi().new("char[]", name)
        entry.name, entry.ino, entry.has_stat = self.entry, 1, 1
        self._fill(node, entry.stat)
        return 1

    def do_closedir(self, directory: Any) -> int:
        del self.dirs[int(ffi().cast("uintptr_t", directory))]
        return 0

    # --- files ---

    def do_open(self, session: Any, path: bytes, flags: int, mode: int, box: Any) -> int:
        name = self._path(session, path)
        node = self.nodes.get(name)
        self.open_flags.append(flags)
        if node and flags & os.O_EXCL:
            return self._fail(errno.EEXIST)
        if node and node.is_folder:
            return self._fail(errno.EISDIR)
        if not node and not flags & os.O_CREAT:
            return self._fail(errno.ENOENT)
        if not node or flags & os.O_TRUNC:
            self.nodes[name] = Node(mode=stat.S_IFREG | mode)
        box[0] = self._handle("file", self.files, name)
        return 0

    def do_release(self, file: Any) -> int:
        del self.files[int(ffi().cast("uintptr_t", file))]
        return 0

    def do_fstat(self, file: Any, found: Any) -> int:
        return self._fill(self.nodes[self._of(self.files, file)], found)

    def do_ftruncate(self, file: Any, size: int) -> int:
        data = self.nodes[self._of(self.files, file)].data
        data[size:] = bytes(max(0, size - len(data)))
        return 0

    def do_prepare_fsync(self, _file: Any, user_data: int) -> int:
        self.prepared.append((user_data, -self.fsync_errors.pop() if self.fsync_errors else 0))
        return 0

    # --- data ---

    def do_register(self, _session: Any, address: Any, size: int, box: Any) -> int:
        start = int(ffi().cast("uintptr_t", address))
        self.registered.append((start, size))
        box[0] = ffi().cast("struct nfsrdma_region *", start)
        return 0

    def do_unregister(self, region: Any) -> int:
        start = int(ffi().cast("uintptr_t", region))
        self.registered = [each for each in self.registered if each[0] != start]
        return 0

    def _room(self, count: int, offset: int) -> int:
        if count > self.read_max:
            return self._fail(errno.EMSGSIZE)
        if len(self.prepared) + len(self.completed) >= self.depth:
            return self._fail(errno.EAGAIN)
        return self.failing.get(offset, 0)

    def _size(self, count: int) -> int:
        return max(1, count // 2) if self.short and count else count

    def do_prepare_read(
        self, file: Any, buffer: Any, count: int, offset: int, user_data: int
    ) -> int:
        status = self._room(count, offset)
        if status < 0:
            return status
        data = self.nodes[self._of(self.files, file)].data[offset : offset + self._size(count)]
        ffi().memmove(buffer, bytes(data), len(data))
        self.prepared.append((user_data, -status if status else len(data)))
        return 0

    def do_pread(self, file: Any, buffer: Any, count: int, offset: int) -> int:
        status = self.failing.get(offset, 0)
        if status:
            return self._fail(status)
        data = self.nodes[self._of(self.files, file)].data[offset : offset + self._size(count)]
        ffi().memmove(buffer, bytes(data), len(data))
        self.ended = offset + len(data) >= len(self.nodes[self._of(self.files, file)].data)
        return len(data)

    def do_eof(self, _file: Any) -> int:
        return int(self.ended)

    def do_prepare_write(
        self, file: Any, buffer: Any, count: int, offset: int, user_data: int
    ) -> int:
        status = self._room(count, offset)
        if status < 0:
            return status
        self.calls.append("write")
        node, size = self.nodes[self._of(self.files, file)], self._size(count)
        node.data.extend(bytes(max(0, offset - len(node.data))))
        node.data[offset : offset + size] = ffi().buffer(buffer, size)[:]
        self.prepared.append((user_data, -status if status else size))
        return 0

    def do_prepare_reads(self, rows: Any, count: int) -> int:
        return self._prepare_all(self.do_prepare_read, rows, count)

    def do_prepare_writes(self, rows: Any, count: int) -> int:
        return self._prepare_all(self.do_prepare_write, rows, count)

    def _prepare_all(self, call: Callable[..., int], rows: Any, count: int) -> int:
        for number in range(count):
            row = rows[number]
            status = call(row.file, row.buf, row.count, row.offset, row.user_data)
            if status:
                return number or status
        return count

    def do_submit(self, _session: Any) -> int:
        count = len(self.prepared)
        self.completed += self.prepared
        self.prepared = []
        self.random.shuffle(self.completed)
        if count:
            os.eventfd_write(self.event, 1)
        return count

    def do_wait(self, session: Any, completions: Any, count: int, least: int, _timeout: int) -> int:
        self.waits += 1
        return self.do_peek(session, completions, min(count, max(1, least)))

    def do_peek(self, _session: Any, completions: Any, count: int) -> int:
        taken, self.completed = self.completed[:count], self.completed[count:]
        for number, (user_data, result) in enumerate(taken):
            completions[number].user_data, completions[number].result = user_data, result
        if not self.completed:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.event)
        return len(taken)
