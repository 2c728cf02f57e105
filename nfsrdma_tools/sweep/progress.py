# SPDX-License-Identifier: Apache-2.0
"""Events of a running sweep, as objects and as JSON, and estimates of its duration.

``nfsrdma sweep --json`` prints an event per line; ``follow`` reads these lines on another machine
and copies the events into a store there, so that a sweep in a lab survives the loss of the lab.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.sizes import format_size
from nfsrdma_tools.sweep.plan import WARM_UP, Plan
from nfsrdma_tools.sweep.store import Store, Trial

__all__ = [
    "Event",
    "Finished",
    "Planned",
    "Step",
    "TrialDone",
    "apply",
    "attaching",
    "follow",
    "from_line",
    "measuring",
    "preparing",
    "sizing",
    "to_facts",
]


@dataclass(frozen=True)
class Planned:
    """A sweep starts: its plan, its environment, and the trials done and expected."""

    plan: Plan
    environment: dict[str, str]
    done: int
    expected: int


@dataclass(frozen=True)
class Step:
    """A step starts, with an estimate of its wall time in seconds."""

    what: str
    seconds: int


@dataclass(frozen=True)
class TrialDone:
    """A trial is in the store."""

    trial: Trial
    done: int
    expected: int


@dataclass(frozen=True)
class Finished:
    """The sweep is complete, or ended early for ``reason``."""

    plan: str
    done: int
    reason: str = ""


Event = Planned | Step | TrialDone | Finished


def to_facts(event: Event) -> dict[str, Any]:
    """The event as plain values, for JSON."""
    data: dict[str, Any] = {"event": type(event).__name__.lower(), **vars(event)}
    for name in ("plan", "trial"):
        if isinstance(data.get(name), Plan | Trial):
            data[name] = data[name].to_json()
    return data


def from_line(line: str) -> Event:
    """The event of a line of JSON; UserError when the line is not an event."""
    try:
        data = json.loads(line)
        data.pop("schema_version", None)
        return _KINDS[data.pop("event")](data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"this is not an event of a sweep: {line.strip()[:200]!r}") from error


def apply(event: Event, store: Store) -> None:
    """Add the content of an event to ``store``; a second time changes nothing."""
    if isinstance(event, Planned):
        store.add_plan(event.plan)
        store.add_environment(event.environment)
    elif isinstance(event, TrialDone):
        store.add_trial(event.trial)


def follow(lines: Iterable[str], store: Store) -> Iterator[Event]:
    """Copy the events of ``lines`` into ``store`` and yield each after it is stored.

    If the last event is not a Finished, the sweep was cut off.  Empty lines are skipped.  Raises
    UserError for a line that is not an event; for the last line, an error of ``lines`` comes
    first.
    """
    broken: UserError | None = None
    for line in lines:
        if broken:
            raise broken
        if line.strip():
            try:
                event = from_line(line)
            except UserError as error:
                broken = error
                continue
            apply(event, store)
            yield event
    if broken:
        raise broken


_KINDS: dict[str, Callable[[dict[str, Any]], Event]] = {
    "planned": lambda data: Planned(**{**data, "plan": Plan.from_json(data["plan"])}),
    "step": lambda data: Step(**data),
    "trialdone": lambda data: TrialDone(**{**data, "trial": Trial.from_json(data["trial"])}),
    "finished": lambda data: Finished(**data),
}


@dataclass(frozen=True)
class _Machine:
    """Seconds to compile the probes, seconds to mount and unmount, bytes per second of a reader."""

    compiling: float
    mounting: float
    rate: float


_REAL = _Machine(compiling=3, mounting=0.5, rate=200e6)
_EMULATED = _Machine(compiling=25, mounting=1.5, rate=12e6)


def sizing(plan: Plan, facts: Mapping[str, str]) -> Step:
    """The step that finds out how large the test file has to be."""
    by = _machine(facts)
    text = f"measuring how large the test file has to be for trials of {plan.seconds:g} s"
    return Step(text, round(2 * len(plan.transports) * (3 * by.mounting + plan.seconds)))


def preparing(plan: Plan, facts: Mapping[str, str]) -> Step:
    """The step that makes the test file and reads it once per transport."""
    by = _machine(facts)
    passes = 1 + len(plan.transports)
    name = f"the {format_size(plan.file_size)} test file"
    over = f"once over {' and '.join(plan.transports)}"
    text = f"{'writing' if plan.direction == 'write' else 'making and reading'} {name} {over}"
    return Step(text, round(passes * (2 * by.mounting + plan.file_size / by.rate)))


def attaching(names: Sequence[str], facts: Mapping[str, str]) -> Step:
    """The step that compiles and attaches these probe sets."""
    return Step(f"compiling the probes: {', '.join(names)}", round(_machine(facts).compiling))


def measuring(plan: Plan, trials: int, facts: Mapping[str, str]) -> Step:
    """The step that runs ``trials`` trials."""
    by, cells = _machine(facts), plan.cells()
    each = sum(map(plan.bytes_moved, cells)) / len(cells) / by.rate
    text = f"{trials} trials"
    if plan.seconds:
        each = plan.seconds * (1 + WARM_UP)
        text += f" of up to {plan.seconds:g} s, after a warm-up of {plan.seconds * WARM_UP:g} s"
    if any(map(plan.reads_again, cells)):
        text += "; a trial reads the file again when it is at its end (O_DIRECT)"
    return Step(text, round(trials * (by.mounting + each)))


def _machine(facts: Mapping[str, str]) -> _Machine:
    return _EMULATED if "TCG" in facts.get("cpu model", "") else _REAL
