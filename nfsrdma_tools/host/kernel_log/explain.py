# SPDX-License-Identifier: Apache-2.0
"""Find messages of NFS and RDMA in a log, and explain them.

A log holds what any server, peer or user made the kernel or a program print: lines are cut,
groups are counted up to a limit, and nothing of a line reaches a terminal without ``printable``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple, Union

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.kernel_log import sources
from nfsrdma_tools.host.kernel_log.known_message import KnownMessage, Severity
from nfsrdma_tools.host.kernel_log.lines import LINE_BYTES, Form, LogLine, Numbered, parsed
from nfsrdma_tools.host.kernel_log.meanings import (
    Described,
    LineKey,
    Meaning,
    ReportedNumber,
    TextForm,
    form_of_text,
    key_of,
    key_of_line,
    key_of_report,
    key_of_text,
    meaning_of,
)
from nfsrdma_tools.host.kernel_log.records import Counts, Record, Run, Shape, records, runs
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
_MANY = "(others)"
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "information")
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


@dataclass(frozen=True)
class Explanation(Described):
    """The meaning and the count of one kind of record about one subject, at one place."""

    count: int = 1
    first: str = ""
    """Time as the log has it; empty if the lines have no time."""
    last: str = ""
    numbers: tuple[ReportedNumber, ...] = ()


WITHHELD = "a message that nfsrdma recognizes is withheld"
"""The text in an anonymized bundle of a line whose message its grammar does not know."""


class _Group:
    """The records of one meaning about one subject."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.count = 0
        self.first = ""
        self.last_time = ""
        self.last_text = ""
        """A line with a later time, as the log has it."""
        self.numbers: dict[int, ReportedNumber] = {}
        self.last_line = 0
        self.newest: Record | Meaning | str
        """A text is a line as the log has it: most lines are parsed if they stay the newest."""

    @property
    def last(self) -> str:
        """The time of the last record with one."""
        return parsed(self.last_text).time if self.last_text else self.last_time

    @property
    def meaning(self) -> Meaning:
        """The meaning of the newest record."""
        newest = parsed(self.newest) if isinstance(self.newest, str) else self.newest
        meaning = newest if isinstance(newest, Meaning) else meaning_of(newest)
        if not meaning:
            raise LookupError(f"no meaning of {newest}")
        self.newest = meaning
        return meaning

    def add(self, newest: Record | Meaning, time: str, line: int, key: LineKey) -> None:
        self.last_line = line
        if time:
            self.last_time, self.last_text = time, ""
        if key.continues and self.count:
            return
        self.newest = newest
        self.first = self.first or time
        self.count += 1
        number = key.number
        known = number is None or number in self.numbers or len(self.numbers) >= _NUMBERS
        if not known and (reported := self.meaning.number):
            self.numbers[reported.number] = reported


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
    counts, count = Counts(), _Count()
    for item in runs(lines, counts):
        if isinstance(item, Run):
            count.run(item)
        else:
            count.record(item)
    # the newest first within one severity
    groups = count.groups
    every = [group for of_name in groups.values() for group in of_name.values()]
    ordered = sorted(every, key=lambda group: -group.last_line)
    told = {end for group in ordered if (end := _end_of_reset(group, groups))}
    shown = [group for group in ordered if not group.meaning.quiet and group not in told]
    explained = [_explanation(group, groups) for group in shown]
    entries = sorted(explained, key=lambda entry: _SEVERITIES.index(entry.severity))
    return Log(entries, counts.lines, counts.timed or count.any, count.withheld)


_GroupsOfName = dict[Union[str, tuple[str, str]], _Group]
"""By subject, or by subject and place."""
_Groups = dict[str, _GroupsOfName]
_MOST_FORMS = 8192


class _Form:
    """Where lines that differ in digits only have their subject and number; and their groups."""

    __slots__ = ("groups", "has_time", "number", "subject")

    def __init__(self, form: TextForm, line: Form, groups: _GroupsOfName) -> None:
        self.subject = _moved(form.subject, line.text.start)
        self.number = _moved(form.number, line.text.start)
        self.has_time = line.time.start < line.time.stop
        self.groups = groups

    def add(self, number: int, text: str, others: str | None) -> bool:
        """Count a line if it is one more of its group, and tells nothing new."""
        group = self.groups.get(text[self.subject]) or (self.groups.get(others) if others else None)
        if not group or (self.has_time and not group.first):
            return False
        if error := text[self.number]:
            numbers = group.numbers
            if len(numbers) < _NUMBERS and int(error) not in numbers:
                return False
        group.count += 1
        group.newest, group.last_line = text, number
        if self.has_time:
            group.last_text = text
        return True


def _moved(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


class _Count:
    """Counts the records of a log by name and subject."""

    def __init__(self) -> None:
        self.groups: _Groups = {}
        self.any = False
        """Whether there was a recognized record."""
        self.withheld = 0
        self._number = 0
        self._forms: dict[Shape, _Form | tuple[KnownMessage, ...]] = {}

    def run(self, run: Run) -> None:
        """Count lines; most lines of a log are of a form that was there before."""
        known = self._forms.get
        for number, text, shape in run.lines():
            form = known(shape)
            if form is None:
                line = shape.line(text)
                self._line(line, number, key_of_line(line.tag, line.text))
                if shape.form and line.text != WITHHELD:
                    self._keep_form(shape, shape.form, line)
            elif isinstance(form, _Form):
                others = _MANY if self._number >= _GROUPS else None
                if not form.add(number, text, others):
                    line = shape.line(text)
                    self._line(line, number, key_of_line(line.tag, line.text))
            elif form:
                line = shape.line(text)
                self._line(line, number, key_of_text(line.text, form))

    def record(self, numbered: Numbered[Record]) -> None:
        """Count a record."""
        record = numbered.record
        if isinstance(record, LogLine):
            # most lines of a log are others, or repeat a message: its words are found once
            self._line(record, numbered.numbers[-1], key_of_line(record.tag, record.text))
        elif isinstance(record, KernelReport):
            self._add(record, record.time, numbered.numbers[-1], key_of_report(record))
        elif meaning := meaning_of(record):
            self._add(meaning, record.time, numbered.numbers[-1], key_of(meaning))

    def _line(self, line: LogLine, number: int, key: LineKey | None) -> None:
        self.withheld += line.text == WITHHELD
        if key:
            self._add(line, line.time, number, key)

    def _add(self, newest: Record | Meaning, time: str, line: int, key: LineKey) -> None:
        self.any = True
        of_name = self.groups.setdefault(key.name, {})
        full = self._number >= _GROUPS
        which = (key.subject, key.place) if key.place else key.subject
        if full and which not in of_name:
            which = _MANY
        if not (group := of_name.get(which)):
            group = of_name[which] = _Group(_MANY if which == _MANY else key.subject)
            self._number += 1
        group.add(newest, time, line, key)

    def _keep_form(self, shape: Shape, parts: Form, line: LogLine) -> None:
        """Keep the form of the lines of a shape, or the messages that they may be."""
        if len(self._forms) >= _MOST_FORMS:
            self._forms.clear()
        form = form_of_text(line.tag, line.text)
        self._forms[shape] = (
            _Form(form, parts, self.groups.setdefault(form.name, {}))
            if isinstance(form, TextForm)
            else form
        )


def recognized_lines(lines: Iterable[str]) -> list[str]:
    """The lines of the records of a log that ``explain`` explains, as they are."""
    texts = [line[:LINE_BYTES] for line in lines]
    kept = {
        number for record, numbers in records(texts) if meaning_of(record) for number in numbers
    }
    return [text for number, text in enumerate(texts) if number in kept]


def _later(name: str, group: _Group, groups: _Groups) -> _Group | None:
    """The messages of a name about the subject of others, if they end later."""
    later = groups.get(name, {}).get(group.subject)
    return later if later and later.last_line > group.last_line else None


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
    described = {field.name: getattr(meaning, field.name) for field in fields(Described)}
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
