# SPDX-License-Identifier: Apache-2.0
"""Edits the definition of a mount (its fstab line or systemd mount unit) and reverts the edit.

A drop-in changes the transfer sizes of a mount unit (systemd.mount(5)).  It does not apply to units
that systemd generates from /etc/fstab: there, the edit changes the line of fstab.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import files
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.host.nfs import fstab, units

__all__ = [
    "SYSTEMD",
    "Edit",
    "cat_unit",
    "dropin_text",
    "is_written_by_hand",
    "plan",
    "put",
    "put_back",
    "requested",
    "resulting",
    "reverting",
]

_DROPIN = "90-nfsrdma.conf"
# exists while systemd is the init system: sd_booted(3)
SYSTEMD = Path("/run/systemd/system")


@dataclass(frozen=True)
class Edit:
    """An fstab line before and after the edit; or (``before`` None) the text of our drop-in."""

    file: Path
    before: str | None
    after: str


def plan(
    directory: Path, rsize: int | None, wsize: int | None, root: Path, old: Edit | None = None
) -> Edit | None:
    """The edit that gives the mount these sizes (bytes); None if no size is given.

    With ``old``, the edit to make after ``put_back`` has reverted that one.
    A unit written by hand takes precedence over fstab, as it does for systemd.
    Raises UserError if sizes are given and nothing defines the mount.
    """
    if rsize is wsize is None:
        return None
    sizes = (rsize, wsize)
    edit = _unit_edit(directory, sizes, root, old) or _fstab_edit(directory, sizes, root, old)
    if edit is None:
        message = f"no line of {root / 'etc/fstab'} and no mount unit mounts NFS on {directory}"
        raise UserError(message, "add one, or give only --read-ahead")
    return edit


def requested(directory: Path, root: Path) -> fstab.RequestedOptions | None:
    """The options that a mount unit or fstab requests for the mount; None without either."""
    if unit := _unit(directory, root):
        return fstab.RequestedOptions.of(units.setting(unit, "Mount", "Options"))
    line = _line(directory, root)
    return fstab.RequestedOptions.of(line.options, line.fstype) if line else None


def source(directory: Path, root: Path) -> str:
    """The source that a mount unit or fstab mounts on ``directory``; "" without either."""
    if unit := _unit(directory, root):
        return units.setting(unit, "Mount", "What")
    line = _line(directory, root)
    return line.source if line else ""


def _unit(directory: Path, root: Path, ours: str = "") -> str:
    """The text of a unit written by hand, without our drop-in ``ours``; "" if there is none."""
    if root != Path("/") or not SYSTEMD.is_dir():
        return ""
    # systemctl cat prints the unit and all its drop-ins, each as it is
    text = cat_unit(units.unit_name(directory)).replace(ours, "")
    return text if is_written_by_hand(text) else ""


def _line(directory: Path, root: Path) -> fstab.Line | None:
    lines = fstab.nfs_lines(files.readable(root / "etc/fstab"))
    return next((line for line in lines if line.directory == directory), None)


def _unit_edit(
    directory: Path, sizes: tuple[int | None, int | None], root: Path, old: Edit | None
) -> Edit | None:
    text = _unit(directory, root, old.after if old and old.before is None else "")
    if not text:
        return None
    return Edit(_dropin(units.unit_name(directory), root), None, dropin_text(text, *sizes))


def _fstab_edit(
    directory: Path, sizes: tuple[int | None, int | None], root: Path, old: Edit | None
) -> Edit | None:
    file = root / "etc/fstab"
    text = files.read(file)
    if old and old.before is not None:
        text = fstab.replaced(text, old.after, old.before)
    line = fstab.find(text, directory)
    if line is None:
        return None
    return Edit(file, line, fstab.line_with_sizes(line, *sizes))


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


def resulting(old: Edit | None, new: Edit | None) -> dict[Path, str | None]:
    """The texts of the files after ``put_back(old)`` and ``put(new)``; None: removed.

    MismatchError if the line or the file of ``old`` was changed in the meantime.
    """
    texts: dict[Path, str | None] = {}
    if old and reverting(old):
        restored = old.before and fstab.replaced(files.read(old.file), old.after, old.before)
        texts[old.file] = restored
    if new and new.before is not None:
        text = texts.get(new.file) or files.read(new.file)
        texts[new.file] = fstab.replaced(text, new.before, new.after)
    elif new:
        texts[new.file] = new.after
    return texts


def reverting(edit: Edit) -> list[str]:
    """The change that ``put_back`` would make, none if it has nothing to do; same errors."""
    if edit.before is not None:
        if not _has_our_line(edit.file, edit.before, edit.after):
            return []
        fstab.require(edit.file, edit.after)
        return [f"restore in {edit.file}: {edit.before}"]
    if not edit.file.exists():
        return []
    text = files.read(edit.file)
    if text != edit.after:
        raise MismatchError(f"{edit.file}", repr(edit.after), repr(text),
                            "it has changed; remove it by hand and try again")  # fmt: skip
    return [f"remove {edit.file}"]


def _has_our_line(file: Path, before: str, after: str) -> bool:
    lines = list(fstab.nfs_lines(files.read(file)))
    ours = {line.directory for line in fstab.nfs_lines(after)}
    return before not in [line.text for line in lines] and any(x.directory in ours for x in lines)


def cat_unit(unit: str) -> str:
    """The unit's files as ``systemctl cat`` prints them; "" if there is no such unit."""
    result = run("systemctl", "cat", "--", unit, check=False)
    return result.stdout if result.returncode == 0 else ""


def is_written_by_hand(text: str) -> bool:
    """Whether the unit (text of ``cat_unit``) is not one that a generator made from fstab."""
    first = text.partition("\n")[0].removeprefix("# ")
    return first.startswith("/") and not first.startswith("/run/systemd/generator")


def _dropin(unit: str, root: Path) -> Path:
    """The path of our drop-in for this unit."""
    return root / "etc/systemd/system" / f"{unit}.d" / _DROPIN


def dropin_text(text: str, rsize: int | None, wsize: int | None) -> str:
    """The text of the drop-in: the unit's options (``text`` from ``cat_unit``) with these sizes."""
    wanted = fstab.with_sizes(units.setting(text, "Mount", "Options"), rsize, wsize)
    return f"# Made by nfsrdma tune; `nfsrdma tune undo` removes it.\n[Mount]\nOptions={wanted}\n"
