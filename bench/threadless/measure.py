# SPDX-License-Identifier: Apache-2.0
"""READs that the server answers from its page cache, beside READs by nfsd.

On the instruction clock, where a microsecond is a thousand instructions.  Client and server are
one machine with one processor, so that an operation costs what both ends and the modelled card
execute for it.  The kernel traces how long the handler of a received message runs, on the same
clock.
"""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from itertools import product

from bench import markdown
from bench.loads import Turn, measured
from bench.solo import PREPARE, RDMA, mount, sh, unmount
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.personalities import DEFAULT
from testbed.labs import OURS, choose, serve
from testbed.mounts import set_to

MOST = 65536
PARAMETER = "server_threadless"
LOADS = {
    "scattered": ("4 KiB random O_DIRECT read", 400),
    "crowd": ("the same by 16 processes", 3200),
    "blocks": ("64 KiB O_DIRECT read", 100),
}
# the kernel's client, and our server beside the kernel's, which does not listen
THEIR_CLIENT = """
systemctl stop nfs-server
nfsrdma module unload
nfsrdma module load --set client=N --set server_name=nfsrdma
modprobe rpcrdma
systemctl start nfs-server
echo 'rdma 20049' > /proc/fs/nfsd/portlist || true
echo 'nfsrdma 20050' > /proc/fs/nfsd/portlist
"""
HITS = "cat /sys/kernel/debug/nfsrdma-server/[0-9]*/counters"
# what handles a READ, what posts its reply and executes it in the model of the card, and a function
# of a few instructions, whose time is that of tracing
HANDLER, POST, SHORT = "nfr_svc_threadless_read", "card_post_send", "nfr_wire_is_call"
TRACE = """
cd /sys/kernel/tracing
echo 16384 > buffer_size_kb
echo {function} > set_ftrace_filter
echo {function} > set_graph_function
echo function_graph > current_tracer
"""
UNTRACE = """
cd /sys/kernel/tracing
cat trace
echo nop > current_tracer
echo > set_graph_function
echo > set_ftrace_filter
"""
# nfsd reads a file that a process has open for writing
OPEN = "sh -c 'exec 3>>/export/bench-data; touch /run/opened; exec sleep 1d' >/dev/null 2>&1 & "
OPEN += "until [ -e /run/opened ]; do sleep 0.1; done; echo $!"


# readers over RDMA, and a client over TCP, whose Calls nfsd executes
FLOOD = """
mkdir -p /mnt/flood
mount -t nfs -o vers=3,noac,nosharecache,proto=rdma,port=20049 server:/export /mnt/flood
for n in $(seq {readers}); do
	(while :; do dd if=/mnt/flood/bench-data of=/dev/null bs=4k iflag=direct status=none; done) \\
		> /run/flood.log 2>&1 &
	echo $!
done
"""
READERS = 8


@dataclass(frozen=True)
class Client:
    """A client that reads: nfsrdma's with a personality, or the kernel's; its mount options."""

    name: str
    options: str
    personality: str = DEFAULT


CLIENTS = (
    Client("nfsrdma", RDMA),
    Client("nfsrdma, padded", RDMA, "padded"),
    Client("nfsrdma, pre-posted", RDMA, "pre-posted"),
    Client("the kernel's", "proto=rdma,port=20050"),
)
Costs = dict[tuple[str, int], Turn]


def counters(lab: Lab) -> dict[str, int]:
    """Sums of the counters of the server's connections."""
    sums: dict[str, int] = {}
    for line in sh(lab, HITS).splitlines():
        name, value = line.split()
        sums[name] = sums.get(name, 0) + int(value)
    return sums


def read(lab: Lab, name: str, count: int) -> Turn:
    """Measure a load."""
    return measured(lab, {name: count})


def times(lab: Lab, function: str) -> list[float]:
    """Thousands of instructions of each run of a function, in order of size: reads of 4 KiB."""
    sh(lab, TRACE.format(function=function))
    read(lab, "scattered", 200)
    text = sh(lab, UNTRACE)
    return sorted(float(each) for each in re.findall(r"([\d.]+) us +\|", text))


def handler(lab: Lab) -> tuple[float, float]:
    """The handler of a hit without the model of the card, and that of a miss."""
    hit, posts, short = (times(lab, name) for name in (HANDLER, POST, SHORT))
    # one half are the client's: its Calls are shorter than the server's replies
    reply = statistics.median(posts[len(posts) // 2 :])
    writer = sh(lab, OPEN).strip()
    try:
        read(lab, "scattered", 20)
        miss = times(lab, HANDLER)
    finally:
        sh(lab, f"kill {writer}; rm /run/opened")
    return statistics.median(hit) - reply, statistics.median(miss) - short[0]


def beside(lab: Lab) -> dict[str, float]:
    """Microseconds of a stat(2) over TCP: alone, and beside readers, by who answers these."""
    latencies = {}
    mount(lab, "proto=tcp,noac")
    try:
        latencies["no readers"] = read(lab, "attributes", 400)["attributes"]["us"]
        for name, most in (("nfsd answers", 0), ("threadless", MOST)):
            set_to(lab, "solo", PARAMETER, str(most))
            pids = " ".join(sh(lab, FLOOD.format(readers=READERS)).split())
            try:
                read(lab, "attributes", 40)
                latencies[name] = read(lab, "attributes", 400)["attributes"]["us"]
            finally:
                sh(lab, f"kill {pids}; pkill dd || true; sleep 1; umount /mnt/flood")
    finally:
        unmount(lab)
    return latencies


def turn(lab: Lab, client: Client, most: int) -> Turn:
    """Costs of all loads; SystemExit unless the READs were answered as asked."""
    set_to(lab, "solo", PARAMETER, str(most))
    choose(lab, client.personality)
    mount(lab, f"{client.options},noac")
    # the file gets into the page cache, and its permit is made
    read(lab, "scattered", 200)
    before, costs = counters(lab), Turn()
    for name, (_, count) in LOADS.items():
        costs |= read(lab, name, count)
    after = counters(lab)
    unmount(lab)
    gained = {name: after[name] - before[name] for name in after}
    missed = sum(gained[name] for name in gained if name.startswith("threadless_missed"))
    hits = gained["threadless_hits"]
    if missed > hits / 20 or bool(hits) != bool(most):
        raise SystemExit(f"{client.name}: {hits} hits and {missed} misses with {most}: {gained}")
    return costs


def table(costs: dict[tuple[str, int], list[Turn]]) -> list[str]:
    rows: list[list[str]] = [
        ["thousands of instructions", "client", "nfsd", "threadless", "less", "threadless : nfsd"]
    ]
    for load, (text, _) in LOADS.items():
        for client in CLIENTS:
            served, fast = (
                statistics.median(each[load]["us"] for each in costs[client.name, most])
                for most in (0, MOST)
            )
            pairs = zip(costs[client.name, MOST], costs[client.name, 0], strict=True)
            ratios = sorted(a[load]["us"] / b[load]["us"] for a, b in pairs)
            spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
            numbers = (f"{served:.1f}", f"{fast:.1f}", f"{served - fast:.1f}", spread)
            rows.append([text, client.name, *numbers])
    return markdown.table(rows)


def main(rounds: int = 3, kernel: str = KERNELS[0]) -> None:
    """Measure READs with and without threads of nfsd."""
    config = LabConfig(
        "threadless", clock="instructions", link="none", kernel=kernel, memory=4608, nic="card"
    )
    costs: dict[tuple[str, int], list[Turn]] = {}
    with Lab(config) as lab:
        sh(lab, PREPARE)
        serve(lab, "solo", OURS)
        about = markdown.conditions(
            lab, "card", f'make bench NAME=threadless ARGS="--rounds {rounds}"'
        )
        for client in CLIENTS:
            if client.options != RDMA:
                sh(lab, THEIR_CLIENT)
            for number, most in product(range(rounds), (0, MOST)):
                by_load = turn(lab, client, most)
                costs.setdefault((client.name, most), []).append(by_load)
                brief = {name: round(each["us"], 1) for name, each in by_load.items()}
                print(f"{number + 1} of {rounds}: {client.name}, {most}: {brief}", flush=True)
            if client is CLIENTS[0]:
                set_to(lab, "solo", PARAMETER, str(MOST))
                mount(lab, f"{client.options},noac")
                hit, miss = handler(lab)
                unmount(lab)
                shared = beside(lab)
        lab.check()
    words = [["handler of a 4 KiB READ, thousands of instructions", ""],
             ["hit, the model of the card not included", f"{hit:.2f}"],
             ["miss", f"{miss:.2f}"]]  # fmt: skip
    waits = [[f"stat(2) over TCP beside {READERS} readers of 4 KiB, microseconds", ""],
             *([name, f"{us:,.0f}"] for name, us in shared.items())]  # fmt: skip
    lines = [about, "", *table(costs), "", *markdown.table(words), "", *markdown.table(waits)]
    print("\n".join(lines))
    markdown.update(kernel, "threadless", lines)
