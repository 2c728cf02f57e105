# SPDX-License-Identifier: Apache-2.0
"""The costs of a server with many connections, with the kernel's module and with ours.

Memory, and the instructions of a READ at the server alone, are those of a server node, by
soft-RoCE: client and server have a node each.  All others are measured in one node, over the
modelled card, on the instruction clock, where client and server share a processor and no time
passes on a wire.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from bench import markdown
from bench.instruction_count import CARD, COPY, USER, Plugin, Symbols, plugged
from bench.scale.sessions import (
    IN_FLIGHT,
    drive,
    hold,
    memory,
    misses,
    restarted,
    set_cache,
)
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.labs import OURS, THEIRS, serve

PAGE = markdown.PAGE.parents[1] / "explanation" / "scale.md"
MODULES = {"kernel's": THEIRS, "nfsrdma": OURS}
IDLE = (100, 300, 1000)
# twice the credits that rpcrdma grants by default, and the connections that have them
MORE_CREDITS, HAVE_MORE = 128, 300
SYSCTL = "sunrpc.svc_rdma.max_requests"
COUNTS = (1, 16, 100, 300, 1000)
STORMS = (100, 300, 1000)
# seconds of the two runs of which the difference is counted
RUNS = (1, 3)
FAIR, FAIR_SECONDS = 300, 5
# connections and seconds of a READ's cost at the server alone
SERVED, SERVED_RUNS = (1, 16, 100, 1000), (10, 30)
# queue pairs whose state a card keeps, and the seconds of its two runs
CACHES, CACHE_RUNS = (16, 64, 256, 1024), (0.2, 0.6)
Rows = list[list[str]]
# parts of a READ, by kernel module
PARTS = {
    "nfsrdma": "transport module", "rpcrdma": "transport module", "sunrpc": "nfsd and sunrpc",
    "nfsd": "nfsd and sunrpc", "ib_core": "RDMA core", "ib_uverbs": "RDMA core",
    "rdma_cm": "RDMA core", CARD: "model of the card", "rdma_rxe": "soft-RoCE",
}  # fmt: skip
CLIENT, COPIED, KERNEL = "client: user space", "copy of the data", "kernel"
SHOWN = (CLIENT, "transport module", "nfsd and sunrpc", "RDMA core", KERNEL, "model of the card",
         COPIED)  # fmt: skip
AT_SERVER = ("transport module", "nfsd and sunrpc", "RDMA core", "soft-RoCE", KERNEL)


# --- memory ---


def idle(lab: Lab, sessions: int) -> tuple[float, float, float]:
    """The memory that idle connections cost the server, in KiB for each."""
    before = memory(lab)
    with hold.started(lab, sessions) as running:
        up = running.receive(3600)
        if up != sessions:
            raise SystemExit(f"{sessions} sessions: {up} are connected")
        after = memory(lab)
    return (
        (after.used - before.used) / sessions,
        (after.slabs - before.slabs) / sessions,
        (after.vmalloc - before.vmalloc) / sessions,
    )


def more_credits(lab: Lab) -> tuple[float, float, float]:
    """The memory of idle connections with more credits of rpcrdma."""
    before = lab.run("server", "sysctl", "-n", SYSCTL).stdout.strip()
    lab.run("server", "sysctl", "-qw", f"{SYSCTL}={MORE_CREDITS}")
    try:
        return idle(lab, HAVE_MORE)
    finally:
        lab.run("server", "sysctl", "-qw", f"{SYSCTL}={before}")


def row(name: str, sessions: int, each: Iterable[float]) -> list[str]:
    """A row of the table of idle connections."""
    return [name, str(sessions), *(f"{value:.0f}" for value in each)]


def memories(kernel: str) -> tuple[str, Rows]:
    """The table of idle connections."""
    rows: Rows = [["server's module", "idle connections", "KiB for each, /proc/meminfo",
                   "of these, slabs", "of these, queues of the device"]]  # fmt: skip
    with pair(kernel) as lab:
        for name, module in MODULES.items():
            serve(lab, "server", module)
            # what the first connection loads
            idle(lab, 10)
            for sessions in IDLE:
                each = idle(lab, sessions)
                print(name, sessions, each, flush=True)
                rows.append(row(name, sessions, each))
            if module == THEIRS:
                rows.append(row(f"{name}, {MORE_CREDITS} credits", HAVE_MORE, more_credits(lab)))
        return about(lab, "rxe"), rows


def about(lab: Lab, nic: str) -> str:
    """The conditions of a table."""
    return markdown.conditions(lab, nic, "make bench NAME=scale")


@contextlib.contextmanager
def pair(kernel: str) -> Iterator[Lab]:
    """A client and a server with soft-RoCE."""
    config = LabConfig("bench-scale-pair", shape="pair", kernel=kernel, link="none", memory=4608)
    with Lab(config) as lab:
        yield lab
        lab.check()


@contextlib.contextmanager
def solo(kernel: str) -> Iterator[Lab]:
    """A node on the instruction clock with modelled cards."""
    config = LabConfig("bench-scale", clock="instructions", link="none", kernel=kernel,
                       memory=6144, nic="card")  # fmt: skip
    with Lab(config) as lab:
        yield lab
        lab.check()


def twice(
    lab: Lab, sessions: int, runs: Sequence[float], count: Callable[[], Counter[str]]
) -> dict[str, float]:
    """The counts of a READ: the difference of two runs has no connections and no start."""
    known, done = [count()], []
    for seconds in runs:
        done.append(drive(lab, sessions, seconds, IN_FLIGHT, 64).operations)
        known.append(count())
    reads = done[1] - done[0]
    start, middle, end = known
    return {name: (end[name] - 2 * middle[name] + start[name]) / reads for name in end}


# --- instructions ---


def now(plugin: Plugin, symbols: Symbols) -> Counter[str]:
    """The instructions so far, by part."""
    sums: Counter[str] = Counter()
    for address, count in plugin.counts().items():
        function, module = symbols.find(address)
        part = CLIENT if function == USER else PARTS.get(module, KERNEL)
        sums[COPIED if function == COPY else part] += count
    return sums


def read_costs(
    lab: Lab, node: str, plugin: Plugin, counts: Sequence[int], runs: Sequence[float],
    shown: Sequence[str],
) -> Rows:  # fmt: skip
    """The rows of both modules: thousands of instructions of a READ in the node."""
    rows = []
    for name, module in MODULES.items():
        serve(lab, node, module)
        # the first run of a command in a node costs more
        drive(lab, 1, runs[0], IN_FLIGHT, 1)
        count, first = functools.partial(now, plugin, Symbols(lab, node)), 0.0
        for sessions in counts:
            counted = twice(lab, sessions, runs, count)
            each = [counted[part] / 1e3 for part in shown]
            total = sum(each)
            first = first or total
            print(name, sessions, f"{total:.1f}", each, flush=True)
            cells = [f"{total:.1f}", f"{total / first:.2f}", *(f"{part:.1f}" for part in each)]
            rows.append([name, str(sessions), *cells])
    return rows


def head(where: str, shown: Sequence[str]) -> Rows:
    """The head of a table of instructions."""
    what = f"thousands of instructions of a 4 KiB READ{where}"
    return [["server's module", "connections", what, ": with 1", *shown]]


def costs(kernel: str) -> tuple[str, Rows]:
    """The table of instructions."""
    with plugged() as plugin, solo(kernel) as lab:
        rows = read_costs(lab, "solo", plugin, COUNTS, RUNS, SHOWN)
        return about(lab, "card"), head("", SHOWN) + rows


def served_costs(kernel: str) -> tuple[str, Rows]:
    """The table of instructions of the server alone."""
    with plugged(node="server") as plugin, pair(kernel) as lab:
        rows = read_costs(lab, "server", plugin, SERVED, SERVED_RUNS, AT_SERVER)
        return about(lab, "rxe"), head(", at the server", AT_SERVER) + rows


def caches(kernel: str) -> tuple[str, Rows]:
    """The table of the cache of queue pairs: misses of a READ."""
    rows: Rows = [["connections", *(f"{entries:,} queue pairs" for entries in CACHES)]]
    with solo(kernel) as lab:
        serve(lab, "solo", OURS)
        for sessions in COUNTS:
            cells = []
            for entries in CACHES:
                set_cache(lab, entries)
                each = twice(lab, sessions, CACHE_RUNS, lambda: Counter(misses=misses(lab)))
                cells.append(each["misses"])
            print(sessions, cells, flush=True)
            rows.append([str(sessions), *(f"{cell:.2f}" for cell in cells)])
        return about(lab, "card"), rows


# --- storms and fairness ---


def storms(kernel: str) -> tuple[str, Rows]:
    """The table of connections that are made at once, and made again."""
    rows: Rows = [["server's module", "connections", "seconds until all have connected at once",
                   "lost when the server restarts", "not connected again",
                   "seconds from the first loss until all are connected"]]  # fmt: skip
    with solo(kernel) as lab:
        for name, module in MODULES.items():
            serve(lab, "solo", module)
            for sessions in STORMS:
                storm = drive(lab, sessions, 0, 0, sessions)
                back = restarted(lab, sessions)
                print(name, sessions, storm, back, flush=True)
                if not back.up == back.connected == sessions:
                    raise SystemExit(f"{sessions} sessions: {back.up} came back")
                missing = back.lost - back.reconnected
                cells = (sessions, f"{storm.connect:.2f}", back.lost, missing)
                rows.append([name, *map(str, cells), f"{back.recovery:.2f}"])
        return about(lab, "card"), rows


def fairness(kernel: str) -> tuple[str, Rows]:
    """The table of sessions that read as fast as they can."""
    rows: Rows = [["server's module", "sessions", "READs", "Jain's index"]]
    with solo(kernel) as lab:
        for name, module in MODULES.items():
            serve(lab, "solo", module)
            done = drive(lab, FAIR, FAIR_SECONDS, 0, 64)
            print(name, done, flush=True)
            rows.append([name, str(FAIR), f"{done.operations:,}", f"{done.jain:.4f}"])
        return about(lab, "card"), rows


TABLES = {
    "memory": memories, "reads": costs, "server": served_costs, "storms": storms,
    "fairness": fairness, "cache": caches,
}  # fmt: skip


def main(kernel: str = KERNELS[0], part: str = "") -> None:
    """Cost of up to 1,000 connections; a part: memory, reads, server, storms, fairness, cache."""
    if part and part not in TABLES:
        raise SystemExit(f"{part}: one of {', '.join(TABLES)}")
    for name in [part] if part else TABLES:
        conditions, rows = TABLES[name](kernel)
        lines = [conditions, "", *markdown.table(rows)]
        print(*lines, sep="\n")
        if kernel == KERNELS[0]:
            markdown.write(f"scale {name}", lines, PAGE)
