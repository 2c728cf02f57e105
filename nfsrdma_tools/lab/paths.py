# SPDX-License-Identifier: Apache-2.0
"""The paths of labs: big files in the user's cache, sockets and state in the run directory."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nfsrdma_tools.errors import UserError

__all__ = [
    "MARK",
    "built_name",
    "cache_dir",
    "create_lab_folder",
    "disks_dir",
    "draft_of",
    "is_lab_folder",
    "lab_dir",
    "lab_lock",
    "labs_dir",
    "lock_of",
]

MARK = ".nfsrdma-lab"
"""A file in each folder of a lab: folders without it are never removed."""
_BUILT = re.compile(r"(.+?)(\.(lock|new|qcow2|draft-.*))?")


def cache_dir() -> Path:
    """Images and snapshots: $XDG_CACHE_HOME/nfsrdma, or ~/.cache/nfsrdma.

    UserError if another user can change it.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = _created(Path(base) / "nfsrdma")
    # a link is the user's own choice here, but not one without a target
    status = path.stat() if path.exists() else path.lstat()
    _refuse_shared(path, status, 0o022, "XDG_CACHE_HOME")
    return path


def labs_dir() -> Path:
    """The running labs, one folder each. Short, because socket paths are limited to 107 bytes.

    UserError if another user can read, change or replace it.
    """
    variable = "XDG_RUNTIME_DIR"
    base = Path(os.environ.get(variable) or ("/run" if os.geteuid() == 0 else "/tmp"))  # noqa: S108
    own = os.environ.get(variable) or os.geteuid() == 0
    path = _created(base / ("nfsrdma-labs" if own else f"nfsrdma-labs-{os.geteuid()}"))
    # anyone may make the name first in /tmp, as a link to a folder of this user
    _refuse_shared(path, path.lstat(), 0o077, variable)
    parent = base.stat()
    # users replace only what they own in a sticky folder
    _refuse_shared(base, parent, 0 if parent.st_mode & stat.S_ISVTX else 0o022, variable)
    return path


def _refuse_shared(path: Path, status: os.stat_result, forbidden: int, variable: str) -> None:
    owned = status.st_uid in (0, os.geteuid())
    if not (owned and stat.S_ISDIR(status.st_mode)) or status.st_mode & forbidden:
        expected = f"expected a directory that only uid {os.geteuid()} can change"
        mode = f"{stat.filemode(status.st_mode)} of uid {status.st_uid}"
        raise UserError(f"{path}: {expected}, found {mode}", f"correct it, or set {variable}")


def lab_dir(name: str) -> Path:
    """One lab's folder, whether it is up or not."""
    return labs_dir() / name


def lab_lock(name: str) -> Path:
    """The lock file that a lab's owner holds while the lab is up."""
    return labs_dir() / f"{name}.lock"


def disks_dir() -> Path:
    """The disks of running labs, one folder per lab."""
    return cache_dir() / "labs"


def create_lab_folder(folder: Path) -> None:
    """Create a lab's folder with the mark by which ``is_lab_folder`` recognizes it."""
    folder.mkdir(mode=0o700, parents=True)
    (folder / MARK).touch()


def is_lab_folder(folder: Path) -> bool:
    """Whether a lab made this folder; an empty one counts, as a lab may not have marked it yet."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return (folder / MARK).is_file() or not any(folder.iterdir())


def _created(path: Path) -> Path:
    # a link without a target exists, too
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    return path


@contextlib.contextmanager
def draft_of(folder: Path) -> Iterator[Path]:
    """A new folder that becomes ``folder`` if the block succeeds, and is removed if it fails.

    It is alone in its parent, which is removed in both cases: a place for other files of a build.
    The caller holds ``lock_of(folder)``; what killed processes left is removed.
    """
    prefix = f"{folder.name}.draft-"
    for left in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        draft = work / "draft"
        draft.mkdir(mode=0o700)
        yield draft
        draft.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def lock_of(path: Path) -> Path:
    """The lock of the process that builds this file or folder of the cache."""
    return path.with_name(f"{built_name(path)}.lock")


def built_name(path: Path) -> str:
    """The name that a file or folder of the cache has in common with its lock and its drafts."""
    match = _BUILT.fullmatch(path.name)
    return match[1] if match else path.name
