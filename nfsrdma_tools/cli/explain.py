# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma explain``: what the kernel's messages mean, and the faults that it may have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nfsrdma_tools.cli.options import Json, argument, flag, option
from nfsrdma_tools.cli.output import print_json
from nfsrdma_tools.errors import UsageError, UserError, printable
from nfsrdma_tools.sizes import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nfsrdma_tools.host.kernel_faults import Fault
    from nfsrdma_tools.host.kernel_log.explain import Explanation
    from nfsrdma_tools.host.kernel_log.story import Event, Story

__all__ = ["explain"]

_SYMBOLS = {"information": "i", "warning": "!", "error": "x"}


def explain(
    files: Annotated[
        list[str] | None,
        argument(
            "FILE...",
            "A log, or - for standard input; two logs or more are put side by side"
            " (default: the log of this boot).",
        ),
    ] = None,
    faults: Annotated[
        bool, flag("List known faults that this kernel may have, instead of messages.", "--faults")
    ] = False,
    kernel: Annotated[
        bool,
        flag("Print which release of kernel.org this kernel has, instead of messages.", "--kernel"),
    ] = False,
    commit: Annotated[
        str | None,
        option(
            "COMMIT",
            "Print whether this kernel has a commit: its subject, or the hash or the CVE of a "
            "known fault (default: none).",
            "--has",
        ),
    ] = None,
    skew: Annotated[
        str | None,
        option(
            "TIME",
            "How far the clocks of the hosts of two logs may differ, such as 30s or 2m "
            "(default: 5s).",
            "--skew",
        ),
    ] = None,
    sources: Annotated[
        list[str] | None,
        option(
            "SOURCE",
            "With --kernel or --has, a bundle of `nfsrdma collect`, or a line of uname or "
            "/proc/version; repeatable (default: this host).",
            "--from",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain the kernel's messages about NFS and RDMA.

    FILE has lines of dmesg, journalctl or syslog.  The log of this boot needs root, or membership
    in the group that may read the journal.  Logs of two hosts are put side by side by time: what
    one host did, and what the other met, maybe because of it.

    Exit status: with --has 0 when the kernel has the commit or does not need it, 1 otherwise.
    """
    if skew is not None and len(files or ()) < 2:
        raise UsageError("--skew needs two logs or more", "give FILE twice")
    if kernel or commit is not None or sources:
        _kernel(files, faults, kernel, commit, sources, as_json)
        return
    if faults:
        if files:
            raise UsageError("--faults reads no log", "give either FILE or --faults")
        _faults(as_json)
        return
    if files and "" in files:
        raise UsageError("the name of a log is empty", "give a file, or - for standard input")
    if files and len(files) > 1:
        _side_by_side(files, skew, as_json)
        return
    explained = _explained(files[0] if files else "")
    if as_json:
        from dataclasses import asdict

        print_json({"messages": [asdict(entry) for entry in explained]})
    else:
        _show(explained)


def _kernel(
    files: list[str] | None,
    faults: bool,
    kernel: bool,
    commit: str | None,
    sources: list[str] | None,
    as_json: bool,
) -> None:
    from nfsrdma_tools.cli.explain_kernel import print_kernels, print_whether_it_has

    if files or faults or (kernel and commit is not None):
        message = "FILE, --faults, --kernel and --has exclude each other"
        raise UsageError(message, "give one of them")
    if kernel:
        print_kernels(sources, as_json)
    elif commit is not None:
        print_whether_it_has(commit, sources, as_json)
    else:
        raise UsageError("explain --from needs --kernel or --has", "a log is an argument: FILE")


def _explained(name: str) -> list[Explanation]:
    import sys

    from nfsrdma_tools.host.kernel_log.explain import read_log
    from nfsrdma_tools.host.kernel_log.lines import lines_of
    from nfsrdma_tools.host.kernel_log.sources import boot_log

    if not name:
        log = read_log(boot_log())
    elif name == "-":
        # Python has no object for a descriptor that is closed
        if sys.stdin is None:
            raise UserError("standard input is closed", "give a file, or a pipe")
        log = read_log(lines_of(sys.stdin.buffer))
    else:
        with Path(name).open("rb") as file:
            log = read_log(lines_of(file))
    if log.is_unreadable:
        message = f"none of the log's {log.lines} lines has a time that nfsrdma can read"
        raise UserError(message, "write it with: journalctl -k -o short-iso")
    return log.entries


def _side_by_side(names: Sequence[str], skew: str | None, as_json: bool) -> None:
    from nfsrdma_tools.host.kernel_log import story
    from nfsrdma_tools.host.kernel_log.lines import lines_of

    if len(set(names)) < len(names) or "-" in names:
        raise UsageError("two logs are compared by their names", "give different files")
    apart = story.SKEW if skew is None else parse_seconds(skew)
    logs = {}
    for name in names:
        with Path(name).open("rb") as file:
            logs[name] = story.events(name, lines_of(file))
    events = story.timeline(logs.values())
    stories = story.stories(events, apart)
    if as_json:
        facts = [_event_facts(event) for event in events]
        print_json({"stories": [_story_facts(entry) for entry in stories], "events": facts})
        return
    for entry in stories:
        times = "once" if entry.effects == 1 else f"{entry.effects} times"
        print(printable(f"{entry.text}, {times}"))
        for label, event in entry.parts:
            print(printable(f"    {label}: {event.log}, {event.time}: {event.meaning.name}"))
        print(f"    doubt: {entry.doubt}")
    for event in events:
        if event.meaning.severity != "information":
            symbol = _SYMBOLS[event.meaning.severity]
            about = f" {event.meaning.subject}" if event.meaning.subject else ""
            print(printable(f"{symbol} {event.log}  {event.time}  {event.meaning.name}{about}"))
    noun = "story" if len(stories) == 1 else "stories"
    print(f"{len(stories)} {noun} of {len(events)} events in {len(logs)} logs")


def _event_facts(event: Event) -> dict[str, object]:
    meaning = event.meaning
    return {
        "file": event.log,
        "time": event.time,
        "seconds": event.at,
        "name": meaning.name,
        "severity": meaning.severity,
        "subject": meaning.subject,
        "meaning": meaning.meaning,
    }


def _story_facts(story: Story) -> dict[str, object]:
    return {
        "text": story.text,
        "doubt": story.doubt,
        "effects": story.effects,
        "cause": _event_facts(story.cause),
        "effect": _event_facts(story.effect),
    }


def _show(explained: Sequence[Explanation]) -> None:
    for entry in explained:
        about = f" {entry.subject}" if entry.subject else ""
        head = f"{_SYMBOLS[entry.severity]} {entry.severity}  {entry.name}{about}"
        print(printable(f"{head}, {_times(entry)}"))
        for label, text in _details(entry):
            print(printable(f"    {label}: {text}"))
    counts = (f"{_count(explained, severity)} {severity}" for severity in reversed(_SYMBOLS))
    print(", ".join(counts))


def _times(entry: Explanation) -> str:
    times = "once" if entry.count == 1 else f"{entry.count} times"
    if not entry.first:
        return times
    period = entry.first if entry.first == entry.last else f"{entry.first} to {entry.last}"
    return f"{times}, {period}"


def _details(entry: Explanation) -> list[tuple[str, str]]:
    whole = [] if entry.explained else [("record", line) for line in entry.lines]
    if entry.severity == "information":
        # what is normal takes two lines; --json has the others
        return [("meaning", entry.meaning), *whole]
    numbers = [(str(error.number), f"{error.name}: {error.meaning}") for error in entry.numbers]
    details = [
        ("line", entry.example),
        ("process", entry.process),
        ("code", entry.code),
        ("meaning", entry.meaning),
        ("where", entry.where),
        ("wording", entry.wording.text if entry.wording and entry.wording.is_old else ""),
        *numbers,
        ("doubt", entry.doubt),
        ("known fault", _fault_text(entry.fault)),
        ("recovers by itself", entry.recovers or ""),
        ("next step", entry.next_step),
        ("source", entry.source),
    ]
    return [(label, text) for label, text in [*details, *whole] if text]


def _fault_text(commit: str) -> str:
    from nfsrdma_tools.host.kernel_faults import FAULTS

    known = next((fault for fault in FAULTS if fault.commit == commit), None)
    return f"{known.subject}: commit {commit}, fixed in {known.fixes}" if known else ""


def _count(explained: Sequence[Explanation], severity: str) -> int:
    return sum(entry.severity == severity for entry in explained)


def _faults(as_json: bool) -> None:
    from nfsrdma_tools.host.kernel_faults import possible
    from nfsrdma_tools.host.kernel_release import kernel_of
    from nfsrdma_tools.host.machine import LIVE

    kernel = kernel_of(LIVE)
    faults = possible(kernel)
    if as_json:
        rows = [{**_facts(fault), "stable": dict(fault.stable)} for fault in faults]
        print_json({"release": kernel.release, "version": kernel.text, "faults": rows})
        return
    for fault in faults:
        print(f"{fault.subject} (commit {fault.commit})")
        print(f"    seen: {fault.seen}")
        print(f"    fixed: {fault.fixes}")
    unless = "" if kernel.kind == "release" else ", unless the distribution has added the fixes"
    phrase = "known fault is" if len(faults) == 1 else "known faults are"
    print(printable(f"{len(faults)} {phrase} possible in Linux {kernel.text}{unless}"))


def _facts(fault: Fault) -> dict[str, object]:
    return {
        "commit": fault.commit,
        "subject": fault.subject,
        "seen": fault.seen,
        "part": fault.part,
        "first": fault.first,
        "fixed": fault.fixed,
        "source": fault.source,
    }
