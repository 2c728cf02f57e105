# SPDX-License-Identifier: Apache-2.0
"""Checks for known problems of NFS over RDMA.

A check is a small function of a Machine that yields findings, each with a remedy of one line.  The
modules of this folder have them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from nfsrdma_tools import files
from nfsrdma_tools.doctor.finding import LISTED, Check, Finding, carry_out
from nfsrdma_tools.errors import one_line
from nfsrdma_tools.host.machine import Machine

__all__ = ["AFTER_REBOOT", "CHECKS", "examine"]

for _file in Path(__file__).parent.glob("[a-z]*.py"):
    importlib.import_module(f"{__name__}.{_file.stem}")
_LISTED = sorted(LISTED, key=lambda each: each.place)
CHECKS = {each.name: each.check for each in _LISTED if not each.after_reboot}
"""In output order."""
AFTER_REBOOT = {each.name: each.check for each in _LISTED if each.after_reboot}
"""The checks of ``doctor --after-reboot``, in output order."""
_MOST_SHOWN = 4
_AS_ROOT = "run this as root; if that changes nothing, see their owner and mode"


def examine(machine: Machine, which: Mapping[str, Check] = CHECKS) -> list[Finding]:
    """Run all checks; their failures become findings, not exceptions."""
    machine = machine.once()
    findings: list[Finding] = []
    without: dict[str, list[str]] = {}
    for name, check in which.items():
        with files.unread() as unread:
            judged = carry_out(name, check, machine)
        lacks = [f"{machine.name_of(path)} ({reason})" for path, reason in unread.items()]
        findings += [_doubted(finding, lacks) for finding in judged]
        for file in lacks:
            if not any(file.partition(" (")[0] in finding.found for finding in judged):
                without.setdefault(file, []).append(name)
    given = machine.recording.unread.values() if machine.recording else ()
    silent = [
        reason for reason in given if not any(reason in finding.found for finding in findings)
    ]
    return [*findings, *_unread(without), *(_not_given(reason) for reason in silent)]


def _not_given(reason: str) -> Finding:
    """A file that somebody gave, and that no check could read."""
    return Finding("unread files", "unknown", one_line(reason), "text", "")


def _doubted(finding: Finding, lacks: list[str]) -> Finding:
    """An error or a warning with the files that its check lacks."""
    if not lacks or finding.status not in ("error", "warning"):
        return finding
    return finding._replace(found=one_line(f"{finding.found}; judged without {_shown(lacks)}"))


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if names[_MOST_SHOWN:] else ""
    return f"{', '.join(names[:_MOST_SHOWN])}{more}"


def _unread(without: dict[str, list[str]]) -> Iterator[Finding]:
    """One line about the files that exist and that some checks lack."""
    if not without:
        return
    checks = dict.fromkeys(name for names in without.values() for name in names)
    text = one_line(f"{', '.join(checks)}: judged without {_shown(list(without))}")
    yield Finding("unread files", "unknown", text, "files that can be read", _AS_ROOT)
