# SPDX-License-Identifier: Apache-2.0
"""The page: one HTML file without external resources, for phones, light and dark mode.

Its content security policy allows only its own style sheet, by hash.  The figures' styles move
into that sheet, so that no attribute needs an exception.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

from markupsafe import Markup

from nfsrdma_tools.report import (
    canvas,
    captions,
    cpu_figures,
    fleet,
    recommendation,
)
from nfsrdma_tools.report.canvas import Drawing, inline_svg, variable
from nfsrdma_tools.report.recommendation import Advice
from nfsrdma_tools.report.section import Section, Table, render
from nfsrdma_tools.report.study import (
    CARD,
    SOFT_ROCE,
    Missing,
    Point,
    Spread,
    Study,
    clock_note,
    emulation,
    is_lab,
)
from nfsrdma_tools.sizes import size_label
from nfsrdma_tools.sweep.significance import UNSTEADY

__all__ = ["page"]


def page(study: Study, drawings: Sequence[Drawing]) -> str:
    """The whole page; equal studies give equal pages."""
    sheet, advised = _Sheet(), recommendation.advice(study)
    figures = [
        _Figure(d.name, Markup(sheet.adopt(inline_svg(d))), d.alt, d.caption)  # noqa: S704
        for d in drawings
    ]
    css = resources.files(__package__).joinpath("page.css").read_text() + _variables() + sheet.css()
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    plan = {name: str(value) for name, value in study.plan.to_json().items()}
    return render(
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'",
        title=f"NFS {captions.verb(study)} sweep of {study.plan.target}",
        css=Markup(css),  # noqa: S704 - of this package and matplotlib
        summary=[_summary(study, advised), *filter(None, [recommendation.over_today(study)])],
        cards=[_card(study, advice) for advice in advised],
        persistent=[
            (captions.transport(advice.transport), _commands(study, advice)) for advice in advised
        ],
        note=_device_note(study) if emulation(study.conditions) else "",
        wide="wide" if len(study.variants) > 1 else "",
        figures=figures,
        small_print=captions.small_print(study),
        sections=_sections(study, advised),
        plan=Table(("", ""), sorted(plan.items())),
    )


class _Figure(NamedTuple):
    name: str
    svg: Markup
    alt: str
    caption: str


class _Card(NamedTuple):
    title: str
    rate: str
    texts: Sequence[str]


def _variables() -> str:
    light = "".join(f"{variable(c)}:{c};" for c in canvas.COLOURS)
    dark = "".join(f"{variable(c)}:{d};" for c, d in canvas.COLOURS.items())
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


class _Sheet:
    """Turns style attributes into classes of one style sheet."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}

    def adopt(self, markup: str) -> str:
        """Replace the styles in markup by classes."""
        markup = re.sub(r"<style[^>]*>.*?</style>", "", markup, flags=re.DOTALL)
        return re.sub(r' style="([^"]*)"', self._class, markup)

    def _class(self, match: re.Match[str]) -> str:
        name = self._classes.setdefault(match[1], f"s{len(self._classes)}")
        return f' class="{name}"'

    def css(self) -> str:
        """The rules of all classes."""
        return "".join(f".{name}{{{rule}}}\n" for rule, name in self._classes.items())


SHOWN = 6
_DEVICES = {
    CARD: (
        "The RDMA card is a model (nfsrdma_card): requests, interrupts and completions cost the "
        "host what they cost with a card, and a copy stands for the card's DMA; the layer card "
        "model has its CPU time. The rate and delay of the wire apply to it as they do to TCP. It "
        "leaves out PCIe, effects on the CPU's caches, and how a particular card delays "
        "interrupts. For figures of a real card, run nfsrdma sweep on a host that has one. "
    ),
    SOFT_ROCE: (
        "soft-RoCE emulates the RDMA card in software: packets, checksums over all data and "
        "reliability use CPU time that a real card saves. So TCP beats RDMA here in bytes per CPU "
        "second; this does not apply to RDMA hardware. "
    ),
}


def _sections(study: Study, advised: Sequence[Advice]) -> list[Section]:
    """The table of cells, missing cells, and the environment."""
    front = "Cells on the Pareto front: no other cell of the same transport is both faster and "
    front += "cheaper in CPU."
    environment = Table(("", ""), sorted(study.conditions.items()))
    return [
        Section("Throughput against CPU", [front], [_front(study, advice) for advice in advised]),
        Section("All cells", [_legend(study)], [_cells(study)], muted=True),
        *_missing(study),
        *fleet.sections(study),
        *cpu_figures.overhead_section(study),
        Section("Environment", tables=[environment]),
    ]


def _summary(study: Study, all_advice: Sequence[Advice]) -> str:
    first = all_advice[0]
    rate = captions.rate(first.best.throughput.mean)
    text = f"Fastest: {recommendation.headline(study, first)}, {rate}."
    for other in all_advice[1:]:
        share = other.best.throughput.mean / first.best.throughput.mean
        text += f" {captions.transport(other.transport)} reaches {100 * share:.0f} % of that."
    return text


def _card(study: Study, advice: Advice) -> _Card:
    other_kind = recommendation.over_other_kind(study, advice)
    texts = [recommendation.over_default(study, advice), *filter(None, [other_kind])]
    rate = captions.rate(advice.best.throughput.mean)
    return _Card(recommendation.headline(study, advice), rate, [*texts, _ties(study, advice)])


def _ties(study: Study, advice: Advice) -> str:
    others = [p for p in study.of(advice.transport) if p not in (advice.best, *advice.tied)]
    once = sum(p.runs == 1 for p in (advice.best, *others))
    slower = f"Significantly slower: {sum(p.runs > 1 for p in others)} cells."
    if advice.best.runs == 1:
        slower = "Not repeated: no difference is known to be significant."
    elif once:
        slower += f" Slower in their only run, not repeated: {once} cells."
    if not advice.tied:
        return slower
    names = [captions.cell(study, point) for point in advice.tied]
    more = f" and {len(names) - SHOWN} more, marked in the table" if len(names) > SHOWN else ""
    noun = "cells are" if len(advice.tied) > 1 else "cell is"
    count = f"{len(advice.tied)} {noun} within noise of the best"
    text = f"{count}: {'; '.join(names[:SHOWN])}{more}. {slower}"
    saved = 1 - _cost(advice.thrifty) / _cost(advice.best) if _cost(advice.best) else 0.0
    if advice.thrifty is advice.best or saved < 0.005:
        return f"{text} None of them uses less CPU."
    return (
        f"{text} Of these {captions.cell(study, advice.thrifty)} uses the least CPU, "
        f"{100 * saved:.0f} % less per byte."
    )


def _cost(point: Point) -> float:
    return point.cpu_per_mib.mean if point.cpu_per_mib else 0.0


def _commands(study: Study, advice: Advice) -> list[str]:
    """How to tune, and to mount the best cell; the server of a lab is gone."""
    tune, plan, cell = recommendation.tune_command(study, advice), study.plan, advice.best.cell
    if is_lab(study.conditions):
        return [tune]
    return [tune, plan.fstab_line(cell), plan.mount_command(cell)]


def _device_note(study: Study) -> str:
    where = "This sweep ran in a lab. " if is_lab(study.conditions) else ""
    return where + _DEVICES[emulation(study.conditions)] + clock_note(study.conditions)


def _front(study: Study, advice: Advice) -> Table:
    heads = (captions.transport(advice.transport), "MB/s", "CPU ms per MiB")
    rows = [(captions.cell(study, p), captions.figure(p.throughput.mean), _mean(p.cpu_per_mib))
            for p in advice.front]  # fmt: skip
    return Table(heads, rows)


def _legend(study: Study) -> str:
    marks = "best: of its transport; tied: no significant difference from best"
    marks += "; Pareto front: see above"
    restless = f"; unstable: the standard error of the mean is above {UNSTEADY:.0%}"
    some = any(point.unstable for point in study.points)
    return f"Means of the runs; CPU of the whole host. {marks}{restless if some else ''}."


def _cells(study: Study) -> Table:
    variant = ("further axes",) if len(study.variants) > 1 else ()
    heads = ("", captions.size_word(study), "reads ahead", *variant, "runs", "MB/s", "lowest",
             "highest", "CPU %", "CPU ms per MiB", f"{captions.actor(study)}'s system ms per MiB",
             "round trip ms", *_probe_heads(study), "")  # fmt: skip
    rows = [_row(study, point, bool(variant)) for point in study.points]
    return Table(heads, rows, [point.best for point in study.points])


def _row(study: Study, point: Point, variant: bool) -> tuple[str, ...]:
    marks = {"best": point.best, "tied": point.tied, "Pareto front": point.pareto,
             "unstable": point.unstable, "data not verified": not point.verified}  # fmt: skip
    speed = point.throughput
    return (
        captions.transport(point.cell.transport),
        size_label(point.cell.rsize),
        captions.window_short(point),
        *((point.variant,) if variant else ()),
        str(point.runs),
        *(captions.figure(value) for value in (speed.mean, speed.low, speed.high)),
        f"{point.cpu.mean:.1f}" if point.cpu else "",
        *(_mean(spread) for spread in (point.cpu_per_mib, point.reader)),
        f"{point.round_trip_ms:.3f}" if point.round_trip_ms else "",
        *_probe_cells(study, point),
        ", ".join(name for name, there in marks.items() if there),
    )


def _probe_heads(study: Study) -> tuple[str, ...]:
    direction = study.plan.direction
    nic = (f"CPU % without {captions.nic(study)}",) * study.emulated
    kept = any(point.spent for point in study.points)
    return (
        (*nic, "data by", f"segments per {direction}", f"registrations per {direction}")
        if kept
        else ()
    )


def _probe_cells(study: Study, point: Point) -> tuple[str, ...]:
    spent = point.spent
    if not spent:
        return ("",) * len(_probe_heads(study))
    ways = {name: share for name, share in spent.ways.items() if share >= 0.0005}
    by = ", ".join(f"{name} {share:.1%}" if len(ways) > 1 else name for name, share in ways.items())
    nic = (f"{point.cpu_of_host.mean:.1f}" if point.cpu_of_host else "",) * study.emulated
    counts = (
        "" if number is None or not spent.ways else f"{number:.2f}"
        for number in (spent.segments, spent.registrations)
    )
    return (*nic, by, *counts)


def _mean(spread: Spread | None) -> str:
    return f"{spread.mean:.2f}" if spread else ""


def _missing(study: Study) -> list[Section]:
    if not study.missing:
        return []
    groups: dict[tuple[str, str, bool, str], list[Missing]] = {}
    for missing in study.missing:
        name = captions.transport(missing.cell.transport)
        name += ", as mounted today" if missing.cell.as_mounted else ""
        key = (name, size_label(missing.cell.rsize), missing.offered, missing.reason)
        groups.setdefault(key, []).append(missing)
    rows = [
        (
            name,
            size,
            str(len(group)),
            "failed" if offered else "not offered",
            why,
        )
        for (name, size, offered, why), group in groups.items()
    ]
    heads = ("", captions.size_word(study), "cells", "", "reason")
    return [Section("Missing cells", tables=[Table(heads, rows)])]
