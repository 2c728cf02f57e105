# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma explain --kernel`` and ``--has``: what a kernel is based on, and which fixes it has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from nfsrdma_tools.cli.options import machine_of
from nfsrdma_tools.cli.output import print_json
from nfsrdma_tools.errors import UserError, printable

if TYPE_CHECKING:
    from nfsrdma_tools.doctor.kernel_changelog import Commit, CommitStatus
    from nfsrdma_tools.host.kernel_release import KernelVersion
    from nfsrdma_tools.host.machine import Machine

__all__ = ["print_kernels", "print_whether_it_has"]


class _Kernel(NamedTuple):
    source: str
    """The bundle or the text that it comes from; empty for this host."""
    kernel: KernelVersion
    machine: Machine | None
    """The host; None for a text."""

    def has(self, commit: Commit) -> CommitStatus:
        from nfsrdma_tools.doctor import kernel_changelog

        if self.machine is None:
            return kernel_changelog.has_by_name(self.kernel, commit)
        return kernel_changelog.has(self.machine, commit)


def print_kernels(sources: Sequence[str] | None, as_json: bool) -> None:
    """Print the release of kernel.org that each kernel has, and whether that is certain."""
    rows = [_facts(examined) for source in sources or (None,) for examined in _kernels(source)]
    if as_json:
        print_json({"kernels": [facts for facts, _ in rows]})
        return
    for _, lines in rows:
        print(printable(lines[0]))
        for line in lines[1:]:
            print(printable(f"    {line}"))


def print_whether_it_has(text: str, sources: Sequence[str] | None, as_json: bool) -> None:
    """Print whether each kernel has a commit; exit with 1 if one has it not for certain."""
    from nfsrdma_tools.doctor.kernel_changelog import commit_of

    commit = commit_of(text)
    answers = [
        (examined, examined.has(commit))
        for source in sources or (None,)
        for examined in _kernels(source)
    ]
    if as_json:
        named = {
            "commit": commit.fault.commit if commit.fault else "",
            "subject": commit.subject,
            "cves": list(commit.cves),
        }
        rows = [
            {"from": examined.source, "release": examined.kernel.release, **answer._asdict()}
            for examined, answer in answers
        ]
        print_json({**named, "answers": rows})
    else:
        for examined, answer in answers:
            print(printable(f"{answer.status}  {examined.kernel.release}  {commit.name}"))
            details = (
                ("why", answer.text),
                ("line", answer.line),
                ("of", answer.section),
                ("read from", answer.source),
            )
            for label, value in details:
                if value:
                    print(printable(f"    {label}: {value}"))
    if not all(answer.is_in for _, answer in answers):
        raise typer.Exit(1)


def _kernels(source: str | None) -> Iterator[_Kernel]:
    """The kernel of a bundle, of a folder, or of a text; of this host for None.  UserError."""
    from nfsrdma_tools.host.kernel_release import kernel_named, kernel_of

    if source is not None and not _exists(source):
        yield _Kernel(source, kernel_named(source), None)
        return
    with machine_of(Path(source) if source else None) as machine:
        kernel = kernel_of(machine)
        if not any(kernel.number):
            machine.require("proc/sys/kernel/osrelease")
            raise UserError(f"{kernel.release[:80] or 'nothing'} is no release of Linux")
        yield _Kernel(source or "", kernel, machine)


def _exists(name: str) -> bool:
    if not name:
        return False
    # a text may be too long for a name, or have a null character
    with contextlib.suppress(OSError, ValueError):
        return Path(name).exists()
    return False


def _facts(examined: _Kernel) -> tuple[dict[str, object], list[str]]:
    """The fields and the lines about a kernel."""
    from nfsrdma_tools.host.kernel_faults import OLDEST, OLDEST_SERIES, possible
    from nfsrdma_tools.host.kernel_release import is_series

    kernel = examined.kernel
    faults = len(possible(kernel)) if kernel.number >= OLDEST and is_series(kernel.number) else None
    source = kernel.source if examined.machine else "the text"
    facts = {
        "from": examined.source,
        "release": kernel.release,
        "upstream": kernel.text if kernel.certain else "",
        "base": kernel.text,
        "certain": kernel.certain,
        "kind": kernel.kind,
        "by": kernel.by,
        "reason": kernel.reason,
        "source": source,
        "possible_faults": faults,
    }
    by = kernel.by or "an unknown builder"
    if kernel.certain:
        head = f"{kernel.release}: Linux {kernel.text} by {by}, certain"
    else:
        head = f"{kernel.release}: no certainty, its name says Linux {kernel.text}, by {by}"
    begins = f"begins with Linux {OLDEST_SERIES}"
    old = begins if kernel.number < OLDEST else "does not have this series"
    many = f"the table of faults {old}" if faults is None else f"{faults}"
    lines = [
        head,
        f"why: {kernel.reason}",
        f"read from: {source}",
        f"known faults that it may have: {many}",
    ]
    return facts, lines
