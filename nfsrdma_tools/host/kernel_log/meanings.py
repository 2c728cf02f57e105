# SPDX-License-Identifier: Apache-2.0
"""The meaning of one record of a log: a message, a report of the kernel, or a dumped completion."""

from __future__ import annotations

import errno
import functools
import re
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from nfsrdma_tools.errors import UserError, printable
from nfsrdma_tools.host.kernel_faults import FAULTS, Fault, is_before, is_fixed, may_have
from nfsrdma_tools.host.kernel_log import known_reports
from nfsrdma_tools.host.kernel_log.completion_causes import cause
from nfsrdma_tools.host.kernel_log.completion_dumps import CompletionDump
from nfsrdma_tools.host.kernel_log.digits import knows_digits, loosened, mask
from nfsrdma_tools.host.kernel_log.known_message import KnownMessage, Recovery, Severity, Where
from nfsrdma_tools.host.kernel_log.known_reports import KnownReport
from nfsrdma_tools.host.kernel_log.lines import LogLine
from nfsrdma_tools.host.kernel_log.messages import ERRORS, MESSAGES, NFS4_ERRORS
from nfsrdma_tools.host.kernel_log.records import Record
from nfsrdma_tools.host.kernel_log.reports import KernelReport
from nfsrdma_tools.host.kernel_log.wordings import Span, span_of
from nfsrdma_tools.host.kernel_release import KernelVersion, kernel_named
from nfsrdma_tools.host.rdma.completions import COMPLETIONS

__all__ = [
    "Described",
    "LineKey",
    "Meaning",
    "ReportedNumber",
    "TextForm",
    "form_of_text",
    "key_of",
    "key_of_line",
    "key_of_report",
    "key_of_text",
    "meaning_of",
    "recognized",
]


@dataclass(frozen=True)
class ReportedNumber:
    """A number in a message: an error number, or the status of a work completion."""

    number: int
    name: str
    meaning: str


@dataclass(frozen=True)
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
    where: Where = ""
    """Of a failed completion or a reset: where the cause is."""
    wording: Span | None = None
    """Of a message of NFS or RPC: the releases of Linux that print it so."""
    recovers: Recovery | None = None
    """Of a report, a completion or a reset: whether the host recovers without a restart."""
    fault: str = ""
    """The commit that fixed it, of the table of known faults."""
    lines: tuple[str, ...] = ()
    """Of a report or a dump: the lines of the last one."""
    explained: bool = True
    """False of a report whose meaning is not known."""


@dataclass(frozen=True)
class Meaning(Described):
    """The meaning of one record."""

    ended_by: str = ""
    failed_by: str = ""
    number: ReportedNumber | None = None
    continues: bool = False
    """Another line of the record that a line of the same name began."""
    quiet: bool = False
    """Not shown: it only ends another one."""


def meaning_of(record: Record) -> Meaning | None:
    """The meaning of a record; None of a line whose message is not known.

    A report of the kernel always has one: if nothing explains it, it is shown whole.
    """
    if isinstance(record, KernelReport):
        return _of_report(record)
    if isinstance(record, CompletionDump):
        return _of_dump(record)
    return _of_line(record.tag, record.text)


_SAMPLED = ("lockup", "stall", "hung task")
"""Reports of one state: the kernel repeats them, and their place is where the thread just was."""


class LineKey(NamedTuple):
    """The key of a meaning; that of a line is found in less time than its meaning."""

    name: str
    subject: str
    number: int | None
    """The error number, or the status of a work completion."""
    continues: bool
    """Another line of the record that a line of the same name began."""
    place: str = ""
    """Of a report of a failure: its kind, and the function and the module where it failed."""


class TextForm(NamedTuple):
    """Where the subject and the number of a message are: of each text with other digits, too."""

    name: str
    subject: slice
    number: slice
    """Empty if the message has none."""

    def key(self, text: str) -> LineKey:
        """The same as ``key_of_line``."""
        number = text[self.number]
        return LineKey(
            self.name, text[self.subject], int(number) if number else None, continues=False
        )


_MOST_FORMS = 2048
_forms: dict[tuple[str, bytes], TextForm | tuple[KnownMessage, ...]] = {}


def form_of_text(tag: str, text: str) -> TextForm | tuple[KnownMessage, ...]:
    """The form of a text; if digits decide, the messages that the text may be with any digits."""
    # logs repeat their lines
    key = (tag, mask(text))
    if (form := _forms.get(key)) is None:
        if len(_forms) >= _MOST_FORMS:
            _forms.clear()
        form = _forms[key] = _found_form(tag, text)
    return form


def _found_form(tag: str, text: str) -> TextForm | tuple[KnownMessage, ...]:
    messages = _candidates(tag, text)
    for number, message in enumerate(messages):
        if match := _loosened(message.pattern).fullmatch(text):
            form = None if knows_digits(message.pattern) else _form_of_match(message, match)
            # names make many forms that never come again: the messages after it are not tried
            return form or messages[number:]
    return ()


def _form_of_match(message: KnownMessage, match: re.Match[str]) -> TextForm | None:
    groups = match.groupdict()
    subject = groups.get("subject") or ""
    by_status = message.statuses or "completion" in groups
    if by_status or message.continues or not subject.isprintable():
        return None
    return TextForm(
        message.name,
        slice(*match.span("subject")) if subject else slice(0, 0),
        slice(*match.span("error")) if groups.get("error") else slice(0, 0),
    )


def key_of_line(tag: str, text: str) -> LineKey | None:
    """The name and subject of the meaning of a line; None if its message is not known."""
    form = form_of_text(tag, text)
    return form.key(text) if isinstance(form, TextForm) else key_of_text(text, form)


def key_of_text(text: str, messages: Iterable[KnownMessage]) -> LineKey | None:
    """The same of a text that may be one of these messages."""
    if not (message_and_match := _first(messages, text)):
        return None
    message, match = message_and_match
    groups = match.groupdict()
    number: int | None = _completion(message, groups)
    name = message.name
    if number in COMPLETIONS:
        name = _name_with(name, number)
    elif not groups.get("completion"):
        error = groups.get("error")
        number = int(error) if error else None
    return LineKey(name, printable(groups.get("subject") or ""), number, message.continues)


_MOST_NAMES = 256
_names: dict[tuple[Hashable, ...], tuple[str, str]] = {}
"""The name and the part of reports with the same facts."""


def key_of_report(report: KernelReport) -> LineKey:
    """The same of a report: most reports of a log tell what others told."""
    facts = (*known_reports.facts(report), report.kernel)
    if not (known := _names.get(facts)):
        if len(_names) >= _MOST_NAMES:
            _names.clear()
        whose = known_reports.part(report)
        known = _names[facts] = _entry_of(report, whose)[0].name, _place(report, whose)
    name, part = known
    place = "" if report.kind in _SAMPLED else f"{report.kind} {part} {_where(report)}"
    return LineKey(name, _subject(report), None, continues=False, place=place)


def key_of(meaning: Meaning) -> LineKey:
    """The same of a meaning."""
    number = meaning.number.number if meaning.number else None
    return LineKey(meaning.name, meaning.subject, number, meaning.continues)


def _of_line(tag: str, text: str) -> Meaning | None:
    if not (message_and_match := recognized(LogLine("", tag, text))):
        return None
    message, match = message_and_match
    groups = match.groupdict()
    meaning = Meaning(
        name=message.name,
        severity=message.severity,
        subject=printable(groups.get("subject") or ""),
        meaning=message.meaning + _queue_pair(groups, " It is {}."),
        next_step=message.next_step,
        source=message.source,
        example=printable(text),
        doubt=message.doubt,
        where=message.where,
        wording=span_of(message.name, text),
        recovers=message.recovers,
        ended_by=message.ended_by,
        failed_by=message.failed_by,
        number=_number(message, groups),
        continues=message.continues,
        quiet=message.quiet,
    )
    number = _completion(message, groups)
    if number not in COMPLETIONS:
        if not message.statuses:
            return meaning
        return replace(meaning, lines=(printable(text),), explained=False)
    vendor = groups.get("vendor")
    return _of_completion(
        meaning,
        "Work" + (_queue_pair(groups, " on {}") or " of a connection"),
        number,
        is_response=bool(groups.get("response")),
        vendor=int(vendor, 16) if vendor else None,
    )


def _name_with(name: str, status: int) -> str:
    return f"{name}: {COMPLETIONS[status].name}"


def _queue_pair(groups: dict[str, str | None], form: str) -> str:
    """The queue pair of a message in a form; "" if the message names none."""
    decimal, hexadecimal = groups.get("qp"), groups.get("qp_hex")
    if not decimal and not hexadecimal:
        return ""
    number = int(decimal) if decimal else int(hexadecimal or "", 16)
    return form.format(f"queue pair {number:#x}")


def _of_completion(
    meaning: Meaning, work: str, number: int, is_response: bool, vendor: int | None
) -> Meaning:
    """The meaning of a record of failed work with the cause of its status."""
    status = COMPLETIONS[number]
    known = cause(number, is_response)
    syndrome = "" if vendor is None else f" (vendor syndrome {vendor:#04x})"
    text = known.text if known else f"{status.cause.capitalize()}."
    flushed = status.constant == "IB_WC_WR_FLUSH_ERR"
    return replace(
        meaning,
        name=_name_with(meaning.name, number),
        severity="information" if flushed else "warning",
        meaning=f"{work} ended with {status.name}{syndrome}. {text}",
        next_step=known.next_step if known else "read the log of the peer, too",
        doubt="" if flushed else "the client or the server connects again; requests are repeated",
        where=known.where if known else "",
        recovers="yes",
        number=ReportedNumber(number, status.constant, status.cause),
    )


# what no literal character of a pattern's top level is: groups, classes, and what repeats
_NOT_LITERAL = re.compile(r"\\[A-Za-z0-9]|[][()|^$.*+?{}]")


def _literals(pattern: str) -> list[str]:
    """Texts of which each match of a pattern has one, the longest that are easily found."""
    literals, depth, longest = [""], 0, []
    parts = re.findall(r"\\.|\[(?:\\.|[^]\\])+\]|\{[\d,]+\}|.", pattern, re.DOTALL)
    for part, following in zip(parts, [*parts[1:], ""]):
        depth += {"(": 1, ")": -1}.get(part, 0)
        if part == "|" and not depth:
            longest.append(max(literals, key=len))
            literals = [""]
        elif depth or following[:1] in ("*", "?", "{") or _NOT_LITERAL.match(part):
            literals.append("")
        else:
            literals[-1] += part[-1]
    return [*longest, max(literals, key=len)]


class _Index(NamedTuple):
    """The messages by a word that each of their lines has between two spaces, without digits."""

    by_word: dict[str, tuple[int, ...]]
    by_text: dict[str, tuple[int, ...]]
    """By another text that each of their lines has, of those without such a word."""


def _masked(text: str) -> str:
    # a text is found in another one in less time than bytes are
    return mask(text).decode(errors="surrogatepass")


@functools.cache
def _index() -> _Index:
    by_word: dict[str, tuple[int, ...]] = {}
    by_text: dict[str, tuple[int, ...]] = {}
    for number, message in enumerate(MESSAGES):
        for literal in map(_masked, _literals(message.pattern)):
            # the first and the last may be parts of longer words
            word = max(literal.split(" ")[1:-1], key=len, default="")
            rows, key = (by_word, word) if word else (by_text, literal)
            rows[key] = (*rows.get(key, ()), number)
    return _Index(by_word, by_text)


def _candidates(tag: str, text: str) -> tuple[KnownMessage, ...]:
    """The messages that a line may be, also with other digits, in the order of ``MESSAGES``."""
    if not text:
        return ()
    by_word, by_text = _index()
    masked = _masked(text)
    words = frozenset(by_word.keys() & masked.split(" "))
    texts = tuple([part for part in by_text if part in masked])
    # a program can print any text: it must not pass for the kernel
    return _with_parts(words, texts, tag != "kernel" if tag else None)


@functools.lru_cache(maxsize=256)
def _with_parts(
    words: Collection[str], texts: Collection[str], program: bool | None
) -> tuple[KnownMessage, ...]:
    """The messages whose lines have these parts; of programs or not, or of both (None)."""
    # lines that differ in names have the same parts
    by_word, by_text = _index()
    numbers = {*chain(*map(by_word.__getitem__, words), *map(by_text.__getitem__, texts))}
    messages = map(MESSAGES.__getitem__, sorted(numbers))
    return tuple(message for message in messages if program is None or message.program == program)


_compiled = functools.cache(re.compile)


@functools.cache
def _loosened(pattern: str) -> re.Pattern[str]:
    return _compiled(loosened(pattern))


def recognized(line: LogLine) -> tuple[KnownMessage, re.Match[str]] | None:
    """The message that explains a line, and its match; None if no message does."""
    return _first(_candidates(line.tag, line.text), line.text)


def _first(
    messages: Iterable[KnownMessage], text: str
) -> tuple[KnownMessage, re.Match[str]] | None:
    for message in messages:
        if match := _compiled(message.pattern).fullmatch(text):
            return message, match
    return None


def _completion(message: KnownMessage, groups: dict[str, str | None]) -> int:
    """The number in enum ib_wc_status of a message about a completion; -1 without one."""
    if completion := groups.get("completion"):
        return int(completion)
    status = groups.get("status") or ""
    known = dict(message.statuses)
    return known.get(status, known.get(status.lstrip("0"), -1))


def _number(message: KnownMessage, groups: dict[str, str | None]) -> ReportedNumber | None:
    if groups.get("completion"):
        return ReportedNumber(_completion(message, groups), "", "no status of a work completion")
    if not (error := groups.get("error")):
        return None
    number = int(error)
    positive = abs(number)
    if positive in NFS4_ERRORS:
        return ReportedNumber(number, *NFS4_ERRORS[positive])
    name = "ERESTARTSYS" if positive == 512 else errno.errorcode.get(positive, "")
    meaning = dict(message.numbers).get(positive) or ERRORS.get(positive, "")
    return ReportedNumber(number, name, meaning or "see errno(3)")


_FAULT_BY_COMMIT = {fault.commit: fault for fault in FAULTS}


def _entry(report: KernelReport, whose: str) -> KnownReport | None:
    """The entry that explains a report; that of a fault only if its kernel may have the fault."""
    kernel = _kernel(report)
    refuted = ""
    for entry in known_reports.fitting(report, whose):
        fault = _FAULT_BY_COMMIT.get(entry.fault)
        if not fault:
            return entry._replace(meaning=entry.meaning + refuted)
        if not kernel or not (why := _why_not(kernel, fault)):
            doubts = (entry.doubt, _doubt(kernel, fault))
            return entry._replace(doubt="; ".join(filter(None, doubts)))
        commit = f"commit {fault.commit}"
        refuted = f" The frames are those of a known fault ({commit}), {why}: another cause."
    return None


def _kernel(report: KernelReport) -> KernelVersion | None:
    """The kernel that a report names; None if it names none."""
    try:
        return kernel_named(report.kernel)
    except UserError:
        return None


def _why_not(kernel: KernelVersion, fault: Fault) -> str:
    """Why a kernel certainly does not have a fault; empty if it may have it."""
    release = printable(kernel.release)
    if is_fixed(kernel, fault):
        return f"which this kernel, {release}, has the fix of"
    if is_before(kernel, fault):
        return f"which came with Linux {fault.first}, and this kernel is {release}"
    return ""


def _doubt(kernel: KernelVersion | None, fault: Fault) -> str:
    """What is not known of a kernel and a fault whose frames it reports."""
    if not kernel:
        return "the record does not name the kernel's release, which may have the fix"
    if kernel.kind == "release" and may_have(kernel.number, fault):
        return ""
    return f"this kernel, {printable(kernel.release)}, may have the fix: {kernel.reason}"


def _entry_of(report: KernelReport, whose: str) -> tuple[KnownReport, bool]:
    """The entry of a report, and whether it explains the report."""
    if entry := _entry(report, whose):
        return entry, True
    return known_reports.other(report), False


def _subject(report: KernelReport) -> str:
    return printable(report.process) if report.kind == "hung task" else ""


def _where(report: KernelReport) -> str:
    """The function, and its module, where a report failed or was made."""
    at = report.at or (report.frames[0] if report.frames else None)
    return f"{at.function} [{at.module}]" if at and at.module else at.function if at else ""


def _place(report: KernelReport, whose: str) -> str:
    """The part of the kernel that the code is in, as a reader knows it."""
    owner = None if known_reports.is_foreign(report) else known_reports.PARTS.get(whose)
    return owner.place if owner else ""


def _of_report(report: KernelReport) -> Meaning:
    whose = known_reports.part(report)
    entry, explained = _entry_of(report, whose)
    if report.mixed and explained:
        entry = entry._replace(
            doubt="; ".join(filter(None, (entry.doubt, known_reports.MIXED.doubt)))
        )
    code = ", ".join(filter(None, (_place(report, whose), printable(_where(report)))))
    return Meaning(
        name=entry.name,
        severity=entry.severity,
        subject=_subject(report),
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
        explained=explained,
    )


def _of_dump(dump: CompletionDump) -> Meaning:
    # the head of hns has the status; mlx5's last line has it
    head = printable(dump.lines[0])
    example = head if dump.hns_status is not None else printable(dump.lines[-1])
    lines = tuple(printable(line) for line in dump.lines)
    source = dump.source
    if not dump.complete or not dump.is_error or not dump.status:
        if dump.mixed:
            example, known = head, "the log does not tell its bytes from those of another dump"
        elif not dump.complete:
            example, known = head, "its bytes are not all here"
        elif not dump.is_error:
            known = "its bytes are no error completion"
        else:
            known = f"syndrome {dump.syndrome:#04x}"
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
    work = f"{dump.work[0].upper()}{dump.work[1:]} on queue pair {dump.queue_pair:#x}"
    meaning = Meaning(
        name=f"{dump.work.split(' ', 1)[1]} failed",
        severity="warning",
        subject=printable(dump.device),
        meaning="",
        next_step="",
        source=source,
        example=example,
        lines=lines,
    )
    return _of_completion(meaning, work, dump.status, dump.is_response, dump.vendor_syndrome)
