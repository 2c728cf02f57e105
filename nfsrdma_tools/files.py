# SPDX-License-Identifier: Apache-2.0
"""Read system files; replace files atomically, and remove them; the folders of our own files.

Journals and what a reboot reverts are below /run/nfsrdma, what survives a reboot is below
/var/lib/nfsrdma.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, NamedTuple

from nfsrdma_tools.errors import UserError

__all__ = [
    "NOT_REGULAR",
    "FileChange",
    "NotRegularError",
    "beginning",
    "check_replaceable",
    "lib_dir",
    "make_state_dir",
    "matching",
    "note_unread",
    "open_file",
    "opened_regular",
    "overwrite",
    "raw",
    "read",
    "readable",
    "remove",
    "remove_drafts",
    "shipped",
    "state_dir",
    "text",
    "unescape",
    "unread",
    "write_atomically",
    "write_fresh",
]


class FileChange(NamedTuple):
    """A change of a file, for --dry-run; a text is None where the file does not exist."""

    path: Path
    before: str | None
    after: str | None

    def __str__(self) -> str:
        """The change in one line, and the unified diff below it."""
        import difflib  # loaded only by commands with --dry-run

        verb = "remove" if self.after is None else "write" if self.before is None else "change"
        source, target = (
            "/dev/null" if text is None else str(self.path) for text in (self.before, self.after)
        )
        old, new = ((text or "").splitlines() for text in (self.before, self.after))
        diff = difflib.unified_diff(old, new, source, target, lineterm="")
        return "\n".join([f"{verb} {self.path}", *diff])


NOT_REGULAR = "not a regular file"


class NotRegularError(OSError):
    """A FIFO, a socket or a device in place of a file: its reader would wait, or never end."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(errno.EINVAL, NOT_REGULAR, str(path))


_AT_ONCE = 16 << 10
_DRAFT = ".nfsrdma-new"
_NULL = os.makedev(1, 3)
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")


def open_file(path: Path | str) -> int:
    """A descriptor of a file to read; the caller closes it.

    OSError also for a folder, and NotRegularError for a FIFO, a socket or a device.  /dev/null is
    an empty file: a link to it masks a file of systemd, udev or modprobe.
    """
    # O_NONBLOCK: opening a FIFO waits for its other end
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(handle)
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFREG or (kind == stat.S_IFCHR and status.st_rdev == _NULL):
        return handle
    os.close(handle)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise NotRegularError(path)


def text(path: Path | str, errors: str = "strict") -> str:
    """Text of a file, as ``Path.read_text`` returns it, in UTF-8."""
    return raw(path).decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")


def read(path: Path | str) -> str:
    """Text of a file, with surrogates for invalid UTF-8; "" when the file does not exist."""
    try:
        return raw(path).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""


def raw(path: Path | str, at_once: int = _AT_ONCE) -> bytes:
    """Bytes of a file, with few system calls: some files are read each second."""
    handle = open_file(path)
    try:
        return b"".join(iter(lambda: os.read(handle, at_once), b""))
    finally:
        os.close(handle)


def beginning(path: Path | str, most: int) -> bytes:
    """The first ``most`` bytes of a file, or all if it has fewer."""
    handle = open_file(path)
    try:
        parts, left = [], most
        while left and (part := os.read(handle, min(left, _AT_ONCE))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(handle)


def readable(path: Path | str) -> str:
    """The same, and "" also for an unreadable file: files of the kernel come and go."""
    try:
        return read(path)
    except OSError as error:
        note_unread(error)
        return ""


def matching(folder: Path, pattern: str) -> list[Path]:
    """The paths below a folder that match, sorted; unlike glob(), it notes an unreadable folder."""
    first, _, rest = pattern.partition("/")
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 -- names
    except OSError as error:
        note_unread(error)
        return []
    paths = [folder / name for name in names if fnmatch.fnmatchcase(name, first)]
    return [path for parent in paths for path in matching(parent, rest)] if rest else paths


_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.EISDIR, errno.ELOOP)
"""Errors of what exists; drivers refuse an attribute without a value by others, such as EINVAL."""
_unread: ContextVar[dict[Path, str] | None] = ContextVar("unread", default=None)


@contextlib.contextmanager
def unread() -> Iterator[dict[Path, str]]:
    """Note the files and folders that readers take for empty ones because they cannot read them.

    The value has the reason by path.
    """
    noted: dict[Path, str] = {}
    token = _unread.set(noted)
    try:
        yield noted
    finally:
        _unread.reset(token)


def note_unread(error: OSError) -> None:
    """Note the file of an error that a reader does not raise; without effect if it is missing."""
    noted = _unread.get()
    exists = error.errno in _UNREADABLE or isinstance(error, NotRegularError)
    if noted is not None and exists and error.filename:
        noted.setdefault(Path(os.fsdecode(error.filename)), error.strerror or str(error))


@contextlib.contextmanager
def opened_regular(path: Path | str, flags: int) -> Iterator[int]:
    """Open a file that others can replace: OSError for a link, a FIFO or a device."""
    # O_NONBLOCK: opening a FIFO waits for its other end
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise NotRegularError(path)
        yield handle
    finally:
        os.close(handle)


def unescape(field: str) -> str:
    """Undo the octal escapes of a field of mountinfo, fstab or etab; each is a byte."""
    if "\\" not in field:
        return field
    encoding = sys.getfilesystemencoding()
    try:
        octets = field.encode(encoding, "surrogateescape")
    except UnicodeEncodeError:
        # a text with characters that the locale lacks
        encoding = "utf-8"
        octets = field.encode(encoding, "surrogateescape")
    octets = _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), octets)
    return octets.decode(encoding, "surrogateescape")


def check_replaceable(path: Path) -> None:
    """OSError if ``path`` exists and is no regular file, nor a link to one.

    A rename would remove a device node, such as /dev/null, or a FIFO that others use.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise NotRegularError(path)


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file by rename, with fsync; keep owner, mode and labels of the old file.

    Makes missing folders.  UserError if the file cannot be written, as on a read-only filesystem,
    or is not a regular file.
    """
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # before resolve, which raises RuntimeError for a loop of links
        check_replaceable(path)
        _replace(path.resolve(), text, mode)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def remove_drafts(path: Path) -> None:
    """Remove what a killed ``write_atomically`` left beside ``path``."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*{_DRAFT}"):
        draft.unlink(missing_ok=True)


def overwrite(path: Path, text: str) -> None:
    """Write a file in place, as a sysctl needs it; a link is followed.

    OSError if it cannot be written; NotRegularError for a FIFO, a socket or a device.
    """
    check_replaceable(path)
    with opened_regular(path.resolve(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as handle:
        data = text.encode("utf-8", "surrogateescape")
        while data:
            data = data[os.write(handle, data) :]


def write_fresh(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replace a file of a folder that others may write to: a link there is replaced, not followed.

    Without a ``mode``, the umask decides.  OSError if the folder cannot be written, or the file is
    not a regular one.
    """
    with _draft(path) as (draft, file):
        file.write(data)
        draft.chmod(0o666 & ~_umask() if mode is None else mode)


def _umask() -> int:
    """The process's umask, from /proc: umask(2) reads it only by changing it."""
    fields = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines())
    return int(fields["Umask"], 8)


def remove(path: Path) -> None:
    """Remove a file, and its drafts, if it exists; UserError if it cannot be removed."""
    try:
        remove_drafts(path)
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot remove {path}: {error.strerror}") from error


def _replace(path: Path, text: str, mode: int) -> None:
    with _draft(path) as (draft, file):
        file.write(text.encode("utf-8", "surrogateescape"))
        file.flush()
        os.fsync(file.fileno())
        _copy_attributes(path, draft, mode)


@contextlib.contextmanager
def _draft(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file beside ``path`` that replaces it at the end of the block, or goes at an error."""
    check_replaceable(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_DRAFT)
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield draft, file
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _copy_attributes(path: Path, draft: Path, mode: int) -> None:
    if path.exists():
        old = path.stat()
        os.chown(draft, old.st_uid, old.st_gid)
        mode = old.st_mode & 0o7777
        # such as SELinux's: security.selinux
        for label in os.listxattr(path):
            os.setxattr(draft, label, os.getxattr(path, label))
    draft.chmod(mode)


def state_dir() -> Path:
    """The folder of journals and locks, which may not exist: $NFSRDMA_STATE, or /run/nfsrdma."""
    # Path("") is the current directory
    return Path(os.environ.get("NFSRDMA_STATE") or "/run/nfsrdma")


def make_state_dir() -> Path:
    """Make the folder of journals and locks.  UserError if this user may not write to it."""
    path = state_dir()
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {path}", "run this as root")
    return path


def lib_dir(root: Path) -> Path:
    """The folder of what survives a reboot: $NFSRDMA_LIB, or var/lib/nfsrdma below ``root``."""
    return Path(os.environ.get("NFSRDMA_LIB", root / "var/lib/nfsrdma"))


def shipped(name: str) -> Path:
    """A file or folder that belongs to the program: in a wheel below data/, else beside it.

    UserError if it is missing.
    """
    package = Path(__file__).parent
    for path in (package / "data" / name, package.parent / name):
        if path.exists():
            return path
    raise UserError(f"{name} is missing from {package}/data", "reinstall nfsrdma")
