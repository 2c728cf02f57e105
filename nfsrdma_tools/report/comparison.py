# SPDX-License-Identifier: Apache-2.0
"""The first figure of a report: all transports side by side, in throughput and in CPU time.

Each point is a transfer size at the read-ahead that is best for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nfsrdma_tools.report import canvas, captions
from nfsrdma_tools.report.canvas import Drawing, bars, describe, label_ends, rsize_axis
from nfsrdma_tools.report.study import Point, Spread, Study, emulation, is_lab
from nfsrdma_tools.sizes import size_label

__all__ = ["draw"]


@dataclass(frozen=True)
class _Line:
    """A line of the figure: a transport, or one personality of nfsrdma, by transfer size."""

    transport: str
    personality: str | None
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        """As in the legend: "TCP", "RDMA, this project's module, padded"."""
        name = captions.transport(self.transport)
        default = self.points[0].cell.has_default_personality
        return name if default else f"{name}, {self.personality}"

    @property
    def colour(self) -> str:
        """The colour of the transport or the personality, as in all figures."""
        if self.personality:
            return canvas.personality_colour(self.personality)
        return canvas.transport_colour(self.transport)

    @property
    def peak(self) -> Point:
        """The fastest point."""
        return max(self.points, key=lambda p: p.throughput.mean)


def draw(study: Study) -> Drawing | None:
    """The figure; None if the study has only one transport and personality."""
    lines = _lines(study)
    if len(lines) < 2:
        return None
    figure = Figure(figsize=(10.4, 4.4))
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(0.07, 0.145, 0.86, 0.77, wspace=0.66)
    _panel(left, study, lines, lambda p: p.throughput)
    left.set_title("MB/s: more is better", fontsize=10, fontweight="normal", pad=4)
    _panel(right, study, lines, lambda p: p.cpu_per_mib)
    right.set_title(
        "ms of CPU time per MiB: less is better", fontsize=10, fontweight="normal", pad=4
    )
    title = _finding(study, lines)
    describe(figure, title, _detail(study, lines), _small_print(study))
    return Drawing(
        name="transports",
        title=title,
        caption=_caption(study),
        alt=f"Two line charts over {captions.size_word(study)}. {title}. {_detail(study, lines)}.",
        figure=figure,
    )


def _lines(study: Study) -> list[_Line]:
    names = dict.fromkeys((p.cell.transport, p.cell.personality) for p in study.points)
    return [_Line(*name, _best_of_each_size(study, *name)) for name in names]


def _best_of_each_size(study: Study, transport: str, personality: str | None) -> tuple[Point, ...]:
    best: dict[int, Point] = {}
    for point in study.of(transport):
        if point.cell.personality == personality:
            known = best.setdefault(point.cell.rsize, point)
            best[point.cell.rsize] = max(known, point, key=lambda p: p.throughput.mean)
    return tuple(best[size] for size in sorted(best))


def _panel(
    ax: Axes, study: Study, lines: list[_Line], value: Callable[[Point], Spread | None]
) -> None:
    rsize_axis(ax, study)
    ends, top = [], 0.0
    for number, line in enumerate(lines):
        known = [(p, spread) for p in line.points if (spread := value(p))]
        if not known:
            continue
        points, spreads = zip(*known, strict=True)
        marker = canvas.MARKERS[number % len(canvas.MARKERS)]
        bars(ax, points, [p.cell.rsize for p in points], spreads, (line.colour, marker))
        ends.append((points[-1].cell.rsize, spreads[-1].mean, line.name, line.colour))
        top = max(top, *(spread.high for spread in spreads))
    if ends:
        ax.set_ylim(0, 1.08 * top)
        label_ends(ax, ends)


def _finding(study: Study, lines: list[_Line]) -> str:
    """The throughput of each line over that of TCP, or of the first line, and the conditions."""
    first = next((line for line in lines if line.transport == "tcp"), lines[0])
    base = first.peak.throughput.mean
    ratios = [
        f"{line.peak.throughput.mean / base:.2f} ({line.name})" for line in lines if line != first
    ]
    verb = captions.verb(study).capitalize()
    text = f"{verb} throughput over that of {first.name}: {', '.join(ratios)}"
    return "\n".join(part for part in (text, _conditions(study)) if part)


def _conditions(study: Study) -> str:
    """What of the hosts is emulated: it decides what the ratios mean."""
    cpu = "emulated CPU" if is_lab(study.conditions) else ""
    return ", ".join(part for part in (cpu, emulation(study.conditions)) if part)


def _detail(study: Study, lines: list[_Line]) -> str:
    peaks = [
        f"{line.name} {captions.rate(line.peak.throughput.mean)} at "
        f"{size_label(line.peak.cell.rsize)}"
        for line in lines
    ]
    return f"Peaks: {', '.join(peaks)}"


def _caption(study: Study) -> str:
    ahead = "at the read-ahead that is best for it" if study.plan.reads_ahead else "as measured"
    if study.plan.with_direct:
        ahead = "at the read-ahead or depth that is best for it"
    model = f" Both panels include the work of the {captions.nic(study)}." * study.emulated
    return (
        f"Each {captions.size_word(study)} {ahead}.{captions.one_host(study)}{model}"
        f"{_operations(study)}{_source_of_gain(study)}"
    )


def _operations(study: Study) -> str:
    """The operations of NFS that the transports use for reads, which differ on NFSv4.2."""
    if study.plan.direction == "write" or "tcp" not in study.transports:
        return ""
    if study.plan.vers == "4.2":
        return " On NFSv4.2, TCP may send READ_PLUS, and RDMA sends READ: --vers 3 has one READ."
    return " All transports send READ, none READ_PLUS."


def _source_of_gain(study: Study) -> str:
    """Why this project's module reads faster than the kernel's: docs/dev/benchmarks.md."""
    if study.plan.direction == "write" or not {"rdma", "nfsrdma"} <= set(study.transports):
        return ""
    return " This project's module gains over the kernel's because nfsd uses its pages again."


def _small_print(study: Study) -> str:
    return f"{_caption(study)} {captions.small_print(study)}"
