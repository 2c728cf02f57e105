# SPDX-License-Identifier: Apache-2.0
"""Locks between processes: flock(2) on a folder or a file.

The kernel releases a lock when its holder ends, however it ends.  A folder that exists is locked
itself, so that no lock file remains.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from nfsrdma_tools.errors import UserError

__all__ = ["file_lock", "folder_lock", "try_file_lock", "try_folder_lock"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


@contextlib.contextmanager
def folder_lock(folder: Path, busy: UserError | None = None) -> Iterator[None]:
    """Lock a folder in the block: wait for another holder, or raise ``busy`` if there is one.

    Raises UserError if the folder cannot be opened.
    """
    with _opened(folder, _FOLDER) as handle:
        if busy is None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        elif not _take(handle):
            raise busy
        yield


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Lock a file in the block, and wait for another holder.  The file is created, and remains."""
    with _opened(path, _FILE) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def try_folder_lock(folder: Path) -> Iterator[bool]:
    """Lock a folder in the block; False if another process holds the lock."""
    with _opened(folder, _FOLDER) as handle:
        yield _take(handle)


@contextlib.contextmanager
def try_file_lock(path: Path) -> Iterator[bool]:
    """Lock a file in the block; False if another process holds the lock.

    The file exists only while it is locked.
    """
    while True:
        with _opened(path, _FILE) as handle:
            taken = _take(handle)
            if taken and not _is_at(path, handle):
                # its holder removed the file after it was opened here
                continue
            try:
                yield taken
            finally:
                if taken:
                    path.unlink(missing_ok=True)
            return


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    try:
        handle = os.open(path, flags, 0o600)
    except OSError as error:
        raise UserError(f"cannot lock {path}: {error.strerror}") from error
    try:
        yield handle
    finally:
        os.close(handle)


def _take(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, handle: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_ino == os.fstat(handle).st_ino
    return False
