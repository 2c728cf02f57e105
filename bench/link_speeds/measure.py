# SPDX-License-Identifier: Apache-2.0
"""Where TCP and RDMA meet the wire, and where they meet the CPU.

Direct reads, eight at a time, over wires of 1 to 25 Gb/s, in one machine on the instruction clock:
a CPU of 1 GIPS is client and server.  The picture shows throughput over the rate of the wire.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from matplotlib.ticker import NullLocator

from bench import markdown
from bench.figures import picture
from bench.sequential_reads.measure import OLD, TODAY
from bench.sequential_reads.measure import RDMA as OVER_RDMA
from bench.solo import PREPARE, RDMA, TCP, mount, offloads, sh, unmount
from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.report import canvas
from nfsrdma_tools.report.canvas import Drawing, describe, label_ends, panels
from testbed.labs import THEIRS, serve
from testbed.remote import on

OUT = Path(__file__).parents[2] / "out"
# a wire for lab link, and its rate in Gb/s
WIRES = {"1gbit": 1.0, "2500mbit": 2.5, "5gbit": 5.0, "10gbit": 10.0, "25gbit": 25.0}
ROUND_TRIP = "20us"
# mount options, the state of the offloads, colour and marker
CURVES = {
    OLD: (TCP, "off", canvas.transport_colour("other"), "^"),
    TODAY: (TCP, "on", canvas.transport_colour("tcp"), "o"),
    OVER_RDMA: (RDMA, "on", canvas.transport_colour("rdma"), "s"),
}
# MB/s of a Gb/s
GIGABIT = 125.0
Measured = dict[str, dict[str, dict[str, float]]]
SIZE = 64 << 20
LOOPS = 2
FIO = (
    *("fio", "--name=wires", "--filename=/mnt/bench/bench-data", "--rw=read", "--direct=1"),
    *("--ioengine=libaio", "--iodepth=8", "--bs=512k", f"--size={SIZE}", "--output-format=json"),
)


@on("solo", timeout=3600)
def speed() -> dict[str, float]:
    """MB/s of direct reads, eight at a time, and the busy share of the CPU."""
    read(1)
    # the start of fio takes time, too: it is in both runs
    (short, few), (long, many) = read(LOOPS), read(3 * LOOPS)
    seconds = long - short
    moved = 2 * LOOPS * SIZE
    return {"rate": moved / 1e6 / seconds, "cpu": (many - few) / seconds}


def read(loops: int) -> tuple[float, float]:
    """Seconds of reading by fio's clock, and seconds of this machine's CPU."""
    before = cpu_time.snapshot()
    done = subprocess.run((*FIO, f"--loops={loops}"), check=True, capture_output=True, text=True)
    spent = cpu_time.difference(cpu_time.snapshot(), before)
    (job,) = json.loads(done.stdout)["jobs"]
    return job["read"]["runtime"] / 1e3, spent.busy_ns / 1e9


def measure(lab: Lab) -> Measured:
    """MB/s and busy share of the CPU, by curve and wire."""
    by_curve: Measured = {}
    serve(lab, "solo", THEIRS)
    for curve, (options, state, *_) in CURVES.items():
        sh(lab, offloads(state))
        mount(lab, f"{options},rsize=524288")
        by_curve[curve] = {}
        for wire in WIRES:
            lab.set_link(f"{wire}/{ROUND_TRIP}")
            by_curve[curve][wire] = speed(lab)
            print(curve, wire, by_curve[curve][wire], flush=True)
        lab.set_link("none")
        unmount(lab)
    return by_curve


def draw(by_curve: Measured, about: str) -> Drawing:
    figure, (ax,) = panels([""])
    rates = list(WIRES.values())
    ax.set_xscale("log")
    ax.set_xlabel("rate of the wire (Gb/s)")
    ax.set_ylabel("MB/s")
    ax.set_xticks(rates, [f"{rate:g}" for rate in rates])
    ax.xaxis.set_minor_locator(NullLocator())
    top = 1.25 * max(point["rate"] for values in by_curve.values() for point in values.values())
    ax.set_ylim(0, top)
    # the wire's line ends at the top of the chart
    wire = [(rate, GIGABIT * rate) for rate in rates if GIGABIT * rate < top]
    wire.append((top / GIGABIT, top))
    ax.plot(*zip(*wire, strict=True), color=canvas.MUTED, ls=(0, (5, 3)), lw=1.1)
    ax.annotate(
        "the wire", wire[-2], (-8, 10), textcoords="offset points", ha="right", fontsize=8.5
    )
    ends = []
    for curve, (_, _, color, mark) in CURVES.items():
        ys = [by_curve[curve][wire]["rate"] for wire in WIRES]
        ax.plot(rates, ys, f"{mark}-", color=color, mec=canvas.PAPER, mew=0.7, clip_on=False)
        ends.append((rates[-1], ys[-1], curve, color))
    label_ends(ax, ends)
    limits = ", ".join(f"{curve} {limit(by_curve[curve]):.1f} Gb/s" for curve in CURVES)
    title = "Direct reads over the rate of the wire"
    describe(figure, title, f"Limit of a CPU of 1 GIPS: {limits}", about.replace("`", ""))
    return Drawing("wires", title, "", "", figure)


def limit(values: dict[str, dict[str, float]]) -> float:
    """The rate of a wire, in Gb/s, that the CPU can fill at most."""
    fastest = max(values.values(), key=lambda point: point["rate"])
    return fastest["rate"] / fastest["cpu"] / GIGABIT


def table(by_curve: Measured) -> list[str]:
    heads = ["wire", *(f"{curve}, {column}" for curve in CURVES for column in ("MB/s", "CPU busy"))]
    lines = markdown.head(heads)
    for wire, rate in WIRES.items():
        cells = [f"{rate:g} Gb/s"]
        for curve in CURVES:
            point = by_curve[curve][wire]
            cells += [f"{point['rate']:.1f}", f"{point['cpu']:.0%}"]
        lines.append(markdown.row(cells))
    return lines


def main(kernel: str = KERNELS[0]) -> None:
    """Read over wires of 1 to 25 Gb/s."""
    config = LabConfig(
        "bench-wires", clock="instructions", link="none", kernel=kernel, memory=4608, nic="card"
    )
    with Lab(config) as lab:
        sh(lab, PREPARE)
        about = markdown.conditions(lab, "card", "make bench NAME=link-speeds")
        about = about.replace("link none", f"round trip {ROUND_TRIP}")
        by_curve = measure(lab)
        lab.check()
    OUT.mkdir(exist_ok=True)
    picture(lambda: draw(by_curve, about), OUT)
    markdown.write("wires", [about, "", *table(by_curve)])
    print("\n".join(table(by_curve)))
