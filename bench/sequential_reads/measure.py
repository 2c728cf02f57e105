# SPDX-License-Identifier: Apache-2.0
"""CPU time of sequential reads over two TCPs and over RDMA.

After figures 15 to 18 of Callaghan and others, "NFS over RDMA" (NICELI 2003): sequential reads over
TCP as a host of 2003 had it, over TCP with today's offloads, and over RDMA with the modelled card.
Six sweeps run in one lab; their stores stay in out/, and a second call only writes the table.
"""

from __future__ import annotations

import base64
from pathlib import Path

from bench import markdown
from bench.solo import offloads, sh
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.report import captions, study
from nfsrdma_tools.report.study import Point, Study
from nfsrdma_tools.sizes import size_label
from nfsrdma_tools.sweep.store import Store

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out" / "paper"
TODAY, OLD, RDMA = "TCP", "TCP as in 2003", "RDMA"
# the name of a curve, its transport, the state of the offloads
CURVES = ((TODAY, "tcp", "on"), (OLD, "tcp", "off"), (RDMA, "rdma", "on"))
# probes cost a small read 3 % of its instructions
SIZES = ("--rsize", "8k..512k", "--runs", "1", "--exhaustive", "--file-size", "16M", "--no-probes")
AHEAD = 4
READS = {"cached": (*SIZES, "--read-ahead", str(AHEAD)), "direct": (*SIZES, "--direct")}
Curves = dict[str, list[Point]]


def path(curve: str, kind: str) -> Path:
    return OUT / f"{curve.replace(' ', '-').lower()}-{kind}.db"


def measure(kernel: str) -> None:
    """Sweep in a lab, a store for each curve and kind of read."""
    OUT.mkdir(parents=True, exist_ok=True)
    config = LabConfig("paper", clock="instructions", kernel=kernel, memory=4608, nic="card")
    with Lab(config) as lab:
        for curve, transport, state in CURVES:
            sh(lab, offloads(state))
            for kind, words in READS.items():
                argv = ("server:/export", "--vers=3", "--transport", transport, *words, "--output")
                print(f"{curve}, {kind}", flush=True)
                lab.run("solo", "nfsrdma", "sweep", *argv, "/run/paper.db", timeout=3600)
                store = sh(lab, "base64 /run/paper.db; rm /run/paper.db*")
                path(curve, kind).write_bytes(base64.b64decode(store))
        lab.check()


def load(kind: str) -> tuple[Study, Curves]:
    """The study of RDMA, and the points of all curves."""
    curves = {}
    for curve, *_ in CURVES:
        with Store(path(curve, kind), read_only=True) as store:
            loaded = study.load(store)
        curves[curve] = sorted(loaded.points, key=lambda p: p.cell.rsize)
    return loaded, curves


def per_mib(point: Point) -> float:
    """CPU time of the whole host, in ms per MiB."""
    return point.cpu_per_mib.mean if point.cpu_per_mib else 0.0


def ratio(curves: Curves, name: str, size: float) -> float:
    """The CPU time per byte of RDMA, as a share of that of another curve."""
    mine, other = (next(p for p in curves[each] if p.cell.rsize == size) for each in (RDMA, name))
    return per_mib(mine) / per_mib(other)


def table(cached: Curves, direct: Curves) -> list[str]:
    """CPU per MiB of each curve, and the ratios."""
    heads = ["reads", "rsize", *(f"{name}, ms per MiB" for name, *_ in CURVES),
             *(f"RDMA : {name}" for name in (OLD, TODAY))]  # fmt: skip
    lines = markdown.head(heads)
    for kind, curves in (("cached, 4 ahead", cached), ("direct", direct)):
        for point in curves[RDMA]:
            size = point.cell.rsize
            costs = [next(p for p in curves[n] if p.cell.rsize == size) for n, *_ in CURVES]
            cells = [kind, size_label(size), *(f"{per_mib(p):.3f}" for p in costs)]
            cells += [f"{ratio(curves, name, size):.2f}" for name in (OLD, TODAY)]
            lines.append(markdown.row(cells))
    return lines


def main(kernel: str = KERNELS[0]) -> None:
    """Sweep with each curve, and write the table; with the stores of an earlier run, only write."""
    if not all(path(curve, kind).exists() for curve, *_ in CURVES for kind in READS):
        measure(kernel)
    rdma_study, cached = load("cached")
    _, direct = load("direct")
    lines_ = table(cached, direct)
    markdown.write(
        "paper",
        [f"`make bench NAME=sequential-reads`, {captions.small_print(rdma_study)}", "", *lines_],
    )
    print("\n".join(lines_))
