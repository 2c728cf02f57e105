# SPDX-License-Identifier: Apache-2.0
"""Persistent transfer sizes and read-ahead for one mount.

rsize and wsize go where the mount is defined: its line of /etc/fstab, or a drop-in of its systemd
mount unit.  The read-ahead goes into the state file; the helper of a udev rule reads it there
whenever the kernel makes a bdi for that mount point.  The state file holds all that ``undo`` needs.
The journal holds all that a failed or killed ``apply`` has to revert, the mount included.
``mount -o remount`` never changes rsize: a new rsize takes effect at the next mount.

The udev rule names no mount: it runs ``udev_helper`` with the number of the new bdi.  It sorts
after nfs-utils' 99-nfs.rules (nfsrahead), which sets the same attribute: udev writes attributes in
the order of the rules, so ours wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools import files, udev
from nfsrdma_tools import undo as undo_actions
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.files import FileChange
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs import fstab, mounting, mounts, readahead, units
from nfsrdma_tools.host.nfs.mounting import MountRequest
from nfsrdma_tools.host.nfs.mounts import Mount
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.state import Tuned, tune_state
from nfsrdma_tools.host.transports import family
from nfsrdma_tools.host.tune import definition as tune_definition
from nfsrdma_tools.host.tune import udev_helper
from nfsrdma_tools.host.tune.definition import Edit
from nfsrdma_tools.identity import MountIdentity, mounts_on
from nfsrdma_tools.sizes import format_size
from nfsrdma_tools.undo import Journal, Line, Remove, Run, Unmount, Write, journal, restoring

__all__ = [
    "HELPER",
    "RULE",
    "PartlyUndoneError",
    "TuneRequest",
    "TuneState",
    "apply",
    "applying",
    "require_measured",
    "show",
    "undo",
    "undoing",
]

SLASH = LIVE.root
_RELOAD_SYSTEMD = ("systemctl", "daemon-reload")
_RELOAD_UDEV = ("udevadm", "control", "--reload")
RULE = Path("etc/udev/rules.d/99-zz-nfsrdma.rules")
HELPER = Path("usr/local/lib/nfsrdma/readahead.py")
# not the interpreter of this process: that may belong to a user, and udev runs the helper as root
_PYTHON = Path("usr/bin/python3")


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


DEFAULT_RSIZE = 1 << 20
"""Linux requests it for a mount without the option: NFS_MAX_FILE_IO_SIZE."""


class PartlyUndoneError(UserError):
    """``undone`` was reverted; ``failures`` are mounts that stay tuned.

    ``pending`` are commands that failed after the files were restored.
    """

    def __init__(
        self, undone: list[Tuned], failures: dict[str, UserError], pending: Sequence[str] = ()
    ) -> None:
        self.undone, self.failures = undone, failures
        kept = [f"{directory} is still tuned: {e}" for directory, e in failures.items()]
        restored = ", ".join(tuned.directory for tuned in undone) or "none"
        message = "; ".join([*kept, *dict.fromkeys(pending), f"restored: {restored}"])
        super().__init__(message, "the files are restored: reboot or remount" if pending else "")


def apply(request: TuneRequest, machine: Machine = LIVE, remount: bool = False) -> TuneState:
    """Save ``request``, put it in effect as far as possible, and return what is in effect.

    A root other than / edits the files below it and leaves the kernel alone.  ``remount``
    unmounts, mounts by fstab or unit, and verifies that the new mount has the tuned values.
    On any error (nothing defines the mount, it is busy, the kernel rounds) all changes are
    reverted.
    """
    with tune_state.locked(), journal() as changes:
        old, mount = _known(request.directory, machine), _mount(request.directory, machine)
        identity = _topmost(mount)
        was = old.read_ahead_was_kb if old else _read_ahead(mount)
        try:
            tuned = _plan(request, mount, was, machine, _edit(old) if old else None)
            # a remount frees the device, which may be that of another mount by the undo
            _note_undo(old, tuned, None if remount else mount, machine, changes)
            if remount:
                if mount and identity:
                    _note_mount(mount, identity, changes)
                # unmount first: a busy mount fails before anything is changed
                _unmount(request.directory, identity)
            if old and (pending := _restore(old, machine, by=tuned)):
                raise UserError("; ".join(pending))
            _put(tuned, machine)
            if remount:
                _mount_as_defined(request.directory, _source(tuned, mount, machine), changes)
                _verify(tuned)
        except UserError as error:
            failures = [text for text in changes.undo() if error.message not in text]
            if failures:
                raise UserError("; ".join([error.message, *failures]), error.hint) from error
            raise
        changes.keep()
        _remove_folder(machine)
    return _state(tuned, machine)


def _note_undo(
    old: Tuned | None, tuned: Tuned, mount: Mount | None, machine: Machine, changes: Journal
) -> None:
    """Record in the journal how to return to ``old``: the files first, then what reads them."""
    was = old.read_ahead_was_kb if old and old.read_ahead_kb is not None else None
    wrote = was if tuned.read_ahead_kb is None else tuned.read_ahead_kb
    if mount and wrote is not None:
        path, kb = readahead.path_of(mount.device), readahead.get_kb(mount.device)
        changes.add(Write(str(path), str(kb), str(wrote)))
    for argv in _reloads((old, tuned), machine):
        changes.add(Run(argv))
    state = tune_state.path(machine)
    paths = [state, machine.root / RULE, machine.root / HELPER]
    earlier, later = _edit(old) if old else None, _edit(tuned)
    dropins = [edit for edit in (earlier, later) if edit and edit.before is None]
    folders = dict.fromkeys(path.parent for path in [*paths, *(edit.file for edit in dropins)])
    for folder in (folder for folder in folders if not folder.exists()):
        changes.add(Remove(str(folder)))
    for path in paths:
        changes.add(restoring(path))
    for edit in dropins[-1:]:
        changes.add(restoring(edit.file, edit.after))
    if earlier and earlier.before is not None and tune_definition.reverting(earlier):
        lines = (earlier.before, *([later.after] if later and later.before else []))
        changes.add(Line(str(earlier.file), earlier.after, lines))
    elif later and later.before is not None:
        changes.add(Line(str(later.file), later.before, (later.after,)))


def _note_mount(mount: Mount, identity: MountIdentity, changes: Journal) -> None:
    """Record the mount as it is: with the options in effect, which its definition may not have."""
    kb = str(readahead.get_kb(mount.device))
    where = (str(mount.directory), str(mount.target), mount.fstype)
    changes.add(undo_actions.Mount(*where, mounting.as_mounted(mount), kb,
                                   identity.line, identity.unique))  # fmt: skip


def _topmost(mount: Mount | None) -> MountIdentity | None:
    """What is mounted on the mount point of ``mount``; None if nothing is."""
    identities = mounts_on(str(mount.directory)) if mount else []
    return identities[-1] if identities else None


def _source(tuned: Tuned, mount: Mount | None, machine: Machine) -> str:
    """What the definition mounts; that of the mount if the definition is not known."""
    edit = _edit(tuned)
    lines = fstab.nfs_lines(edit.after) if edit and edit.before is not None else ()
    if lines:
        return lines[0].source
    # by this source, a later start knows the mount of a process that was killed
    defined = tune_definition.source(Path(tuned.directory), machine.root)
    return defined or (str(mount.target) if mount else "")


def applying(
    request: TuneRequest, machine: Machine = LIVE, remount: bool = False
) -> list[str | FileChange]:
    """The changes that ``apply`` would make; those of the state file are left out.

    Raises the errors of ``apply`` that the present state causes.
    """
    old, mount = _known(request.directory, machine), _mount(request.directory, machine)
    was = old.read_ahead_was_kb if old else _read_ahead(mount)
    previous = _edit(old) if old else None
    tuned = _plan(request, mount, was, machine, previous)
    texts = tune_definition.resulting(previous, _edit(tuned))
    rows = [row for row in _tuned_mounts(machine) if row != old]
    if tuned.read_ahead_kb is not None:
        texts |= _outdated_rule(machine)
    elif all(row.read_ahead_kb is None for row in rows):
        texts |= dict.fromkeys(_installed_rule(machine))
    pairs = [(path, files.readable(path) if path.exists() else None) for path in texts]
    changes = [FileChange(path, now, texts[path]) for path, now in pairs if now != texts[path]]
    steps = _activations(old, machine, was if tuned.read_ahead_kb is None else None) if old else []
    steps += _activations(tuned, machine, tuned.read_ahead_kb)
    return [
        *([f"unmount {request.directory}"] if remount and mount else []),
        *changes,
        *dict.fromkeys(step.text for step in steps),
        *([f"mount {request.directory}"] if remount else []),
    ]


def require_measured(
    directory: Path, transport: str, vers: str, nconnect: int, machine: Machine = LIVE
) -> None:
    """UserError unless the mount has these values; if it is not mounted, unless they are requested.

    A value that the definition of an unmounted mount leaves to mount.nfs is not compared.
    """
    measured: dict[str, str | int] = {"transport": transport, "vers": vers, "nconnect": nconnect}
    mount = _mount(directory, machine)
    if mount:
        values = {name: getattr(mount, name) for name in measured}
    else:
        asked = tune_definition.requested(directory, machine.root)
        if asked is None:
            return
        # fstab has one name for the two modules
        measured["transport"] = family(transport)
        # 4 leaves the minor version open
        is_open = asked.vers is None or vers.startswith(f"{asked.vers}.")
        values = {
            "transport": asked.transport or "tcp",
            "vers": vers if is_open else asked.vers,
            "nconnect": asked.nconnect or 1,
        }
    wrong = [name for name, value in measured.items() if values[name] != value]
    if wrong:
        has = ", ".join(f"{name} {values[name]}" for name in wrong)
        was = ", ".join(f"{name} {measured[name]}" for name in wrong)
        message = f"{directory} has {has}, and the sweep measured {was}"
        raise UserError(
            message, "change the options of the mount and mount it again, or sweep them"
        )


def _tuned_mounts(machine: Machine) -> list[Tuned]:
    return tune_state.load(machine) or []


def _others(tuned: Tuned, machine: Machine) -> list[Tuned]:
    """The other tuned mounts."""
    return [row for row in _tuned_mounts(machine) if row.directory != tuned.directory]


def cost_of_rsize(rsize: int | None) -> str:
    """What an rsize below the kernel's default costs, as a sentence; "" for others."""
    if rsize is None or rsize >= DEFAULT_RSIZE:
        return ""
    default = format_size(DEFAULT_RSIZE)
    return (
        f"rsize {format_size(rsize)} is below the kernel's default of {default}: "
        f"a read of {default} takes {-(-DEFAULT_RSIZE // rsize)} requests "
        "instead of 1, also of programs that the sweep did not measure; omit rsize to keep the "
        "default"
    )


def show(machine: Machine = LIVE) -> list[TuneState]:
    """All tuned mounts with their values in effect."""
    return [_state(tuned, machine) for tuned in _tuned_mounts(machine)]


def undo(directory: Path | None, machine: Machine = LIVE) -> list[Tuned]:
    """Revert the tuning of one mount, or of all (None); returns what was tuned.

    Raises UserError if nothing was, MismatchError if the line was changed in the meantime.  With
    several mounts, a mount that cannot be reverted does not keep the others from it:
    PartlyUndoneError at the end.  The same error if udev or systemd do not reload their files.
    """
    with tune_state.locked(), journal():
        mine = _tuned(directory, _tuned_mounts(machine))
        failures: dict[str, UserError] = {}
        pending: list[str] = []
        for row in mine:
            try:
                pending += _take_back(row, machine)
            except UserError as error:
                if len(mine) == 1:
                    raise
                failures[row.directory] = error
    if failures or pending:
        undone = [row for row in mine if row.directory not in failures]
        raise PartlyUndoneError(undone, failures, pending)
    return mine


def undoing(
    directory: Path | None, machine: Machine = LIVE
) -> tuple[list[str], dict[str, UserError]]:
    """The changes that ``undo`` would make, and an error for each mount that stays tuned."""
    rows = _tuned_mounts(machine)
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
        if (
            row.read_ahead_kb is not None
            and was is not None
            and _mount(Path(row.directory), machine)
        ):
            changes.append(f"set read_ahead_kb of {row.directory} to {was}")
    undone = {row.directory for row in mine} - set(failures)
    rest = [row for row in rows if row.directory not in undone]
    if undone and all(row.read_ahead_kb is None for row in rest):
        changes += [f"remove {path}" for path in _installed_rule(machine)]
    return changes, failures


def _tuned(directory: Path | None, rows: Sequence[Tuned]) -> list[Tuned]:
    mine = [row for row in rows if directory in (None, Path(row.directory))]
    if not mine:
        raise UserError(f"nothing is tuned{f' for {directory}' if directory else ''}",
                        "see `nfsrdma tune show`")  # fmt: skip
    return mine


def _known(directory: Path, machine: Machine) -> Tuned | None:
    rows = _tuned_mounts(machine)
    return next((row for row in rows if row.directory == str(directory)), None)


def _mount(directory: Path, machine: Machine) -> Mount | None:
    return mounts.find(directory) if machine.root == SLASH else None


def _read_ahead(mount: Mount | None) -> int | None:
    return readahead.get_kb(mount.device) if mount else None


def _plan(
    request: TuneRequest,
    mount: Mount | None,
    was: int | None,
    machine: Machine,
    old: Edit | None = None,
) -> Tuned:
    edit = tune_definition.plan(request.directory, request.rsize, request.wsize, machine.root, old)
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
        message = f"no NFS mount at {request.directory}, so its rsize is unknown"
        raise UserError(message, "give --rsize or mount it")
    return readahead.kb_for(request.read_ahead, rsize)


def _put(tuned: Tuned, machine: Machine) -> None:
    tune_state.save([*_others(tuned, machine), tuned], machine)
    edit = _edit(tuned)
    if edit:
        tune_definition.put(edit)
    if tuned.read_ahead_kb is not None:
        _install_rule(machine)
    for step in _activations(tuned, machine, tuned.read_ahead_kb):
        step.run()


class _Step(NamedTuple):
    """A step as --dry-run prints it, and the function that makes it."""

    text: str
    run: Callable[[], object]


def _activations(tuned: Tuned, machine: Machine, kb: int | None) -> list[_Step]:
    """The steps that put changed files of a mount into effect, and this read-ahead."""
    if machine.root != SLASH:
        return []
    reloads, directory = _reloads([tuned], machine), Path(tuned.directory)
    steps = [_Step(f"run {' '.join(argv)}", partial(run, *argv)) for argv in reloads]
    # a mount that is made later gets it from the udev rule
    if tuned.read_ahead_kb is not None and kb is not None and mounts.find(directory):
        set_now = partial(_set_read_ahead, directory, kb)
        steps.append(_Step(f"set read_ahead_kb of {directory} to {kb}", set_now))
    return steps


def _reloads(rows: Iterable[Tuned | None], machine: Machine) -> list[tuple[str, ...]]:
    """The commands that have systemd and udev reread what the ``rows`` change."""
    known = [row for row in rows if row]
    systemd = any(row.file for row in known) and tune_definition.SYSTEMD.is_dir()
    udev = any(row.read_ahead_kb is not None for row in known)
    commands: list[tuple[str, ...]] = [_RELOAD_SYSTEMD] * systemd
    commands += [_RELOAD_UDEV] * udev
    return commands if machine.root == SLASH else []


def _failure(step: Callable[..., object], *arguments: object) -> list[str]:
    """Call ``step``; its error message, in a list, if it fails."""
    try:
        step(*arguments)
    except (UserError, OSError) as error:
        return [str(error)]
    return []


def _take_back(tuned: Tuned, machine: Machine) -> list[str]:
    """Revert the tuning; returns a message per failure to put the files into effect."""
    failures = _restore(tuned, machine)
    tune_state.save(_others(tuned, machine) or None, machine)
    _remove_folder(machine)
    return failures


def _restore(tuned: Tuned, machine: Machine, by: Tuned | None = None) -> list[str]:
    """Revert the files; returns a message per failure to put them into effect.

    Such a failure does not keep the mount tuned: the next attempt would fail in the same way.  The
    rule stays if another mount, or the tuning that follows (``by``), needs it.
    """
    edit = _edit(tuned)
    if edit:
        tune_definition.put_back(edit)
    rows = [*_others(tuned, machine), *([by] if by else [])]
    if all(row.read_ahead_kb is None for row in rows):
        _remove_rule(machine)
    follows = by is not None and by.read_ahead_kb is not None
    steps = _activations(tuned, machine, None if follows else tuned.read_ahead_was_kb)
    return [text for step in steps for text in _failure(step.run)]


def _edit(tuned: Tuned) -> Edit | None:
    if tuned.file is None or tuned.after is None:
        return None
    return Edit(Path(tuned.file), tuned.before, tuned.after)


def _state(tuned: Tuned, machine: Machine) -> TuneState:
    mount = mounts.find(Path(tuned.directory)) if machine.root == SLASH else None
    if mount is None:
        return TuneState(tuned)
    others = tuple(_sharing_with(mount.directory))
    kb = readahead.get_kb(mount.device)
    return TuneState(tuned, mount.rsize, mount.wsize, kb, others)


def _set_read_ahead(directory: Path, kb: int) -> None:
    """Set and verify the read-ahead (KiB) of the mount on ``directory``, if it is mounted."""
    mount = mounts.find(directory)
    if mount is not None:
        readahead.set_kb(mount.device, kb)


def _unmount(directory: Path, was: MountIdentity | None) -> None:
    """Unmount ``was``, if mounted.  UserError for another mount, or naming the users of a mount."""
    top = _topmost(mounts.find(directory))
    if top is None:
        return
    if was is None or not top.is_same(was):
        message = f"{top.source} has been mounted on {directory} meanwhile, and is kept"
        raise UserError(message, "unmount it, or tune again")
    mounting.unmount(directory)


def _mount_as_defined(directory: Path, source: str, changes: Journal) -> None:
    """Mount as fstab or the mount unit defines it, from ``source``."""
    undo_mount = Unmount(str(directory), source)
    changes.add(undo_mount)
    unit = units.unit_name(directory)
    if tune_definition.is_written_by_hand(tune_definition.cat_unit(unit)):
        run("systemctl", "start", "--", unit)
    else:
        run("mount", "--target", directory)
    mounting.identified(undo_mount, changes)


def _verify(tuned: Tuned) -> None:
    """Compare a fresh mount with the tuned values; MismatchError with both values."""
    directory = Path(tuned.directory)
    mount = mounts.find(directory)
    if mount is None:
        raise UserError(f"{directory} is not mounted after mount(8)", f"mount -v {directory}")
    values = {
        "rsize": mount.rsize,
        "wsize": mount.wsize,
        "read_ahead_kb": _settled_read_ahead(mount.device),
    }
    for name, value in values.items():
        requested = getattr(tuned, name)
        if requested is not None and requested != value:
            raise MismatchError(f"{name} of {directory}", requested, value,
                                "the server or the transport limits it")  # fmt: skip


def _settled_read_ahead(device: str) -> int:
    udev.settle()
    return readahead.get_kb(device)


def _sharing_with(directory: Path) -> list[Path]:
    """Other mount points of the same superblock, which share its read-ahead."""
    mount = mounts.find(directory)
    everywhere = mounts.mounts() if mount else []
    return [other.directory for other in everywhere
            if mount and other.device == mount.device and other.directory != directory]  # fmt: skip


def _rule_text() -> str:
    """The text of the rule; it contains no user input."""
    return (
        "# Made by nfsrdma tune, removed by `nfsrdma tune undo`.\n"
        'ACTION=="add", SUBSYSTEM=="bdi", KERNEL=="0:*", '
        f'PROGRAM="/{_PYTHON} -IS /{HELPER} %k", ATTR{{read_ahead_kb}}="%c"\n'
    )


def _install_rule(machine: Machine) -> None:
    """Install the rule and its helper below the root.

    UserError if the system has no Python to run the helper.
    """
    for path, text in _outdated_rule(machine).items():
        files.write_atomically(path, text)


def _outdated_rule(machine: Machine) -> dict[Path, str]:
    """The files that ``_install_rule`` would write, and their texts; the same error."""
    if not (machine.root / _PYTHON).exists():
        message = f"{machine.root / _PYTHON} does not exist, and the udev rule needs it"
        raise UserError(message, "install the distribution's package python3")
    texts = {
        machine.root / HELPER: Path(udev_helper.__file__).read_text(),
        machine.root / RULE: _rule_text(),
    }
    return {path: text for path, text in texts.items() if files.readable(path) != text}


def _installed_rule(machine: Machine) -> list[Path]:
    """Those of the rule and its helper that exist below the root."""
    return [machine.root / path for path in (RULE, HELPER) if (machine.root / path).exists()]


def _remove_rule(machine: Machine) -> None:
    for path in _installed_rule(machine):
        files.remove(path)


def _remove_folder(machine: Machine) -> None:
    """Remove the helper's folder if it is empty."""
    folder = machine.root / HELPER.parent
    if not any(folder.glob("*")) and folder.is_dir():
        folder.rmdir()
