# SPDX-License-Identifier: Apache-2.0
"""The journal of temporary changes, and their undo.

A change writes its undo to the journal *before* it is made.  The undo runs at the end of the
block, after success, error and Ctrl-C alike; after a kill -9 the next start finds the journal of
the dead process and runs it (``recover``).  An undo is data, never code: run an argv, write a file,
remove a file, unmount, export.  Journals are below /run, because the changes (mounts, sysctls) do
not survive a reboot either.  A second undo does no harm: an undo that fails is reported and
dropped.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Union

from nfsrdma_tools import etab, files, identity, udev
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.etab import Exported
from nfsrdma_tools.files import make_state_dir, state_dir
from nfsrdma_tools.identity import MountIdentity, mounts_on

__all__ = [
    "Export",
    "Journal",
    "Line",
    "Mount",
    "Remove",
    "Run",
    "Service",
    "Unexport",
    "Unmount",
    "Write",
    "journal",
    "keeping_exports",
    "recover",
    "restoring",
]


@dataclass(frozen=True)
class Run:
    """Undo by running a program; only while the path ``when`` exists and ``unless`` does not."""

    argv: tuple[str, ...]
    when: str = ""
    unless: str = ""

    def undo(self) -> None:
        """Run it."""
        wanted = not self.when or Path(self.when).exists()
        if wanted and not (self.unless and Path(self.unless).exists()):
            run(*self.argv)

    def __str__(self) -> str:
        """The command, for a user who has to run it by hand."""
        return shlex.join(self.argv)


@dataclass(frozen=True)
class Write:
    """Undo by writing ``text`` back to ``path`` (a sysctl, a sysfs attribute, a file).

    ``wrote`` is what the file has after the change; "" if it is unknown, or is no text that can be
    read back.
    """

    path: str
    text: str
    wrote: str = ""

    def undo(self) -> None:
        """Write it; UserError if somebody changed the file after us.

        A file that somebody removed, or a device that is gone, is left alone.
        """
        files.remove_drafts(Path(self.path))
        if self.wrote and not os.path.lexists(self.path):
            return
        if not self.wrote:
            # a file that was not changed may be on a read-only filesystem
            if files.readable(self.path) != self.text:
                files.overwrite(Path(self.path), self.text)
        elif _still_has(self.path, self.wrote, self.text):
            files.overwrite(Path(self.path), self.text)

    def __str__(self) -> str:
        """The change; a file can be long, so only one line of text is shown."""
        text = self.text.removesuffix("\n")
        return f"write {'its old content' if chr(10) in text else shlex.quote(text)} to {self.path}"


@dataclass(frozen=True)
class Line:
    """Undo by making a line of a file ``before`` again; other lines stay.

    ``wrote`` are the lines that the change writes in its place, one after the other.
    """

    path: str
    before: str
    wrote: tuple[str, ...]

    def undo(self) -> None:
        """Replace it; UserError if somebody changed or removed the line after us."""
        files.remove_drafts(Path(self.path))
        lines = files.read(self.path).split("\n")
        ours = [line for line in lines if line in self.wrote]
        if self.before in lines:
            return
        if not ours:
            raise UserError("the line was changed after nfsrdma wrote it, and is kept")
        lines[lines.index(ours[0])] = self.before
        files.write_atomically(Path(self.path), "\n".join(lines))

    def __str__(self) -> str:
        """The change, for a user who has to make it by hand."""
        return f"write the line {shlex.quote(self.before)} to {self.path}"


@dataclass(frozen=True)
class Remove:
    """Undo by removing a file or an empty directory, if it still exists.

    ``wrote`` is the text of the file after the change; "" if it is unknown.
    """

    path: str
    wrote: str = ""

    def undo(self) -> None:
        """Remove it; UserError if somebody changed the file after us."""
        path = Path(self.path)
        files.remove_drafts(path)
        if path.is_dir() and not path.is_symlink():
            try:
                path.rmdir()
            except OSError as error:
                # others may have put files there
                if error.errno != errno.ENOTEMPTY:
                    raise
        elif os.path.lexists(path) and (not self.wrote or _still_has(self.path, self.wrote)):
            path.unlink(missing_ok=True)

    def __str__(self) -> str:
        """The change, for a user who has to make it by hand."""
        return f"remove {self.path}"


def restoring(path: Path, wrote: str = "") -> Write | Remove:
    """The undo of writing ``path``; ``wrote`` as for ``Write``.

    OSError if it cannot be read; NotRegularError for a FIFO, a socket or a device.
    """
    if path.exists():
        return Write(str(path), files.read(path), wrote)
    return Remove(str(path), wrote)


def _still_has(path: str, wrote: str, before: str | None = None) -> bool:
    """Whether a file has the text that we wrote; False if it already has the one ``before``.

    UserError if it has another one: an administrator's change is kept.
    """
    # the kernel prints the numbers of a sysctl with tabs between them and a newline after them
    text = files.read(path).split()
    if before is not None and text == before.split():
        return False
    if text != wrote.split():
        raise UserError("the file was changed after nfsrdma wrote it, and is kept")
    return True


@dataclass(frozen=True)
class Unmount:
    """Undo by unmounting what was mounted on ``directory``, and no later mount there.

    ``line`` and ``unique`` identify the mount (``MountIdentity``).  They are empty until mount.nfs
    returns; if the process was killed before, a mount of ``source`` is the one that it made.
    """

    directory: str
    source: str
    line: str = ""
    unique: int = 0

    def undo(self) -> None:
        """Unmount it; UserError if another mount covers it."""
        mounts = mounts_on(self.directory)
        if mounts and self._is_ours(mounts[-1]):
            # umount.nfs, not umount(8): it can only unmount NFS
            run("umount.nfs", self.directory)
        elif any(map(self._is_ours, mounts)):
            raise UserError(f"a mount of {mounts[-1].source} covers it")

    def _is_ours(self, mount: MountIdentity) -> bool:
        if not self.line:
            return mount.source == self.source
        return mount.is_same(MountIdentity(self.line, self.unique))

    def __str__(self) -> str:
        """The command, for a user who has to run it by hand."""
        return shlex.join(("umount.nfs", self.directory))


@dataclass(frozen=True)
class Mount:
    """Undo by mounting as mountinfo had it: a source, a type, and the options in effect.

    ``line`` and ``unique`` identify that mount, ``read_ahead_kb`` is its read-ahead in KiB.
    """

    directory: str
    source: str
    fstype: str
    mount_options: str
    read_ahead_kb: str
    line: str
    unique: int = 0

    def undo(self) -> None:
        """Mount it; UserError if somebody mounted something else there."""
        mounts, was = mounts_on(self.directory), MountIdentity(self.line, self.unique)
        if any(mount.is_same(was) for mount in mounts):
            return
        # a killed undo may have mounted it
        if not mounts or not mounts[-1].is_alike(was):
            if mounts and mounts[-1].fstype != "autofs":
                raise UserError(f"{mounts[-1].source} is mounted there, and is kept")
            run(*self._argv())
        made = mounts_on(self.directory)[-1]
        # the rule of nfs-utils (nfsrahead) sets it some time after a mount
        udev.settle()
        files.overwrite(_BDI / made.device / "read_ahead_kb", self.read_ahead_kb)

    def _argv(self) -> tuple[str, ...]:
        words = ("-t", self.fstype, "-o", self.mount_options, "--", self.source, self.directory)
        return ("mount", *words)

    def __str__(self) -> str:
        """The command, for a user who has to run it by hand."""
        return shlex.join(self._argv())


@dataclass(frozen=True)
class Export(Exported):
    """Undo by exporting ``path`` to ``client`` with ``options`` again, as exportfs prints them."""

    def undo(self) -> None:
        """Export it, unless it is in effect."""
        if Exported(self.path, self.client, self.options) not in etab.effective():
            etab.add([self])

    def __str__(self) -> str:
        """The command, for a user who has to run it by hand."""
        return shlex.join(etab.add_command(self))


@dataclass(frozen=True)
class Unexport(Exported):
    """Undo by no longer exporting ``path`` to ``client``; ``options`` are those of the export.

    ``file`` is the file of the export: it does not keep the export in effect.
    """

    file: str

    def undo(self) -> None:
        """Unexport it, if it is in effect; UserError if somebody changed its options after us."""
        exports = [each for each in etab.effective() if etab.is_named(each, [self])]
        ours = [each for each in exports if set(self.options) <= set(each.options)]
        etab.remove(ours, Path(self.file))
        if len(ours) < len(exports):
            raise UserError("its options were changed after nfsrdma exported it, and it is kept")

    def __str__(self) -> str:
        """The command, for a user who has to run it by hand."""
        return shlex.join(etab.remove_command(self, Path(self.file)))


@dataclass(frozen=True)
class Service:
    """Undo by starting, stopping or restarting a unit of the NFS server."""

    verb: str
    unit: str

    def undo(self) -> None:
        """Do it, and keep the exports that no file has."""
        with keeping_exports(self.verb):
            run("systemctl", self.verb, self.unit)

    def __str__(self) -> str:
        """The command, for a user who has to run it by hand."""
        return shlex.join(("systemctl", self.verb, self.unit))


Action = Union[Run, Write, Line, Remove, Unmount, Mount, Export, Unexport, Service]
_KINDS: dict[str, type[Action]] = {
    "run": Run, "write": Write, "line": Line, "remove": Remove, "unmount": Unmount, "mount": Mount,
    "export": Export, "unexport": Unexport, "service": Service,
}  # fmt: skip
_LISTS = ("argv", "options")


_BDI = Path("/sys/class/bdi")
# the identity of the process that writes it, and a random number
_NAME = re.compile(r"(\d+-\w+)-\w+", re.ASCII)


class Journal:
    """The undo actions of one running process, newest last, on disk before each change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.actions: list[Action] = []

    def add(self, action: Action) -> None:
        """Record ``action``; call this before the change that it undoes."""
        self.actions.append(action)
        self._save()

    def drop(self, action: Action) -> None:
        """Forget ``action``: the change is undone, or is permanent."""
        self.actions.remove(action)
        self._save()

    def replace(self, old: Action, new: Action) -> None:
        """Record more about a change that has been made."""
        self.actions[self.actions.index(old)] = new
        self._save()

    def keep(self) -> None:
        """Forget all actions: the changes are permanent."""
        self.actions.clear()
        self._save()

    def undo(self) -> list[str]:
        """Undo all changes, newest first; returns a message per failure."""
        failures = self._undo_to(0)
        self.path.unlink(missing_ok=True)
        return failures

    @contextlib.contextmanager
    def section(self) -> Iterator[None]:
        """Undo the changes of a block at its end; UserError with the failures."""
        mark = len(self.actions)
        try:
            yield
        finally:
            _raise_for(self._undo_to(mark))

    def _undo_to(self, mark: int) -> list[str]:
        failures = []
        while len(self.actions) > mark:
            action = self.actions[-1]
            try:
                action.undo()
            except (UserError, OSError, ValueError) as error:
                reason = _reason(error)
                # the message of a program that failed begins with its command
                change = "" if reason.startswith(f"{action} ") else f" ({action})"
                failures.append(f"cannot undo a change{change}: {reason}")
            # the last one: an equal action before it belongs to another change
            self.actions.pop()
            self._save()
        return failures

    def _save(self) -> None:
        kinds = {cls: name for name, cls in _KINDS.items()}
        rows = [{"kind": kinds[type(a)], **asdict(a)} for a in self.actions]
        draft = self.path.with_suffix(".new")
        with draft.open("w") as file:
            json.dump(rows, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)

    @classmethod
    def load(cls, path: Path) -> Journal:
        """Read the journal of another process; UserError when it is damaged."""
        journal = cls(path)
        try:
            rows = json.loads(files.text(path))
            journal.actions = [_action(**row) for row in _listed(rows)]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise UserError(f"{path} is not a journal of nfsrdma: {_damage(error)}") from error
        return journal


@contextlib.contextmanager
def journal() -> Iterator[Journal]:
    """Open the journal of this process; at the end, undo what is still in it."""
    for failure in recover():
        print(f"nfsrdma: left by a killed process: {failure}", file=sys.stderr)
    changes = Journal(_own_path())
    try:
        yield changes
    finally:
        _raise_for(changes.undo())


@contextlib.contextmanager
def keeping_exports(verb: str) -> Iterator[None]:
    """Keep exports over a block that starts, stops or restarts the NFS server.

    Its unit runs ``exportfs -r`` or ``exportfs -au``, which drop what no file has.  A stopped
    server has no exports of files.  A journal has them, and brings them back after a kill, too.
    """
    there = etab.effective()
    if verb == "stop":
        of_files = etab.named()
        there = [each for each in there if not etab.is_named(each, of_files)]
    if not there:
        yield
        return
    changes = Journal(_own_path())
    for each in there:
        changes.add(Export(each.path, each.client, each.options))
    try:
        yield
    finally:
        _raise_for(changes.undo())


def _raise_for(failures: list[str]) -> None:
    if not failures:
        return
    error = UserError("; ".join(failures), "undo it by hand")
    if isinstance(sys.exc_info()[1], (KeyboardInterrupt, GeneratorExit)):
        # an error in its place would be one of the block, and the caller would go on
        print(f"nfsrdma: {error}", file=sys.stderr)
        return
    raise error


def recover() -> list[str]:
    """Run the journals of dead processes; returns a message per failure."""
    left = [path for path in sorted(state_dir().glob("*.undo")) if not _is_alive(path)]
    return [failure for path in left for failure in _recovered(path)]


def _is_alive(path: Path) -> bool:
    match = _NAME.fullmatch(path.stem)
    return match is not None and identity.is_running(match[1])


def _recovered(path: Path) -> list[str]:
    try:
        # the rename decides which of two recovering processes runs it
        mine = path.rename(_own_path())
    except FileNotFoundError:
        return []
    try:
        if not _NAME.fullmatch(path.stem):
            raise UserError(f"{path} is not named like a journal")
        return Journal.load(mine).undo()
    except UserError as error:
        # otherwise every later run would fail on it
        aside = mine.rename(mine.with_suffix(".damaged"))
        return [f"{error.message}; renamed to {aside}, nothing in it was undone"]


def _own_path() -> Path:
    owner = identity.of_this_process()
    return make_state_dir() / f"{owner}-{os.urandom(4).hex()}.undo"


def _reason(error: Exception) -> str:
    # str(OSError) has its number and the path in quotes
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _damage(error: Exception) -> str:
    if isinstance(error, (ValueError, RecursionError)):
        return "it is not JSON"
    return "an entry does not describe a change to undo"


def _listed(rows: object) -> list[Any]:
    if not isinstance(rows, list):
        raise TypeError("expected a list")
    return rows


def _action(kind: str, **fields: Any) -> Action:
    lists = {*_LISTS, *(["wrote"] if kind == "line" else [])}
    values = [value for name, value in fields.items() if name not in (*lists, "unique")]
    for name in fields.keys() & lists:
        fields[name] = tuple(_listed(fields[name]))
        values += fields[name]
    if not all(isinstance(text, str) for text in values):
        raise TypeError("expected texts")
    if not isinstance(fields.get("unique", 0), int):
        raise TypeError("expected a number")
    return _KINDS[kind](**fields)
