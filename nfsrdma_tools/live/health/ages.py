# SPDX-License-Identifier: Apache-2.0
"""Since when something has been so, from what earlier runs have seen: a file below /run/nfsrdma.

The kernel does not say when an RPC started, so an age counts from the first run that saw it, and is
a lower bound.  The file has a line per thing: its key, a mark that changes when it is another one,
and the time of the first and of the last run that saw it, in seconds since boot.  Lines of another
form are left out, so whatever is in the file, an age is at most the time since boot.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import (
    beginning,
    check_replaceable,
    opened_regular,
    remove_drafts,
    write_fresh,
)
from nfsrdma_tools.lock import holder, try_file_lock

__all__ = ["FILES", "Ages", "Sight", "kept_ages"]

NAME = "health"
FILES = (NAME, f"{NAME}.lock")
"""The names of the files in the folder of ages."""
_HEAD = "nfsrdma-health 1 {}\n"
_LINE = re.compile(
    r"(?P<key>[a-z]+:[0-9a-f:.]{1,60}) (?P<mark>[0-9a-f/-]{1,60}) "
    r"(?P<since>[0-9]{1,10}\.[0-9]{3}) (?P<last>[0-9]{1,10}\.[0-9]{3})"
)
_MOST_LINES = 100_000
_MOST_BYTES = 16 << 20
_PAUSE = 0.05


class Sight(NamedTuple):
    """A mark that runs saw, with the time of the first and of the last of these runs."""

    mark: str
    since: float
    last: float


class Ages:
    """What earlier runs saw, and what this one sees at ``now``, in seconds since boot, by key.

    ``unknown`` says why no later run can know what this one sees; "" if it can.
    """

    def __init__(
        self, now: float, before: dict[str, Sight] | None = None, unknown: str = ""
    ) -> None:
        self.now, self.unknown = now, unknown
        self.previous = before or {}
        self.seen: dict[str, Sight] = {}
        self.notes: list[str] = []

    def age(self, key: str, mark: str, joins: str = "") -> float:
        """Seconds since a run first saw ``key`` with this ``mark``; 0 if this one is the first.

        The mark ``joins`` equals any other: an RPC has no XID before it has a slot.
        """
        was = self.previous.get(key)
        same = was and (was.mark == mark or joins in (was.mark, mark))
        since = was.since if was and same else self.now
        self.seen[key] = Sight(mark, since, self.now)
        return self.now - since

    def note(self, key: str, sight: Sight) -> None:
        """Keep ``sight`` for the next run."""
        self.seen[key] = sight


@contextlib.contextmanager
def kept_ages(folder: Path, boot: str, seconds: float) -> Iterator[Ages]:
    """Ages of the runs before this one; what the block adds is kept for the next.

    Waits up to ``seconds`` for another run that uses them; UserError if it does not end, or if the
    files or ``folder`` exist and are something else.
    ``boot`` is the id of this boot: what was seen before it is over.
    """
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    path = folder / NAME
    _check_kinds(folder)
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            locked = _lock(stack, folder / f"{NAME}.lock", seconds)
        except (OSError, UserError) as error:
            reason = error.message if isinstance(error, UserError) else error.strerror
            yield Ages(now, unknown=f"cannot write to {folder}: {reason}")
            return
        if not locked:
            other = holder(folder / f"{NAME}.lock")
            raise UserError(
                f"another run{f', process {other},' if other else ''} has used {path}"
                f" for {seconds:g} s",
                f"if it never ends, /proc/{other or 'PID'}/wchan names where it waits",
            )
        before, why = _read(path, boot, now)
        ages = Ages(now, before)
        ages.notes += [why] if why else []
        yield ages
        try:
            remove_drafts(path)
            write_fresh(path, _text(boot, ages.seen), 0o600)
        except OSError as error:
            ages.unknown = f"cannot write {path}: {error.strerror}"


def _check_kinds(folder: Path) -> None:
    """UserError if the folder or a file in it exists and is of another kind, such as a device."""
    hint = "remove it, or give another folder with --state"
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"cannot write to {folder}: not a folder", hint)
        for name in FILES:
            check_replaceable(folder / name)
    except (PermissionError, NotADirectoryError):
        # there is no folder that this user can write to: ages are unknown
        return
    except OSError as error:
        raise UserError(f"cannot write {error.filename}: {error.strerror}", hint) from error


def _lock(stack: contextlib.ExitStack, path: Path, seconds: float) -> bool:
    """Whether the lock is free within that time."""
    limit = time.monotonic() + seconds
    while not (taken := stack.enter_context(try_file_lock(path))) and time.monotonic() < limit:
        time.sleep(_PAUSE)
    return taken


def _read(path: Path, boot: str, now: float) -> tuple[dict[str, Sight], str]:
    """What the file has, and why it has nothing."""
    try:
        with opened_regular(path, os.O_RDONLY) as handle:
            about = os.fstat(handle)
            if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o022:
                return {}, f"{path} was ignored: another user may write to it"
            text = beginning(f"/proc/self/fd/{handle}", _MOST_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        return {}, f"{path} was ignored: {error.strerror}"
    head, *lines = text.split("\n", _MOST_LINES + 1)
    if f"{head}\n" != _HEAD.format(boot):
        # of another boot or version
        return {}, ""
    sights = {}
    for match in filter(None, map(_LINE.fullmatch, lines[:_MOST_LINES])):
        since, last = float(match["since"]), float(match["last"])
        if since <= last <= now:
            sights[match["key"]] = Sight(match["mark"], since, last)
    return sights, ""


def _text(boot: str, seen: dict[str, Sight]) -> bytes:
    lines = (f"{key} {s.mark} {s.since:.3f} {s.last:.3f}\n" for key, s in seen.items())
    return (_HEAD.format(boot) + "".join(islice(lines, _MOST_LINES))).encode("ascii", "replace")
