# SPDX-License-Identifier: Apache-2.0
"""Find messages of NFS and RDMA in a log, and explain them.

A log holds what any server, peer or user made the kernel or a program print: lines are cut,
groups are counted up to a limit, and nothing of a line reaches a terminal without ``printable``.
"""

from __future__ import annotations

import errno
import functools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from nfsrdma_tools.command import Result
from nfsrdma_tools.errors import ProgramMissingError, UserError, one_line, printable
from nfsrdma_tools.host.kernel_log.messages import (
    ERRORS,
    MESSAGES,
    NFS4_ERRORS,
    KnownMessage,
    Severity,
)
from nfsrdma_tools.host.machine import LIVE, Machine, NotRecordedError
from nfsrdma_tools.host.rdma.completions import COMPLETIONS

__all__ = [
    "WITHHELD",
    "Explanation",
    "Log",
    "ReportedNumber",
    "boot_log",
    "boot_messages",
    "explain",
    "kernel_ring",
    "lines_of",
    "parsed",
    "printed",
    "read_log",
    "recognized",
    "recognized_lines",
]

_LINE_BYTES = 2048
"""Longer lines are cut: the kernel's own limit is about 1000 (printk(), LOG_LINE_MAX)."""
_GROUPS = 500
"""Messages of further servers, devices and modules are counted together."""
_NUMBERS = 8
_MANY = "(others)"
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "information")
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


@dataclass(frozen=True)
class ReportedNumber:
    """A number in a message: an error number, or the status of a work completion."""

    number: int
    name: str
    meaning: str


@dataclass(frozen=True)
class Explanation:
    """The meaning and the count of one kind of message about one subject."""

    name: str
    severity: Severity
    subject: str
    """The server, device or module; empty if the message has none."""
    count: int
    first: str
    """Time as the log has it; empty if the lines have no time."""
    last: str
    meaning: str
    doubt: str
    """Of a warning: what the message does not tell."""
    next_step: str
    numbers: tuple[ReportedNumber, ...]
    example: str
    """The last such line."""
    source: str


class _Line(NamedTuple):
    time: str
    tag: str
    """The program that printed it; empty if the line does not say."""
    text: str


# Times as dmesg(1) and journalctl(1) print them, with the names of days and months of any language:
# in brackets, or before the host.
_TIME = re.compile(
    r"\[ *(?P<boot>\d{1,12}\.\d{1,9})\] ?"
    # dmesg --ctime, --reltime, --show-delta; [drm] and [ T155] are no times
    r"|\[ *(?P<bracketed>(?=[^]]*\d[.:]\d)[^][]{1,64})\] ?"
    r"|(?P<short>[^\W\d]\S{0,15} [ \d]?\d \d\d:\d\d:\d\d(?:\.\d{1,9})?) "
    # Japanese, Chinese and Korean months begin with a digit
    r"|(?P<month>\d{1,2}[^\W\d]{1,2} [ \d]?\d \d\d:\d\d:\d\d(?:\.\d{1,9})?) "
    r"|(?P<full>[^\W\d]\S{0,15} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})? [\w:+-]{1,9}) "
    r"|(?P<unix>\d{9,11}\.\d{6}) "
    r"|(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?[+-]\d\d:?\d\d|Z)?) "
)
_CLOCK = r"[ \d]?\d \d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?"
_PLAIN_TIME = re.compile(
    r"\d{9,11}\.\d{6}|"
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?[+-]\d\d:?\d\d|Z)?"
)
_BRACKETED_TIME = re.compile(
    r"(?:(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?"
    rf"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) ?{_CLOCK}(?: \d{{4}})?"
    r"|\d{1,12}\.\d{1,9})?(?: ?<? *\+?\d{1,12}\.\d{1,9}>?)?"
)
WITHHELD = "a message that nfsrdma recognizes is withheld"
"""The text in an anonymized bundle of a line whose message its grammar does not know."""
_COLOUR = re.compile(r"\x1b\[[\d;]{0,16}m")
_LEVEL = re.compile(
    r"<\d{1,3}>|(?:kern|user|daemon|syslog) *: ?(?:emerg|alert|crit|err|warn|notice|info|debug) *: "
)
"""Of the raw buffer, and of dmesg --decode."""
_CALLER = re.compile(r"\[ *[TC]\d{1,9}\] ?")
"""CONFIG_PRINTK_CALLER: the thread or CPU, after the time."""
_HOST_TAG = re.compile(r"[\w.-]{1,255} (?P<tag>[\w./@-]{1,64})(?P<pid>\[\d{1,10}\])?: ")
_TAG = re.compile(r"(?P<tag>kernel|[\w./@-]{1,64}(?=\[))(?P<pid>\[\d{1,10}\])?: ")
"""Of journalctl --no-hostname."""
_FIELD = re.compile(
    r'(?:MESSAGE=(?P<export>.*)|"(?:MESSAGE|msg)" ?: ?(?P<json>"(?:[^"\\]|\\.)*"),?)$'
)
"""Of journalctl --output=export, verbose and json-pretty, and of dmesg --json."""


def parsed(line: str) -> _Line:
    """A line of dmesg, journalctl or a file of syslog without what stands before the text."""
    rest, time, tag = _COLOUR.sub("", line).strip(), "", ""
    if rest.startswith(("{", "data: {", "\x1e{")):
        return _of_json(rest.removeprefix("data: ").removeprefix("\x1e"))
    if field := _FIELD.match(rest):
        text = field["export"] if field["json"] is None else _unquoted(field["json"])
        return _Line("", "", text)
    if level := _LEVEL.match(rest):
        rest = rest[level.end() :]
    if not (found := _TIME.match(rest)):
        return _Line("", "", rest)
    rest = rest[found.end() :]
    time = f"{found['boot']} s" if found["boot"] else next(filter(None, found.groups()))
    if caller := _CALLER.match(rest):
        rest = rest[caller.end() :]
    host = _TAG.match(rest) or _HOST_TAG.match(rest)
    if host and _names_host(found, host):
        tag, rest = host["tag"], rest[host.end() :]
        # rsyslog keeps the kernel's own time: "host kernel: [   12.3] text"
        if tag == "kernel" and (inner := _TIME.match(rest)) and inner["boot"]:
            rest = rest[inner.end() :]
    return _Line(time, tag, rest.strip())


def _of_json(text: str) -> _Line:
    """A line of journalctl --output=json, with the time of the entry."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return _Line("", "", "")
    if not isinstance(entry, dict) or not isinstance(entry.get("MESSAGE"), str):
        return _Line("", "", "")
    tag = str(entry.get("SYSLOG_IDENTIFIER") or "")
    if entry.get("_TRANSPORT") == "kernel":
        tag = "kernel"
    elif tag == "kernel":
        tag = "a program"
    stamp = str(entry.get("__REALTIME_TIMESTAMP") or "")
    seconds = f"{stamp[:-6]}.{stamp[-6:]}" if stamp.isdecimal() and len(stamp) > 6 else ""
    return _Line(seconds, tag, entry["MESSAGE"].strip())


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text)).strip()
    except ValueError:
        return ""


def printed(line: _Line, text: str) -> str:
    """A line with another text, whose time has no words but English days and months.

    Other texts in the place of a time are left out: they may be a name or an address.
    """
    if line.time.endswith(" s"):
        time = f"[{line.time.removesuffix(' s'):>12}] "
    elif plain := _PLAIN_TIME.search(line.time):
        time = f"{plain[0]} "
    elif line.time and _BRACKETED_TIME.fullmatch(line.time):
        time = f"[{line.time}] "
    else:
        # of another language
        time = f"[month {clock[0]}] " if (clock := re.search(_CLOCK, line.time)) else ""
    if not line.tag or not time:
        return f"{time}{text}"
    return f"{time}host {line.tag}{'' if line.tag == 'kernel' else '[1]'}: {text}"


def _names_host(time: re.Match[str], host: re.Match[str]) -> bool:
    """Whether "word word: " after a time is a host and a program, and not the kernel's text.

    The kernel prints "infiniband rxe0: ...", too.  dmesg names no host; of its times, only that of
    --time-format iso looks like a journal's, but has a comma.
    """
    if host["tag"] == "kernel" or host["pid"]:
        return True
    if time["iso"]:
        return "," not in time["iso"]
    return not (time["boot"] or time["bracketed"])


# what no literal character of a pattern's top level is: groups, classes, and what repeats
_NOT_LITERAL = re.compile(r"\\[A-Za-z0-9]|[][()|^$.*+?{}]")


def _literal(pattern: str) -> str:
    """A text that each match of a pattern has in it, the longest that is easily found."""
    found, depth = [""], 0
    parts = re.findall(r"\\.|\[(?:\\.|[^]\\])+\]|\{[\d,]+\}|.", pattern, re.DOTALL)
    for part, following in zip(parts, [*parts[1:], ""], strict=True):
        depth += {"(": 1, ")": -1}.get(part, 0)
        if part == "|" and not depth:
            return ""
        if depth or following[:1] in ("*", "?", "{") or _NOT_LITERAL.match(part):
            found.append("")
        else:
            found[-1] += part[-1]
    return max(found, key=len)


@functools.cache
def _literals() -> tuple[tuple[str, KnownMessage], ...]:
    return tuple((_literal(message.pattern), message) for message in MESSAGES)


_compiled = functools.cache(re.compile)


def recognized(line: _Line) -> tuple[KnownMessage, re.Match[str]] | None:
    """The message that explains a line, and its match; None if no message does."""
    if not line.text:
        return None
    for literal, message in _literals():
        # a program can print any text: it must not pass for the kernel
        if literal not in line.text or (line.tag and message.program == (line.tag == "kernel")):
            continue
        if match := _compiled(message.pattern).fullmatch(line.text):
            return message, match
    return None


class _Group:
    """The lines of one message about one subject."""

    def __init__(self, message: KnownMessage, subject: str) -> None:
        self.message, self.subject = message, subject
        self.count = 0
        self.first = self.last = self.example = ""
        self.numbers: dict[int, ReportedNumber] = {}
        self.last_line = 0

    def add(self, line: _Line, match: re.Match[str], number: int) -> None:
        self.first = self.first or line.time
        self.last = line.time or self.last
        self.count += 1
        self.last_line = number
        self.example = printable(line.text)
        found = _number(self.message, match.groupdict())
        if found and len(self.numbers) < _NUMBERS:
            self.numbers[found.number] = found


class Log(NamedTuple):
    """The recognized messages of a log, and the number of lines that could be read."""

    entries: list[Explanation]
    """The recognized messages, the most severe and then the newest first."""
    lines: int
    """The lines that are not blank."""
    read: int
    """Those with a time in a known form, and those that are recognized without one."""
    withheld: int = 0
    """Those that an anonymized bundle has as ``WITHHELD``."""

    @property
    def is_unreadable(self) -> bool:
        """Whether it has lines, and none could be read: it tells nothing of the host."""
        return bool(self.lines) and not self.read


def explain(lines: Iterable[str]) -> list[Explanation]:
    """Explain the recognized messages, the most severe and then the newest first."""
    return read_log(lines).entries


def read_log(lines: Iterable[str]) -> Log:
    """Explain the recognized messages of a log, and count the lines that could be read."""
    groups: dict[tuple[str, str], _Group] = {}
    total = read = withheld = 0
    for number, text in enumerate(lines):
        line = parsed(text[:_LINE_BYTES])
        total += bool(text.strip())
        found = recognized(line)
        read += bool(line.time or found)
        withheld += line.text == WITHHELD
        if not found:
            continue
        message, match = found
        subject = printable(match.groupdict().get("subject") or "")
        key = (message.name, subject)
        if key not in groups and len(groups) >= _GROUPS:
            key = (message.name, _MANY)
        groups.setdefault(key, _Group(message, key[1])).add(line, match, number)
    # the newest first within one severity
    ordered = sorted(groups.values(), key=lambda group: -group.last_line)
    explained = [_explanation(group, groups) for group in ordered]
    entries = sorted(explained, key=lambda entry: _SEVERITIES.index(entry.severity))
    return Log(entries, total, read, withheld)


def recognized_lines(lines: Iterable[str]) -> list[str]:
    """The lines of a log that ``explain`` explains, as they are."""
    return [line for line in lines if recognized(parsed(line[:_LINE_BYTES]))]


def _explanation(group: _Group, groups: dict[tuple[str, str], _Group]) -> Explanation:
    message = group.message
    end = groups.get((message.ended_by, group.subject))
    ended = end is not None and end.last_line > group.last_line
    subject = group.subject if _SAFE.fullmatch(group.subject) else "SERVER"
    return Explanation(
        name=message.name,
        severity="information" if ended else message.severity,
        subject=group.subject,
        count=group.count,
        first=group.first,
        last=group.last,
        meaning=message.meaning,
        doubt="" if ended else message.doubt,
        next_step="" if ended else message.next_step.replace("{subject}", subject),
        numbers=tuple(group.numbers.values()),
        example=group.example,
        source=message.source,
    )


def _number(message: KnownMessage, groups: dict[str, str | None]) -> ReportedNumber | None:
    if completion := groups.get("completion"):
        number = int(completion)
        if number not in COMPLETIONS:
            return ReportedNumber(number, "", "no status of a work completion")
        status = COMPLETIONS[number]
        return ReportedNumber(number, status.constant, status.cause)
    if not (error := groups.get("error")):
        return None
    number = int(error)
    positive = abs(number)
    if positive in NFS4_ERRORS:
        return ReportedNumber(number, *NFS4_ERRORS[positive])
    name = "ERESTARTSYS" if positive == 512 else errno.errorcode.get(positive, "")
    meaning = dict(message.numbers).get(positive) or ERRORS.get(positive, "")
    return ReportedNumber(number, name, meaning or "see errno(3)")


def lines_of(file: BinaryIO) -> Iterator[str]:
    """The lines of a file, cut at a limit, with ``?`` for what is no UTF-8."""
    while piece := file.readline(_LINE_BYTES):
        yield piece.decode(errors="replace").replace("\ufffd", "?")
        while piece and not piece.endswith(b"\n"):
            piece = file.readline(_LINE_BYTES)


# "+" joins alternatives in journalctl(1)
_JOURNAL = (
    *("journalctl", "--boot", "--no-pager", "--quiet", "--output=short-iso", "--lines=100000"),
    *("_TRANSPORT=kernel", "+", "SYSLOG_IDENTIFIER=rpc.nfsd", "+", "SYSLOG_IDENTIFIER=mount"),
    *("+", "SYSLOG_IDENTIFIER=mount.nfs", "+", "SYSLOG_IDENTIFIER=nfsdctl"),
    *("+", "SYSLOG_IDENTIFIER=modprobe", "+", "SYSLOG_IDENTIFIER=systemd-modules-load"),
)
_DMESG = ("dmesg",)


def boot_log(machine: Machine = LIVE) -> list[str]:
    """The log of the kernel, of rpc.nfsd, mount and modprobe since the boot.

    Raises UserError without permission.
    """
    return _first_readable(machine, _JOURNAL, _DMESG)


def boot_messages(machine: Machine, *names: str) -> list[Explanation]:
    """The messages of these names since the boot; [] if the log cannot be read."""
    try:
        lines = boot_log(machine)
    except UserError:
        return []
    return [entry for entry in explain(lines) if entry.name in names]


def kernel_ring(machine: Machine = LIVE) -> list[str]:
    """The kernel's own buffer, which is faster to read than the journal and may lack the boot.

    Raises UserError without permission.
    """
    return _first_readable(machine, _DMESG, _JOURNAL)


def _first_readable(machine: Machine, *commands: tuple[str, ...]) -> list[str]:
    reason = "neither dmesg nor journalctl is installed"
    for argv in commands:
        try:
            result = machine.run(*argv)
        except ProgramMissingError:
            continue
        except NotRecordedError:
            reason = "it was not recorded"
            continue
        if result.returncode == 0 and not _partial(result, machine):
            return result.stdout.split("\n")
        reason = one_line(result.stderr) or f"{argv[0]} exited with status {result.returncode}"
    where = "on the host" if machine.root_user else "as root"
    hint = f"run this {where}, or name a file: nfsrdma explain FILE"
    raise UserError(f"cannot read the kernel's log: {reason}", hint)


def _partial(result: Result, machine: Machine) -> bool:
    """Whether journalctl left out the kernel's lines: it then succeeds and prints a hint."""
    return result.argv[0] == "journalctl" and not machine.root_user and not result.stdout.strip()
