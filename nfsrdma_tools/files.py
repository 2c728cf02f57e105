# SPDX-License-Identifier: Apache-2.0
"""Files of the system: read as they are, replaced in one step."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["raw", "read", "readable", "write_atomically"]

_AT_ONCE = 16 << 10


def read(path: Path | str) -> str:
    """The file's text; bytes that are not UTF-8 as surrogates.  "" when there is no file."""
    try:
        return raw(path).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""


def raw(path: Path | str, at_once: int = _AT_ONCE) -> bytes:
    """The file's bytes, with as few calls as that takes: some are read each second."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(handle, at_once), b""))
    finally:
        os.close(handle)


def readable(path: Path | str) -> str:
    """The same, and "" also when it cannot be read: the kernel's files come and go, or say no."""
    try:
        return read(path)
    except OSError:
        return ""


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file by rename, synced, keeping owner, mode and labels of the one it replaces."""
    path = path.resolve()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
            file.flush()
            os.fsync(file.fileno())
        _dress(path, draft, mode)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _dress(path: Path, draft: Path, mode: int) -> None:
    if path.exists():
        stat = path.stat()
        os.chown(draft, stat.st_uid, stat.st_gid)
        mode = stat.st_mode & 0o7777
        for label in os.listxattr(path):
            os.setxattr(draft, label, os.getxattr(path, label))
    draft.chmod(mode)
