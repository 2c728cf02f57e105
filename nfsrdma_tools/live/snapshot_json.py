# SPDX-License-Identifier: Apache-2.0
"""Snapshots as JSON: plain values of their frozen dataclasses, and recordings of a line each.

Fields with default values are omitted, and unknown fields ignored.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, fields
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeVar

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.json_records import typed
from nfsrdma_tools.live.snapshot import Snapshot

__all__ = ["Recorder", "from_plain", "line", "read", "replayed", "to_plain"]

_T = TypeVar("_T")
_SIMPLE = (int, float, str, bool)
_UNCHANGED = frozenset((*_SIMPLE, type(None)))


def to_plain(value: Any) -> Any:
    """The value as dicts, lists, numbers and strings."""
    kind = value.__class__
    if kind in _UNCHANGED:
        return value
    if isinstance(value, (tuple, list)):
        return [to_plain(part) for part in value]
    if kind is dict:
        parts = value
    else:
        stated = ((name, getattr(value, name), default) for name, default in _defaults(kind))
        parts = {name: part for name, part, default in stated if part != default}
    return {k: x if x.__class__ in _UNCHANGED else to_plain(x) for k, x in parts.items()}


def from_plain(kind: type[_T], plain: Any) -> _T:
    """The dataclass again; unknown fields are ignored, so that old versions read new files.

    Raises UserError if ``to_plain`` cannot have made ``plain``.
    """
    try:
        return typed(kind, plain)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"invalid {kind.__name__}: {error}") from error


@lru_cache(maxsize=64)
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((member.name, _default(member)) for member in fields(kind))


def _default(member: Field[Any]) -> Any:
    if member.default_factory is not MISSING:
        return member.default_factory()
    return member.default


_FORM = {"nfsrdma snapshots": 1}


def line(snapshot: Snapshot) -> str:
    """A snapshot as one line of JSON, in ASCII."""
    return json.dumps(to_plain(snapshot), separators=(",", ":"))


class Recorder:
    """Writes snapshots to a new file; a line is in the file before ``add`` returns."""

    def __init__(self, path: Path) -> None:
        try:
            self._file: IO[str] = path.open("x", encoding="ascii")
        except FileExistsError as error:
            raise UserError(f"{path} exists", "choose another name") from error
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        self._write(json.dumps(_FORM))

    def add(self, snapshot: Snapshot) -> None:
        """Write one snapshot."""
        self._write(line(snapshot))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, text: str) -> None:
        self._file.write(text + "\n")
        self._file.flush()


def read(path: Path) -> Iterator[Snapshot]:
    """The snapshots of a file; UserError with the number of the first invalid line.

    An incomplete last line is skipped: its writer was killed.
    """
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            if _parsed(file.readline(), path, 1) != _FORM:
                raise UserError(
                    f"{path} is not a recording", "make one with: nfsrdma top --record FILE"
                )
            for number, text in enumerate(file, start=2):
                if text.endswith("\n"):
                    yield from_plain(Snapshot, _parsed(text, path, number))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _parsed(text: str, path: Path, number: int) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{path}, line {number}: {error}") from error


def replayed(
    snapshots: Iterable[Snapshot],
    deliver: Callable[[Snapshot], None],
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Deliver snapshots at their original intervals; end when ``wait`` returns true."""
    for number, snapshot in enumerate(snapshots):
        # not the difference of two times of day, which may be set between them
        if number and wait(max(snapshot.seconds, 0.0)):
            return
        deliver(snapshot)
