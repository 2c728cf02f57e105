# SPDX-License-Identifier: Apache-2.0
"""Instructions of the module at an earlier commit, and today: ``make bench-before``.

QEMU counts them (instructions.py), for each load of ``make bench`` with each personality.  Both
modules are loaded in turns in one boot, because boots differ by some percent.  Each personality
has a boot of its own; out/bench-before.json keeps the counts of those that are complete, so that a
run that was interrupted continues.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import page
from bench.commits import ROOT, program, unpack
from bench.instructions import Costs, operation, plugged
from bench.solo import DESIGNS, LOADS, OUR_COLUMN, PREPARE, RDMA, Column, mount, prove, sh, unmount
from nfsrdma_tools import module_source
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed import kernel_modules
from testbed.labs import OURS, START, serve

STORE = ROOT / "out" / "bench-before.json"
THERE = "/run/modules"
# in turns: what drifts adds to both
TURNS = (0, 1, 1, 0)
MODULE = "nfsrdma"
# operations of the two runs of a load
RUNS = {
    "scattered": (100, 900),
    "sequential": (16, 80),
    "writes": (16, 80),
    "small_writes": (100, 700),
    "crowd": (320, 1920),
    "queue": (160, 800),
    "attributes": (120, 720),
    "listing": (2, 5),
    "cached": (1, 3),
}
COLUMNS = (Column(OUR_COLUMN, OURS, RDMA), *DESIGNS)
# the share of instructions that a load may gain
LIMIT = 0.01
# thousands of all instructions, and of the module's own, of an operation
Count = tuple[float, float]
# the counts of each turn, by load and module
Counts = dict[str, dict[str, list[Count]]]


@contextmanager
def sources(commit: str) -> Iterator[dict[str, Path]]:
    """The module's source at the commit, and in the working tree."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(commit, Path(folder), "kmod")
        yield {commit: Path(folder) / "kmod", "today": module_source.find().folder}


def bring(lab: Lab, found: dict[str, Path]) -> None:
    """Build the modules on this host, and put them into the node."""
    sh(lab, f"mkdir -p {THERE}")
    for name, source in found.items():
        kernel_modules.place(lab, source, f"{THERE}/{name}.ko", "solo")


def switch(lab: Lab, name: str) -> None:
    """Have nfsd and the client use one of the modules."""
    sh(lab, "systemctl stop nfs-server; nfsrdma module unload")
    sh(lab, f"nfsrdma module load {THERE}/{name}.ko")
    sh(lab, START)


def of_module(found: Costs) -> float:
    return sum(count for (_, module), count in found.items() if module == MODULE)


def measure(config: LabConfig, column: Column, names: list[str]) -> tuple[str, Counts]:
    """The conditions and the counts of all loads of a personality, in one boot."""
    counts: Counts = {load: {name: [] for name in names} for load in RUNS}
    functions: dict[tuple[str, str], Counter[str]] = {}
    with plugged() as plugin, Lab(config) as lab:
        sh(lab, PREPARE)
        about = page.conditions(lab, "card", f"make bench-before COMMIT={names[0]}")
        serve(lab, "solo", OURS)
        with sources(names[0]) as found:
            bring(lab, found)
        for turn in TURNS:
            name = names[turn]
            switch(lab, name)
            sh(lab, column.before)
            for options, loads in (
                (f"{RDMA},noac", [load for load in RUNS if load != "cached"]),
                (f"{RDMA},rsize=524288", ["cached"]),
            ):
                mount(lab, options)
                prove(lab, column)
                for load in loads:
                    _, costs = operation(lab, plugin, load, RUNS[load])
                    each = sum(costs.values()), of_module(costs)
                    counts[load][name].append(each)
                    own = {at: count for (at, module), count in costs.items() if module == MODULE}
                    functions.setdefault((load, name), Counter()).update(own)
                    print(column.name, load, name, *(f"{x:.3f}" for x in each), flush=True)
                unmount(lab)
        lab.check()
    for load in RUNS:
        lists = [functions[load, name] for name in names]
        print(column.name, load, "by function:", differences(*lists), flush=True)
    return about, counts


def differences(before: Counter[str], today: Counter[str]) -> str:
    """The instructions of an operation that functions of the module gained or lost."""
    turns = len(TURNS) // 2
    changed = {name: (today[name] - before[name]) * 1e3 / turns for name in (*before, *today)}
    most = sorted(changed.items(), key=lambda each: -abs(each[1]))
    return ", ".join(f"{name} {count:+.1f}" for name, count in most if abs(count) >= 0.5)


def table(names: list[str], found: dict[str, Counts]) -> Iterator[str]:
    """The module's own count of each load with each personality, and its change; bold if it grew.

    The counts of the rest of the kernel differ from turn to turn by more than the module's.
    """
    yield from page.head([f"of the module, today (since {names[0]})", *found])
    for load in RUNS:
        cells = []
        for counts in found.values():
            before, today = (
                statistics.mean(own for _, own in counts[load][name]) for name in names
            )
            text = f"{today:,.3f} ({today / before - 1:+.1%})"
            cells.append(f"**{text}**" if today / before - 1 > LIMIT else text)
        yield page.row([LOADS[load][0], *cells])


def key(commit: str, kernel: str) -> str:
    """A text that differs for each pair of modules, for each kernel, and for other loads."""
    before = program("git", "-C", ROOT, "rev-parse", commit).strip()
    plan = repr((before, module_source.find().hash, kernel, RUNS, TURNS))
    return hashlib.sha256(plan.encode()).hexdigest()


def main() -> None:
    commit, kernel, *only = sys.argv[1:]
    names = [commit, "today"]
    config = LabConfig(
        "bench-before", clock="instructions", link="none", kernel=kernel, memory=4608, nic="card"
    )
    STORE.parent.mkdir(exist_ok=True)
    store = json.loads(STORE.read_text()) if STORE.exists() else {}
    done = store.setdefault(key(commit, kernel), {})
    for column in COLUMNS:
        if column.name not in done and (not only or column.name in only):
            done[column.name] = measure(config, column, names)
            STORE.write_text(json.dumps(store))
    lines = list(table(names, {column.name: done[column.name][1] for column in COLUMNS
                               if column.name in done}))  # fmt: skip
    print("\n".join(lines))
    missing = [column.name for column in COLUMNS if column.name not in done]
    if missing:
        print(f"the page is not written, because it lacks: {', '.join(missing)}")
    else:
        page.write("before", [done[OUR_COLUMN][0], "", *lines])


if __name__ == "__main__":
    main()
