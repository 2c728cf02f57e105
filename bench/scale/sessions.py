# SPDX-License-Identifier: Apache-2.0
"""Loads of many sessions, which run in a node."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.client.load import Plan, Progress, jain, load
from testbed.node import channel, modelled
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
    """What became of a load; times in seconds of the node's clock."""

    operations: int
    connected: int
    connect: float
    lost: int
    reconnected: int
    up: int
    recovery: float
    jain: float


def _put(plan: Plan, restart: bool) -> Done:
    reports = 0

    def watch(progress: Progress) -> None:
        nonlocal reports
        if not restart or progress.seconds <= 0:
            return
        reports += 1
        if reports == 1:
            subprocess.run(("systemctl", "restart", "nfs-server"), check=True)
        elif reports > 3 and progress.up == plan.sessions:
            raise KeyboardInterrupt

    outcome = load(TARGET, plan, watch)
    if outcome.total.failed or outcome.mismatches or outcome.connect_seconds is None:
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
    return _put(plan, restart=False)


@on("client", timeout=7200)
def restarted(sessions: int) -> Done:
    """A READ per second of each session, while the server restarts; ends when all are back."""
    plan = Plan(sessions=sessions, think=1, duration=HOUR, timeout=PATIENCE, file_size=FILE_SIZE)
    return _put(plan, restart=True)


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
    """Have each card cache the states of that many queue pairs, and no miss take time."""
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
    """What is in use, after the kernel has freed its caches."""
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
