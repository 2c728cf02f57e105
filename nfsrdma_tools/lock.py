# SPDX-License-Identifier: Apache-2.0
"""Locks between processes: flock(2) on a file that only its owner can open.

Any user who can open a file or a folder for reading can hold its lock, for ever.  Lock files
therefore have mode 0600; a folder is locked itself only where no other user reaches it.  The
kernel releases a lock when its holder ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import check_replaceable, make_state_dir, opened_regular

__all__ = ["file_lock", "holder", "host_lock", "try_file_lock", "try_folder_lock"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_DIGITS = 10
_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def host_lock(kind: str, name: str | Path = "", busy: UserError | None = None) -> Iterator[None]:
    """Lock something on this host in the block, such as kind "mount" with a directory as name.

    Wait for another holder, or raise ``busy`` if there is one.  Raises UserError without the right
    to write to the folder of locks.
    """
    import hashlib  # readers of a state import this file, and it loads a library

    end = f"-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}" if name else ""
    with file_lock(make_state_dir() / f"{kind}{end}.lock", busy):
        yield


@contextlib.contextmanager
def file_lock(path: Path, busy: UserError | None = None) -> Iterator[None]:
    """Lock a file in the block: wait for another holder, or raise ``busy`` if there is one.

    The file exists only while it is locked.
    """
    with _locked_file(path, wait=busy is None) as taken:
        if busy and not taken:
            raise busy
        yield


@contextlib.contextmanager
def try_file_lock(path: Path) -> Iterator[bool]:
    """Lock a file in the block; False if another process holds the lock.

    The file exists only while it is locked.
    """
    with _locked_file(path, wait=False) as taken:
        yield taken


def holder(path: Path) -> int | None:
    """The process that holds the lock of a file; None if the file does not name one."""
    try:
        with opened_regular(path, os.O_RDONLY) as handle:
            text = os.read(handle, _MOST_DIGITS)
    except OSError:
        return None
    return int(text) if text.isdigit() else None


@contextlib.contextmanager
def try_folder_lock(folder: Path) -> Iterator[bool]:
    """Lock a folder in the block; False if another process holds the lock."""
    with _opened(folder, _FOLDER) as handle:
        yield _take(handle, wait=False)


@contextlib.contextmanager
def _locked_file(path: Path, wait: bool) -> Iterator[bool]:
    while True:
        with _opened(path, _FILE) as handle:
            taken = _take(handle, wait)
            if taken and not _is_at(path, handle):
                # its holder removed the file after it was opened here
                continue
            try:
                if taken:
                    _name_holder(handle)
                yield taken
            finally:
                if taken:
                    path.unlink(missing_ok=True)
            return


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    try:
        if not flags & os.O_DIRECTORY:
            # the lock's end removes its file
            check_replaceable(path)
        handle = os.open(path, flags, 0o600)
    except OSError as error:
        raise UserError(f"cannot lock {path}: {error.strerror}") from error
    try:
        # its end removes the file, and the holder is written into it
        if not flags & os.O_DIRECTORY and os.fstat(handle).st_nlink > 1:
            raise UserError(f"cannot lock {path}: the file has another name, too", "remove it")
        yield handle
    finally:
        os.close(handle)


def _take(handle: int, wait: bool) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _name_holder(handle: int) -> None:
    # the lock holds also where its disk is full
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())


def _is_at(path: Path, handle: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_ino == os.fstat(handle).st_ino
    return False
