# SPDX-License-Identifier: Apache-2.0
"""Find messages of NFS and RDMA in a log, and explain them.

A log holds what any server, peer or user made the kernel or a program print: lines are cut,
groups are counted up to a limit, and nothing of a line reaches a terminal without ``printable``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.kernel_log import sources
from nfsrdma_tools.host.kernel_log.completion_dumps import CompletionDump
from nfsrdma_tools.host.kernel_log.known_message import Severity
from nfsrdma_tools.host.kernel_log.lines import LINE_BYTES, LogLine
from nfsrdma_tools.host.kernel_log.meanings import (
    Described,
    LineKey,
    Meaning,
    ReportedNumber,
    key_of,
    key_of_line,
    meaning_of,
)
from nfsrdma_tools.host.kernel_log.records import Counts, Record, records
from nfsrdma_tools.host.kernel_log.reports import KernelReport
from nfsrdma_tools.host.machine import Machine

__all__ = [
    "WITHHELD",
    "Explanation",
    "Log",
    "ReportedNumber",
    "boot_messages",
    "explain",
    "read_log",
    "recognized_lines",
]

_GROUPS = 500
"""Messages of further servers, devices and modules are counted together."""
_NUMBERS = 8
_REPEATED = 64
"""Reports of different content whose meanings are kept."""
_MANY = "(others)"
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "information")
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


@dataclass(frozen=True, kw_only=True)
class Explanation(Described):
    """The meaning and the count of one kind of record about one subject, at one place."""

    count: int
    first: str
    """Time as the log has it; empty if the lines have no time."""
    last: str
    numbers: tuple[ReportedNumber, ...]


WITHHELD = "a message that nfsrdma recognizes is withheld"
"""The text in an anonymized bundle of a line whose message its grammar does not know."""


class _Group:
    """The records of one meaning about one subject."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.count = 0
        self.first = self.last = ""
        self.numbers: dict[int, ReportedNumber] = {}
        self.last_line = 0
        self.newest: Record | Meaning

    @property
    def meaning(self) -> Meaning:
        """The meaning of the newest record."""
        newest = self.newest
        meaning = newest if isinstance(newest, Meaning) else meaning_of(newest)
        if not meaning:
            raise LookupError(f"no meaning of {newest}")
        return meaning

    def add(self, newest: Record | Meaning, time: str, line: int, key: LineKey) -> None:
        self.last = time or self.last
        if key.continues and self.count:
            self.last_line = line
            return
        self.newest = newest
        self.first = self.first or time
        self.count += 1
        self.last_line = line
        number = key.number
        known = number is None or number in self.numbers or len(self.numbers) >= _NUMBERS
        if not known and (reported := self.meaning.number):
            self.numbers[reported.number] = reported


_Groups = dict[tuple[str, str, str], _Group]
"""By name, subject and place."""


class _Repeated:
    """The meanings of reports that a log repeats: each is found once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Meaning | None] = {}

    def meaning_of(self, record: KernelReport | CompletionDump) -> Meaning | None:
        """The meaning of a record, which does not depend on its time."""
        if not isinstance(record, KernelReport):
            return meaning_of(record)
        facts = {**vars(record), "time": "", "lines": tuple(record.lines)}
        facts["frames"] = tuple(record.frames)
        key = tuple(facts.values())
        if key not in self._known:
            if len(self._known) >= _REPEATED:
                self._known.clear()
            self._known[key] = meaning_of(record)
        return self._known[key]


class Log(NamedTuple):
    """The recognized messages of a log, and the number of lines that could be read."""

    entries: list[Explanation]
    """The recognized messages, the most severe and then the newest first."""
    lines: int
    """The lines that are not blank."""
    has_known_form: bool
    """Whether a line has a time in a known form, or is recognized without one."""
    withheld: int = 0
    """Those that an anonymized bundle has as ``WITHHELD``."""

    @property
    def is_unreadable(self) -> bool:
        """Whether it has lines, and none could be read: it tells nothing of the host."""
        return bool(self.lines) and not self.has_known_form


def explain(lines: Iterable[str]) -> list[Explanation]:
    """Explain the recognized messages, the most severe and then the newest first."""
    return read_log(lines).entries


def read_log(lines: Iterable[str]) -> Log:
    """Explain the recognized records of a log, and count the lines that could be read."""
    groups: _Groups = {}
    counts = Counts()
    repeated = _Repeated()
    recognized = withheld = 0
    for record, numbers in records(lines, counts):
        newest: Record | Meaning = record
        if isinstance(record, LogLine):
            withheld += record.text == WITHHELD
            # most lines of a log are others, or repeat a message: its words are found once
            if not (known := key_of_line(record.tag, record.text)):
                continue
        else:
            if not (meaning := repeated.meaning_of(record)):
                continue
            newest, known = meaning, key_of(meaning)
        recognized += 1
        key = (known.name, known.subject, known.place)
        if key not in groups and len(groups) >= _GROUPS:
            key = (known.name, _MANY, "")
        group = groups.get(key) or groups.setdefault(key, _Group(key[1]))
        group.add(newest, record.time, numbers[-1], known)
    # the newest first within one severity
    ordered = sorted(groups.values(), key=lambda group: -group.last_line)
    told = {end for group in ordered if (end := _end_of_reset(group, groups))}
    shown = [one for one in ordered if not one.meaning.quiet and one not in told]
    explained = [_explanation(group, groups) for group in shown]
    entries = sorted(explained, key=lambda entry: _SEVERITIES.index(entry.severity))
    return Log(entries, counts.lines, bool(counts.timed or recognized), withheld)


def recognized_lines(lines: Iterable[str]) -> list[str]:
    """The lines of the records of a log that ``explain`` explains, as they are."""
    texts = [line[:LINE_BYTES] for line in lines]
    kept = {
        number for record, numbers in records(texts) if meaning_of(record) for number in numbers
    }
    return [text for number, text in enumerate(texts) if number in kept]


def _later(name: str, group: _Group, groups: _Groups) -> _Group | None:
    """The messages of a name about the subject of others, if they end later."""
    found = groups.get((name, group.subject, ""))
    return found if found and found.last_line > group.last_line else None


def _end_of_reset(group: _Group, groups: _Groups) -> _Group | None:
    """The messages that a reset succeeded, which its own message tells."""
    meaning = group.meaning
    return _later(meaning.ended_by, group, groups) if meaning.recovers else None


def _explanation(group: _Group, groups: _Groups) -> Explanation:
    meaning = group.meaning
    ended = _later(meaning.ended_by, group, groups)
    failed = _later(meaning.failed_by, group, groups)
    if ended and failed:
        ended, failed = (ended, None) if ended.last_line > failed.last_line else (None, failed)
    subject = group.subject if _SAFE.fullmatch(group.subject) else "SERVER"
    described = {one.name: getattr(meaning, one.name) for one in fields(Described)}
    if ended:
        described |= {"severity": "information", "doubt": "", "next_step": ""}
        if meaning.recovers:
            described["recovers"] = "yes"
            described["meaning"] += " It works again."
    elif failed:
        # the other message is the error
        described |= {"severity": "information", "doubt": "", "recovers": "no"}
        described["meaning"] += f" That failed: see {meaning.failed_by}."
    # one subject stands for all that are counted together
    described["subject"] = group.subject
    described["next_step"] = described["next_step"].replace("{subject}", subject)
    return Explanation(
        **described,
        count=group.count,
        first=group.first,
        last=group.last,
        numbers=tuple(group.numbers.values()),
    )


def boot_messages(machine: Machine, *names: str) -> list[Explanation]:
    """The messages of these names since the boot; [] if the log cannot be read."""
    try:
        lines = sources.boot_log(machine)
    except UserError:
        return []
    return [entry for entry in explain(lines) if entry.name in names]
