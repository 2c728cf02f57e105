# SPDX-License-Identifier: Apache-2.0
"""Titles, findings, captions and alternative texts of the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nfsrdma_tools.report.study import CARD, Point, Study, emulation, machine
from nfsrdma_tools.sizes import size_label
from nfsrdma_tools.sweep.significance import UNSTEADY

__all__ = [
    "actor", "ahead", "best_of", "cell", "nic", "one_host", "small_print", "title", "transport",
]  # fmt: skip

_NAMES = {"tcp": "TCP", "rdma": "RDMA, kernel's module", "nfsrdma": "RDMA, this project's module"}


def transport(name: str) -> str:
    """The display name of a transport."""
    return _NAMES.get(name, name)


def actor(study: Study) -> str:
    """The application: "reader" or "writer"."""
    return "writer" if study.plan.direction == "write" else "reader"


def verb(study: Study) -> str:
    """The kind of I/O: "read", "direct write", ..."""
    return f"{'direct ' if study.plan.direct else ''}{study.plan.direction}"


def title(study: Study, name: str) -> str:
    """Title of the throughput figure of a transport."""
    return f"{transport(name)}: {verb(study)} throughput over {size_word(study)}"


def ahead(study: Study, count: int) -> str:
    """The read-ahead as text."""
    if not study.plan.reads_ahead:
        return "read-ahead does not apply"
    return {0: "no read-ahead", 1: "1 read ahead"}.get(count, f"{count} reads ahead")


def cell(study: Study, point: Point) -> str:
    """A cell without its transport: "128 KiB, 4 reads ahead"."""
    parts = [size_label(point.cell.rsize)]
    parts += [ahead(study, point.cell.read_ahead)] * study.plan.has_read_ahead(point.cell)
    return ", ".join(parts + [point.variant] * bool(point.variant))


def window(point: Point) -> str:
    """The read-ahead in blocks and bytes: "4 reads ahead (512 KiB)"."""
    count = point.cell.read_ahead
    blocks = {0: "no read-ahead", 1: "1 read ahead"}.get(count, f"{count} reads ahead")
    return f"{blocks} ({size_label(count * point.cell.rsize)})" if count else blocks


def window_short(point: Point) -> str:
    """The read-ahead for a table: "4 (512 KiB)"."""
    count = point.cell.read_ahead
    if point.cell.direct:
        return ""
    return f"{count} ({size_label(count * point.cell.rsize)})" if count else "0"


def size_word(study: Study) -> str:
    """The name of the transfer size in this study's direction."""
    return "wsize" if study.plan.direction == "write" else "rsize"


def best_of(study: Study, name: str) -> str:
    """The peak of a transport."""
    peak = max(study.of(name), key=lambda p: p.throughput.mean)
    return f"Peak {rate(peak.throughput.mean)} at {cell(study, peak)}"


def rate(value: float) -> str:
    """A throughput in MB/s with its significant digits."""
    return f"{figure(value)} MB/s"


def figure(value: float) -> str:
    """A throughput with about three digits."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"


def small_print(study: Study) -> str:
    """The conditions for each figure."""
    where = machine(study.conditions)
    return f"{workload(study)} {repeats(study)} {where}. Measured {study.date}."


def workload(study: Study) -> str:
    """The workload of one run."""
    plan = study.plan
    request = "rsize" if plan.direct else size_label(plan.block_size)
    direct = " (O_DIRECT)" * plan.direct + ", or rsize (O_DIRECT)" * plan.with_direct
    into = "written" if plan.direction == "write" else "read"
    return (
        f"NFSv{plan.vers}, {_amount(study)} {into} sequentially, {request} per call"
        f"{direct}; server cache warm, client cache cold."
    )


def _amount(study: Study) -> str:
    plan = study.plan
    if plan.seconds:
        again = ", read again from its start" if study.read_again else ""
        return f"up to {plan.seconds:g} s of a file of {size_label(study.file_size)}{again},"
    sizes = sorted({plan.bytes_moved(cell) for cell in plan.cells()})
    return " to ".join(size_label(size) for size in dict.fromkeys((sizes[0], sizes[-1])))


def repeats(study: Study) -> str:
    """The number of runs, and the meaning of points and bars."""
    counts = sorted({point.runs for point in study.points})
    runs = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    bars = "; bars: lowest to highest run" if counts[-1] > 1 else ""
    return f"{runs} run{'s' * (counts[-1] > 1)} per cell, points: mean{bars}."


def throughput_caption(study: Study, name: str, number: str | None) -> str:
    """Caption of the throughput figure."""
    like = f"Like figure {number} of the 2003 paper. " if number else ""
    lines = "One line per number of reads ahead. " if study.plan.reads_ahead else ""
    flat = (
        "Without read-ahead Linux fetches one page at a time for any rsize, so that line is flat; "
        "the dotted line is rsize / round trip, the limit of one request of rsize at a time. "
    )
    reading = (p.cell for p in study.of(name) if study.plan.has_read_ahead(p.cell))
    zero = any(cell.read_ahead == 0 for cell in reading)
    wire = "Dashed: the link rate. " if study.wire else ""
    return f"{like}{lines}{flat if zero else ''}{wire}{marks(study, name)}".strip()


def marks(study: Study, name: str) -> str:
    """The meaning of ringed and hollow points, if there are any."""
    points = study.of(name)
    ring = "Ringed: the best cell. " if any(p.best for p in points) else ""
    hollow = (
        f"Hollow: the standard error of the mean is above {UNSTEADY:.0%}. "
        if any(p.unstable for p in points) else ""
    )  # fmt: skip
    return ring + hollow


def throughput_alt(study: Study, name: str) -> str:
    """The alternative text of the throughput figure."""
    points = study.of(name)
    low = min(points, key=lambda p: p.throughput.mean)
    return (
        f"Line chart. {title(study, name)}, from {rate(low.throughput.mean)} at "
        f"{cell(study, low)} up to the peak. {best_of(study, name)}."
    )


def cpu_finding(study: Study, points: Sequence[Point]) -> str:
    """The finding of figure 17: the host's CPU at each transport's fastest point."""
    return _by_transport(study, points, lambda p: f"{p.cpu.mean:.0f} % at {rate(p.throughput.mean)}"
                 if p.cpu else "")  # fmt: skip


def reader_finding(study: Study, points: Sequence[Point]) -> str:
    """The finding of figure 18: at the largest size measured with all transports."""
    sizes = [{p.cell.rsize for p in points if p.cell.transport == t} for t in study.transports]
    common = max(set.intersection(*sizes), default=0)
    at = [p for p in points if p.cell.rsize == common]
    values = _by_transport(study, at, lambda p: f"{p.reader.mean:.2f} ms" if p.reader else "")
    return f"At {size_label(common)} per MiB: {values}" if values else ""


def _by_transport(study: Study, points: Sequence[Point], say: Callable[[Point], str]) -> str:
    parts = []
    for name in study.transports:
        mine = [p for p in points if p.cell.transport == name]
        if mine:
            top = max(mine, key=lambda p: p.throughput.mean)
            parts.append(f"{transport(name)} {say(top)}")
    return ", ".join(parts)


def cpu_caption(study: Study, count: int) -> str:
    """Caption of figure 17."""
    return (
        f"Like figure 17 of the 2003 paper: CPU utilisation of the whole host against throughput, "
        f"{ahead(study, count)}, one point per {size_word(study)}. Further right and lower "
        f"is better.{one_host(study)}{dashed(study)}"
    )


def one_host(study: Study) -> str:
    """Whose CPU time the figures show, where client and server are one host; "" elsewhere."""
    solo = study.conditions.get("lab shape") == "solo"
    return " Client and server are on one host: the CPU time is that of both." if solo else ""


def cpu_alt(points: Sequence[Point]) -> str:
    """The alternative text of figure 17."""
    parts = [
        f"{_short(p)}: {rate(p.throughput.mean)} for {p.cpu.mean:.0f} %" for p in points if p.cpu
    ]
    return f"Scatter chart with lines. {'; '.join(parts)}."


def reader_caption(study: Study, count: int) -> str:
    """Caption of figure 18."""
    return (
        f"Like figure 18 of the 2003 paper: the {actor(study)}'s own system time per MiB, "
        f"{ahead(study, count)}, so that no kernel threads do part of its work. It includes soft "
        f"interrupts that run in its time.{dashed(study)}"
    )


def dashed(study: Study) -> str:
    """The meaning of dashed lines, if there are any."""
    return (
        f" Dashed: without the CPU time of the {nic(study)}, whose work a card does in hardware."
        if study.emulated
        else ""
    )


def nic(study: Study) -> str:
    """The software that does the work of an RDMA card."""
    is_card = emulation(study.conditions) == CARD
    return "card model" if is_card else "emulated NIC"


def reader_alt(points: Sequence[Point]) -> str:
    """The alternative text of figure 18."""
    parts = [f"{_short(p)}: {p.reader.mean:.2f} ms" for p in points if p.reader]
    return f"Line chart, system CPU per MiB. {'; '.join(parts)}."


def _short(point: Point) -> str:
    return f"{transport(point.cell.transport)} {size_label(point.cell.rsize)}"


def map_finding(study: Study, name: str) -> str:
    """The finding of the map: the number of cells close to the best."""
    points = [p for p in study.buffered if p.cell.transport == name]
    top = max(p.throughput.mean for p in points)
    near = sum(p.throughput.mean >= 0.98 * top for p in points)
    return f"{near} of {len(points)} cells within 2 % of {rate(top)}"


def map_caption(study: Study, name: str) -> str:
    """Caption of the map."""
    points = [p for p in study.buffered if p.cell.transport == name]
    best = "Solid frame: the best cell. " if any(p.best for p in points) else ""
    tied = "Dashed frame: no significant difference from the best. " if any(
        p.tied and not p.best for p in points) else ""  # fmt: skip
    wave = (
        f"~: the standard error of the mean is above {UNSTEADY:.0%}. "
        if any(p.unstable for p in points)
        else ""
    )
    return f"Mean throughput of each cell. {best}{tied}{wave}Hatched: not measured."


def map_alt(study: Study, name: str) -> str:
    """The alternative text of the map."""
    return f"Map of {transport(name)} throughput. {map_finding(study, name)}. The table has values."
