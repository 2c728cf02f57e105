# SPDX-License-Identifier: Apache-2.0
"""Instructions per operation, counted by QEMU itself: ``make bench-instructions``.

A plugin of QEMU (count_instructions.c) counts each executed instruction by its address.  A load
runs twice, with different numbers of operations; the difference of the counts, divided by that of
the numbers, is the count of an operation.  The guest's clock, which the other benchmarks use, has
to agree.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from bench import page
from bench.solo import LOADS, PREPARE, RDMA, measured, mount, sh, unmount
from nfsrdma_tools.lab import machine
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.lab.qemu import qemu
from testbed.labs import OURS, THEIRS, serve

SOURCE = Path(__file__).with_name("count_instructions.c")
FLAGS = ("-O2", "-Wall", "-shared", "-fPIC", "-fvisibility=hidden")
# operations of the two runs
RUNS = {"scattered": (400, 2400), "sequential": (40, 200)}
NAMES = {"kernel's": THEIRS, "nfsrdma": OURS}
CARD, COPY, USER = "nfsrdma_card", "card_dma", "user space"
Costs = dict[tuple[str, str], float]


class Plugin:
    """The plugin, compiled into a folder, and the FIFO that it reads."""

    def __init__(self, folder: Path, user: bool) -> None:
        self.folder, self.fifo, self.user = folder, folder / "orders", user
        self.file = folder / "count.so"
        subprocess.run(("gcc", *FLAGS, "-o", self.file, SOURCE), check=True)
        os.mkfifo(self.fifo)
        self._number = 0

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("-plugin", f"{self.file},orders={self.fifo}{',user=1' * self.user}")

    def counts(self) -> dict[int, int]:
        """The instructions executed so far, by address."""
        self._number += 1
        path = self.folder / f"counts{self._number}"
        self.fifo.write_text(f"{path}\n")
        done = path.with_name(f"{path.name}.done")
        while not done.exists():
            time.sleep(0.1)
        rows = (line.split() for line in done.read_text().splitlines())
        return {int(address, 16): int(count) for address, count in rows}


@contextlib.contextmanager
def plugged(user: bool = False) -> Iterator[Plugin]:
    """Machines that start during the block have the plugin; ``user``: it has the addresses of user
    space, too.
    """
    with tempfile.TemporaryDirectory(prefix="instructions-") as folder:
        plugin = Plugin(Path(folder), user)
        vars(machine)["qemu"] = lambda: (*qemu(), *plugin.arguments)
        try:
            yield plugin
        finally:
            vars(machine)["qemu"] = qemu


class Symbols:
    """The functions of a running kernel, by address."""

    def __init__(self, lab: Lab) -> None:
        rows = (line.split() for line in sh(lab, "cat /proc/kallsyms").splitlines())
        code = sorted((int(r[0], 16), r[2], r[3:]) for r in rows if r[1] in "tTwW")
        self.starts = [start for start, *_ in code]
        self.names = [(name, more[0].strip("[]") if more else "") for _, name, more in code]

    def find(self, address: int) -> tuple[str, str]:
        """The function and the module of a group of 16 bytes."""
        if not address:
            return USER, ""
        return self.names[max(bisect.bisect_right(self.starts, address + 15) - 1, 0)]


def load(lab: Lab, name: str, count: int) -> float:
    """Run a load; returns the microseconds of an operation by the guest's clock."""
    return measured(lab, f"{name}={count}")[name]["us"]


def executed(count: int) -> int:
    """Return the operations that ``measure`` in module_node.py executes to count ``count``."""
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
    found: Counter[tuple[str, str]] = Counter()
    for address, count in known[2].items():
        start, middle = (each.get(address, 0) for each in known[:2])
        found[symbols.find(address)] += (count - middle) - (middle - start)
    return us, {name: count / operations / 1e3 for name, count in found.items()}


def line(load_name: str, name: str, us: float, found: Costs) -> str:
    total = sum(found.values())
    card = sum(n for (function, module), n in found.items() if module == CARD and function != COPY)
    copy = found.get((COPY, CARD), 0.0)
    cells = [LOADS[load_name][0], name, f"{us:,.1f}", f"{total:,.1f}", f"{total / us - 1:+.1%}"]
    cells += [f"{card:,.2f}", f"{card / total:.1%}", f"{copy:,.2f}", f"{copy / total:.1%}"]
    return page.row(cells)


def functions(found: Costs) -> str:
    card = sorted((-n, name) for (name, module), n in found.items() if module == CARD)
    return ", ".join(f"`{name}` {-count:.2f}" for count, name in card[:12])


def modules(found: Costs) -> str:
    """The instructions of each module; "kernel" is the kernel image."""
    total: dict[str, float] = defaultdict(float)
    for (name, module), count in found.items():
        total[module or (name if name == USER else "kernel")] += count
    largest = sorted(total.items(), key=lambda item: -item[1])[:10]
    return ", ".join(f"{name} {count:,.1f}" for name, count in largest)


def main() -> None:
    kernel = sys.argv[1]
    heads = ("", "transport", "guest's clock", "QEMU's count", "difference",
             "card without the copy", "share", "copy", "share")  # fmt: skip
    lines, details = page.head(heads), []
    config = LabConfig(
        "bench-count", clock="instructions", link="none", kernel=kernel, memory=4608, nic="card"
    )
    with plugged() as plugin, Lab(config) as lab:
        sh(lab, PREPARE)
        about = page.conditions(lab, "card", "make bench-instructions")
        for name, module in NAMES.items():
            serve(lab, "solo", module)
            mount(lab, f"{RDMA},noac")
            for load_name, runs in RUNS.items():
                us, found = operation(lab, plugin, load_name, runs)
                lines.append(line(load_name, name, us, found))
                details.append(f"* {LOADS[load_name][0]}, {name}: {modules(found)}")
                details.append(f"  Functions of the card: {functions(found)}")
                print(lines[-1], *details[-2:], sep="\n", flush=True)
            unmount(lab)
        lab.check()
    page.update(kernel, "instructions", [about, "", *lines, "", *details])


if __name__ == "__main__":
    main()
