# SPDX-License-Identifier: Apache-2.0
"""The recommendation: the best cell, its gain over the defaults, and equivalent cells."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass

from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.report import captions
from nfsrdma_tools.report.study import Point, Study
from nfsrdma_tools.sizes import format_size, size_label
from nfsrdma_tools.sweep.choice import Choice
from nfsrdma_tools.sweep.plan import MOUNT_POINT

__all__ = ["Advice", "advice", "as_json", "tune_command"]

DEFAULT_WINDOW = 128 << 10
"""Bytes that Linux reads ahead on NFS for any rsize, since c128e575514c ("NFS: Optimise the
default readahead size", in v5.4)."""


@dataclass(frozen=True)
class Advice:
    """The advice for one transport; ``default`` is the cell that equals Linux's defaults.

    ``tied`` cells do not differ significantly from ``best``, ``thrifty`` is the one of these and
    ``best`` with the least CPU per byte, ``front`` the Pareto front of throughput and CPU.
    ``other_kind`` is the fastest cell of the other kind, buffered or O_DIRECT, if there are both.
    """

    transport: str
    best: Point
    tied: tuple[Point, ...]
    thrifty: Point
    front: tuple[Point, ...]
    default: Point | None
    other_kind: Point | None

    @property
    def gain(self) -> float | None:
        """The throughput of the best cell over that of the default, minus 1."""
        base = self.default.throughput.mean if self.default else 0
        return self.best.throughput.mean / base - 1 if base else None


def advice(study: Study) -> list[Advice]:
    """One per transport, fastest first."""
    all_advice = [_of(study, choice) for choice in study.choices]
    return sorted(all_advice, key=lambda a: -a.best.throughput.mean)


def _of(study: Study, choice: Choice) -> Advice:
    best = study.point(choice.winner.cell)
    tied = tuple(study.point(summary.cell) for summary in choice.tied)
    return Advice(
        transport=best.cell.transport,
        best=best,
        tied=tied,
        thrifty=min((best, *tied), key=_cost),
        front=tuple(study.point(summary.cell) for summary in choice.front),
        default=_default(study, best),
        other_kind=study.point(choice.other_kind.cell) if choice.other_kind else None,
    )


def _cost(point: Point) -> float:
    return point.cpu_per_mib.mean if point.cpu_per_mib else 0.0


def _default(study: Study, best: Point) -> Point | None:
    """The cell with the default's window of 128 KiB, and the largest rsize that fits into it.

    No READ is larger than the window, so a larger rsize would have no effect.
    """
    points = study.of(best.cell.transport)
    first = min(points, key=lambda p: (p.cell.direct, not p.cell.has_default_personality, p.cell))
    peers = [point for point in points if point.variant == first.variant]
    same = [p for p in peers if p.cell.rsize * p.cell.read_ahead == DEFAULT_WINDOW]
    return max(same, key=lambda p: p.cell.rsize, default=None)


def headline(study: Study, recommended: Advice) -> str:
    """The advice in one line."""
    name, size = captions.transport(recommended.transport), captions.size_word(study)
    # docs/how-to/module.md: the module's state
    state = " (experimental)" if recommended.transport == OURS else ""
    text = f"{name}{state}: {size} {size_label(recommended.best.cell.rsize)}"
    if study.plan.has_read_ahead(recommended.best.cell):
        text += f" with {captions.window(recommended.best)}"
    if recommended.best.variant:
        text += f", {recommended.best.variant}"
    return text


def over_other_kind(study: Study, recommended: Advice) -> str:
    """The best cell against the best one of the other kind, in a sentence; "" with one kind."""
    other = recommended.other_kind
    if other is None or not other.throughput.mean:
        return ""
    names = [
        f"{'direct' if p.cell.direct else 'buffered'} reads" for p in (recommended.best, other)
    ]
    reached = f"{captions.rate(other.throughput.mean)} ({captions.cell(study, other)})"
    if other in recommended.tied:
        sentence = "No significant difference between {} and {}, which reached {}."
        return sentence.format(*names, reached)
    times = f"{recommended.best.throughput.mean / other.throughput.mean:.2f} times as fast"
    return f"{names[0].capitalize()}: {times} as {names[1]}, which reached {reached}."


def over_default(study: Study, recommended: Advice) -> str:
    """The gain over the defaults, in a sentence; "" if it was not measured."""
    if recommended.default is None or recommended.gain is None:
        return ""
    if recommended.best.cell == recommended.default.cell:
        return "This equals Linux's default read-ahead of 128 KiB."
    is_tied = recommended.default in recommended.tied
    gain = "No significant difference from" if is_tied else f"{100 * recommended.gain:+.1f} % over"
    return (
        f"{gain} Linux's default read-ahead of 128 KiB, which reached "
        f"{captions.rate(recommended.default.throughput.mean)} "
        f"({captions.cell(study, recommended.default)})."
    )


def over_today(study: Study) -> str:
    """The gain over the mount that the host had before, in sentences; "" without one."""
    today, mount = study.today, study.plan.existing
    if not today or not mount:
        return ""
    name = captions.transport(today.existing.cell.transport)
    size = size_label(today.existing.cell.rsize)
    has = f"{mount.directory}: {name}, {captions.size_word(study)} {size}"
    has += f", nconnect {mount.nconnect}" if mount.nconnect > 1 else ""
    if study.plan.has_read_ahead(today.existing.cell):
        has += f", read-ahead of {size_label(mount.read_ahead_kb << 10)}"
    best = study.point(today.best.cell)
    text = f"As mounted today ({has}): {captions.rate(today.existing.throughput)}. "
    cell = f"{captions.transport(best.cell.transport)}, {captions.cell(study, best)}"
    if today.tied:
        return f"{text}No significant difference from the best cell with the same load ({cell})."
    gain = f"{100 * today.gain:+.1f} %"
    return f"{text}The best cell with the same load ({cell}): {gain} over that."


def today_as_json(study: Study) -> dict[str, object] | None:
    """The existing mount and what the best cell with its load gains; None without one."""
    today, mount = study.today, study.plan.existing
    if not today or not mount:
        return None
    return {
        **asdict(mount),
        "runs": today.existing.runs,
        "mb_per_s": today.existing.throughput,
        "jobs": today.existing.cell.jobs,
        "depth": today.existing.cell.depth,
        "best_with_same_load": _flat(study, study.point(today.best.cell)),
        "gain": today.gain,
        "significant": not today.tied,
    }


def tune_command(study: Study, recommended: Advice) -> str:
    """The command that makes it persistent; the user replaces the mount point."""
    cell = recommended.best.cell
    argv = ["nfsrdma", "tune", "apply", "--mount", MOUNT_POINT]
    argv += [f"--{captions.size_word(study)}", format_size(cell.rsize)]
    argv += ["--read-ahead", str(cell.read_ahead)] if study.plan.has_read_ahead(cell) else []
    return shlex.join(argv)


def as_json(study: Study, recommended: Advice) -> dict[str, object]:
    """The advice as plain data; throughput in MB/s, CPU in ms per MiB."""
    return {
        "transport": recommended.transport,
        "best": _flat(study, recommended.best),
        "tied": [_flat(study, point) for point in recommended.tied],
        "cheapest_in_cpu": _flat(study, recommended.thrifty),
        "pareto_front": [_flat(study, point) for point in recommended.front],
        "other_kind": _flat(study, recommended.other_kind) if recommended.other_kind else None,
        "default": _flat(study, recommended.default) if recommended.default else None,
        "gain_over_default": recommended.gain,
        "vers": study.plan.vers,
        "fstab": study.plan.fstab_line(recommended.best.cell),
        "mount": study.plan.mount_command(recommended.best.cell),
        "apply": tune_command(study, recommended),
    }


def _flat(study: Study, point: Point) -> dict[str, object]:
    cell = point.cell
    return {
        "direct": study.plan.is_direct(cell),
        "rsize": cell.rsize,
        "read_ahead": cell.read_ahead,
        "nconnect": cell.nconnect,
        "jobs": cell.jobs,
        "depth": cell.depth,
        "axes": dict(cell.axes),
        "runs": point.runs,
        "mb_per_s": point.throughput.mean,
        "lowest": point.throughput.low,
        "highest": point.throughput.high,
        "cpu_ms_per_mib": point.cpu_per_mib.mean if point.cpu_per_mib else None,
        "unstable": point.unstable,
    }
