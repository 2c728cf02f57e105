# SPDX-License-Identifier: Apache-2.0
"""The user-level client beside the kernel's, and what one CPU serves.

On the instruction clock, where a microsecond is a thousand instructions.  Client and server are
one machine with one processor, so that a read costs what both ends and the modelled card execute
for it.  Reads that leave by one doorbell keep the server busy at little cost of the client: they
show how many reads a second such a processor serves.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from matplotlib.ticker import NullLocator

from bench import markdown
from bench.client import reader as client_reader
from bench.figures import picture
from bench.loads import measured
from bench.solo import PREPARE, RDMA, mount, sh, unmount
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.report import canvas
from nfsrdma_tools.report.canvas import Drawing, describe, label_ends, panels
from testbed.labs import OURS, THEIRS, choose, serve
from testbed.mounts import set_to

OUT = Path(__file__).parents[2] / "out"
MOST = 65536
READS = 3200


@dataclass(frozen=True)
class Server:
    """A module, the largest READ that it answers without a thread, colour, marker, personality."""

    name: str
    module: str
    most: int
    color: str
    mark: str
    personality: str = "read-write"


SERVERS = (
    Server("the kernel's", THEIRS, 0, canvas.transport_colour("rdma"), "s"),
    Server("nfsrdma", OURS, 0, canvas.transport_colour("nfsrdma"), "D"),
    Server("nfsrdma, threadless", OURS, MOST, canvas.transport_colour("nfsrdma"), "o"),
    Server("nfsrdma, optimistic", OURS, 0, canvas.transport_colour("nfsrdma"), "^", "optimistic"),
)
# reads that leave by one doorbell, and connections
ALONE, BATCH = (1, 1), (16, 1)
CONNECTIONS = (1, 4, 16)
SHAPES = (ALONE, *((BATCH[0], number) for number in CONNECTIONS))
MOUNTED = {"scattered": 400, "small_queue": 3200}
ROWS: dict[str, str | tuple[int, int]] = {
    "mount, one O_DIRECT read at a time": "scattered",
    "libnfsrdma, one read at a time": ALONE,
    "mount, io_uring, 16 at a time": "small_queue",
    "libnfsrdma, 16 by one doorbell": BATCH,
}
# thousands of instructions for each read, by load of a mount or shape
Costs = dict[str | tuple[int, int], float]


def read(lab: Lab, depth: int, connections: int, optimistic: bool) -> float:
    """Thousands of instructions of a read through the library."""
    counts = json.loads(client_reader.run(lab, READS, depth, connections, optimistic)[0])
    if optimistic and counts["by_reference"] < 0.95 * counts["reads"]:
        total = counts["reads"]
        raise SystemExit(f"found {counts['by_reference']} reads by reference, expected {total}")
    # an optimistic batch has one more for those of its reads that go by RPC
    expected = counts["reads"] / depth
    if counts["doorbells"] > 1.05 * expected:
        raise SystemExit(f"found {counts['doorbells']} doorbells, expected {expected:g}")
    return float(counts["ns"] / counts["reads"] / 1e3)


def turn(lab: Lab, server: Server) -> Costs:
    """All ways to read, by one server."""
    serve(lab, "solo", server.module)
    if server.module == OURS:
        choose(lab, server.personality)
        sets = client_reader.OPTIMISTIC if server.personality == "optimistic" else {}
        for name, value in {"server_threadless": str(server.most), **sets}.items():
            set_to(lab, "solo", name, value)
    mount(lab, f"{RDMA},noac")
    measured(lab, {"scattered": 200})
    costs: Costs = {
        name: measured(lab, {name: count})[name]["us"] for name, count in MOUNTED.items()
    }
    unmount(lab)
    for shape in SHAPES:
        costs[shape] = read(lab, *shape, optimistic=server.personality == "optimistic")
    return costs


def middle(turns: list[Costs], key: str | tuple[int, int]) -> float:
    return statistics.median(each[key] for each in turns)


def per_second(turns: list[Costs], connections: int) -> float:
    return 1e6 / middle(turns, (BATCH[0], connections))


def draw(costs: dict[str, list[Costs]], about: str) -> Drawing:
    """Throughput of one CPU over connections, after figure 7 of the FAST paper of 2003."""
    figure, (ax,) = panels([""])
    ax.set_xscale("log", base=2)
    ax.set_xticks(CONNECTIONS, [str(each) for each in CONNECTIONS])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("connections")
    ax.set_ylabel("thousands of 4 KiB reads per second")
    ends = []
    for server in SERVERS:
        ys = [per_second(costs[server.name], each) / 1e3 for each in CONNECTIONS]
        ax.plot(CONNECTIONS, ys, f"{server.mark}-", color=server.color, mec=canvas.PAPER, mew=0.7,
                clip_on=False)  # fmt: skip
        ends.append((CONNECTIONS[-1], ys[-1], server.name, server.color))
    ax.set_ylim(0, 1.12 * max(end[1] for end in ends))
    label_ends(ax, ends)
    last = CONNECTIONS[-1]
    gain = per_second(costs[SERVERS[2].name], last) / per_second(costs[SERVERS[0].name], last)
    title = "Reads that one CPU serves"
    finding = f"Without threads: {gain:.1f} times the kernel's server, with {last} connections"
    describe(figure, title, finding, about.replace("`", ""))
    return Drawing("served", title, "", "", figure)


def tables(costs: dict[str, list[Costs]]) -> tuple[list[str], list[str]]:
    """The tables of instructions for each read, and of reads per second of one CPU."""
    names = [server.name for server in SERVERS]
    rows: list[list[str]] = [["thousands of instructions, 4 KiB", *names]]
    rows += [
        [text, *(f"{middle(costs[name], key):.1f}" for name in names)] for text, key in ROWS.items()
    ]
    served: list[list[str]] = [["connections", *(f"{name}, reads per second" for name in names)]]
    served += [
        [str(each), *(f"{per_second(costs[name], each):,.0f}" for name in names)]
        for each in CONNECTIONS
    ]
    return markdown.table(rows), markdown.table(served)


def main(rounds: int = 3, kernel: str = KERNELS[0]) -> None:
    """Measure the library beside mounts, by all servers."""
    config = LabConfig(
        "bench-client", clock="instructions", link="none", kernel=kernel, memory=4608, nic="card",
        extras=True,
    )  # fmt: skip
    costs: dict[str, list[Costs]] = {server.name: [] for server in SERVERS}
    with Lab(config) as lab:
        sh(lab, PREPARE)
        client_reader.install(lab)
        for number in range(rounds):
            for server in SERVERS:
                by_way = turn(lab, server)
                costs[server.name].append(by_way)
                brief = {str(key): round(value, 1) for key, value in by_way.items()}
                print(f"{number + 1} of {rounds}: {server.name}: {brief}", flush=True)
        lab.check()
        about = markdown.conditions(lab, "card", f'make bench NAME=client ARGS="--rounds {rounds}"')
    read_costs, served = tables(costs)
    print(about, *read_costs, *served, sep="\n")
    markdown.update(kernel, "client", [about, "", *read_costs])
    OUT.mkdir(exist_ok=True)
    picture(lambda: draw(costs, about), OUT)
    image = "![Reads per second of one CPU over connections](../img/served.png)"
    markdown.update(kernel, "served", [image, "", about, "", *served])
