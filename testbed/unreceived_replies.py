# SPDX-License-Identifier: Apache-2.0
"""Clients that request much and receive no replies, and what the server keeps for them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nfsrdma_tools.command import Result
from nfsrdma_tools.lab.config import CHECKING
from nfsrdma_tools.lab.nodes import Nodes
from testbed.hostile import LIMIT, PORT, SERVER, argv_of, bring, honest_work_went_on
from testbed.mounts import HERE, mounted, nothing_lost, set_parameters, set_to
from testbed.scripts import beside

__all__ = [
    "ADDRESSES",
    "FILL",
    "THERE",
    "Kept",
    "addresses",
    "fenced",
    "kept_for",
    "leave_unreceived",
    "unreceived_beside",
]

FILE = "unreceived"
# when the first is there the program ends, when the second is it begins to ask
END = ("/run/unreceived", "/run/unreceived.go")
THERE = "/sys/kernel/debug/nfsrdma-server"
CONNECTED = f'grep -q "^connections $1 " {THERE}/totals'
ALL_CONNECT = f"until {CONNECTED}; do sleep 0.2; done"
SETTLED = f'until grep -q "^reply_pages 0 " {THERE}/totals; do sleep 0.2; done'
# Calls and replies of all connections but the first, which is the mount's
COUNTED = f"""
cd {THERE}
cat /dev/null $(ls -d [0-9]* | sort -n | tail -n +2 | sed 's,$,/counters,') |
awk '{{ sum[$1] += $2 }} END {{ print sum["calls"] + 0, sum["replies"] + 0 }}'
"""
# a page that was never written is none: replies would all refer to the one of zeros;
# a dirty page cannot be freed, and would count as memory that is held
FILL = f'head -c "$1M" /dev/zero > /export/{FILE}; sync /export/{FILE}'
# addresses beside the node's own: the server limits the memory of a client by its address
ADDRESSES = tuple(f"10.9.1.{number}" for number in range(101, 105))
ADDRESS = """
device=$(ip -o -4 addr show to 10.9.1.0/24 | awk '{ print $2; exit }')
how=$1; shift
for address; do ip addr "$how" "$address/24" dev "$device"; done
"""
FENCED = f"""awk '$1 == "fenced" {{ print $2 }}' {THERE}/totals"""
# pages that replies are charged with, and the limit
CHARGED = f"""awk '$1 == "reply_pages" {{ print $2, $4 }}' {THERE}/totals"""
# MemAvailable leaves out the free pages that each CPU keeps (proc(5), /proc/zoneinfo: count);
# the most of three: the application that works beside makes pages dirty all the time
AVAILABLE = """
for n in 1 2 3; do
	sync
	echo 3 > /proc/sys/vm/drop_caches
	awk -v page="$(($(getconf PAGESIZE) / 1024))" '
		/^MemAvailable:/ { all += $2 }
		/^ *count:/ { all += $2 * page }
		END { print all }' /proc/meminfo /proc/zoneinfo
done | sort -n | tail -n 1
"""


@dataclass(frozen=True)
class Kept:
    """Memory that the server holds for the clients, in MiB."""

    limit: float
    """what the parameter server_memory allows, and the floors of all clients"""
    charged: float
    """the maximum that the server charged to clients"""
    held: float | None
    """the decrease of available memory once the server had freed all that it could; None on a
    kernel with run-time checks, where KASAN keeps freed memory for a while"""
    ended: dict[str, int]
    """how the connections ended, by reason"""
    longest: float
    """the longest read of 1 MiB on the mount, in seconds"""
    reads: int
    """the number of such reads"""
    beside: float
    """the longest Call without chunks, which needs none of that memory"""
    fenced: int
    """connections that the server ended because others waited for their memory"""


def leave_unreceived(lab: Nodes, connections: int, calls: int, to_the_end: bool) -> Kept:
    """Make ``connections`` with ``calls`` READs each, while an application works on a mount.

    Each fourth comes from another address.  Once memory is measured, the server may end connections
    for whose memory others wait.  ``to_the_end``: until it has ended all connections.  Repeats on a
    machine that is so slow that the server ended connections before memory was measured.
    """
    for _ in range(5):
        if kept := _attempt(lab, connections, calls, to_the_end):
            return kept
    raise AssertionError("five times the server ended connections before memory was measured")


def _attempt(lab: Nodes, connections: int, calls: int, to_the_end: bool) -> Kept | None:
    before, most = fenced(lab), 0.0
    with (
        nothing_lost(lab, "server"),
        set_parameters(lab, node="server", server_ack_timeout=3600),
        mounted(lab, "vers=3"),
        addresses(lab, "client"),
    ):
        argv = _program(lab, connections, calls)
        with beside(lab, "client", *argv, timeout=LIMIT) as work:
            try:
                kept = _kept(lab, work, connections, calls)
                set_to(lab, "server", "server_ack_timeout", "1")
                while not work.done() and (to_the_end or fenced(lab) == before):
                    most = max(most, kept_for(lab)[0])
                    time.sleep(0.5)
            finally:
                lab.ssh("client").run("touch", *END)
        report: dict[str, Any] = json.loads(work.result().stdout)
        lab.run("server", "sh", "-c", SETTLED, timeout=LIMIT)
    honest_work_went_on(report)
    if not kept:
        return None
    limit, charged, held = kept
    times = report["longest"], report["reads"], report["beside"]
    return Kept(limit, max(charged, most), held, report["ends"], *times, fenced(lab) - before)


@contextmanager
def unreceived_beside(lab: Nodes, node: str) -> Iterator[None]:
    """Work on a mount in a node, while other clients there receive no replies."""
    argv = _program(lab, 4, 8, node)
    lab.run("server", "sh", "-c", FILL, "sh", "32")
    lab.run(node, "touch", END[1])
    with addresses(lab, node), beside(lab, node, *argv, timeout=LIMIT) as work:
        try:
            yield
        finally:
            lab.ssh(node).run("touch", END[0])
    honest_work_went_on(json.loads(work.result().stdout))
    lab.run("server", "sh", "-c", SETTLED, timeout=LIMIT)
    lab.run("server", "rm", f"/export/{FILE}")


@contextmanager
def addresses(lab: Nodes, node: str, *which: str) -> Iterator[None]:
    """A node has some addresses for a while; the default: ADDRESSES."""
    which = which or ADDRESSES
    lab.run(node, "sh", "-ec", ADDRESS, "sh", "add", *which)
    try:
        yield
    finally:
        lab.run(node, "sh", "-ec", ADDRESS, "sh", "del", *which)


def _program(lab: Nodes, connections: int, calls: int, node: str = "client") -> tuple[str, ...]:
    """The program, brought to a node, and the file on the server that it reads."""
    bring(lab, node)
    lab.run(node, "rm", "-f", *END)
    lab.run("server", "touch", f"/export/{FILE}")
    words = (SERVER, PORT, FILE, HERE, str(connections), str(calls), END[0], ",".join(ADDRESSES))
    return argv_of("unreceived_replies", *words)


def _kept(
    lab: Nodes, work: Future[Result], connections: int, calls: int
) -> tuple[float, float, float | None] | None:
    """The limit, the most that was charged, and the memory that all of them held together."""
    weighs = lab.config.kernel not in CHECKING
    # and the mount's
    everybody = str(connections + 1)
    lab.run("server", "sh", "-c", ALL_CONNECT, "sh", everybody, timeout=LIMIT)
    before = _available(lab) if weighs else None
    lab.run("server", "sh", "-c", FILL, "sh", str(connections * calls))
    lab.run("client", "touch", END[1])
    charged, limit = _steady(lab, work, connections * (calls + 2))
    # what replies refer to stays
    lab.run("server", "rm", f"/export/{FILE}")
    held = None if before is None else before - _available(lab)
    ended = lab.run("server", "sh", "-c", CONNECTED, "sh", everybody, check=False).returncode
    if weighs and ended:
        return None
    return limit, charged, held


def _steady(lab: Nodes, work: Future[Result], calls: int) -> tuple[float, float]:
    """The most that was charged until all Calls had come and none was answered any more."""
    before, most = list[str](), 0.0
    while True:
        counts = lab.run("server", "sh", "-c", COUNTED).stdout.split()
        charged, limit = kept_for(lab)
        most = max(most, charged)
        if work.done() or (counts == before and int(counts[0]) >= calls):
            return most, limit
        before = counts
        time.sleep(1)


def kept_for(lab: Nodes) -> tuple[float, float]:
    """Memory that all replies are charged with, and the limit, in MiB."""
    pages, limit = lab.run("server", "sh", "-c", CHARGED).stdout.split()
    return int(pages) / 256, int(limit) / 256


def fenced(lab: Nodes) -> int:
    """Connections that the server has ended because others waited for their memory."""
    return int(lab.run("server", "sh", "-c", FENCED).stdout)


def _available(lab: Nodes) -> float:
    return int(lab.run("server", "sh", "-c", AVAILABLE).stdout) / 1024
