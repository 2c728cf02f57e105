# SPDX-License-Identifier: Apache-2.0
"""CPU time that RDMA saves, against two TCPs: ``make paper``.

After figures 15 to 18 of Callaghan and others, "NFS over RDMA" (NICELI 2003): sequential reads over
TCP as a host of 2003 had it, over TCP with today's offloads, and over RDMA with the modelled card.
Six sweeps run in one lab; their stores stay in out/, and a second call only draws them.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes

from bench import page
from bench.figures import picture, plot
from bench.solo import offloads, sh
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.report import canvas, captions, study
from nfsrdma_tools.report.canvas import Drawing, describe, label_ends, panels, rsize_axis
from nfsrdma_tools.report.study import Point, Study
from nfsrdma_tools.sizes import size_label
from nfsrdma_tools.sweep.store import Store

ROOT = Path(__file__).parents[1]
OUT = ROOT / "out" / "paper"
TODAY, OLD, RDMA = "TCP", "TCP as in 2003", "RDMA"
# the name of a curve, its transport, the state of the offloads, its colour and marker
CURVES = (
    (TODAY, "tcp", "on", canvas.transport_colour("tcp"), "o"),
    (OLD, "tcp", "off", canvas.transport_colour("other"), "^"),
    (RDMA, "rdma", "on", canvas.transport_colour("rdma"), "s"),
)
# probes cost a small read 3 % of its instructions
SIZES = ("--rsize", "8k..512k", "--runs", "1", "--exhaustive", "--file-size", "16M", "--no-probes")
AHEAD = 4
READS = {"cached": (*SIZES, "--read-ahead", str(AHEAD)), "direct": (*SIZES, "--direct")}
# the paper: section 7.3, and the range of figure 18
PEAKS = {"paper: TCP": (60.0, 256 << 10), "paper: RDMA, 8 ahead": (102.0, 256 << 10)}
RANGE = (0.3, 0.6)
LOOKS = {name: (color, mark) for name, _, _, color, mark in CURVES}
Curves = dict[str, list[Point]]


def path(curve: str, kind: str) -> Path:
    return OUT / f"{curve.replace(' ', '-').lower()}-{kind}.db"


def measure(kernel: str) -> None:
    """Sweep in a lab, a store for each curve and kind of read."""
    OUT.mkdir(parents=True, exist_ok=True)
    config = LabConfig("paper", clock="instructions", kernel=kernel, memory=4608, nic="card")
    with Lab(config) as lab:
        for curve, transport, state, *_ in CURVES:
            sh(lab, offloads(state))
            for kind, words in READS.items():
                argv = ("server:/export", "--transport", transport, *words, "--output")
                print(f"{curve}, {kind}", flush=True)
                lab.run("solo", "nfsrdma", "sweep", *argv, "/run/paper.db", timeout=3600)
                store = sh(lab, "base64 /run/paper.db; rm /run/paper.db*")
                path(curve, kind).write_bytes(base64.b64decode(store))
        lab.check()


def load(kind: str) -> tuple[Study, Curves]:
    """The study of RDMA, and the points of all curves."""
    found = {}
    for curve, *_ in CURVES:
        with Store(path(curve, kind), read_only=True) as store:
            one = study.load(store)
        found[curve] = sorted(one.points, key=lambda p: p.cell.rsize)
    return one, found


def per_mib(point: Point) -> float:
    """CPU time of the whole host, in ms per MiB."""
    return point.cpu_per_mib.mean if point.cpu_per_mib else 0.0


def lines(
    ax: Axes, curves: Curves, x: Callable[[Point], float], y: Callable[[Point], float]
) -> None:
    plot(ax, {name: [(x(p), y(p)) for p in curves[name]] for name in LOOKS}, LOOKS)


def rsize(point: Point) -> float:
    return point.cell.rsize


def rate(point: Point) -> float:
    return point.throughput.mean


def share(point: Point) -> float:
    return point.cpu.mean if point.cpu else 0.0


def throughput(ax: Axes, one: Study, cached: Curves) -> None:
    lines(ax, cached, rsize, rate)
    for name, (value, size) in PEAKS.items():
        ax.plot(size, value, "*", color=canvas.INK, ms=11)
        ax.annotate(name, (size, value), (-8, 0), textcoords="offset points", ha="right",
                    va="center", fontsize=8.5)  # fmt: skip
    ax.set_ylabel("MB/s")
    rsize_axis(ax, one)


def against_throughput(ax: Axes, one: Study, cached: Curves) -> None:
    lines(ax, cached, rate, share)
    ax.set(
        ylabel="CPU of the host (%)", xlabel=f"MB/s, {captions.ahead(one, AHEAD)}", xlim=(0, None)
    )


def per_byte(ax: Axes, one: Study, direct: Curves) -> None:
    """Of the whole host: the kernel samples the time of one process, too rarely for these reads."""
    lines(ax, direct, rsize, per_mib)
    ax.set_ylabel("CPU of the host (ms per MiB)")
    rsize_axis(ax, one)


def ratios(ax: Axes, one: Study, kinds: dict[str, Curves]) -> None:
    ax.axhspan(*RANGE, color=canvas.GRID, zorder=0)
    ax.annotate("the paper's range", (0.02, sum(RANGE) / 2), xycoords=("axes fraction", "data"),
                va="center", fontsize=8.5, color=canvas.MUTED)  # fmt: skip
    ends = []
    for name, _, _, color, mark in CURVES[:2]:
        for kind, curves in kinds.items():
            xs = [rsize(p) for p in curves[RDMA]]
            ys = [ratio(curves, name, size) for size in xs]
            dash = "-" if kind == "cached" else "--"
            ax.plot(xs, ys, f"{mark}{dash}", color=color, mec=canvas.PAPER, mew=0.7)
            ends.append((xs[-1], ys[-1], f"{kind}, {name}", color))
    ax.set_ylabel("ratio, CPU of the host")
    ax.set_ylim(0, 1.12)
    rsize_axis(ax, one)
    label_ends(ax, ends)


def ratio(curves: Curves, name: str, size: float) -> float:
    """The CPU time per byte of RDMA, as a share of that of another curve."""
    mine, other = (next(p for p in curves[each] if p.cell.rsize == size) for each in (RDMA, name))
    return per_mib(mine) / per_mib(other)


def draw(one: Study, cached: Curves, direct: Curves) -> Drawing:
    """Four panels: the paper's figures 15 and 16, 17, 18, and the ratios of CPU time."""
    heads = ("15, 16: throughput, 4 reads ahead", "17: CPU against throughput",
             "18: CPU per byte, O_DIRECT", "CPU per byte, RDMA : TCP")  # fmt: skip
    figure, axes = panels(heads, one_scale=False)
    figure.subplots_adjust(wspace=0.62)
    throughput(axes[0], one, cached)
    against_throughput(axes[1], one, cached)
    per_byte(axes[2], one, direct)
    ratios(axes[3], one, {"cached": cached, "direct": direct})
    title = "NFS over RDMA and two TCPs, after figures 15 to 18 of the 2003 paper"
    describe(figure, title, "Stars and the band: the paper's results", captions.small_print(one))
    return Drawing("paper-2003", title, "", "", figure)


def table(cached: Curves, direct: Curves) -> list[str]:
    """CPU per MiB of each curve, and the ratios."""
    heads = ["reads", "rsize", *(f"{name}, ms per MiB" for name, *_ in CURVES),
             *(f"RDMA : {name}" for name in (OLD, TODAY))]  # fmt: skip
    found = page.head(heads)
    for kind, curves in (("cached, 4 ahead", cached), ("direct", direct)):
        for point in curves[RDMA]:
            size = point.cell.rsize
            costs = [next(p for p in curves[n] if p.cell.rsize == size) for n, *_ in CURVES]
            cells = [kind, size_label(size), *(f"{per_mib(p):.3f}" for p in costs)]
            cells += [f"{ratio(curves, name, size):.2f}" for name in (OLD, TODAY)]
            found.append(page.row(cells))
    return found


def main() -> None:
    kernel = sys.argv[1]
    if not all(path(curve, kind).exists() for curve, *_ in CURVES for kind in READS):
        measure(kernel)
    one, cached = load("cached")
    _, direct = load("direct")
    OUT.mkdir(parents=True, exist_ok=True)
    picture(lambda: draw(one, cached, direct), OUT)
    lines_ = table(cached, direct)
    page.write("paper", [f"`make paper`, {captions.small_print(one)}", "", *lines_])
    print("\n".join(lines_))


if __name__ == "__main__":
    main()
