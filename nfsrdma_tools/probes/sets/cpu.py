# SPDX-License-Identifier: Apache-2.0
"""The probe set cpu: CPU time by layer, of the whole host (bpf/cpu.c).

The kernel itself counts how long the CPUs were busy and each thread ran, to the nanosecond;
samples of their stacks only divide that time among layers (probes/cpu/layers.py).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from nfsrdma_tools.host import cpu_time as host
from nfsrdma_tools.host import thread_time
from nfsrdma_tools.probes.cpu import layer_names as names
from nfsrdma_tools.probes.cpu import layers
from nfsrdma_tools.probes.cpu.attribution import Cpu, divide, in_groups
from nfsrdma_tools.probes.cpu.samples import Reader, Reading
from nfsrdma_tools.probes.program import Missing

__all__ = [
    "FILTERS",
    "HAS_STACKS",
    "HOST_WIDE",
    "RATE",
    "attach",
    "difference",
    "forget",
    "read",
    "records",
]

FILTERS: tuple[str, ...] = ()
"""Filters of `nfsrdma trace` that it has (probes/row_filter.py)."""

HAS_STACKS = True
"""Its snapshots have stacks (probes/folded_stacks.py)."""
HOST_WIDE = True
"""Its rows do not distinguish mounts."""
RATE = 499
"""Default samples per second and CPU: a prime, so that samples do not run in step with timers."""


def attach(session: Any) -> None:
    """Start sampling; without samples only nfsd's threads can be distinguished from others."""
    reader = session.state["cpu"] = Reader(session)
    # last, so that no samples hit this preparation
    reader.rate = _sample(session)


def _sample(session: Any) -> int:
    from bcc import PerfSWConfig, PerfType

    rate: int = session.state.get("rate", RATE)
    try:
        session.bpf.attach_perf_event(
            ev_type=PerfType.SOFTWARE,
            ev_config=PerfSWConfig.CPU_CLOCK,
            fn_name="cpu_sampled",
            sample_freq=rate,
        )
    except Exception as error:
        session.missing += (Missing("perf:cpu-clock", f"cannot sample stacks: {error}"),)
        return 0
    return rate


def read(session: Any) -> Reading:
    """The counts since the session began."""
    reading: Reading = session.state["cpu"].read()
    return reading


def forget(session: Any, reading: Reading, now: float) -> None:
    """Free samples of threads that had ended, and stacks: in hours they become many."""
    del now
    session.state["cpu"].forget(reading)


def difference(after: Reading, before: Reading) -> Cpu:
    """The difference between two readings of one session."""
    spent = host.difference(after.host, before.host)
    samples = {key: n - before.samples.get(key, 0) for key, n in after.samples.items()}
    return Cpu(
        threads=thread_time.difference(after.threads, before.threads, spent.wall_ns),
        groups=after.groups,
        # a count decreases if a new thread reuses a forgotten TID
        samples={key: n for key, n in samples.items() if n > 0},
        stacks=after.stacks,
        host=spent,
        stat_ns=_stat(after, before, spent.wall_ns),
        rate=after.rate,
        lost=after.lost - before.lost,
    )


def _stat(after: Reading, before: Reading, wall_ns: int) -> int:
    # read slightly later than the others: scale it to their interval, as for threads
    went_by = after.stat[0] - before.stat[0]
    _, busy = host.busy_between(after.stat[1], before.stat[1], went_by)
    return busy * wall_ns // went_by if went_by else 0


def records(snapshot: Cpu, clients: dict[int, tuple[str, ...]]) -> list[dict[str, Any]]:
    """A row for each layer in which time was spent, then "busy", their sum, and "idle".

    Each has nanoseconds, in total and by side.  "busy" also has the value of /proc/stat
    (``stat_ns``, in ticks), the run time of groups of threads, and sampling statistics.
    """
    del clients
    wall = snapshot.host.wall_ns * snapshot.host.cpus
    busy = snapshot.host.busy_ns
    spent = divide(snapshot)
    rows = [_row(name, spent, busy) for name in names.LAYERS if name != names.IDLE]
    total: dict[str, Any] = {"layer": "busy", "ns": busy, "share": busy / wall if wall else 0.0}
    total |= {f"{side}_ns": sum(row[f"{side}_ns"] for row in rows) for side in layers.SIDES}
    total |= {
        "stat_ns": snapshot.stat_ns,
        "threads": in_groups(snapshot),
        "rate": snapshot.rate,
        "samples": sum(snapshot.samples.values()),
        "lost": snapshot.lost,
        "cpus": snapshot.host.cpus,
        "wall_ns": snapshot.host.wall_ns,
    }
    idle = {"layer": names.IDLE, "ns": wall - busy, "share": 1 - total["share"]}
    return [row for row in rows if row["ns"]] + [total, idle]


def _row(name: str, spent: Counter[tuple[str, str]], busy: int) -> dict[str, Any]:
    sides = {f"{side}_ns": spent[name, side] for side in layers.SIDES}
    ns = sum(sides.values())
    return {"layer": name, "ns": ns, "share": ns / busy if busy else 0.0, **sides}
