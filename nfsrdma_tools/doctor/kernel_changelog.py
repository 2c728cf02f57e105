# SPDX-License-Identifier: Apache-2.0
"""Whether a kernel has a commit: by its release of kernel.org, and by its package's changelog.

A changelog lists subjects of commits, not their hashes.  What it lists is in; what it does not
list may be in: distributions abbreviate, and take fixes without a word.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shlex
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, cast

from nfsrdma_tools import files
from nfsrdma_tools.command import Result, stream
from nfsrdma_tools.errors import CommandError, ProgramMissingError, UserError, one_line, printable
from nfsrdma_tools.host.kernel_faults import FAULTS, Fault, is_before, is_fixed, may_have
from nfsrdma_tools.host.kernel_log.lines import LINE_BYTES, lines_of
from nfsrdma_tools.host.kernel_release import KernelVersion, kernel_of
from nfsrdma_tools.host.machine import Machine, NotRecordedError

__all__ = [
    "FILES",
    "Commit",
    "CommitStatus",
    "Status",
    "abridged",
    "anonymous",
    "commit_of",
    "has",
    "has_by_name",
    "listed",
    "recorded_rpm",
]

Status = Literal["has", "fixed upstream", "not affected", "lacks", "not listed", "unknown"]

_PACKAGES = (
    "linux-image-{release}",
    "linux-image-unsigned-{release}",
    "linux-image-{release}-unsigned",
    "linux-modules-{release}",
    "linux-headers-{release}",
    "proxmox-kernel-{release}",
    "proxmox-kernel-{release}-signed",
    "pve-kernel-{release}",
)
# linux-signed is a native package of Debian: its changelog is not named after Debian
_NAMES = ("changelog.Debian.gz", "changelog.gz")
FILES = f"usr/share/doc/{{{','.join(_PACKAGES)}}}/{{{','.join(_NAMES)}}}"
"""Pattern of the changelogs of Debian's and Ubuntu's packages, below the root."""
_MOST, _MOST_LINES = 128 << 20, 3_000_000
"""Bytes and lines of a changelog, unpacked: many times those of Debian's, with 3 MB."""
_SECONDS = 60
_FEW_BYTES, _FEW_SECONDS = 32 << 20, 10
"""The limits where the changelog only narrows an answer; 3 MB take 0.2 s of CPU time."""
_LONGEST_ITEM = 4096


class Commit(NamedTuple):
    """A commit to search for: its subject, the CVEs that it fixes, or both."""

    subject: str
    cves: tuple[str, ...] = ()
    fault: Fault | None = None

    @property
    def name(self) -> str:
        """The subject; of a fault that has none, its commit."""
        return self.subject or (self.fault.commit if self.fault else ", ".join(self.cves))


class CommitStatus(NamedTuple):
    """Whether a kernel has a commit."""

    status: Status
    text: str
    """Why."""
    line: str = ""
    """The entry of the changelog that proves it."""
    section: str = ""
    """The version of the package whose part of the changelog has the entry."""
    source: str = ""
    """The changelog's file or program."""

    @property
    def is_in(self) -> bool:
        """Whether the kernel has the fix, or does not need it."""
        return self.status in ("has", "fixed upstream", "not affected")


_CVE = re.compile(r"CVE-\d{4}-\d{4,7}(?!\d)", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{7,40}", re.ASCII | re.IGNORECASE)
_LEAST_SUBJECT = 10


def commit_of(text: str) -> Commit:
    """The commit of a hash, a CVE or a subject.

    UserError for a hash that no fault has, or that several faults may have.
    """
    wanted = " ".join(text.split())
    if _HASH.fullmatch(wanted):
        return _of_hash(wanted)
    if _CVE.fullmatch(wanted.upper()):
        cve = wanted.upper()
        fixed = next((fault for fault in FAULTS if cve in _cves(fault)), None)
        return _of_fault(fixed) if fixed else Commit("", (cve,))
    if len(wanted) < _LEAST_SUBJECT:
        raise UserError(
            f"{printable(wanted) or 'an empty text'} is no commit",
            "give a hash of 7 digits or more, a CVE, or the whole subject",
        )
    same = (fault for fault in FAULTS if fault.subject.casefold() == wanted.casefold())
    fixed = next(same, None)
    return _of_fault(fixed) if fixed else Commit(wanted)


def _of_hash(wanted: str) -> Commit:
    """The fix with a hash of 7 digits or more; all digits that both have are the same."""
    digits = wanted.lower()
    same = [fault for fault in FAULTS if _agree(digits, fault.commit)]
    hint = "give the subject of the commit, which git log --oneline prints"
    if not same:
        message = f"commit {wanted} is no fix of a known fault, and changelogs have no hashes"
        raise UserError(message, hint)
    if len(same) > 1:
        names = ", ".join(fault.commit for fault in same)
        raise UserError(f"commit {wanted} is ambiguous: {names}", "give more digits")
    return _of_fault(same[0])


def _agree(digits: str, other: str) -> bool:
    both = min(len(digits), len(other))
    return digits[:both] == other[:both]


def _of_fault(fault: Fault) -> Commit:
    # the table withholds the subject of what a peer may do
    subject = "" if fault.subject.startswith("see ") else fault.subject
    return Commit(subject, _cves(fault), fault)


def _cves(fault: Fault) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_CVE.findall(f"{fault.subject} {fault.source}")))


class _Entry(NamedTuple):
    section: str
    text: str

    @property
    def quoted(self) -> tuple[str, str]:
        """The fields ``line`` and ``section`` of an answer."""
        return self.text, self.section


class _Found(NamedTuple):
    """The entries of one changelog about a commit."""

    source: str
    entry: _Entry | None = None
    reverted: _Entry | None = None
    newer: _Entry | None = None
    """An entry of a later package than the running kernel's."""


def has(machine: Machine, commit: Commit) -> CommitStatus:
    """Whether the running kernel of a host has a commit.

    The text of the answer names a changelog that cannot be read, or is too long.
    """
    kernel = kernel_of(machine)
    collected = machine.recording is not None and machine.recording.collected
    if collected and commit.fault is None:
        return CommitStatus(
            "unknown", "a bundle has the entries of known faults only: ask on the host"
        )
    unread: list[str] = []
    logs = [*_searched(machine, kernel, commit, unread)]
    answer = _proven(logs) or _by_release(kernel, commit)
    doubt = _doubt(kernel, commit)
    if not answer:
        is_read = logs or not unread
        answer = _open(logs, doubt) if is_read else CommitStatus("unknown", doubt)
    return answer._replace(text="; ".join((answer.text, *unread)))


def _proven(logs: Sequence[_Found]) -> CommitStatus | None:
    """The status of a commit that the changelogs prove."""
    for log in logs:
        if log.reverted:
            text = "the changelog of the package lists a revert of it"
            return CommitStatus("unknown", text, *log.reverted.quoted, log.source)
    for log in logs:
        if log.entry:
            text = "the changelog of the package lists it"
            return CommitStatus("has", text, *log.entry.quoted, log.source)
    return None


def _open(logs: Sequence[_Found], doubt: str) -> CommitStatus:
    """The answer if neither the changelogs nor the release of kernel.org have one."""
    for log in logs:
        if log.newer:
            text = f"{doubt}; a later package that is installed lists it: reboot, and ask again"
            return CommitStatus("not listed", text, *log.newer.quoted, log.source)
    if not logs:
        return CommitStatus("unknown", f"{doubt}; no changelog of its package is installed")
    text = f"{doubt}; the changelog does not list it, which is no proof"
    return CommitStatus("not listed", text, source=", ".join(log.source for log in logs))


def listed(machine: Machine, kernel: KernelVersion, faults: Sequence[Fault]) -> list[Fault]:
    """The faults whose fix the changelogs of the running kernel's package list.

    OSError and UserError for a changelog that cannot be read, or is longer than 32 MiB.
    """
    running = _package(machine)
    logs = []
    for source, lines in _changelogs(machine, _FEW_SECONDS):
        with contextlib.suppress(ProgramMissingError, CommandError, NotRecordedError):
            logs.append((source, [*_abridged(_limited(lines, source, _FEW_BYTES))]))
    fixed = []
    for fault in faults:
        commit = _of_fault(fault)
        answer = _proven([_search(*log, commit, running, kernel) for log in logs])
        if answer and answer.is_in:
            fixed.append(fault)
    return fixed


def has_by_name(kernel: KernelVersion, commit: Commit) -> CommitStatus:
    """Whether a kernel of which only the name is known has a commit."""
    status = _by_release(kernel, commit)
    return status or CommitStatus(
        "unknown", f"{_doubt(kernel, commit)}; its changelog is on its host"
    )


def _by_release(kernel: KernelVersion, commit: Commit) -> CommitStatus | None:
    """What the kernel's release of kernel.org alone says; None if it says nothing for certain."""
    fault = commit.fault
    if fault is None:
        return None
    if is_fixed(kernel, fault):
        return CommitStatus("fixed upstream", f"Linux {kernel.text} has it: fixed in {fault.fixes}")
    if is_before(kernel, fault):
        text = f"the fault came with Linux {fault.first}, and this is {kernel.text}"
        return CommitStatus("not affected", text)
    if kernel.kind == "release" and may_have(kernel.number, fault):
        return CommitStatus("lacks", f"Linux {kernel.text} has the fault: fixed in {fault.fixes}")
    return None


def _doubt(kernel: KernelVersion, commit: Commit) -> str:
    """Why the kernel's release of kernel.org does not answer."""
    if commit.fault is None:
        return "the releases with this commit are not known here: it fixes no known fault"
    if not kernel.certain:
        return f"{kernel.release} does not tell: {kernel.reason}"
    if may_have(kernel.number, commit.fault):
        return f"Linux {kernel.text} lacks it, and {kernel.by} may have added it"
    return f"it is not known whether Linux {kernel.text} has it"


# ---- changelogs


def _searched(
    machine: Machine, kernel: KernelVersion, commit: Commit, unread: list[str]
) -> Iterator[_Found]:
    """The entries of each changelog; adds to ``unread`` why one cannot be read."""
    running = _package(machine)
    for source, lines in _changelogs(machine, _SECONDS):
        # a kernel that no package owns, or a host without rpm
        with contextlib.suppress(ProgramMissingError, CommandError, NotRecordedError):
            try:
                yield _search(source, lines, commit, running, kernel)
            except (ProgramMissingError, CommandError, NotRecordedError):
                raise
            except UserError as error:
                unread.append(str(error))


def _changelogs(machine: Machine, seconds: float) -> Iterator[tuple[str, Iterable[str]]]:
    """The changelogs of the running kernel's package: their names and lines."""
    release = _release(machine)
    if not release:
        return
    seen = set[Path]()
    for package in _PACKAGES:
        for name in _NAMES:
            file = f"usr/share/doc/{package.format(release=release)}/{name}"
            path = machine.path(file)
            # several packages of one source share the file by a link
            if path.is_file() and (real := path.resolve()) not in seen:
                seen.add(real)
                yield f"/{file}", _unpacked(path, f"/{file}")
    if argv := _rpm(machine):
        yield " ".join(argv), _printed(machine, argv, seconds)


def _rpm(machine: Machine) -> tuple[str, ...]:
    """The command that prints the changelog of the package that has the kernel's file."""
    release = _release(machine)
    if not release:
        return ()
    for path in (f"lib/modules/{release}/vmlinuz", f"boot/vmlinuz-{release}"):
        argv = ("rpm", "-qf", "--changelog", f"/{path}")
        known = machine.recording.programs.get(argv) if machine.recording else None
        if known or (machine.live and machine.path(path).exists()):
            return argv
    return ()


def _release(machine: Machine) -> str:
    """The running kernel's release, a part of paths; empty if it is unknown, or can be none."""
    with contextlib.suppress(OSError, UserError):
        return machine.release
    return ""


def _printed(machine: Machine, argv: tuple[str, ...], seconds: float) -> Iterator[str]:
    """The lines that rpm prints.  ProgramMissingError, CommandError, NotRecordedError."""
    if not machine.live:
        yield from machine.run(*argv).stdout.split("\n")
        return
    end = time.monotonic() + seconds

    def watch() -> None:
        if time.monotonic() > end:
            raise UserError(f"rpm has printed no changelog within {seconds} s", shlex.join(argv))

    for line in _limited(stream(*argv, watch=watch), "the changelog that rpm prints", _MOST):
        watch()
        yield line[:LINE_BYTES]


def _limited(lines: Iterable[str], name: str, most: int) -> Iterator[str]:
    """The same lines.  UserError if these are more than a changelog has."""
    left = most
    for number, line in enumerate(lines):
        left -= len(line)
        if left < 0 or number > _MOST_LINES:
            raise _too_long(name, most)
        yield line


def _unpacked(path: Path, name: str) -> Iterator[str]:
    """The lines of a file, which errors call ``name``: that of a bundle is in a copy."""
    try:
        with os.fdopen(files.open_file(path), "rb") as packed, gzip.open(packed) as file:
            # of a line without an end, lines_of drops all but the beginning
            limited = cast("BinaryIO", _Limited(file, name))
            yield from _limited(lines_of(limited), name, _MOST)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        message = f"{name} is no whole gzip file: {one_line(str(error))}"
        raise UserError(message, "install the package again") from error


class _Limited:
    """A file whose reader gets an error behind a limit: a small file may unpack to a large one."""

    def __init__(self, file: gzip.GzipFile, name: str) -> None:
        self._file, self._name, self._left = file, name, _MOST

    def read(self, size: int) -> bytes:
        block = self._file.read(size)
        self._left -= len(block)
        if self._left < 0:
            raise _too_long(self._name, _MOST)
        return block


def _too_long(name: str, most: int) -> UserError:
    size = f"{most >> 20} MiB or {_MOST_LINES} lines"
    text = f"{name} has more than {size}, which no changelog of a kernel has"
    return UserError(text, "install the package again")


# linux (6.1.187-1) bookworm-security; urgency=high
_OF_DEBIAN = re.compile(r"[a-z0-9][a-z0-9.+-]* \(([^\s()]+)\) .*; ?urgency=")
# * Wed Jul 16 2025 Name <address> [5.14.0-570.26.1.el9_6]; SUSE has no version there
_OF_RPM = re.compile(r"\* [A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]?\d (?:[\d:]+ \w+ )?\d{4}\b(.*)")
_BULLET = re.compile(r"\s*[-*+] +(?=\S)")


def _entries(lines: Iterable[str]) -> Iterator[_Entry]:
    """The headings of a changelog, with an empty text, and its entries, wrapped lines joined."""
    section, item = "", ""
    for line in lines:
        text = line.rstrip()
        heading = _heading(text) if text and not text[0].isspace() else None
        bullet = None if heading is not None else _BULLET.match(text)
        goes_on = text[:1].isspace() and not bullet
        if item and not goes_on:
            yield _Entry(section, item)
            item = ""
        if heading is not None:
            section = heading
            yield _Entry(section, "")
        elif bullet:
            item = text[bullet.end() :]
        elif item and goes_on and len(item) < _LONGEST_ITEM:
            item += f" {text.strip()}"
    if item:
        yield _Entry(section, item)


def _heading(line: str) -> str | None:
    """The version of the package in the head of a part of a changelog; None for another line."""
    if match := _OF_DEBIAN.match(line):
        return match[1]
    if match := _OF_RPM.fullmatch(line):
        words = match[1].split()
        named = words[-1].strip("[]") if words and words[-1][0] in "[0123456789" else ""
        return named or "-".join(line[2:].split()[:4])
    return None


_GROUP_BEFORE = re.compile(r"\[[^\[\]]*\] *(?=\S)")
_GROUP_BEHIND = re.compile(r"(?<=\S)(?: +(?:\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\})|\.)\Z")
_MOST_GROUPS = 8


def _forms(entry: str) -> set[str]:
    """An entry, with less and less of what a distribution adds: author, bug, architecture, CVE."""
    text = " ".join(entry.split()).casefold()
    forms = {text}
    for _ in range(_MOST_GROUPS):
        shorter = _GROUP_BEHIND.sub("", text)
        if shorter == text:
            break
        text = shorter
        forms.add(text)
    for form in list(forms):
        rest = form
        for _ in range(_MOST_GROUPS):
            match = _GROUP_BEFORE.match(rest)
            if not match:
                break
            rest = rest[match.end() :]
            forms.add(rest)
    return forms


def _listed(entry: str, commit: Commit) -> Literal["", "listed", "reverted"]:
    """Whether an entry of a changelog is a commit, or its revert."""
    text = " ".join(entry.split()).casefold()
    subject = " ".join(commit.subject.split()).casefold()
    if subject and subject in text:
        forms = _forms(text)
        if subject in forms:
            return "listed"
        if f'revert "{subject}"' in forms:
            return "reverted"
    if commit.cves and "cve-" in text and set(_CVE.findall(entry.upper())) & {*commit.cves}:
        is_revert = any(form.startswith("revert") for form in _forms(text))
        return "reverted" if is_revert else "listed"
    return ""


def _search(
    source: str, lines: Iterable[str], commit: Commit, running: str, kernel: KernelVersion
) -> _Found:
    """What a changelog, newest part first, has of a commit; ``running``: the package's version."""
    above: _Entry | None = None
    below: _Entry | None = None
    reverted: _Entry | None = None
    passed = False
    for entry in _entries(lines):
        if not entry.text:
            passed = passed or running in (entry.section, entry.section.replace("+", "-", 1))
            continue
        state = _listed(entry.text, commit)
        if state == "reverted":
            reverted = reverted or entry
        elif state and (passed or not running):
            below = below or entry
        elif state:
            above = above or entry
    if above and not passed and not _is_later(above.section, kernel):
        # the running version is not in this changelog
        above, below = None, above
    return _Found(source, below, reverted, above)


def _is_later(section: str, kernel: KernelVersion) -> bool:
    match = re.match(r"(?:\d+:)?(\d+)\.(\d+)\.(\d+)", section, re.ASCII)
    return bool(match and tuple(map(int, match.groups())) > kernel.number)


_OF_PACKAGE = re.compile(r" #\d.* (?:Debian|PMX|PVE) (\d\S*)", re.ASCII)
_OF_SIGNATURE = re.compile(r"Ubuntu (\d+\.\d+\.\d+-\d+\.\d\S*?)-[a-z]", re.ASCII)


def _package(machine: Machine) -> str:
    """The version of the running kernel's package; empty if only its release is known."""
    version = machine.text("proc/version")[:_LONGEST_ITEM]
    signature = machine.text("proc/version_signature")[:_LONGEST_ITEM]
    match = _OF_SIGNATURE.match(signature) or _OF_PACKAGE.search(version)
    return match[1] if match else ""


# ---- for bundles


def abridged(text: str) -> str | None:
    """The parts of a changelog that tell about known faults; None for another text.

    That is the versions in its headings, and the entries of known faults.
    """
    kept = [*_abridged(text.split("\n"))]
    return "".join(f"{line}\n" for line in kept) if kept else None


def anonymous(text: str, version: Callable[[str], str]) -> str:
    """An abridged changelog in the table's own words; ``version`` changes a package's version."""
    lines = []
    for entry in _entries(text.split("\n")):
        if not entry.text:
            lines.append(_HEADING.format(version(entry.section)))
            continue
        for commit in map(_of_fault, FAULTS):
            if state := _listed(entry.text, commit):
                name = commit.subject or ", ".join(commit.cves)
                lines.append(f"  * {name}" if state == "listed" else f'  * Revert "{name}"')
    return "".join(f"{line}\n" for line in lines)


_HEADING = "linux ({}) recorded; urgency=none"


def _abridged(lines: Iterable[str]) -> Iterator[str]:
    commits = [_of_fault(fault) for fault in FAULTS]
    words = [
        word.casefold() for commit in commits for word in (commit.subject, *commit.cves) if word
    ]
    for entry in _entries(lines):
        if not entry.text:
            # without the name and the address of who wrote this part
            yield _HEADING.format(entry.section)
            continue
        text = entry.text.casefold()
        # a pattern of all words takes ten times as long
        if any(word in text for word in words) and any(_listed(text, commit) for commit in commits):
            yield f"  * {entry.text}"


def recorded_rpm(machine: Machine) -> tuple[tuple[str, ...], Result] | None:
    """The command that prints the changelog of the kernel's package, and its abridged output.

    None without one.  UserError if it takes too long or prints too much.
    """
    argv = _rpm(machine)
    if not argv:
        return None
    try:
        kept = "".join(f"{line}\n" for line in _abridged(_printed(machine, argv, _SECONDS)))
    except (ProgramMissingError, CommandError):
        return None
    return argv, Result(argv, kept, "", 0)
