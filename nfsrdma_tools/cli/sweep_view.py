# SPDX-License-Identifier: Apache-2.0
"""Output of ``nfsrdma sweep``: a progress bar or lines of JSON, and the conclusion."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Self

from nfsrdma_tools.cli.output import print_line
from nfsrdma_tools.cli.progress_bar import ProgressBar
from nfsrdma_tools.errors import printable
from nfsrdma_tools.host.nfs.mounting import MountRequest
from nfsrdma_tools.host.nfs.readahead import kb_for
from nfsrdma_tools.sweep.choice import (
    LOADS,
    MOVES,
    Choice,
    Race,
    against_today,
    choose,
    unstable,
)
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.progress import Event, Finished, Planned, Step, TrialDone, to_facts
from nfsrdma_tools.sweep.significance import UNSTEADY, Summary
from nfsrdma_tools.sweep.store import NOT_OFFERED, OK, Store, Trial

__all__ = ["JsonEvents", "Progress", "conclusion"]

_SHOWN = 6
_FULL = 0.95
"""Share of all CPUs from which the CPU limits the throughput."""
_EVERY = 20.0
"""Seconds between two lines with the time left."""


class JsonEvents:
    """Prints each event as a line of JSON."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.done = plan.uid, 0

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to clean up."""

    def show(self, event: Event) -> None:
        """Print an event."""
        self.done = getattr(event, "done", self.done)
        print_line(to_facts(event))

    def stopped(self, reason: str) -> None:
        """Print that the sweep ended early, and the reason."""
        print_line(to_facts(Finished(self.plan, self.done, reason)))


class Progress(ProgressBar):
    """Prints a line per step and trial, and the time left: as a bar, or as lines in a file.

    ``now`` is a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        from rich import progress

        self._now = now
        self._began = self._said = now()
        self._before: int | None = None
        super().__init__(
            progress.MofNCompleteColumn(),
            progress.BarColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("left"),
            hidden=not sys.stdout.isatty(),
        )

    def show(self, event: Event) -> None:
        """Advance the bar; print the step that starts, or the result of a trial."""
        if isinstance(event, Step):
            self._say(f"sweep: {event.what} (about {_duration(event.seconds)})")
            # the last step consists of the trials
            self._began = self._said = self._now()
            return
        if isinstance(event, Planned):
            self._say(f"probe sets: {event.environment.get('probe sets', 'none')}")
            for line in _other_default(event.plan):
                self._say(line)
            if event.plan.existing:
                self._say(f"as mounted today: {event.plan.existing}")
        if isinstance(event, TrialDone):
            self._say(_line(event.trial))
            self._tell_left(event)
        total = event.done if isinstance(event, Finished) else event.expected
        self._bar.update(self._task, completed=event.done, total=total)

    def stopped(self, reason: str) -> None:
        """Nothing: the command prints the reason when it exits."""

    def _tell_left(self, event: TrialDone) -> None:
        """Print the time left from time to time, if there is no bar."""
        now = self._now()
        self._before = event.done - 1 if self._before is None else self._before
        if self._bar.disable and now - self._said >= _EVERY and event.done < event.expected:
            seconds_per_trial = (now - self._began) / (event.done - self._before)
            left = _duration(seconds_per_trial * (event.expected - event.done))
            self._say(f"sweep: {event.done} of {event.expected} trials, about {left} left")
            self._said = now


def conclusion(plan: Plan, store: Store, done: bool, again: Sequence[str] = ()) -> list[str]:
    """The best cells over all and per transport, and the next commands.

    ``again`` are the options that a resumed sweep needs besides the store.
    """
    trials = store.trials(plan)
    scopes = ["", *plan.transports] if len(plan.transports) > 1 else [""]
    choices = [choice for scope in scopes if (choice := choose(trials, scope))]
    lines = [line for choice in choices for line in _recommended(choice, plan)]
    in_lab = "--lab" in again
    if choices:
        best, *others = choices
        lines += _compared(best, others, in_lab)
        lines += [] if in_lab else _mounting(plan, best.winner.cell)
        lines += _against_today(trials)
    lines += _remarks(trials)
    lines += _short(plan, trials)
    lines += _skipped(plan, trials, done)
    path = shlex.quote(str(store.path))
    if not done:
        lines.append(f"next: nfsrdma sweep {shlex.join([*again, '--resume'])} {path}")
    if any(trial.ok for trial in trials):
        # what a lab's clock found says nothing about this host's mounts
        tuning = "" if in_lab else f"; nfsrdma tune apply {path}"
        lines.append(f"next: nfsrdma report {path}{tuning}")
    return lines


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    return f"{round(seconds / 60)} min"


def _line(trial: Trial) -> str:
    if trial.ok:
        share = f"{trial.cpu.cpu_share:.0%} CPU{_passes(trial)}"
        return f"{trial.cell!s:<40} {trial.transfer.throughput:9.2f} MB/s  {share}"
    return f"{trial.cell!s:<40} {trial.status.replace('_', ' ')}: {printable(trial.reason)}"


def _passes(trial: Trial) -> str:
    if not 0 < trial.file_size < trial.transfer.bytes:
        return ""
    return f", {trial.transfer.bytes / trial.file_size:.1f} times the file"


def _other_default(plan: Plan) -> list[str]:
    """A line that says that this sweep and `nfsrdma mount` use different NFS versions."""
    mounts = MountRequest.vers
    if plan.vers == mounts:
        return []
    return [f"NFS version: {plan.vers} (`nfsrdma mount` uses {mounts}; --vers selects another)"]


def _recommended(choice: Choice, plan: Plan) -> list[str]:
    scope = f" over {choice.transport}" if choice.transport else ""
    lines = [f"best{scope}: {_described(choice.winner)}{_window(choice.winner.cell, plan)}"]
    lines += _against_other_kind(choice, plan)
    if choice.tied:
        lines.append(f"  no significant difference: {_named(choice.tied)}")
    if len(choice.front) > 1:
        lines.append(f"  slower, with less CPU time per byte: {_named(choice.front[1:])}")
    return lines


def _against_other_kind(choice: Choice, plan: Plan) -> list[str]:
    """The winner against the best cell of the other kind: buffered reads, or O_DIRECT reads."""
    best, other = choice.winner, choice.other_kind
    if not other:
        return []
    kinds = [("buffered", "direct")[summary.cell.direct] for summary in (best, other)]
    tied = other in choice.tied
    gain = "no significant difference" if tied else _times(best, other, "")
    there = f"{other.cell} ({other.throughput:.2f}){_window(other.cell, plan)}"
    return [f"  {' against '.join(kinds)}: {gain}; best {kinds[1]}: {there}"]


def _against_today(trials: Sequence[Trial]) -> list[str]:
    """The existing mount, and what the best cell with its load gains over it."""
    today = against_today(trials)
    if not today:
        return []
    gain = "no significant difference" if today.tied else _times(today.best, today.existing, "")
    keep = "; keep the mount as it is" if today.tied or today.gain < 0 else ""
    return [_described(today.existing), f"  {today.best.cell} against it: {gain}{keep}"]


def _times(top: Summary, other: Summary, whose: str) -> str:
    """How many times as fast, and the share of CPU time; ``whose`` says what that includes."""
    ratio = f"{top.throughput / other.throughput:.2f} times as fast"
    if spent := other.cpu_per_byte:
        ratio += f", {top.cpu_per_byte / spent:.2f} of its CPU time per byte{whose}"
    return ratio


def _compared(best: Choice, others: Sequence[Choice], in_lab: bool) -> list[str]:
    """The best cell against the best one of each other transport, and the CPU as the limit."""
    top, lines = best.winner, []
    whose = " (with that of the emulated device)" if in_lab else ""
    for name, other in ((choice.transport, choice.winner) for choice in others):
        if name == top.cell.transport:
            continue
        if other in best.tied:
            lines.append(f"{top.cell.transport} against {name}: no significant difference")
            continue
        lines.append(f"{top.cell.transport} against {name}: {_times(top, other, whose)}")
    if top.cpu_share >= _FULL:
        lines.append(f"limit of the best cell: the CPU, {top.cpu_share:.0%} busy")
    return lines


def _mounting(plan: Plan, cell: Cell) -> list[str]:
    """The mount of a cell as a line of fstab and as a command, and what no option sets."""
    lines = list(map(printable, plan.ways_to_mount(cell)))
    others = ", ".join(f"{name}={value}" for name, value in cell.axes)
    return lines + [f"  set as well: {others}"] * bool(others)


def _window(cell: Cell, plan: Plan) -> str:
    if not plan.has_read_ahead(cell):
        return ""
    return f", read_ahead_kb {kb_for(cell.read_ahead, cell.rsize)}"


def _described(cell: Summary) -> str:
    spread = f", spread {cell.spread:.2%}" if cell.runs > 1 else ""
    runs = f"{cell.runs} run{'s' if cell.runs > 1 else ''}{spread}"
    return f"{cell.cell}: {cell.throughput:.2f} MB/s, {cell.cpu_share:.0%} CPU ({runs})"


def _named(cells: tuple[Summary, ...]) -> str:
    more = f" and {len(cells) - _SHOWN} more" if len(cells) > _SHOWN else ""
    return "; ".join(f"{s.cell} ({s.throughput:.2f})" for s in cells[:_SHOWN]) + more


def _short(plan: Plan, trials: Sequence[Trial]) -> list[str]:
    """A line about trials that ended with the file."""
    wanted = plan.seconds * 1e9
    short = [
        t
        for t in trials
        if t.ok and t.transfer.duration_ns < wanted and t.transfer.bytes == t.file_size
    ]
    if not short:
        return []
    least = min(t.transfer.duration_ns for t in short) / 1e9
    why = f"the file ended after {least:.2g} s or more, of {plan.seconds:g} s"
    return [f"  {len(short)} trials are short: {why}; free space on the server allows a larger one"]


def _skipped(plan: Plan, trials: Sequence[Trial], done: bool) -> list[str]:
    """A line about cells that a complete sweep did not try."""
    race = Race(plan, trials)
    left = race.not_tried
    if not (done and left and trials):
        return []
    if race.is_out_of_time:
        why = f"the sweep ended after {plan.minutes:g} min of trials (--minutes)"
    else:
        why = f"fewer {', '.join(LOADS)} already gained less than {MOVES:.0%}"
    return [f"  {len(left)} cells not tried: {why}"]


def _remarks(trials: list[Trial]) -> list[str]:
    status = Counter(trial.status for trial in trials)
    lines = [f"{len(trials)} trials, {status[OK]} succeeded"]
    failed: Counter[tuple[str, str]] = Counter(
        (trial.status, printable(trial.reason)) for trial in trials if not trial.ok
    )
    for (kind, reason), count in failed.most_common(_SHOWN):
        outcome = "not offered" if kind == NOT_OFFERED else "failed"
        lines.append(f"  {count} {outcome}: {reason}")
    # the report marks the same cells
    if shaky := unstable(trials):
        lines.append(f"  standard error of the mean above {UNSTEADY:.0%}: {_named(shaky)}")
    return lines
