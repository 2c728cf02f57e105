# SPDX-License-Identifier: Apache-2.0
"""NFS over TCP, over the kernel's module and over ours, in one machine: ``make bench``.

On the instruction clock, where a microsecond is a thousand instructions and the figures are the
same on any host.  In turns within one boot; the first turn of each is for warming up.  Without a
wire between the two devices: the table counts the work of client and server, and with soft-RoCE
that of the emulated devices.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from bench import page
from bench.module import SCRIPT
from nfsrdma_tools.host.nfs.personality import DEFAULT, PERSONALITIES
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.labs import OURS, THEIRS, serve

LOADS = {
    "scattered": ("4 KiB random O_DIRECT read", 400),
    "sequential": ("1 MiB O_DIRECT read", 32),
    "writes": ("1 MiB O_DIRECT write", 24),
    "small_writes": ("4 KiB O_DIRECT write", 300),
    "crowd": ("4 KiB random O_DIRECT read, 16 processes", 3200),
    "queue": ("128 KiB O_DIRECT read, io_uring, 16 at a time", 1600),
    "attributes": ("stat(2), noac", 600),
    "listing": ("readdir of 10,000 entries", 2),
    "cached": ("64 MiB through the cache, 8 KiB calls, rsize 512 KiB", 1),
}
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
RDMA, TCP = "proto=rdma,port=20049", "proto=tcp"
MOUNT = f"vers=3,{RDMA},noac"
OFFLOADS = "tso gso gro tx rx sg"


def tunables(value: int) -> str:
    """Commands that set the inline sizes of the kernel's module, in bytes."""
    return (
        f"sysctl -qw sunrpc.rdma_max_inline_read={value} sunrpc.rdma_max_inline_write={value}"
        f" sunrpc.svc_rdma.max_req_size={value}"
    )


def offloads(state: str) -> str:
    """Commands that switch the offloads of both network devices on or off."""
    words = " ".join(f"{name} {state}" for name in OFFLOADS.split())
    return f"for end in v0 v1; do ethtool -K $end {words} >/dev/null; done"


@dataclass(frozen=True)
class Column:
    """A transport: the module that the kernel has loaded, mount options, commands around a turn."""

    name: str
    module: str
    options: str
    before: str = "true"
    after: str = "true"


COLUMNS = (
    Column("TCP", THEIRS, TCP),
    # a host of 2003: no segmentation or receive offload, checksums by the CPU
    Column("TCP as in 2003", THEIRS, TCP, offloads("off"), offloads("on")),
    Column("kernel's", THEIRS, RDMA),
    # found by trying; nfsrdma has these sizes by default
    Column("kernel's, tuned", THEIRS, RDMA, tunables(8192), tunables(4096)),
    Column(OUR_COLUMN, OURS, RDMA),
)


def personality(name: str) -> str:
    """Commands that have the client request a personality and the server accept it."""
    folder = "/sys/module/nfsrdma/parameters"
    return f"echo {name} > {folder}/personality; echo {name} > {folder}/server_personalities"


DESIGNS = tuple(
    Column(name, OURS, RDMA, personality(name), personality(DEFAULT))
    for name in PERSONALITIES
    if name != DEFAULT
)
# with data, because a file without has no pages that a client could read by itself
PREPARE = """
yes | head -c 64M | tee /export/bench-data > /export/bench-written; sync
mkdir -p /export/bench-listed /mnt/bench /run/bench
seq -f /export/bench-listed/a-file-with-a-name-%g 10000 | xargs touch
"""
REGISTRATIONS = """
cd /sys/kernel/tracing; echo > trace; echo 1 > events/{event}/enable
dd if=/mnt/bench/bench-data of=/dev/null bs=1M count=8 iflag=direct status=none
echo 0 > events/{event}/enable; grep -c {name}: trace || true
"""
EVENTS = {
    OURS: ("nfsrdma/nfsrdma_mr_fastreg", "nfsrdma_mr_fastreg"),
    THEIRS: ("rpcrdma/xprtrdma_mr_fastreg", "xprtrdma_mr_fastreg"),
}
Turn = dict[str, dict[str, float]]


def sh(lab: Lab, script: str, timeout: float = 600) -> str:
    return lab.run("solo", "sh", "-ec", script, timeout=timeout).stdout


def mount(lab: Lab, options: str) -> None:
    sh(lab, f"mount -t nfs -o vers=3,{options} server:/export /mnt/bench")


def unmount(lab: Lab) -> None:
    sh(lab, "umount /mnt/bench")


def loads(lab: Lab, names: Sequence[str]) -> Turn:
    return measured(lab, *(f"{name}={LOADS[name][1]}" for name in names))


def measured(lab: Lab, *counts: str) -> Turn:
    """Run loads, each as LOAD=COUNT."""
    argv = ("python3", "-", *counts)
    found: Turn = json.loads(lab.run("solo", *argv, stdin=SCRIPT, timeout=3600).stdout)
    return found


def turn(lab: Lab, column: Column) -> Turn:
    serve(lab, "solo", column.module)
    # the sizes are read when a connection is made
    sh(lab, column.before)
    mount(lab, f"{column.options},noac")
    if column.module == OURS:
        prove(lab, column)
    found = loads(lab, [name for name in LOADS if name != "cached"])
    if column.options == RDMA:
        event, name = EVENTS[column.module]
        counted = sh(lab, REGISTRATIONS.format(event=event, name=name))
        found["sequential"]["registrations"] = int(counted) / 8
    unmount(lab)
    mount(lab, f"{column.options},rsize=524288")
    found |= loads(lab, ["cached"])
    unmount(lab)
    sh(lab, column.after)
    return found


def personalities(lab: Lab) -> list[str]:
    """The personality of each connection of our client."""
    found = sh(lab, "grep -h '^personality ' /sys/kernel/debug/nfsrdma/[0-9]*/connection")
    return [line.split()[1] for line in found.splitlines()]


def prove(lab: Lab, column: Column) -> None:
    """SystemExit unless the mount's connection has the personality of the column."""
    expected = column.name if column in DESIGNS else DEFAULT
    found = personalities(lab)
    if found != [expected]:
        raise SystemExit(f"{column.name}: found {found}, expected personality {expected}")


def ratios(turns: dict[str, list[Turn]], load: str, one: str, other: str) -> list[float]:
    """One column to another in each round, in order of size."""
    pairs = zip(turns[one], turns[other], strict=True)
    return sorted(a[load]["us"] / b[load]["us"] for a, b in pairs)


def ratio(turns: dict[str, list[Turn]], load: str, one: str, other: str) -> str:
    """The median of the rounds, with their range if there are several."""
    found = ratios(turns, load, one, other)
    spread = f" ({found[0]:.3f} to {found[-1]:.3f})" if len(found) > 1 else ""
    return f"{statistics.median(found):.3f}{spread}"


def costs(turns: dict[str, list[Turn]], names: Sequence[str], one: str) -> list[str]:
    """The table of all loads and some columns, with ratios of one to each other or of each to one:
    the last column, or the first.
    """
    others = [name for name in names if name != one]
    pairs = [(one, name) if names[-1] == one else (name, one) for name in others]
    heads = ["thousands of instructions", *names, *(f"{a} : {b}" for a, b in pairs)]
    lines = page.head(heads)
    for load, (text, _) in LOADS.items():
        values = [statistics.median(t[load]["us"] for t in turns[name]) for name in names]
        ranges = [ratio(turns, load, *pair) for pair in pairs]
        lines.append(page.row([text, *(f"{value:,.1f}" for value in values), *ranges]))
    counts = [turns[name][0]["sequential"].get("registrations") for name in names]
    cells = ["" if count is None else f"{count:g}" for count in counts]
    lines.append(page.row(["registrations for a 1 MiB read", *cells, *([""] * len(others))]))
    return lines


def goals(turns: dict[str, list[Turn]]) -> list[str]:
    """The table of goals, and what was measured."""
    rows: list[Sequence[object]] = [("load", "goal", "measured", "")]
    for load, goal in GOALS.items():
        measured = statistics.median(ratios(turns, load, OUR_COLUMN, "kernel's"))
        missed = "missed" if measured > goal else ""
        rows.append((LOADS[load][0], f"{goal:.3g}", f"{measured:.3f}", missed))
    return page.table(rows)


def main() -> None:
    rounds, kernel, nic = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    config = LabConfig(
        "bench", clock="instructions", link="none", kernel=kernel, memory=4608, nic=nic
    )
    turns: dict[str, list[Turn]] = {column.name: [] for column in (*COLUMNS, *DESIGNS)}
    with Lab(config) as lab:
        sh(lab, PREPARE)
        for number in range(rounds + 1):
            for column in (*COLUMNS, *DESIGNS):
                found = turn(lab, column)
                print(f"turn {number} of {rounds}: {column.name} {json.dumps(found)}", flush=True)
                turns[column.name] += [found] * (number > 0)
        lab.check()
        about = page.conditions(lab, nic, f"make bench NIC={nic} ROUNDS={rounds}")
    table = costs(turns, [column.name for column in COLUMNS], OUR_COLUMN)
    designs = costs(turns, [OUR_COLUMN, *(column.name for column in DESIGNS)], OUR_COLUMN)
    page.update(kernel, f"{nic} costs", [about, "", *table])
    page.update(kernel, f"{nic} personalities", [about, "", *designs])
    page.update(kernel, f"{nic} goals", [about, "", *goals(turns)])
    print("\n".join((*table, "", *designs)))


if __name__ == "__main__":
    main()
