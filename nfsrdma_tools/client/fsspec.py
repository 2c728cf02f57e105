# SPDX-License-Identifier: Apache-2.0
"""A file system for fsspec: ``fsspec.open("nfsrdma://server/export/file")``.

pyarrow, pandas, zarr and others open such URLs.  A session is opened for the directory of the first
path, and for further directories that are not below it; the storage option ``export`` names one
directory for all paths.  A forked process opens sessions of its own.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from nfsrdma_tools.client.session import Entry, File, Session, connect

__all__ = ["NfsRdmaFile", "NfsRdmaFileSystem"]

_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


class NfsRdmaFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files of an NFS server over RDMA, without a mount.

    ``host`` is the server, ``port`` its port for RDMA, ``export`` the directory to open sessions
    with (default: that of each path).  Other options are those of connect().
    """

    protocol = "nfsrdma"
    root_marker = "/"

    def __init__(self, host: str = "", port: int = 0, export: str = "", **options: Any) -> None:
        own = {name: options.pop(name) for name in _OPTIONS if name in options}
        super().__init__(host=host, port=port, export=export, **own, **options)
        self.host, self.export = host, export.rstrip("/")
        self._options = {"port": port, **own}
        self._lock, self._pid = threading.RLock(), 0
        self._sessions: dict[str, Session] = {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = os.fspath(path)
        if text.startswith("nfsrdma://"):
            text = "/" + text.removeprefix("nfsrdma://").partition("/")[2]
        return "/" + text.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        if not path.startswith("nfsrdma://"):
            return {}
        server = path.removeprefix("nfsrdma://").partition("/")[0]
        host, colon, port = server.rpartition(":")
        if colon and port.isdecimal() and (":" not in host or host.endswith("]")):
            return {"host": host, "port": int(port)}
        return {"host": server}

    # --- sessions ---

    def _at(self, path: str, directory: bool = False) -> tuple[Session, str]:
        """A session, and the path below its directory; ``directory``: the path is one."""
        path = self._strip_protocol(path)
        if self._pid != os.getpid():
            # sessions and a lock of the parent process are of no use here
            self._lock, self._sessions, self._pid = threading.RLock(), {}, os.getpid()
        with self._lock:
            above = next((each for each in self._sessions if _is_below(path, each)), None)
            if above is None:
                above = self._connect(path, directory)
            return self._sessions[above], path[len(above) :].strip("/")

    def _connect(self, path: str, directory: bool) -> str:
        """Open a session with a directory that has the path; returns the directory."""
        if self.export and not _is_below(path, self.export):
            raise FileNotFoundError(f"{path} is not below {self.export}")
        folder = posixpath.dirname(path)
        # a mount daemon knows directories; "/" is seldom exported
        both = [path, folder] if directory or folder == "/" else [folder, path]
        first: OSError | None = None
        for above in [self.export] if self.export else both:
            try:
                self._sessions[above] = self._connect_to(above)
            except OSError as error:
                first = first or error
            else:
                return above
        raise first or FileNotFoundError(path)

    def _connect_to(self, above: str) -> Session:
        session = connect(f"{self.host}:{above}", **self._options)
        try:
            # the mount daemon of Linux returns the handle of a file, too
            if stat.S_ISDIR(session.stat("").st_mode):
                return session
            raise NotADirectoryError(f"{above} is no directory")
        except BaseException:
            session.close()
            raise

    def close(self) -> None:
        """Close all sessions."""
        with self._lock:
            sessions, self._sessions = self._sessions, {}
            for session in sessions.values():
                session.close()

    # --- names ---

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The entries of a directory, or the one of a file."""
        path = self._strip_protocol(path)
        try:
            session, below = self._at(path, directory=True)
            entries = list(session.scandir(below))
        except NotADirectoryError:
            found = [self.info(path)]
        else:
            found = [_info_of(path, each, session) for each in entries]
        return found if detail else sorted(each["name"] for each in found)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size, type, times and owner; follows a symbolic link."""
        path = self._strip_protocol(path)
        session, below = self._at(path)
        return _info(path, session.stat(below))

    def created(self, path: str) -> datetime:
        """NFSv3 does not have it: the time of the last change of attributes."""
        return datetime.fromtimestamp(self.info(path)["changed"], UTC)

    def modified(self, path: str) -> datetime:
        """The time of the last change of data."""
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Make a directory."""
        if create_parents:
            self.makedirs(posixpath.dirname(self._strip_protocol(path)), exist_ok=True)
        session, below = self._at(path)
        session.mkdir(below)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and those above it."""
        path = self._strip_protocol(path)
        if self.isdir(path):
            if not exist_ok:
                raise FileExistsError(path)
            return
        self.makedirs(posixpath.dirname(path), exist_ok=True)
        # another process may have made it meanwhile
        with contextlib.suppress(FileExistsError):
            self.mkdir(path, create_parents=False)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        session, below = self._at(path)
        session.rmdir(below)

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        session, below = self._at(path)
        session.unlink(below)

    _rm = rm_file

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        """Rename a file or a directory; replaces an existing file."""
        session, source = self._at(path1)
        other, target = self._at(path2)
        if session is not other:
            raise OSError(f"{path1} and {path2} are not in one export; set the option export")
        session.rename(source, target)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a file through this process."""
        with self.open(path1) as source, self.open(path2, "wb") as target:
            while data := source.read(self.blocksize):
                target.write(data)

    # --- data ---

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any
    ) -> NfsRdmaFile:
        session, below = self._at(path)
        file = session.open(below, os.O_RDWR | os.O_CREAT if mode == "ab" else mode)
        size = file.size() if mode == "rb" else None
        options.pop("autocommit", None)
        options.pop("cache_options", None)
        return NfsRdmaFile(
            self, path, file, mode, block_size or self.blocksize, size=size, **options
        )

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """The bytes of a file from ``start`` to ``end``; a negative one counts from its end."""
        session, below = self._at(path)
        with session.open(below) as file:
            first, last = _bounds(file, start, end)
            return file.pread(last - first, first)

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """Ranges of files, read as one batch; an exception in place of bytes that failed."""
        del max_gap
        starts = starts if isinstance(starts, Sequence) else [starts] * len(paths)
        ends = ends if isinstance(ends, Sequence) else [ends] * len(paths)
        found: list[Any] = [b""] * len(paths)
        by_session: dict[Session, list[tuple[int, tuple[File, int, int]]]] = {}
        with contextlib.ExitStack() as stack:
            files: dict[str, tuple[Session, File]] = {}
            for number, (path, start, end) in enumerate(zip(paths, starts, ends, strict=True)):
                try:
                    if path not in files:
                        session, below = self._at(path)
                        files[path] = session, stack.enter_context(session.open(below))
                    session, file = files[path]
                    first, last = _bounds(file, start, end)
                except OSError as error:
                    found[number] = error
                else:
                    row = (number, (file, first, last - first))
                    by_session.setdefault(session, []).append(row)
            for session, rows in by_session.items():
                _read_rows(session, rows, found)
        errors = [each for each in found if isinstance(each, BaseException)]
        if errors and on_error == "raise":
            raise errors[0]
        return found


class NfsRdmaFile(AbstractBufferedFile):  # type: ignore[misc]
    """An open file of NfsRdmaFileSystem."""

    def __init__(
        self,
        fs: NfsRdmaFileSystem,
        path: str,
        file: File,
        mode: str,
        block_size: int,
        **options: Any,
    ) -> None:
        self.file = file
        super().__init__(fs, path, mode, block_size, **options)
        if mode == "ab":
            self.loc = self.offset_at_start = file.size()
        else:
            self.offset_at_start = 0

    def readinto(self, buffer: Any) -> int:
        """Read at the position, past the cache: RDMA writes to the buffer."""
        view = memoryview(buffer).cast("B")
        count = self.file.pread_into(view, self.loc)
        self.loc += count
        return count

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.file.pread(end - start, start)

    def _initiate_upload(self) -> None:
        pass

    def _upload_chunk(self, final: bool = False) -> bool:
        data = self.buffer.getbuffer()
        self.file.pwrite(data, self.offset_at_start + self.offset)
        data.release()
        if final:
            self.file.fsync()
        return True

    def close(self) -> None:
        """Write what is left, on stable storage, and close the file."""
        try:
            super().close()
        finally:
            self.file.close()


def _is_below(path: str, above: str) -> bool:
    return above in ("/", path) or path.startswith(f"{above}/")


_OPTIONS = ("depth", "inline_size", "timeout", "arena", "vers", "optimistic", "cache")


def _read_rows(
    session: Session, rows: Sequence[tuple[int, tuple[File, int, int]]], found: list[Any]
) -> None:
    """Read the ranges of one session, and put the bytes or an error in their places."""
    ranges = [each for _, each in rows]
    data = bytearray(sum(length for _, _, length in ranges))
    try:
        counts = session.read_ranges(ranges, data)
    except OSError as error:
        for number, _ in rows:
            found[number] = error
        return
    view, place = memoryview(data), 0
    for (number, (_, _, length)), count in zip(rows, counts, strict=True):
        found[number] = bytes(view[place : place + count])
        place += length


def _bounds(file: File, start: int | None, end: int | None) -> tuple[int, int]:
    """First and last byte of a range, as of a slice, without a question where it needs none."""
    if start is not None and end is not None and start >= 0 and end >= 0:
        return start, max(start, end)
    first, last, _ = slice(start, end).indices(file.size())
    return first, max(first, last)


def _info_of(path: str, entry: Entry, session: Session) -> dict[str, Any]:
    name = posixpath.join(path, entry.name)
    return _info(name, entry.stat or session.lstat(entry.path))


def _info(path: str, found: os.stat_result) -> dict[str, Any]:
    kind = stat.S_IFMT(found.st_mode)
    return {
        "name": path,
        "size": found.st_size,
        "type": _TYPES.get(kind, "other"),
        "mode": found.st_mode,
        "uid": found.st_uid,
        "gid": found.st_gid,
        "ino": found.st_ino,
        "nlink": found.st_nlink,
        "mtime": found.st_mtime,
        "changed": found.st_ctime,
        "islink": kind == stat.S_IFLNK,
    }
