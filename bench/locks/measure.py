# SPDX-License-Identifier: Apache-2.0
"""Where threads wait for locks, and the global locks of a read.

16 processes read past the cache over the modelled card, in machines with 2, 4 and 8 processors on
the wall clock.  The kernel's module and ours take turns.  Waits of
any kind count, spinning or asleep.  Acquisitions of global locks, those in a module's own memory,
are counted in runs of their own, because counting them slows the readers.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench import markdown
from bench.locks.traces import Waits, acquisitions, waits
from bench.solo import PREPARE, RDMA, mount, sh, unmount
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.personalities import DEFAULT
from testbed.labs import OURS, THEIRS, choose, serve
from testbed.mounts import set_to

CPUS = (2, 4, 8)
# connections, and the load
CELLS = ((1, "crowd"), (16, "crowd"), (16, "crowd_of_blocks"))
READS = {"crowd": 8000, "crowd_of_blocks": 1600}
SIZES = {"crowd": "4 KiB", "crowd_of_blocks": "64 KiB"}
# reads whose locks are counted
COUNTED = 3200
TURNS = 3
# by their names in the tables
MODULES = {"kernel's": THEIRS, "nfsrdma": OURS}


@dataclass(frozen=True)
class Way:
    """How a READ goes: personality, and the largest READ that the server answers by itself."""

    personality: str = DEFAULT
    threadless: int = 0

    @property
    def name(self) -> str:
        return "without a thread" if self.threadless else self.personality


WAYS = (Way(), Way(threadless=65536), Way("optimistic"))


@contextmanager
def mounted(lab: Lab, connections: int) -> Iterator[None]:
    mount(lab, f"{RDMA},noac,nconnect={connections}")
    yield
    unmount(lab)


def count(lab: Lab, module: str, way: Way, connections: int, load: str) -> Counter[str]:
    """The acquisitions of each global lock of a module, for each thousand reads."""
    if module == "nfsrdma":
        choose(lab, way.personality)
        set_to(lab, "solo", "server_threadless", str(way.threadless))
    with mounted(lab, connections):
        counts = acquisitions(lab, module, load, COUNTED)
    if module == "nfsrdma":
        choose(lab, DEFAULT)
        set_to(lab, "solo", "server_threadless", "0")
    return Counter({name: n / COUNTED * 1e3 for name, n in counts.items()})


def middle(totals: Iterable[float], reads: int) -> str:
    """Median and range of a total of each turn, for a read."""
    values = sorted(total / reads for total in totals)
    low, mid, high = values[0], statistics.median(values), values[-1]
    return f"{mid:.2f} ({low:.2f} to {high:.2f})"


def most(counts: Counter[str]) -> str:
    """The names with the highest counts."""
    return ", ".join(f"`{name}` {count:.1f}" for name, count in counts.most_common(6)) or "none"


def places(turns: list[Waits], reads: int) -> str:
    """The places with the most waits, in waits for each thousand reads."""
    total: Counter[str] = Counter()
    for turn in turns:
        total.update(turn.waits)
    return most(Counter({name: n / (len(turns) * reads / 1e3) for name, n in total.items()}))


class Tables:
    """The lines of the page, filled while labs come and go."""

    def __init__(self) -> None:
        heads = ("processors", "connections", "read", "transport", "waits for each read",
                 "microseconds of waiting for each read", "reads per second")  # fmt: skip
        self.waits, self.details = markdown.head(heads), list[str]()
        ways = ("processors", "connections", "read", "transport", "READs go",
                "global locks taken for a thousand reads")  # fmt: skip
        self.locks = markdown.head(ways)

    def measure(self, lab: Lab, cpus: int) -> None:
        """Fill both tables for a machine with this many processors."""
        turns: dict[tuple[int, str, str], list[Waits]] = {
            (*cell, name): [] for cell in CELLS for name in MODULES
        }
        # loading a module takes longer than a load
        for turn, name in itertools.product(range(TURNS), MODULES):
            serve(lab, "solo", MODULES[name])
            for connections, load in CELLS:
                with mounted(lab, connections):
                    counts = waits(lab, load, READS[load])
                print(cpus, connections, load, name, counts, flush=True)
                turns[connections, load, name].append(counts)
                for way in self.ways(name) if turn == TURNS - 1 else ():
                    self._count(lab, cpus, connections, load, name, way)
        for (connections, load, name), each in turns.items():
            self._add_waits(cpus, connections, load, name, each)

    def ways(self, name: str) -> tuple[Way, ...]:
        return WAYS if MODULES[name] == OURS else WAYS[:1]

    def _add_waits(
        self, cpus: int, connections: int, load: str, name: str, turns: list[Waits]
    ) -> None:
        reads, at = READS[load], (cpus, connections, SIZES[load], name)
        rate = statistics.median(turn.per_second for turn in turns)
        numbers = middle((sum(turn.waits.values()) for turn in turns), reads)
        times = middle((sum(turn.ns.values()) / 1e3 for turn in turns), reads)
        cells = (numbers, times, f"{rate:,.0f}")
        self.waits.append(markdown.row((*at, *cells)))
        self.details.append(
            f"* {cpus} processors, {connections}, {at[2]}, {at[3]}: {places(turns, reads)}"
        )

    def _count(self, lab: Lab, cpus: int, connections: int, load: str, name: str, way: Way) -> None:
        module = "nfsrdma" if MODULES[name] == OURS else "rpcrdma"
        counts = count(lab, module, way, connections, load)
        print(cpus, connections, load, name, way.name, dict(counts), flush=True)
        at = (cpus, connections, SIZES[load], name, way.name)
        self.locks.append(markdown.row((*at, most(counts))))


def main(kernel: str = KERNELS[0]) -> None:
    """Read with 2, 4 and 8 processors, with both modules."""
    tables, about = Tables(), ""
    for cpus in CPUS:
        config = LabConfig(
            "bench-locks", link="none", kernel=kernel, memory=4608, nic="card", cpus=cpus,
            extras=True,
        )  # fmt: skip
        with Lab(config) as lab:
            sh(lab, PREPARE)
            tables.measure(lab, cpus)
            lab.check()
            about = markdown.conditions(lab, "card", "make bench NAME=locks")
    lines = [about, "", *tables.waits, "", *tables.locks, "", *tables.details]
    markdown.update(kernel, "locks", lines)
    print(*lines, sep="\n")
