# SPDX-License-Identifier: Apache-2.0
"""Loads of many sessions, which run in a node."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.client.load import Outcome, Plan, Progress, jain, load
from testbed.node import channel, modelled
from testbed.node.sessions import restart_under
from testbed.remote import on

__all__ = ["IN_FLIGHT", "Done", "Memory", "drive", "hold", "memory", "misses", "restarted",
           "set_cache"]  # fmt: skip

DEBUGFS = Path("/sys/kernel/debug/nfsrdma_card")
TARGET = "server:/export"
# READs of all sessions together
IN_FLIGHT = 16
FILE_SIZE = 4 << 20
HOUR = 3600
# of a call, on a host that is busy
PATIENCE = 900


@dataclass(frozen=True)
class Done:
    """The result of a load; times in seconds of the node's clock."""

    operations: int
    connected: int
    connect: float
    lost: int
    reconnected: int
    up: int
    recovery: float
    jain: float


def _done(plan: Plan, outcome: Outcome) -> Done:
    if (outcome.total.failed or outcome.mismatches or outcome.connect_seconds is None
            or outcome.recovery_seconds is None):  # fmt: skip
        raise SystemExit(f"{plan.sessions} sessions: {outcome.errors} {outcome.message}")
    return Done(
        outcome.total.done, outcome.connected, outcome.connect_seconds, outcome.lost,
        outcome.reconnects, outcome.up, outcome.recovery_seconds, jain(outcome.shares),
    )  # fmt: skip


@on("client", timeout=7200)
def drive(sessions: int, seconds: float, in_flight: int, at_once: int) -> Done:
    """READs of 4 KiB at random offsets, ``in_flight`` of all sessions (0: one of each)."""
    depth = IN_FLIGHT if sessions < IN_FLIGHT and in_flight else 1
    plan = Plan(sessions=sessions, depth=depth, in_flight=in_flight, duration=seconds,
                at_once=at_once, timeout=PATIENCE, file_size=FILE_SIZE)  # fmt: skip
    return _done(plan, load(TARGET, plan, lambda _: None))


@on("client", timeout=7200)
def restarted(sessions: int) -> Done:
    """A READ per second of each session, while the server restarts; ends when all are back."""
    plan = Plan(sessions=sessions, think=1, duration=HOUR, timeout=PATIENCE, file_size=FILE_SIZE)
    return _done(plan, restart_under(TARGET, plan))


@on("client", timeout=7200)
def hold(sessions: int) -> None:
    """Connect sessions that send nothing; sends their number, and ends with the block."""
    told = False

    def watch(progress: Progress) -> None:
        nonlocal told
        if progress.seconds > 0 and not told:
            channel.send(progress.up)
            told = True
        if channel.ended():
            raise KeyboardInterrupt

    load(TARGET, Plan(sessions=sessions, think=1000 * HOUR, duration=1000 * HOUR, at_once=sessions,
                      timeout=PATIENCE, file_size=FILE_SIZE), watch)  # fmt: skip


# --- the cache of queue pairs ---


@on("client")
def set_cache(entries: int) -> None:
    """Have each card cache the states of that many queue pairs; a miss takes no time by default."""
    for card in modelled.CARDS:
        (DEBUGFS / card / "qp_cache_entries").write_text(str(entries))


@on("client")
def misses() -> int:
    """Look-ups that the caches of both cards have missed."""
    return sum(modelled.counters(card)["qp_cache_misses"] for card in modelled.CARDS)


# --- memory ---


@dataclass(frozen=True)
class Memory:
    """Memory of a node in use, in KiB, without what the kernel can free."""

    used: int
    """Of /proc/meminfo."""
    slabs: int
    """Objects of /proc/slabinfo, as many as are in use."""
    vmalloc: int
    """Of /proc/vmallocinfo: the queues of soft-RoCE."""


@on("server")
def memory() -> Memory:
    """The memory in use, after the kernel has freed its caches."""
    subprocess.run(("sync",), check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")
    rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    now = {name.rstrip(":"): int(value) for name, value, *_ in rows}
    free = sum(now[name] for name in ("MemFree", "Buffers", "Cached", "SReclaimable"))
    slabs = (line.split() for line in Path("/proc/slabinfo").read_text().splitlines()[2:])
    areas = (line.split() for line in Path("/proc/vmallocinfo").read_text().splitlines())
    return Memory(
        now["MemTotal"] - free,
        sum(int(words[1]) * int(words[3]) for words in slabs) >> 10,
        sum(int(words[1]) for words in areas if "vmalloc" in words) >> 10,
    )
