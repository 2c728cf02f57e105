# SPDX-License-Identifier: Apache-2.0
"""Instructions per operation, counted by QEMU itself.

A load runs twice, with different numbers of operations; the difference of the counts, divided by
that of the numbers, is the count of an operation.  The guest's clock, which the other benchmarks
use, has to agree.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from bench import markdown
from bench.instruction_count import CARD, COPY, USER, Plugin, Symbols, plugged
from bench.loads import measured
from bench.solo import LOADS, PREPARE, RDMA, mount, sh, unmount
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.labs import OURS, THEIRS, serve

# operations of the two runs
RUNS = {"scattered": (400, 2400), "sequential": (40, 200)}
NAMES = {"kernel's": THEIRS, "nfsrdma": OURS}
Costs = dict[tuple[str, str], float]


def load(lab: Lab, name: str, count: int) -> float:
    """Run a load; returns the microseconds of an operation by the guest's clock."""
    return measured(lab, {name: count})[name]["us"]


def executed(count: int) -> int:
    """Return the operations that ``measure`` in loads.py executes to count ``count``."""
    return count + 3 * max(count // 10, 2)


def operation(lab: Lab, plugin: Plugin, name: str, runs: tuple[int, int]) -> tuple[float, Costs]:
    """The guest's thousands of instructions of an operation, and QEMU's by function."""
    few, many = runs
    # the first run has work of its own: files that are not in the page cache, and more
    load(lab, name, few)
    known = [plugin.counts()]
    for count in (few, many):
        us = load(lab, name, count)
        known.append(plugin.counts())
    symbols = Symbols(lab)
    operations = executed(many) - executed(few)
    counts: Counter[tuple[str, str]] = Counter()
    for address, count in known[2].items():
        start, middle = (each.get(address, 0) for each in known[:2])
        counts[symbols.find(address)] += (count - middle) - (middle - start)
    return us, {name: count / operations / 1e3 for name, count in counts.items()}


def line(load_name: str, name: str, us: float, costs: Costs) -> str:
    total = sum(costs.values())
    card = sum(n for (function, module), n in costs.items() if module == CARD and function != COPY)
    copy = costs.get((COPY, CARD), 0.0)
    cells = [LOADS[load_name][0], name, f"{us:,.1f}", f"{total:,.1f}", f"{total / us - 1:+.1%}"]
    cells += [f"{card:,.2f}", f"{card / total:.1%}", f"{copy:,.2f}", f"{copy / total:.1%}"]
    return markdown.row(cells)


def functions(costs: Costs) -> str:
    card = sorted((-n, name) for (name, module), n in costs.items() if module == CARD)
    return ", ".join(f"`{name}` {-count:.2f}" for count, name in card[:12])


def modules(costs: Costs) -> str:
    """The instructions of each module; "kernel" is the kernel image."""
    total: dict[str, float] = defaultdict(float)
    for (name, module), count in costs.items():
        total[module or (name if name == USER else "kernel")] += count
    largest = sorted(total.items(), key=lambda item: -item[1])[:10]
    return ", ".join(f"{name} {count:,.1f}" for name, count in largest)


def main(kernel: str = KERNELS[0]) -> None:
    """Count the instructions of reads with both modules."""
    heads = ("", "transport", "guest's clock", "QEMU's count", "difference",
             "card without the copy", "share", "copy", "share")  # fmt: skip
    lines, details = markdown.head(heads), []
    config = LabConfig(
        "bench-count", clock="instructions", link="none", kernel=kernel, memory=4608, nic="card"
    )
    with plugged() as plugin, Lab(config) as lab:
        sh(lab, PREPARE)
        about = markdown.conditions(lab, "card", "make bench NAME=instructions")
        for name, module in NAMES.items():
            serve(lab, "solo", module)
            mount(lab, f"{RDMA},noac")
            for load_name, runs in RUNS.items():
                us, costs = operation(lab, plugin, load_name, runs)
                lines.append(line(load_name, name, us, costs))
                details.append(f"* {LOADS[load_name][0]}, {name}: {modules(costs)}")
                details.append(f"  Functions of the card: {functions(costs)}")
                print(lines[-1], *details[-2:], sep="\n", flush=True)
            unmount(lab)
        lab.check()
    markdown.update(kernel, "instructions", [about, "", *lines, "", *details])
