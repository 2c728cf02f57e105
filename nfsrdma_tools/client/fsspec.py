# SPDX-License-Identifier: Apache-2.0
"""A file system for fsspec: ``fsspec.open("nfsrdma://server/export/file")``.

pyarrow, pandas, zarr and others open such URLs.  All file systems of a process share the sessions
with a server: see pool.py.  A session is opened for the directory of the first path, and for
further directories that are not below it; the storage option ``export`` names one directory for all
paths.  A forked process opens sessions of its own.
"""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import posixpath
import secrets
import shutil
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from glob import has_magic
from typing import Any

from fsspec.spec import AbstractBufferedFile

from nfsrdma_tools.client.coroutines import Coroutines
from nfsrdma_tools.client.pool import Pool, is_below, pool_of
from nfsrdma_tools.client.session import Entry, File, Session

__all__ = ["NfsRdmaFile", "NfsRdmaFileSystem"]

_Place = tuple[int, int | None, int | None]
"""Number of a result, and start and end of its range."""
_Row = tuple[int, tuple[File, int, int]]
# names of files that do not exist, and paths that lead to none
_MISSING = (
    errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP,
    errno.EINVAL, errno.ESTALE, errno.EXDEV,
)  # fmt: skip
_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


class NfsRdmaFileSystem(Coroutines):
    """Files of an NFS server over RDMA, without a mount.

    ``host`` is the server, ``port`` its port for RDMA, ``export`` the directory to open sessions
    with (default: that of each path), ``sessions`` the most connections of this process with the
    server (default: 4); with ``auto_mkdir``, open() for writing makes the directories above a file,
    as the option of that name of fsspec's local files.  ``use_listings_cache`` keeps listings
    (default: off, because other hosts change directories), for ``listings_expiry_time`` seconds and
    ``max_paths`` directories, as fsspec names them.  ``asynchronous`` makes an instance for
    coroutines, as fsspec's other asynchronous file systems: see coroutines.py.  Other options are
    those of connect().
    """

    protocol = "nfsrdma"
    root_marker = "/"

    def __init__(
        self,
        host: str = "",
        port: int = 0,
        export: str = "",
        sessions: int = 0,
        auto_mkdir: bool = False,
        asynchronous: bool = False,
        **options: Any,
    ) -> None:
        own = {name: options.pop(name) for name in _OPTIONS if name in options}
        options.setdefault("use_listings_cache", False)
        super().__init__(asynchronous=asynchronous, **options)
        self.host, self.export, self._most = host, export.rstrip("/"), sessions
        self._auto_mkdir = auto_mkdir
        self._options = {"port": port, **own}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = os.fspath(path)
        if text.startswith("nfsrdma://"):
            text = "/" + text.removeprefix("nfsrdma://").partition("/")[2]
        # as in URLs, by the text: no session has ".." above its directory
        return posixpath.normpath("/" + text.strip("/"))

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

    @property
    def _pool(self) -> Pool:
        return pool_of(self.host, self._options, self.export, self._most)

    @contextlib.contextmanager
    def _at(self, path: str, directory: bool = False) -> Iterator[tuple[Session, str]]:
        """A session, and the path below its directory; ``directory``: the path is one."""
        path = self._strip_protocol(path)
        with self._pool.session(path, directory) as (session, above):
            yield session, path[len(above) :].strip("/")

    @contextlib.contextmanager
    def _above(self, path: str) -> Iterator[tuple[Session, str]]:
        """The same, of a name: the directory of the session is above it."""
        path = self._strip_protocol(path)
        with self._pool.session(posixpath.dirname(path), directory=True) as (session, above):
            yield session, path[len(above) :].strip("/")

    def close(self) -> None:
        """Close all sessions with the server, those of other file systems of this process too."""
        self._pool.close()

    # --- names ---

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forget listings: all, or those that have a path, of it and of what is below it."""
        super().invalidate_cache(path)
        if path is None:
            self.dircache.clear()
            return
        path = self._strip_protocol(path)
        above = posixpath.dirname(path)
        # DirCache has no list of those that expired
        for each in [name for name in self.dircache if name == above or is_below(name, path)]:
            self.dircache.pop(each, None)

    def ls(self, path: str, detail: bool = True, refresh: bool = False, **_: Any) -> list[Any]:
        """The entries of a directory, or the one of a file; ``refresh``: not those of the cache.

        A symbolic link to a file is one; a link to a directory is a "link", so that nothing that
        follows directories goes in circles.
        """
        path = self._strip_protocol(path)
        entries = None if refresh else self.dircache.get(path)
        if entries is None:
            try:
                with self._at(path, directory=True) as (session, below):
                    entries = [_info_of(path, each, session) for each in session.scandir(below)]
                self.dircache[path] = entries
            except NotADirectoryError:
                entries = [self.info(path)]
        entries = list(entries)
        return entries if detail else sorted(each["name"] for each in entries)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size, type, times and owner; follows a symbolic link."""
        path = self._strip_protocol(path)
        for each in self.dircache.get(posixpath.dirname(path)) or ():
            # info() follows a link to a directory
            if each["name"] == path and each["type"] != "link":
                return dict(each)
        with self._at(path) as (session, below):
            own = session.lstat(below)
            if not stat.S_ISLNK(own.st_mode):
                return _info(path, own)
            return _info(path, session.stat(below), is_link=True)

    def exists(self, path: str, **_: Any) -> bool:
        """Whether there is such a file; a link that leads nowhere is none."""
        return self._type(path) is not None

    def lexists(self, path: str, **_: Any) -> bool:
        """Whether there is such a name, also one of a link that leads nowhere."""
        return self._type(path, follow=False) is not None

    def isdir(self, path: str) -> bool:
        """Whether it is a directory, or a link to one."""
        return self._type(path) == "directory"

    def isfile(self, path: str) -> bool:
        """Whether it is a file, or a link to one."""
        return self._type(path) == "file"

    def _type(self, path: str, follow: bool = True) -> str | None:
        """The type of a file, None if there is none; a server that does not answer is an error."""
        try:
            if follow:
                return str(self.info(path)["type"])
            with self._above(path) as (session, below):
                return str(_info(path, session.lstat(below))["type"])
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) or error.errno in _MISSING:
                return None
            raise

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
        with self._above(path) as (session, below):
            session.mkdir(below)
        self.invalidate_cache(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and those above it."""
        path = self._strip_protocol(path)
        if self.isdir(path):
            if not exist_ok:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            return
        if path != "/":
            self.makedirs(posixpath.dirname(path), exist_ok=True)
        try:
            self.mkdir(path, create_parents=False)
        except FileExistsError:
            # another process may have made it meanwhile, but a file is no directory
            if not self.isdir(path):
                raise

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        with self._above(path) as (session, below):
            session.rmdir(below)
        self.invalidate_cache(path)
        self._pool.drop(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        """Remove a file, or a symbolic link."""
        with self._above(path) as (session, below):
            session.unlink(below)
        self.invalidate_cache(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files, and with ``recursive`` directories and what is below them.

        A name with ``*``, ``?`` or ``[`` is a pattern, unless there is a file of that name.
        """
        names: set[str] = set()
        for each in path if isinstance(path, list | tuple | set) else [path]:
            name = self._strip_protocol(each)
            if not has_magic(name) or not self.lexists(name):
                names.update(self.expand_path(name, recursive=recursive, maxdepth=maxdepth))
                continue
            names.add(name)
            if recursive:
                names.update(self.find(name, maxdepth=maxdepth, withdirs=True))
        # what is in a directory stands behind it
        for each in sorted(names, reverse=True):
            with self._above(each) as (session, below):
                is_folder = stat.S_ISDIR(session.lstat(below).st_mode)
                if is_folder and not recursive:
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), each)
            if is_folder:
                self.rmdir(each)
            else:
                self.rm_file(each)

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        """Rename a file or a directory, or move it into a directory; replaces an existing file."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if source != target and self.isdir(target):
            target = posixpath.join(target, posixpath.basename(source))
            if self.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self._rename(source, target)

    def _rename(self, source: str, target: str) -> None:
        both = posixpath.commonpath([posixpath.dirname(source), posixpath.dirname(target)])
        with contextlib.ExitStack() as stack:
            try:
                session, above = stack.enter_context(self._pool.session(both, directory=True))
            except OSError as error:
                text = f"{source} and {target} are not in one export; set the option export"
                raise OSError(error.errno, text) from error
            start = len(above)
            session.rename(source[start:].strip("/"), target[start:].strip("/"))
        self.invalidate_cache(source)
        self.invalidate_cache(target)
        self._pool.drop(source)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a file through this process, or make a directory as another one."""
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        if self.exists(path2) and self._identity(path1) == self._identity(path2):
            # open() would remove the data
            raise shutil.SameFileError(f"{path1} and {path2} are the same file")
        self.makedirs(self._parent(self._strip_protocol(path2)), exist_ok=True)
        with self.open(path1) as source, self.open(path2, "wb", autocommit=True) as target:
            while data := source.read(self.blocksize):
                target.write(data)

    def _identity(self, path: str) -> tuple[int, int]:
        with self._at(path) as (session, below):
            status = session.stat(below)
            return status.st_dev, status.st_ino

    # --- data ---

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> NfsRdmaFile:
        if mode not in _MODES:
            raise ValueError(f"{path}: mode {mode!r}: one of {', '.join(_MODES)}")
        if self._auto_mkdir and mode != "rb":
            self.makedirs(self._parent(path), exist_ok=True)
        place = path if autocommit or mode == "rb" else _part_of(path, mode)
        with self._at(path) as (session, below):
            if place != path:
                if mode == "xb":
                    session.open(below, mode).close()
                folder = posixpath.dirname(below)
                below = posixpath.join(folder, posixpath.basename(place))  # noqa: PLW2901
            file = session.open(below, os.O_RDWR | os.O_CREAT if mode == "ab" else mode)
            size = file.size() if mode == "rb" else None
        if mode != "rb":
            self.invalidate_cache(path)
        return NfsRdmaFile(
            self, path, file, mode, block_size or self.blocksize, size=size, place=place,
            autocommit=autocommit, cache_options=cache_options, **options,
        )  # fmt: skip

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Write a whole file at once: a reader has its old bytes or the new ones.

        A new file replaces the old one, unless the path is a symbolic link: that is followed.
        ``mode`` "create" makes a new file only, in which a reader may see a part of the bytes.
        """
        path = self._strip_protocol(path)
        if mode not in ("overwrite", "create"):
            raise ValueError(f"mode {mode!r}: overwrite or create")
        if mode == "create":
            with self.open(path, "xb", **options) as file:
                file.write(value)
            return
        # the export itself is no name below a session's directory
        kind = "directory" if path == self.export else self._type(path, follow=False)
        if kind == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if self._intrans or kind == "link":
            super().pipe_file(path, value, mode=mode, **options)
            return
        # not open(), which leaves it to a transaction to rename the file
        file = self._open(path, "wb", autocommit=False, **options)
        try:
            with file:
                file.write(value)
            file.commit()
        except BaseException:
            with contextlib.suppress(OSError):
                file.discard()
            raise

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """The bytes of a file from ``start`` to ``end``; a negative one counts from its end."""
        with self._at(path) as (session, below), session.open(below) as file:
            first, last = _bounds(file, start, end)
            return file.pread(last - first, first)

    def cat(
        self,
        path: str | list[str],
        recursive: bool = False,
        on_error: str = "raise",
        start: int | None = None,
        end: int | None = None,
        **options: Any,
    ) -> Any:
        """The bytes of a file, or those of each by its name; those of many are one batch.

        A file that failed raises the error, has it in place of the bytes (``on_error`` "return") or
        is left out ("omit").
        """
        paths = self.expand_path(path, recursive=recursive, **options)
        if isinstance(path, str) and paths == [self._strip_protocol(path)]:
            return self.cat_file(paths[0], start, end)
        how = "raise" if on_error == "raise" else "return"
        contents = dict(zip(paths, self.cat_ranges(paths, start, end, on_error=how), strict=True))
        if on_error == "omit":
            return {name: data for name, data in contents.items() if isinstance(data, bytes)}
        return contents

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
        starts = starts if isinstance(starts, Iterable) else [starts] * len(paths)
        ends = ends if isinstance(ends, Iterable) else [ends] * len(paths)
        contents: list[Any] = [b""] * len(paths)
        places: dict[str, list[_Place]] = {}
        for number, (path, start, end) in enumerate(zip(paths, starts, ends, strict=True)):
            places.setdefault(self._strip_protocol(path), []).append((number, start, end))
        while places:
            first = next(iter(places))
            own = [first]
            try:
                # one session at a time: a second one may have to wait for the first
                with self._pool.session(first, directory=False) as (session, above):
                    own += [
                        path for path in places
                        if path != first and self._pool.nearest(path) == above
                    ]  # fmt: skip
                    below = {path[len(above) :].strip("/"): places[path] for path in own}
                    _read_places(session, below, contents)
            except Exception as error:
                for path in own:
                    _fill_in(error, places[path], contents)
            for path in own:
                del places[path]
        errors = [each for each in contents if isinstance(each, BaseException)]
        if errors and on_error == "raise":
            raise errors[0]
        return contents


class NfsRdmaFile(AbstractBufferedFile):  # type: ignore[misc]
    """An open file of NfsRdmaFileSystem."""

    def __init__(
        self,
        fs: NfsRdmaFileSystem,
        path: str,
        file: File,
        mode: str,
        block_size: int,
        place: str,
        **options: Any,
    ) -> None:
        self.file, self._place = file, place
        super().__init__(fs, path, mode, block_size, **options)
        if mode == "ab":
            self.loc = self.offset_at_start = file.size()
        else:
            self.offset_at_start = 0

    def __del__(self) -> None:
        # runs in any thread, at any place: what is not written is lost, as of a file of a session
        if not self.closed and self.mode != "rb":
            warnings.warn(f"unclosed file {self.path}: data is lost", ResourceWarning, 2, self)

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

    def commit(self) -> None:
        """Give a file of a transaction its name."""
        if self._place != self.path:
            self.fs._rename(self._place, self.path)

    def discard(self) -> None:
        """Remove a file of a transaction that failed, and the name that mode "xb" took."""
        if self._place != self.path:
            self.file.close()
            self.fs.rm_file(self._place)
            if self.mode == "xb":
                self.fs.rm_file(self.path)

    def close(self) -> None:
        """Write what is left, on stable storage, and close the file."""
        try:
            super().close()
        finally:
            self.file.close()
            if self.mode != "rb":
                # the size has changed
                self.fs.invalidate_cache(self.path)


def _part_of(path: str, mode: str) -> str:
    """The name of a file until its transaction ends."""
    if mode == "ab":
        raise ValueError(f"{path}: a transaction cannot append to a file")
    folder, name = posixpath.split(path)
    return posixpath.join(folder, f".{name[:_NAME_MOST]}.{secrets.token_hex(4)}.nfsrdma-part")


_MODES = ("rb", "wb", "xb", "ab")
_OPTIONS = ("depth", "inline_size", "timeout", "arena", "vers", "optimistic", "cache")
# with what _part_of() adds, 255 bytes of any characters
_NAME_MOST = 50


def _read_places(
    session: Session, places: Mapping[str, Sequence[_Place]], contents: list[Any]
) -> None:
    """Read ranges of files of one session, as one batch."""
    with contextlib.ExitStack() as stack:
        rows: list[_Row] = []
        for path, each in places.items():
            try:
                file = stack.enter_context(session.open(path))
                bounds = [_bounds(file, start, end) for _, start, end in each]
            except Exception as error:
                _fill_in(error, each, contents)
            else:
                for (number, _, _), (first, last) in zip(each, bounds, strict=True):
                    rows.append((number, (file, first, last - first)))
        _read_rows(session, rows, contents)


def _fill_in(error: Exception, places: Sequence[_Place], contents: list[Any]) -> None:
    for number, _, _ in places:
        contents[number] = error


def _read_rows(session: Session, rows: Sequence[_Row], contents: list[Any]) -> None:
    """Read ranges, and put the bytes or an error in their places."""
    ranges = [each for _, each in rows]
    data = bytearray(sum(length for _, _, length in ranges))
    try:
        counts = session.read_ranges(ranges, data)
    except OSError as error:
        files = {file for file, _, _ in ranges}
        if len(files) > 1 and error.errno != errno.ETIMEDOUT:
            # which ones failed?
            for file in files:
                _read_rows(session, [row for row in rows if row[1][0] is file], contents)
            return
        for number, _ in rows:
            contents[number] = error
        return
    view, place = memoryview(data), 0
    for (number, (_, _, length)), count in zip(rows, counts, strict=True):
        contents[number] = bytes(view[place : place + count])
        place += length


def _bounds(file: File, start: int | None, end: int | None) -> tuple[int, int]:
    """First and last byte of a range, as of a slice, without a question where it needs none."""
    if start is not None and end is not None and start >= 0 and end >= 0:
        # numpy's integers, too
        return operator.index(start), max(operator.index(start), operator.index(end))
    first, last, _ = slice(start, end).indices(file.size())
    return first, max(first, last)


def _info_of(path: str, entry: Entry, session: Session) -> dict[str, Any]:
    name = posixpath.join(path, entry.name)
    status = entry.stat or session.lstat(entry.path)
    if stat.S_ISLNK(status.st_mode):
        # one that leads nowhere stays a link
        with contextlib.suppress(OSError):
            other = session.stat(entry.path)
            if stat.S_ISREG(other.st_mode):
                return _info(name, other, is_link=True)
    return _info(name, status)


def _info(path: str, status: os.stat_result, is_link: bool = False) -> dict[str, Any]:
    kind = stat.S_IFMT(status.st_mode)
    return {
        "name": path,
        "size": status.st_size,
        "type": _TYPES.get(kind, "other"),
        "mode": status.st_mode,
        "uid": status.st_uid,
        "gid": status.st_gid,
        "ino": status.st_ino,
        "nlink": status.st_nlink,
        "mtime": status.st_mtime,
        "changed": status.st_ctime,
        "islink": is_link or kind == stat.S_IFLNK,
    }
