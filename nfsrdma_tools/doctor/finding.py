# SPDX-License-Identifier: Apache-2.0
"""The result of a check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError, one_line
from nfsrdma_tools.host.machine import Machine

__all__ = ["LISTED", "Check", "Finding", "ListedCheck", "Status", "carry_out", "check"]

Status = Literal["ok", "warning", "error", "unknown"]


class Finding(NamedTuple):
    """The result for one item."""

    name: str
    status: Status
    found: str
    expected: str = ""
    remedy: str = ""
    """One line; empty if there is nothing to do."""


Check = Callable[[Machine], Iterator[Finding]]


class ListedCheck(NamedTuple):
    """A check of `nfsrdma doctor`, or of its ``--after-reboot``; ``place`` orders the output."""

    place: int
    name: str
    check: Check
    after_reboot: bool


LISTED: list[ListedCheck] = []


def check(place: int, name: str, after_reboot: bool = False) -> Callable[[Check], Check]:
    """List a check as a ``ListedCheck``; its failures have its name."""

    def listed(function: Check) -> Check:
        LISTED.append(ListedCheck(place, name, function, after_reboot))
        return function

    return listed


def carry_out(name: str, check: Check, machine: Machine) -> list[Finding]:
    """The findings of one check; a check that fails yields ``unknown``, never an exception.

    An error or a warning becomes ``unknown`` if the check read a file that the bundle cut.
    """
    cut = machine.recording.cut if machine.recording else frozenset()
    if cut and machine.read_names is None:
        names: set[str] = set()
        judged = carry_out(name, check, replace(machine, read_names=names))
        return [_in_doubt(finding, names & cut) for finding in judged]
    findings: list[Finding] = []
    try:
        findings.extend(check(machine))
    except PermissionError as error:
        files.note_unread(error)
        path = Path(error.filename or "")
        # else of a program that this user may not run
        prefix = f"cannot read {machine.name_of(path)}: " if path.is_absolute() else ""
        findings.append(
            Finding(name, "unknown", one_line(f"{prefix}needs root"), remedy="run this as root")
        )
    except FileNotFoundError as error:
        findings.append(Finding(name, "unknown", machine.missing(error)))
    except OSError as error:
        files.note_unread(error)
        findings.append(Finding(name, "unknown", one_line(machine.unreadable(error))))
    except UserError as error:
        findings.append(Finding(name, "unknown", one_line(error.message), remedy=error.hint))
    except Exception as error:
        # a failing check must not hide the findings of the others
        findings.append(Finding(name, "unknown", one_line(f"{type(error).__name__}: {error}")))
    return findings


def _in_doubt(finding: Finding, cut: set[str]) -> Finding:
    if not cut or finding.status not in ("error", "warning"):
        return finding
    files = ", ".join(f"/{name}" for name in sorted(cut))
    text = f"not judged, because the bundle has the beginning of {files} only"
    return Finding(finding.name, "unknown", f"{text}: {finding.found}", remedy="run this there")
