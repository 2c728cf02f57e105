# SPDX-License-Identifier: Apache-2.0
"""The plan of ``nfsrdma sweep`` and the start times of its runs, from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nfsrdma_tools.errors import UsageError, UserError

if TYPE_CHECKING:
    from nfsrdma_tools.sweep.plan import Plan
    from nfsrdma_tools.sweep.trial import Rhythm

__all__ = ["axis", "check_resume", "one_size", "plan", "rhythm", "sizes"]


def rhythm(start_at: float | None, interval: float | None) -> Rhythm:
    """The start times of runs; UsageError unless both options are given, or none."""
    from nfsrdma_tools.sweep.trial import IMMEDIATELY, Rhythm

    if start_at is None and interval is None:
        return IMMEDIATELY
    if start_at is None or interval is None:
        raise UsageError("--start-at and --interval need each other", "give both")
    return Rhythm.checked(start_at, interval)


def check_resume(store: Path, target: str | None, changes: dict[str, Any]) -> None:
    """Raise UsageError when the command line changes the stored plan, UserError without a store."""
    if target:
        raise UsageError("--resume and SERVER:/PATH exclude each other", "omit one of them")
    given = [name for name, value in changes.items() if value is not None]
    if given:
        what = f"--resume cannot change the stored plan ({', '.join(given)})"
        raise UsageError(what, "start a new sweep, or omit these options")
    if not store.is_file():
        raise UserError(f"no store {store} to resume", "usage: nfsrdma sweep --resume STORE")


def plan(target: str | None, changes: dict[str, Any]) -> Plan:
    """The plan of a preset with ``changes``; UsageError when it makes no sense."""
    from nfsrdma_tools.host.nfs.mounts import Target
    from nfsrdma_tools.sweep.plan import preset

    if not target:
        raise UsageError("the export is missing", "usage: nfsrdma sweep SERVER:/PATH")
    name = changes.pop("preset") or "quick"
    return preset(name, str(Target.parse(target)), **changes)


def sizes(
    rsize: str | None, read_ahead: str | None, read_ahead_kb: str | None, nconnect: str | None
) -> dict[str, Any]:
    """Fields of a plan from lists of sizes and counts; None: unchanged."""
    from nfsrdma_tools.sizes import parse_counts, parse_sizes

    if read_ahead and read_ahead_kb:
        raise UsageError("--read-ahead and --read-ahead-kb exclude each other", "omit one of them")

    return {
        "rsizes": parse_sizes(rsize) if rsize else None,
        "read_aheads": parse_counts(read_ahead) if read_ahead else None,
        "read_ahead_kbs": parse_counts(read_ahead_kb) if read_ahead_kb else None,
        "nconnects": parse_counts(nconnect) if nconnect else None,
    }


def one_size(**texts: str | None) -> dict[str, Any]:
    """Fields of a plan from single sizes; None: unchanged."""
    from nfsrdma_tools.sizes import parse_size

    return {name: parse_size(text) if text else None for name, text in texts.items()}


def axis(text: str) -> tuple[str, tuple[str, ...]]:
    """An axis of a plan from NAME=V,V; the name is a tunable's, or ``personality``."""
    from nfsrdma_tools.host.tunables import Tunable
    from nfsrdma_tools.sweep.plan import PERSONALITY

    name, found, values = text.partition("=")
    if not found or not values:
        raise UsageError(f"axis {text!r} has no values", "example: NAME=4096,8192")
    return name if name == PERSONALITY else str(Tunable.parse(name)), tuple(values.split(","))
