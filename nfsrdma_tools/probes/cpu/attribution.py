# SPDX-License-Identifier: Apache-2.0
"""Divides CPU time: the exact run time of each thread, by the layers of its samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nfsrdma_tools.host import cpu_time as host
from nfsrdma_tools.probes.cpu import layer_names as names
from nfsrdma_tools.probes.cpu import layers
from nfsrdma_tools.probes.cpu.layers import Frame

__all__ = [
    "NFSD",
    "WORKERS",
    "Cpu",
    "Placed",
    "Seen",
    "Stack",
    "Where",
    "divide",
    "group",
    "in_groups",
]

WORKERS, NFSD = "kworker", "nfsd"
"""Groups of equal threads: their times and samples are added up."""
# ended threads, interrupts of idle CPUs, and threads that ran too briefly to be sampled
_REST = "rest"

Stack = tuple[Frame, ...]
"""Kernel functions, the innermost first; empty in user space."""
Where = tuple[str, str]
"""A layer and a side."""
Placed = tuple[int, str, str]
"""A thread, and the layer and side of a sample."""


class Seen(NamedTuple):
    """A sample: the thread and its stack."""

    name: str
    stack: Stack
    where: Where


@dataclass(frozen=True)
class Cpu:
    """The run times of threads (ns, by TID) and their samples.

    ``groups`` are those of equal threads. ``stacks`` are the samples of the whole session.
    ``stat_ns`` is busy time by /proc/stat. ``rate`` is samples per second and CPU, 0 without
    samples; ``lost`` counts samples without room in the map.
    """

    threads: Mapping[int, int]
    groups: Mapping[int, str]
    samples: Mapping[Placed, int]
    stacks: Mapping[Seen, int]
    host: host.CpuTimes
    stat_ns: int
    rate: int
    lost: int


def group(name: str) -> str:
    """The group of threads of this name; "" if there is none."""
    return name if name == NFSD else WORKERS if name.startswith("kworker/") else ""


def divide(snapshot: Cpu) -> Counter[Where]:
    """Busy nanoseconds by layer and side; they add up to the host's busy time."""
    seen = _seen(snapshot)
    ran = _ran(snapshot, seen)
    total = sum(ran.values())
    spent: Counter[Where] = Counter()
    for key, ns in ran.items():
        for where, count in _shares(seen.get(key), key).items():
            spent[where] += round(ns * count * snapshot.host.busy_ns / total)
    return spent


def in_groups(snapshot: Cpu) -> dict[str, int]:
    """The run time of each group of threads, in ns."""
    found: Counter[str] = Counter()
    for thread, ns in snapshot.threads.items():
        found[snapshot.groups.get(thread, "")] += ns
    return {name: found[name] for name in (NFSD, WORKERS)}


def _seen(snapshot: Cpu) -> dict[int | str, Counter[Where]]:
    found: dict[int | str, Counter[Where]] = {}
    for (thread, name, side), count in snapshot.samples.items():
        if name != names.IDLE:
            key = _key(snapshot, thread) if thread in snapshot.threads else _REST
            found.setdefault(key, Counter())[name, side] += count
    return found


def _ran(snapshot: Cpu, seen: Iterable[int | str]) -> Counter[int | str]:
    """The time of each key of ``seen``; the remaining busy time is unattributed."""
    found: Counter[int | str] = Counter()
    for thread, ns in snapshot.threads.items():
        key = _key(snapshot, thread)
        if key in (NFSD, WORKERS) or key in seen:
            found[key] += ns
    # slightly negative at times, because the clocks are read one after the other
    found[_REST] = max(snapshot.host.busy_ns - sum(found.values()), 0)
    return +found


def _key(snapshot: Cpu, thread: int) -> int | str:
    return snapshot.groups.get(thread) or thread


def _shares(seen: Counter[Where] | None, key: int | str) -> dict[Where, float]:
    if seen:
        return {where: count / seen.total() for where, count in seen.items()}
    if key == NFSD:
        return {(names.NFSD, layers.SERVER): 1.0}
    return {(names.UNATTRIBUTED, layers.NEITHER): 1.0}
