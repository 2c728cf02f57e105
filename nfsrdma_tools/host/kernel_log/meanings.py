# SPDX-License-Identifier: Apache-2.0
"""The meaning of one record of a log: a message, a report of the kernel, or a dumped completion."""

from __future__ import annotations

import errno
import functools
import re
from dataclasses import dataclass
from typing import NamedTuple

from nfsrdma_tools.errors import printable
from nfsrdma_tools.host.kernel_log import known_reports
from nfsrdma_tools.host.kernel_log.completion_dumps import CompletionDump
from nfsrdma_tools.host.kernel_log.known_reports import KnownReport, Recovery
from nfsrdma_tools.host.kernel_log.lines import LogLine
from nfsrdma_tools.host.kernel_log.messages import (
    ERRORS,
    MESSAGES,
    NFS4_ERRORS,
    KnownMessage,
    Severity,
)
from nfsrdma_tools.host.kernel_log.records import Record
from nfsrdma_tools.host.kernel_log.reports import KernelReport
from nfsrdma_tools.host.rdma.completions import COMPLETIONS

__all__ = [
    "Described",
    "LineKey",
    "Meaning",
    "ReportedNumber",
    "key_of_line",
    "meaning_of",
    "recognized",
]


@dataclass(frozen=True)
class ReportedNumber:
    """A number in a message: an error number, or the status of a work completion."""

    number: int
    name: str
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Described:
    """The name and the words for one kind of record about one subject."""

    name: str
    severity: Severity
    subject: str
    """The server, device or module; empty if the record has none."""
    meaning: str
    next_step: str
    source: str
    example: str
    """The last such line."""
    doubt: str = ""
    """Of a warning: what the record does not tell."""
    process: str = ""
    """Of a report: the process and its number, as "nfsd:1234"."""
    code: str = ""
    """Of a report: whose code it is in by its frames, as "NFS client, rpcrdma_ep_put [rpcrdma]"."""
    recovers: Recovery | None = None
    """Of a report: whether the host recovers without a restart."""
    fault: str = ""
    """The commit that fixed it, of the table of known faults."""
    lines: tuple[str, ...] = ()
    """Of a report or a dump: the lines of the last one."""
    explained: bool = True
    """False of a report whose meaning is not known."""


@dataclass(frozen=True, kw_only=True)
class Meaning(Described):
    """The meaning of one record."""

    ended_by: str = ""
    number: ReportedNumber | None = None


def meaning_of(record: Record) -> Meaning | None:
    """The meaning of a record; None of a line whose message is not known.

    A report of the kernel always has one: if nothing explains it, it is shown whole.
    """
    if isinstance(record, KernelReport):
        return _of_report(record)
    if isinstance(record, CompletionDump):
        return _of_dump(record)
    return _of_line(record.tag, record.text)


class LineKey(NamedTuple):
    """What tells the meanings of lines apart; it takes less time than a meaning."""

    name: str
    subject: str
    number: int | None
    """The error number, or the status of a work completion."""


@functools.lru_cache(maxsize=1024)
def key_of_line(tag: str, text: str) -> LineKey | None:
    """The name and subject of the meaning of a line; None if its message is not known."""
    # logs repeat their lines
    if not (found := recognized(LogLine("", tag, text))):
        return None
    message, match = found
    groups = match.groupdict()
    number = groups.get("completion") or groups.get("error")
    subject = printable(groups.get("subject") or "")
    return LineKey(message.name, subject, int(number) if number else None)


def _of_line(tag: str, text: str) -> Meaning | None:
    if not (found := recognized(LogLine("", tag, text))):
        return None
    message, match = found
    return Meaning(
        name=message.name,
        severity=message.severity,
        subject=printable(match.groupdict().get("subject") or ""),
        meaning=message.meaning,
        next_step=message.next_step,
        source=message.source,
        example=printable(text),
        doubt=message.doubt,
        ended_by=message.ended_by,
        number=_number(message, match.groupdict()),
    )


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


class _Index(NamedTuple):
    """The messages by a word that each of their lines has between two spaces."""

    by_word: dict[str, tuple[int, ...]]
    by_text: dict[str, tuple[int, ...]]
    """By another text that each of their lines has, of those without such a word."""


@functools.cache
def _index() -> _Index:
    by_word: dict[str, tuple[int, ...]] = {}
    by_text: dict[str, tuple[int, ...]] = {}
    for number, message in enumerate(MESSAGES):
        literal = _literal(message.pattern)
        # the first and the last may be parts of longer words
        word = max(literal.split(" ")[1:-1], key=len, default="")
        rows, key = (by_word, word) if word else (by_text, literal)
        rows[key] = (*rows.get(key, ()), number)
    return _Index(by_word, by_text)


def _candidates(text: str) -> list[int]:
    """The numbers of the messages that a line may be, in the order of ``MESSAGES``."""
    by_word, by_text = _index()
    found = [number for part, numbers in by_text.items() if part in text for number in numbers]
    for word in by_word.keys() & text.split(" "):
        found += by_word[word]
    return sorted(found)


_compiled = functools.cache(re.compile)


def recognized(line: LogLine) -> tuple[KnownMessage, re.Match[str]] | None:
    """The message that explains a line, and its match; None if no message does."""
    if not line.text:
        return None
    for number in _candidates(line.text):
        message = MESSAGES[number]
        # a program can print any text: it must not pass for the kernel
        if line.tag and message.program == (line.tag == "kernel"):
            continue
        if match := _compiled(message.pattern).fullmatch(line.text):
            return message, match
    return None


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


_PARTS = {
    "client": "client over RDMA",
    "server": "NFS server",
    "nfs": "NFS client",
    "rdma": "RDMA core",
    "device": "driver of an RDMA device",
    "nfsrdma": "module nfsrdma",
}
_ELSEWHERE = KnownReport(
    "report of other code",
    "warning",
    (),
    "The kernel reports an error. Its frames name no code of NFS or RDMA.",
    "read the record; look for its first function in the kernel's bug trackers",
    "lib/bug.c, kernel/panic.c",
    doubt="it may have harmed NFS all the same",
)
_ELSEWHERE_MINOR = _ELSEWHERE._replace(severity="information", doubt="")
_NO_STACK = KnownReport(
    "report without its stack",
    "information",
    (),
    "The kernel reports an error. The log has its first lines only, without the stack.",
    "read the whole log: journalctl -k",
    "lib/bug.c, kernel/panic.c, kernel/hung_task.c",
    doubt="whose code it is in is not known",
)
_MINOR = ("warning", "hung task", "allocation", "lockdep", "stall")


def _of_report(report: KernelReport) -> Meaning:
    whose = known_reports.part(report)
    entry = explained = known_reports.known(report, whose)
    if not entry and not report.functions:
        entry = _NO_STACK
    elif not entry:
        entry = _ELSEWHERE_MINOR if report.kind in _MINOR else _ELSEWHERE
    at = report.at or (report.frames[0] if report.frames else None)
    where = f"{at.function} [{at.module}]" if at and at.module else at.function if at else ""
    code = ", ".join(filter(None, (_PARTS.get(whose, ""), printable(where))))
    return Meaning(
        name=entry.name,
        severity=entry.severity,
        subject=printable(report.process) if report.kind == "hung task" else "",
        meaning=entry.meaning,
        next_step=entry.next_step,
        source=entry.source,
        example=printable(report.head),
        doubt=entry.doubt,
        process=printable(f"{report.process}:{report.pid}" if report.pid else report.process),
        code=code,
        recovers=entry.recovers,
        fault=entry.fault,
        lines=tuple(printable(line) for line in report.lines),
        explained=bool(explained),
    )


_WITHDRAWN = "the peer had withdrawn its memory, or never granted it"
# by the number in enum ib_wc_status: of a request of this host, and of one of the peer
_OF_REQUEST = {
    9: (
        "The peer refused a message that is longer than its buffer, or malformed.",
        "the peer's log",
    ),
    10: (
        "The peer refused the key of its memory: {withdrawn}. The connection ended.",
        "look at the peer of that connection (its log, at that time), not at cable or switch",
    ),
    11: ("The peer failed to carry out the request.", "the peer's log"),
    12: (
        "No answer came: the link is down, the peer is gone, or packets are lost.",
        "nfsrdma doctor; look at the counters of the link and of the switch",
    ),
    13: ("The peer had no buffer for a message in time.", "the peer's load, and its log"),
    5: (
        "The connection had ended, and this work was flushed. The first error before it tells why.",
        "look for the first error of this queue pair",
    ),
    4: ("The work used memory of this host that is not registered.", "report the record"),
    6: ("Memory was not registered, or a key was used again too early.", "report the record"),
}
_OF_RESPONSE = {
    1: ("The peer sent a message longer than the buffer for it.", "compare the inline sizes"),
    8: (
        "The peer used a key of this host's memory that is not valid: withdrawn, or wrong.",
        "look at both ends' logs of that time",
    ),
    9: ("The peer sent a malformed request.", "the peer's log"),
}


def _of_dump(dump: CompletionDump) -> Meaning:
    example = printable(dump.lines[-1])
    lines = tuple(printable(line) for line in dump.lines)
    source = "drivers/infiniband/hw/mlx5/cq.c, dump_cqe(); include/linux/mlx5/device.h"
    if not dump.complete or not dump.status:
        known = (
            f"syndrome {dump.syndrome:#04x}" if dump.complete else "its 64 bytes are not all here"
        )
        return Meaning(
            name="error completion, not decoded",
            severity="warning",
            subject=printable(dump.device),
            meaning=f"The device reported failed work; {known}.",
            next_step="read the messages before and after it",
            source=source,
            example=example,
            doubt="which work failed is not known",
            lines=lines,
            explained=False,
        )
    number, status = dump.status
    table = _OF_RESPONSE if dump.is_response else _OF_REQUEST
    text, step = table.get(
        number, (f"{status.cause.capitalize()}.", "read the log of the peer, too")
    )
    what = (
        f"{dump.work[0].upper()}{dump.work[1:]} on queue pair {dump.queue_pair:#x} ended with"
        f" {status.name} (vendor syndrome {dump.vendor_syndrome:#04x})."
    )
    return Meaning(
        name=f"{dump.work.split(' ', 1)[1]} failed: {status.name}",
        severity="information" if number == 5 else "warning",
        subject=printable(dump.device),
        meaning=f"{what} {text.format(withdrawn=_WITHDRAWN)}",
        next_step=step,
        source=source,
        example=example,
        doubt=""
        if number == 5
        else "the client or the server connects again; requests are repeated",
        number=ReportedNumber(number, status.constant, status.cause),
        recovers="yes",
        lines=lines,
    )
