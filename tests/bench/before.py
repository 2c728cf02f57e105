# SPDX-License-Identifier: Apache-2.0
"""Instructions of a read with the module of an earlier commit, and today: ``make bench-before``.

QEMU counts them (instructions.py).  Both modules are loaded in turns in one boot, because boots
differ by some percent.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import built
from carriers import OURS, START, serve

from bench import page
from bench.instructions import RUNS, Costs, operation, plugged
from bench.solo import LOADS, PREPARE, RDMA, mount, sh, unmount
from nfsrdma_tools.host.module import source as module_source
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab

ROOT = Path(__file__).parents[2]
THERE = "/run/modules"
# in turns: what drifts adds to both
TURNS = (0, 1, 1, 0)
MODULE = "nfsrdma"


@contextmanager
def sources(commit: str) -> Iterator[dict[str, Path]]:
    """The module's source at the commit, and in the working tree."""
    with tempfile.TemporaryDirectory() as folder:
        argv = ("git", "-C", ROOT, "archive", commit, "kmod")
        archive = subprocess.run(argv, check=True, capture_output=True).stdout
        subprocess.run(("tar", "-x", "-C", folder), check=True, input=archive)
        yield {commit: Path(folder) / "kmod", "today": module_source.find().folder}


def bring(lab: Lab, found: dict[str, Path]) -> None:
    """Build the modules on this host, which takes root, and put them into the node."""
    release = sh(lab, "uname -r").strip()
    sh(lab, f"mkdir -p {THERE}")
    with tempfile.TemporaryDirectory() as folder:
        for name, source in found.items():
            file = Path(folder) / f"{name}.ko"
            built.compiled(lab, release, source, file)
            lab.run("solo", "tee", f"{THERE}/{file.name}", stdin=file.read_bytes())


def switch(lab: Lab, name: str) -> None:
    """Have nfsd and the client use one of the modules."""
    sh(lab, "systemctl stop nfs-server; nfsrdma module unload")
    sh(lab, f"nfsrdma module load {THERE}/{name}.ko")
    sh(lab, START)


def of_module(found: Costs) -> float:
    return sum(count for (_, module), count in found.items() if module == MODULE)


def measure(lab: Lab, names: list[str]) -> list[str]:
    """A row for each load: all instructions, and those in the module's own code."""
    counts: dict[tuple[str, str], list[tuple[float, float]]] = {}
    functions: dict[tuple[str, str], Counter[str]] = {}
    with plugged() as plugin, lab:
        sh(lab, PREPARE)
        about = page.conditions(lab, "card", "make bench-before")
        serve(lab, "solo", OURS)
        with sources(names[0]) as found:
            bring(lab, found)
        for turn in TURNS:
            switch(lab, names[turn])
            mount(lab, f"{RDMA},noac")
            for load in RUNS:
                _, costs = operation(lab, plugin, load)
                each = sum(costs.values()), of_module(costs)
                counts.setdefault((load, names[turn]), []).append(each)
                own = {name: count for (name, module), count in costs.items() if module == MODULE}
                functions.setdefault((load, names[turn]), Counter()).update(own)
                print(load, names[turn], *(f"{value:.2f}" for value in each), flush=True)
            unmount(lab)
        lab.check()
    for load in RUNS:
        print(load, "by function:", differences(*(functions[load, name] for name in names)))
    return [about, "", *table(names, counts)]


def differences(before: Counter[str], today: Counter[str]) -> str:
    """The instructions of an operation that functions of the module gained or lost."""
    turns = len(TURNS) // 2
    changed = {name: (today[name] - before[name]) * 1e3 / turns for name in (*before, *today)}
    most = sorted(changed.items(), key=lambda each: -abs(each[1]))
    return ", ".join(f"{name} {count:+.1f}" for name, count in most if abs(count) >= 0.5)


def table(
    names: list[str], counts: dict[tuple[str, str], list[tuple[float, float]]]
) -> Iterator[str]:
    heads = ["thousands of instructions", *(f"{what}, {name}" for what in ("all", "of the module")
                                            for name in names)]  # fmt: skip
    yield from page.head(heads)
    for load in RUNS:
        cells = [LOADS[load][0]]
        for what in range(2):
            for name in names:
                values = [each[what] for each in counts[load, name]]
                spread = f" ({min(values):,.3f} to {max(values):,.3f})"
                cells.append(f"{statistics.mean(values):,.3f}{spread}")
        yield page.row(cells)


def main() -> None:
    commit, kernel = sys.argv[1:]
    config = LabConfig(
        "bench-before", clock="instructions", link="none", kernel=kernel, memory=4608, nic="card"
    )
    page.write("before", measure(Lab(config), [commit, "today"]))


if __name__ == "__main__":
    main()
