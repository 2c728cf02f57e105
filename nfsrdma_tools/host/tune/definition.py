# SPDX-License-Identifier: Apache-2.0
"""Edits the definition of a mount (its fstab line or systemd mount unit) and reverts the edit."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import files
from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.host.nfs import fstab
from nfsrdma_tools.host.tune import mount_unit

__all__ = ["Edit", "plan", "put", "put_back", "reverting"]


@dataclass(frozen=True)
class Edit:
    """An fstab line before and after the edit; or (``before`` None) the text of our drop-in."""

    file: Path
    before: str | None
    after: str


def plan(directory: Path, rsize: int | None, wsize: int | None, root: Path) -> Edit | None:
    """The edit that gives the mount these sizes (bytes); None if no size is given.

    A unit written by hand takes precedence over fstab, as it does for systemd.
    Raises UserError if sizes are given and nothing defines the mount.
    """
    if rsize is wsize is None:
        return None
    edit = _unit_edit(directory, rsize, wsize, root) or _fstab_edit(directory, rsize, wsize, root)
    if edit is None:
        what = f"no line of {root / 'etc/fstab'} and no mount unit mounts NFS on {directory}"
        raise UserError(what, "add one, or give only --read-ahead")
    return edit


def _unit_edit(directory: Path, rsize: int | None, wsize: int | None, root: Path) -> Edit | None:
    if root != Path("/") or not mount_unit.SYSTEMD.is_dir():
        return None
    unit = mount_unit.name(directory)
    text = mount_unit.cat(unit)
    if not mount_unit.is_written_by_hand(text):
        return None
    return Edit(mount_unit.dropin(unit, root), None, mount_unit.dropin_text(text, rsize, wsize))


def _fstab_edit(directory: Path, rsize: int | None, wsize: int | None, root: Path) -> Edit | None:
    file = root / "etc/fstab"
    line = fstab.find(files.read(file), directory)
    if line is None:
        return None
    return Edit(file, line, fstab.line_with_sizes(line, rsize, wsize))


def put(edit: Edit) -> None:
    """Make the change."""
    if edit.before is not None:
        fstab.replace(edit.file, edit.before, edit.after)
    else:
        files.write_atomically(edit.file, edit.after)


def put_back(edit: Edit) -> None:
    """Revert the change; does nothing if it was not made, or if the whole line has gone.

    Raises MismatchError if the line or the file was changed in the meantime.
    """
    if not reverting(edit):
        return
    if edit.before is not None:
        fstab.replace(edit.file, edit.after, edit.before)
        return
    files.remove(edit.file)
    with contextlib.suppress(OSError):
        edit.file.parent.rmdir()


def reverting(edit: Edit) -> list[str]:
    """The change that ``put_back`` would make, none if it has nothing to do; same errors."""
    if edit.before is not None:
        if not _has_our_line(edit.file, edit.before, edit.after):
            return []
        fstab.require(edit.file, edit.after)
        return [f"restore in {edit.file}: {edit.before}"]
    if not edit.file.exists():
        return []
    found = files.read(edit.file)
    if found != edit.after:
        raise MismatchError(f"{edit.file}", repr(edit.after), repr(found),
                            "it has changed; remove it by hand and try again")  # fmt: skip
    return [f"remove {edit.file}"]


def _has_our_line(file: Path, before: str, after: str) -> bool:
    lines = list(fstab.nfs_lines(files.read(file)))
    ours = {line.directory for line in fstab.nfs_lines(after)}
    return before not in [line.text for line in lines] and any(x.directory in ours for x in lines)
