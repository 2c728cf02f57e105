# SPDX-License-Identifier: Apache-2.0
"""Rough estimates of the duration of a sweep's steps, in seconds of wall time.

An emulated CPU is slower by an order of magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nfsrdma_tools.sizes import format_size
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.progress_events import Step

__all__ = ["attaching", "measuring", "preparing"]


@dataclass(frozen=True)
class _Machine:
    """Seconds to compile the probes, seconds to mount and unmount, bytes per second of a reader."""

    compiling: float
    mounting: float
    rate: float


_REAL = _Machine(compiling=3, mounting=0.5, rate=200e6)
_EMULATED = _Machine(compiling=25, mounting=1.5, rate=12e6)


def preparing(plan: Plan, facts: Mapping[str, str]) -> Step:
    """The step that makes the test file and reads it once per transport."""
    by = _machine(facts)
    passes = 1 + len(plan.transports)
    name = f"the {format_size(plan.file_size)} test file"
    over = f"once over {' and '.join(plan.transports)}"
    what = f"{'writing' if plan.direction == 'write' else 'making and reading'} {name} {over}"
    return Step(what, round(passes * (2 * by.mounting + plan.file_size / by.rate)))


def attaching(names: Sequence[str], facts: Mapping[str, str]) -> Step:
    """The step that compiles and attaches these probe sets."""
    return Step(f"compiling the probes: {', '.join(names)}", round(_machine(facts).compiling))


def measuring(plan: Plan, trials: int, facts: Mapping[str, str]) -> Step:
    """The step that runs ``trials`` trials."""
    by, cells = _machine(facts), plan.cells()
    each = sum(map(plan.bytes_moved, cells)) / len(cells)
    return Step(f"{trials} trials", round(trials * (by.mounting + each / by.rate)))


def _machine(facts: Mapping[str, str]) -> _Machine:
    return _EMULATED if "TCG" in facts.get("cpu model", "") else _REAL
