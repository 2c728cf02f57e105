# SPDX-License-Identifier: Apache-2.0
"""Persistent transfer sizes and read-ahead for one mount.

rsize and wsize go where the mount is defined: its line of /etc/fstab, or a drop-in of its systemd
mount unit.  The read-ahead goes into the state file; the helper of a udev rule reads it there
whenever the kernel makes a bdi for that mount point.  The state file is written before any other
change and holds all that ``undo`` needs; on failure, ``apply`` reverts all changes.
``mount -o remount`` never changes rsize: a new rsize takes effect at the next mount.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import FileChange
from nfsrdma_tools.host.nfs import mounts, readahead
from nfsrdma_tools.host.nfs.mounting import MountRequest
from nfsrdma_tools.host.nfs.mounts import Mount, Target
from nfsrdma_tools.host.state import Tuned, tune_state
from nfsrdma_tools.host.tune import activation, udev_rule
from nfsrdma_tools.host.tune import definition as tune_definition
from nfsrdma_tools.host.tune.definition import Edit

__all__ = [
    "PartlyUndoneError",
    "TuneRequest",
    "TuneState",
    "apply",
    "applying",
    "show",
    "undo",
    "undoing",
]

SLASH = Path("/")


@dataclass(frozen=True)
class TuneRequest:
    """Requested values of a mount; None: unchanged.

    Sizes are in bytes, ``read_ahead`` in blocks of rsize, ``read_ahead_kb`` in KiB.
    """

    directory: Path
    rsize: int | None = None
    wsize: int | None = None
    read_ahead: int | None = None
    read_ahead_kb: int | None = None

    def __post_init__(self) -> None:
        # refuse sizes that the kernel would round, as for any mount
        MountRequest(Target("any", "/"), self.directory, rsize=self.rsize, wsize=self.wsize,
                     read_ahead=self.read_ahead, read_ahead_kb=self.read_ahead_kb)  # fmt: skip


@dataclass(frozen=True)
class TuneState:
    """A tuned mount and its values in effect (None: not mounted)."""

    tuned: Tuned
    rsize: int | None = None
    wsize: int | None = None
    read_ahead_kb: int | None = None
    shares_with: tuple[Path, ...] = ()

    @property
    def pending(self) -> tuple[str, ...]:
        """The names of tuned values that are not in effect, for example ("rsize",)."""
        names = ("rsize", "wsize", "read_ahead_kb")
        return tuple(n for n in names if getattr(self.tuned, n) not in (None, getattr(self, n)))


class PartlyUndoneError(UserError):
    """``undone`` was reverted; ``failures`` are mounts that stay tuned.

    ``pending`` are commands that failed after the files were restored.
    """

    def __init__(
        self, undone: list[Tuned], failures: dict[str, UserError], pending: Sequence[str] = ()
    ) -> None:
        self.undone, self.failures = undone, failures
        kept = [f"{directory} is still tuned: {e}" for directory, e in failures.items()]
        restored = ", ".join(one.directory for one in undone) or "none"
        what = "; ".join([*kept, *dict.fromkeys(pending), f"restored: {restored}"])
        super().__init__(what, "the files are restored: reboot or remount" if pending else "")


def apply(request: TuneRequest, root: Path = SLASH, remount: bool = False) -> TuneState:
    """Save ``request``, put it in effect as far as possible, and return what is in effect.

    A ``root`` other than / edits the files below it and leaves the kernel alone.  ``remount``
    unmounts, mounts by fstab or unit, and verifies that the new mount has the tuned values.
    On any error (nothing defines the mount, it is busy, the kernel rounds) all changes are
    reverted.
    """
    with tune_state.locked():
        old, mount = _known(request.directory, root), _mount(request.directory, root)
        was = old.read_ahead_was_kb if old else _read_ahead(mount)
        try:
            if remount:
                # unmount first: a busy mount fails before anything is changed
                activation.unmount(request.directory)
            if old and (pending := _take_back(old, root)):
                raise UserError("; ".join(pending))
            tuned = _plan(request, mount, was, root)
            _put(tuned, root)
            if remount:
                activation.mount(request.directory)
                activation.check(tuned)
        except BaseException as error:
            failures = _revert(request.directory, old, root)
            if remount:
                failures += _failure(_mount_as_before, request.directory, mount)
            more = [text for text in dict.fromkeys(failures) if text != str(error)]
            if more and isinstance(error, UserError):
                raise UserError("; ".join([error.message, *more]), error.hint) from error
            raise
    return _state(tuned, root)


def applying(
    request: TuneRequest, root: Path = SLASH, remount: bool = False
) -> list[str | FileChange]:
    """The changes that ``apply`` would make; those of the state file are left out.

    Raises the errors of ``apply`` that the present state causes.
    """
    old, mount = _known(request.directory, root), _mount(request.directory, root)
    was = old.read_ahead_was_kb if old else _read_ahead(mount)
    previous = _edit(old) if old else None
    tuned = _plan(request, mount, was, root, previous)
    texts = tune_definition.resulting(previous, _edit(tuned))
    rows = [row for row in _tuned_mounts(root) if row != old]
    if tuned.read_ahead_kb is not None:
        texts |= udev_rule.outdated(root)
    elif all(row.read_ahead_kb is None for row in rows):
        texts |= dict.fromkeys(udev_rule.installed(root))
    pairs = [(path, files.readable(path) if path.exists() else None) for path in texts]
    changes = [FileChange(path, now, texts[path]) for path, now in pairs if now != texts[path]]
    steps = _activations(old, root, was if tuned.read_ahead_kb is None else None) if old else []
    steps += _activations(tuned, root, tuned.read_ahead_kb)
    return [
        *([f"unmount {request.directory}"] if remount and mount else []),
        *changes,
        *dict.fromkeys(step.text for step in steps),
        *([f"mount {request.directory}"] if remount else []),
    ]


def _tuned_mounts(root: Path) -> list[Tuned]:
    return tune_state.load(root) or []


def show(root: Path = SLASH) -> list[TuneState]:
    """All tuned mounts with their values in effect."""
    return [_state(tuned, root) for tuned in _tuned_mounts(root)]


def undo(directory: Path | None, root: Path = SLASH) -> list[Tuned]:
    """Revert the tuning of one mount, or of all (None); returns what was tuned.

    Raises UserError if nothing was, MismatchError if the line was changed in the meantime.  With
    several mounts, a mount that cannot be reverted does not keep the others from it:
    PartlyUndoneError at the end.  The same error if udev or systemd do not reload their files.
    """
    with tune_state.locked():
        mine = _tuned(directory, _tuned_mounts(root))
        failures: dict[str, UserError] = {}
        pending: list[str] = []
        for row in mine:
            try:
                pending += _take_back(row, root)
            except UserError as error:
                if len(mine) == 1:
                    raise
                failures[row.directory] = error
    if failures or pending:
        undone = [row for row in mine if row.directory not in failures]
        raise PartlyUndoneError(undone, failures, pending)
    return mine


def undoing(directory: Path | None, root: Path = SLASH) -> tuple[list[str], dict[str, UserError]]:
    """The changes that ``undo`` would make, and an error for each mount that stays tuned."""
    rows = _tuned_mounts(root)
    mine = _tuned(directory, rows)
    changes: list[str] = []
    failures: dict[str, UserError] = {}
    for row in mine:
        edit = _edit(row)
        try:
            changes += tune_definition.reverting(edit) if edit else []
        except UserError as error:
            failures[row.directory] = error
            continue
        was = row.read_ahead_was_kb
        if row.read_ahead_kb is not None and was is not None and _mount(Path(row.directory), root):
            changes.append(f"set read_ahead_kb of {row.directory} to {was}")
    undone = {row.directory for row in mine} - set(failures)
    rest = [row for row in rows if row.directory not in undone]
    if undone and all(row.read_ahead_kb is None for row in rest):
        changes += [f"remove {path}" for path in udev_rule.installed(root)]
    return changes, failures


def _tuned(directory: Path | None, rows: Sequence[Tuned]) -> list[Tuned]:
    mine = [row for row in rows if directory in (None, Path(row.directory))]
    if not mine:
        raise UserError(f"nothing is tuned{f' for {directory}' if directory else ''}",
                        "see `nfsrdma tune show`")  # fmt: skip
    return mine


def _known(directory: Path, root: Path) -> Tuned | None:
    rows = _tuned_mounts(root)
    return next((row for row in rows if row.directory == str(directory)), None)


def _mount(directory: Path, root: Path) -> Mount | None:
    return mounts.find(directory) if root == SLASH else None


def _read_ahead(mount: Mount | None) -> int | None:
    return readahead.get_kb(mount.device) if mount else None


def _plan(
    request: TuneRequest,
    mount: Mount | None,
    was: int | None,
    root: Path,
    old: Edit | None = None,
) -> Tuned:
    edit = tune_definition.plan(request.directory, request.rsize, request.wsize, root, old)
    return Tuned(
        directory=str(request.directory),
        rsize=request.rsize,
        wsize=request.wsize,
        read_ahead_kb=_kb(request, mount),
        file=str(edit.file) if edit else None,
        before=edit.before if edit else None,
        after=edit.after if edit else None,
        read_ahead_was_kb=was,
    )


def _kb(request: TuneRequest, mount: Mount | None) -> int | None:
    if request.read_ahead is None:
        return request.read_ahead_kb
    rsize = request.rsize or (mount.rsize if mount else None)
    if rsize is None:
        raise UserError(f"the rsize of {request.directory} is unknown", "give --rsize or mount it")
    return readahead.kb_for(request.read_ahead, rsize)


def _put(tuned: Tuned, root: Path) -> None:
    tune_state.save([*_tuned_mounts(root), tuned], root)
    edit = _edit(tuned)
    if edit:
        tune_definition.put(edit)
    if tuned.read_ahead_kb is not None:
        udev_rule.install(root)
    for step in _activations(tuned, root, tuned.read_ahead_kb):
        step.run()


class _Step(NamedTuple):
    """A step as --dry-run prints it, and the function that makes it."""

    text: str
    run: Callable[[], None]


def _activations(tuned: Tuned, root: Path, kb: int | None) -> list[_Step]:
    """The steps that put changed files of a mount into effect, and this read-ahead."""
    if root != SLASH:
        return []
    steps: list[_Step] = []
    if tuned.file and tune_definition.SYSTEMD.is_dir():
        steps.append(_Step("run systemctl daemon-reload", activation.reload_systemd))
    if tuned.read_ahead_kb is not None:
        steps.append(_Step("run udevadm control --reload", activation.reload_udev))
        # a mount that is made later gets it from the udev rule
        if kb is not None and mounts.find(directory := Path(tuned.directory)):
            set_now = partial(activation.set_read_ahead, directory, kb)
            steps.append(_Step(f"set read_ahead_kb of {directory} to {kb}", set_now))
    return steps


def _revert(directory: Path, old: Tuned | None, root: Path) -> list[str]:
    """Return to ``old`` as far as possible; a message per failure."""
    current = _known(directory, root)
    if current == old:
        return []
    failures: list[str] = []
    if current:
        try:
            failures += _take_back(current, root)
        except (UserError, OSError) as error:
            return [str(error)]
    return [*failures, *(_failure(_put, old, root) if old else [])]


def _failure(step: Callable[..., None], *arguments: object) -> list[str]:
    """Call ``step``; its error message, in a list, if it fails."""
    try:
        step(*arguments)
    except (UserError, OSError) as error:
        return [str(error)]
    return []


def _mount_as_before(directory: Path, before: Mount | None) -> None:
    now = mounts.find(directory)
    sizes = [mount and (mount.rsize, mount.wsize) for mount in (before, now)]
    if sizes[0] != sizes[1]:
        activation.unmount(directory)
        if before:
            activation.mount(directory)


def _take_back(tuned: Tuned, root: Path) -> list[str]:
    """Revert the files; returns a message per failure to put them into effect.

    Such a failure does not keep the mount tuned: the next attempt would fail in the same way.
    """
    edit = _edit(tuned)
    if edit:
        tune_definition.put_back(edit)
    rest = [row for row in _tuned_mounts(root) if row.directory != tuned.directory]
    if all(row.read_ahead_kb is None for row in rest):
        udev_rule.remove(root)
    steps = _activations(tuned, root, tuned.read_ahead_was_kb)
    failures = [text for step in steps for text in _failure(step.run)]
    tune_state.save(rest or None, root)
    return failures


def _edit(tuned: Tuned) -> Edit | None:
    if tuned.file is None or tuned.after is None:
        return None
    return Edit(Path(tuned.file), tuned.before, tuned.after)


def _state(tuned: Tuned, root: Path) -> TuneState:
    mount = mounts.find(Path(tuned.directory)) if root == SLASH else None
    if mount is None:
        return TuneState(tuned)
    others = tuple(activation.shares_with(mount.directory))
    kb = readahead.get_kb(mount.device)
    return TuneState(tuned, mount.rsize, mount.wsize, kb, others)
