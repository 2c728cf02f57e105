# SPDX-License-Identifier: Apache-2.0
"""NFS over TCP, over the kernel's module and over ours, in one machine.

On the instruction clock, where a microsecond is a thousand instructions and the figures are the
same on any host.  In turns within one boot; the first turn of each is for warming up.  Without a
wire between the two devices: the table counts the work of client and server, and with soft-RoCE
that of the emulated devices.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench import markdown
from bench.loads import Turn
from bench.solo import LOADS, PREPARE, RDMA, TCP, loads, mount, offloads, sh, unmount
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.personalities import DEFAULT, PERSONALITIES
from testbed.labs import OURS, THEIRS, choose, serve
from testbed.mounts import connections

OUR_COLUMN = "nfsrdma"
# ratios of nfsrdma to the kernel's module with its defaults, over the modelled card
GOALS = {
    "scattered": 0.58,
    "sequential": 0.85,
    "writes": 0.87,
    "small_writes": 0.57,
    # 1.6 times the operations per second of one CPU
    "crowd": 1 / 1.6,
    "queue": 0.80,
    "attributes": 0.58,
    "listing": 0.94,
    "cached": 0.87,
}


def tunables(value: int) -> str:
    """Commands that set the inline sizes of the kernel's module, in bytes."""
    return (
        f"sysctl -qw sunrpc.rdma_max_inline_read={value} sunrpc.rdma_max_inline_write={value}"
        f" sunrpc.svc_rdma.max_req_size={value}"
    )


@dataclass(frozen=True)
class Column:
    """A transport: the module that the kernel has loaded, mount options, commands around a turn."""

    name: str
    module: str
    options: str
    before: str = "true"
    after: str = "true"
    personality: str = DEFAULT


COLUMNS = (
    Column("TCP", THEIRS, TCP),
    # a host of 2003: no segmentation or receive offload, checksums by the CPU
    Column("TCP as in 2003", THEIRS, TCP, offloads("off"), offloads("on")),
    Column("kernel's", THEIRS, RDMA),
    # found by trying; nfsrdma has these sizes by default
    Column("kernel's, tuned", THEIRS, RDMA, tunables(8192), tunables(4096)),
    Column(OUR_COLUMN, OURS, RDMA),
)
DESIGNS = tuple(
    Column(name, OURS, RDMA, personality=name) for name in PERSONALITIES if name != DEFAULT
)
REGISTRATIONS = """
cd /sys/kernel/tracing; echo > trace; echo 1 > events/{event}/enable
dd if=/mnt/bench/bench-data of=/dev/null bs=1M count=8 iflag=direct status=none
echo 0 > events/{event}/enable; grep -c {name}: trace || true
"""
EVENTS = {
    OURS: ("nfsrdma/nfsrdma_mr_fastreg", "nfsrdma_mr_fastreg"),
    THEIRS: ("rpcrdma/xprtrdma_mr_fastreg", "xprtrdma_mr_fastreg"),
}


def turn(lab: Lab, column: Column) -> Turn:
    serve(lab, "solo", column.module)
    # the sizes are read when a connection is made
    sh(lab, column.before)
    if column.module == OURS:
        choose(lab, column.personality)
    mount(lab, f"{column.options},noac")
    if column.module == OURS:
        prove(lab, column)
    by_load = loads(lab, [name for name in LOADS if name != "cached"])
    if column.options == RDMA:
        event, name = EVENTS[column.module]
        counted = sh(lab, REGISTRATIONS.format(event=event, name=name))
        by_load["sequential"]["registrations"] = int(counted) / 8
    unmount(lab)
    mount(lab, f"{column.options},rsize=524288")
    by_load |= loads(lab, ["cached"])
    unmount(lab)
    sh(lab, column.after)
    if column.module == OURS:
        choose(lab, DEFAULT)
    return by_load


def prove(lab: Lab, column: Column) -> None:
    """SystemExit unless the mount's connection has the personality of the column."""
    (connection,) = connections(lab, "solo")
    if connection["personality"] != column.personality:
        raise SystemExit(f"{column.name}: found personality {connection['personality']}")


def ratios(turns: dict[str, list[Turn]], load: str, column: str, other: str) -> list[float]:
    """One column to another in each round, in order of size."""
    pairs = zip(turns[column], turns[other], strict=True)
    return sorted(a[load]["us"] / b[load]["us"] for a, b in pairs)


def ratio(turns: dict[str, list[Turn]], load: str, column: str, other: str) -> str:
    """The median of the rounds, with their range if there are several."""
    return markdown.ratio(ratios(turns, load, column, other))


def costs(turns: dict[str, list[Turn]], names: Sequence[str], base: str) -> list[str]:
    """The table of all loads and some columns, with ratios of one to each other or of each to one:
    the last column, or the first.
    """
    others = [name for name in names if name != base]
    pairs = [(base, name) if names[-1] == base else (name, base) for name in others]
    heads = ["thousands of instructions", *names, *(f"{a} : {b}" for a, b in pairs)]
    lines = markdown.head(heads)
    for load, (text, _) in LOADS.items():
        values = [statistics.median(t[load]["us"] for t in turns[name]) for name in names]
        ranges = [ratio(turns, load, *pair) for pair in pairs]
        lines.append(markdown.row([text, *(f"{value:,.1f}" for value in values), *ranges]))
    counts = [turns[name][0]["sequential"].get("registrations") for name in names]
    cells = ["" if count is None else f"{count:g}" for count in counts]
    lines.append(markdown.row(["registrations for a 1 MiB read", *cells, *([""] * len(others))]))
    return lines


def goals(turns: dict[str, list[Turn]]) -> list[str]:
    """The table of goals, and what was measured."""
    rows: list[Sequence[object]] = [("load", "goal", "measured", "")]
    for load, goal in GOALS.items():
        measured = statistics.median(ratios(turns, load, OUR_COLUMN, "kernel's"))
        missed = "missed" if measured > goal else ""
        rows.append((LOADS[load][0], f"{goal:.3g}", f"{measured:.3f}", missed))
    return markdown.table(rows)


def main(rounds: int = 2, kernel: str = KERNELS[0], nic: str = "card") -> None:
    """Measure all loads over all transports: ``nic`` is card or rxe."""
    config = LabConfig(
        "bench", clock="instructions", link="none", kernel=kernel, memory=4608, nic=nic
    )
    turns: dict[str, list[Turn]] = {column.name: [] for column in (*COLUMNS, *DESIGNS)}
    with Lab(config) as lab:
        sh(lab, PREPARE)
        for number in range(rounds + 1):
            for column in (*COLUMNS, *DESIGNS):
                by_load = turn(lab, column)
                print(f"turn {number} of {rounds}: {column.name} {json.dumps(by_load)}", flush=True)
                turns[column.name] += [by_load] * (number > 0)
        lab.check()
        about = markdown.conditions(
            lab, nic, f'make bench NAME=costs ARGS="--nic {nic} --rounds {rounds}"'
        )
    table = costs(turns, [column.name for column in COLUMNS], OUR_COLUMN)
    designs = costs(turns, [OUR_COLUMN, *(column.name for column in DESIGNS)], OUR_COLUMN)
    markdown.update(kernel, f"{nic} costs", [about, "", *table])
    markdown.update(kernel, f"{nic} personalities", [about, "", *designs])
    markdown.update(kernel, f"{nic} goals", [about, "", *goals(turns)])
    print("\n".join((*table, "", *designs)))
