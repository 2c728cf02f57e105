# SPDX-License-Identifier: Apache-2.0
"""Copies files and folders between a server and this host, without a mount.

A copy has another name until it is complete and on stable storage.  An interrupted one can be
continued: the end of what is there is compared with the source first.  Names come from a server
that is not trusted: files are made relative to open folders, and no symbolic link is followed or
made below the target.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.client.place import Place, is_remote, open_place, split_target
from nfsrdma_tools.client.session import File, Session, connect
from nfsrdma_tools.client.stream import UNORDERED, read_pieces, write_pieces
from nfsrdma_tools.errors import MismatchError, UsageError, UserError
from nfsrdma_tools.files import opened_regular

__all__ = ["Copied", "Options", "copy"]

_SUFFIX = ".nfsrdma-part"
_NAME_MOST = 255
_COMPARED = 1 << 20
_ATTEMPTS = 3
_Pread = Callable[[int, int], bytes]
_Opened = AbstractContextManager[_Pread]
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Options(NamedTuple):
    """Options of a copy, and functions that receive its progress."""

    recursive: bool = False
    resume: bool = False
    overwrite: bool = False
    planned: Callable[[int], object] = lambda _bytes: None
    """Gets the bytes of all files, before the first is copied."""
    advance: Callable[[int], object] = lambda _bytes: None
    """Gets the bytes of each piece."""


class Copied(NamedTuple):
    """Result of a copy; ``skipped`` are paths that are neither files nor folders."""

    files: int
    bytes: int
    skipped: tuple[str, ...]


class _Node(NamedTuple):
    """A file or folder of a tree: its path below the root of the tree, and attributes."""

    path: tuple[str, ...]
    stat: os.stat_result

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.stat.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.stat.st_mode)

    def __str__(self) -> str:
        return "/".join(self.path)


def copy(source: str, target: str, options: Options) -> Copied:
    """Copy a file, or a folder with ``recursive``; exactly one of the two is SERVER:/PATH."""
    if is_remote(source) == is_remote(target):
        raise UsageError("one of source and target is SERVER:/PATH, the other a local path")
    if is_remote(source):
        with open_place(source) as place:
            return _download(place, Path(target), options)
    return _upload(Path(source), target, options)


def _plan(nodes: Iterator[_Node], options: Options) -> tuple[list[_Node], tuple[str, ...]]:
    """Files and folders, each folder before its content; and the paths of all else."""
    tree = list(nodes)
    top = tree[0]
    if top.is_folder and not options.recursive:
        raise UserError("the source is a folder", "copy it with --recursive")
    if not top.is_folder and not top.is_file:
        raise UserError("the source is neither a file nor a folder")
    kept = [node for node in tree if node.is_folder or node.is_file]
    options.planned(sum(node.stat.st_size for node in kept if node.is_file))
    return kept, tuple(str(node) for node in tree if not node.is_folder and not node.is_file)


def _part_of(name: str) -> str:
    """The name of a copy that is not complete."""
    part = name + _SUFFIX
    if len(os.fsencode(part)) <= _NAME_MOST:
        return part
    return hashlib.sha256(os.fsencode(name)).hexdigest() + _SUFFIX


def _exists(name: str) -> UserError:
    return UserError(f"{name} exists", "replace it with --force")


def _interrupted(part: str) -> UserError:
    hint = "continue it with --continue, or remove that file"
    return UserError(f"{part} of an interrupted copy exists", hint)


def _check_unchanged(name: str, before: os.stat_result, after: os.stat_result, size: int) -> None:
    """Compare the size of a copy with its source, which must not change meanwhile."""
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise UserError(f"{name} changed while it was copied", "copy it again")
    if size != before.st_size:
        raise MismatchError(f"size of {name}", before.st_size, size)


def _check_end(part: str, ours: bytes, source: bytes) -> None:
    if ours != source:
        hint = "remove that file, and copy without --continue"
        raise UserError(f"{part} is not the beginning of the source", hint)


def _is_whole(
    there: os.stat_result, before: os.stat_result, copied: Callable[[], _Opened], source: _Pread
) -> bool:
    """Whether an earlier copy was complete: a file of the same size, with the same end."""
    if not stat.S_ISREG(there.st_mode) or there.st_size != before.st_size:
        return False
    compared = min(there.st_size, _COMPARED)
    offset = there.st_size - compared
    with copied() as pread:
        return pread(compared, offset) == source(compared, offset)


@contextlib.contextmanager
def _local_end(folder: int, name: str) -> Iterator[_Pread]:
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield partial(os.pread, handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _remote_end(session: Session, path: str) -> Iterator[_Pread]:
    with session.open(path) as copied:
        yield copied.pread


def _joined(path: str, parts: tuple[str, ...]) -> str:
    return "/".join(filter(None, (path, *parts)))


# --- from the server ---


def _download(place: Place, target: Path, options: Options) -> Copied:
    if target.is_dir():
        target = target / place.name
    if target.name in ("", ".."):
        raise UsageError(f"{target} is no name for a copy")
    nodes, skipped = _plan(_remote_tree(place), options)
    total = 0
    above = os.open(target.parent, _FOLDER)
    try:
        for node in nodes:
            *folders, name = (target.name, *node.path)
            with _folder_below(above, folders) as folder:
                if node.is_folder:
                    _make_folder(folder, name, options)
                else:
                    path = _joined(place.path, node.path)
                    total += _fetch(place.session, path, folder, name, options)
    finally:
        os.close(above)
    return Copied(sum(node.is_file for node in nodes), total, skipped)


def _remote_tree(place: Place) -> Iterator[_Node]:
    top = _Node((), place.session.stat(place.path))
    yield top
    waiting = [top] if top.is_folder else []
    while waiting:
        folder = waiting.pop()
        for entry in place.session.scandir(_joined(place.path, folder.path)):
            status = entry.stat or place.session.lstat(entry.path)
            node = _Node((*folder.path, entry.name), status)
            yield node
            if node.is_folder:
                waiting.append(node)


@contextlib.contextmanager
def _folder_below(above: int, names: list[str]) -> Iterator[int]:
    """Open a folder by its path below another one; OSError if a component is a link."""
    folder = os.dup(above)
    try:
        for name in names:
            below = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _make_folder(folder: int, name: str, options: Options) -> None:
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode) or not (options.resume or options.overwrite):
            raise _exists(name) from None


def _fetch(session: Session, path: str, folder: int, name: str, options: Options) -> int:
    """Copy a file of the server into an open folder; returns the bytes that were moved."""
    part = _part_of(name)
    with session.open(path) as source, contextlib.ExitStack() as stack:
        before = source.stat()
        there = _local_stat(folder, name)
        copied = partial(_local_end, folder, name)
        if there and options.resume and _is_whole(there, before, copied, source.pread):
            options.advance(before.st_size)
            return 0
        if there and not options.overwrite:
            raise _exists(name)
        handle = _open_part(folder, part, before.st_mode & 0o777, options.resume)
        stack.callback(os.close, handle)
        start = os.fstat(handle).st_size
        compared = min(start, _COMPARED)
        ours = os.pread(handle, compared, start - compared)
        _check_end(part, ours, source.pread(compared, start - compared))
        options.advance(start)
        position = start
        for piece in read_pieces(session, source, start, before.st_size):
            _write_all(handle, piece, position)
            position += len(piece)
            options.advance(len(piece))
        os.fsync(handle)
        _check_unchanged(name, before, source.stat(), os.fstat(handle).st_size)
        _publish(folder, part, name, options.overwrite)
    return position - start


def _local_stat(folder: int, name: str) -> os.stat_result | None:
    """Attributes of a file in an open folder, or of a link itself; None if there is none."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _open_part(folder: int, part: str, mode: int, resume: bool) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(part, flags | (0 if resume else os.O_EXCL), mode, dir_fd=folder)
    except FileExistsError:
        raise _interrupted(part) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UserError(f"{part} is not a regular file", "remove it")
    return handle


def _write_all(handle: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(handle, data, offset)
        data, offset = data[count:], offset + count


def _publish(folder: int, part: str, name: str, overwrite: bool) -> None:
    """Give a complete copy its name; never that of another file, without ``overwrite``."""
    if overwrite:
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    else:
        try:
            # rename(2) would replace a file that another program made meanwhile
            os.link(part, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            raise _exists(name) from None
        os.unlink(part, dir_fd=folder)
    os.fsync(folder)


# --- to the server ---


def _upload(source: Path, target: str, options: Options) -> Copied:
    nodes, skipped = _plan(_local_tree(source), options)
    total = 0
    with _target_place(target, source.absolute().name) as place:
        for node in nodes:
            path = _joined(place.path, node.path)
            if node.is_folder:
                _make_remote_folder(place.session, path, options)
            else:
                total += _send(place.session, source.joinpath(*node.path), path, options)
    return Copied(sum(node.is_file for node in nodes), total, skipped)


def _local_tree(source: Path) -> Iterator[_Node]:
    top = _Node((), source.stat())
    yield top
    waiting = [top] if top.is_folder else []
    while waiting:
        folder = waiting.pop()
        with os.scandir(source.joinpath(*folder.path)) as entries:
            for entry in entries:
                node = _Node((*folder.path, entry.name), entry.stat(follow_symlinks=False))
                yield node
                if node.is_folder:
                    waiting.append(node)


def _target_place(target: str, name: str) -> Place:
    """The path of a copy, in a session for the folder above it."""
    place = open_place(target)
    try:
        status = place.session.stat(place.path)
    except FileNotFoundError:
        return place
    except BaseException:
        place.session.close()
        raise
    if stat.S_ISDIR(status.st_mode):
        return place._replace(path=_joined(place.path, (name,)))
    if place.path:
        return place
    # the mount daemon of Linux returns the handle of a file, too
    place.session.close()
    server, path = split_target(target)
    above, name = posixpath.split(path)
    return Place(connect(f"{server}:{above}"), name, name)


def _make_remote_folder(session: Session, path: str, options: Options) -> None:
    try:
        session.mkdir(path)
    except FileExistsError:
        there = session.lstat(path)
        if not stat.S_ISDIR(there.st_mode) or not (options.resume or options.overwrite):
            raise _exists(path) from None


def _send(session: Session, source: Path, path: str, options: Options) -> int:
    """Copy a file to the server; returns the bytes that were moved."""
    above, name = posixpath.split(path)
    part = posixpath.join(above, _part_of(name))
    with opened_regular(source, os.O_RDONLY) as handle:
        before = os.fstat(handle)
        there = _remote_stat(session, path)
        earlier, ours = partial(_remote_end, session, path), partial(os.pread, handle)
        if there and options.resume and _is_whole(there, before, earlier, ours):
            options.advance(before.st_size)
            return 0
        if there and not options.overwrite:
            raise _exists(path)
        with _open_remote_part(session, part, before.st_mode & 0o777, options.resume) as copied:
            # the end may have holes: the server writes in any order
            start = max(0, copied.size() - UNORDERED)
            compared = min(start, _COMPARED)
            theirs = copied.pread(compared, start - compared)
            _check_end(part, theirs, os.pread(handle, compared, start - compared))
            options.advance(start)
            end = _write_stable(session, copied, handle, start, options)
            _check_unchanged(str(source), before, os.fstat(handle), copied.size())
    if not options.overwrite:
        # RENAME would replace a file that another client made meanwhile: take the name first
        try:
            session.open(path, "x").close()
        except FileExistsError:
            raise _exists(path) from None
    session.rename(part, path)
    return end - start


def _remote_stat(session: Session, path: str) -> os.stat_result | None:
    try:
        return session.lstat(path)
    except FileNotFoundError:
        return None


def _open_remote_part(session: Session, part: str, mode: int, resume: bool) -> File:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        return session.open(part, flags | (0 if resume else os.O_EXCL), mode)
    except FileExistsError:
        raise _interrupted(part) from None


def _write_stable(session: Session, copied: File, handle: int, start: int, options: Options) -> int:
    """Write the file from ``start`` until a server has kept all of it; returns its end."""

    def fill(buffer: memoryview, offset: int) -> int:
        return os.preadv(handle, [buffer], offset)

    for attempt in range(_ATTEMPTS):
        # a second attempt moves the same bytes: the bar stays
        advance = options.advance if attempt == 0 else _nothing
        end = write_pieces(session, copied, start, fill, advance)
        try:
            copied.fsync()
        except OSError as error:
            # the server restarted before all of it was on its disk
            if error.errno != errno.EIO or attempt == _ATTEMPTS - 1:
                raise
            continue
        break
    return end


def _nothing(_bytes: int) -> None:
    pass
