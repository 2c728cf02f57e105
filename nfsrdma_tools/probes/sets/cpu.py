# SPDX-License-Identifier: Apache-2.0
"""The probe set cpu: CPU time by layer, of the whole host (bpf/cpu.c).

The kernel itself counts how long the CPUs were busy and each thread ran, to the nanosecond;
samples of their stacks only divide that time among layers (probes/cpu_layers.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nfsrdma_tools.errors import UserError, printable
from nfsrdma_tools.files import write_atomically
from nfsrdma_tools.host import cpu_time as host
from nfsrdma_tools.probes import cpu_layers as layers
from nfsrdma_tools.probes.cpu_layers import Frame
from nfsrdma_tools.probes.cpu_samples import (
    NFSD,
    WORKERS,
    LayerSide,
    Reader,
    Reading,
    Sample,
    ThreadLayer,
)
from nfsrdma_tools.probes.program import Missing
from nfsrdma_tools.probes.session import Session

__all__ = [
    "FILTERS",
    "HOST_WIDE",
    "RATE",
    "Cpu",
    "attach",
    "difference",
    "divide",
    "forget",
    "in_groups",
    "read",
    "records",
    "stack_writer",
]

FILTERS: tuple[str, ...] = ()
"""Filters of `nfsrdma trace` that it has (probes/row_filter.py)."""

HOST_WIDE = True
"""Its rows do not distinguish mounts."""
RATE = 499
"""Default samples per second and CPU: a prime, so that samples do not run in step with timers."""
# ended threads, interrupts of idle CPUs, and threads that ran too briefly to be sampled
_REST = "rest"


@dataclass(frozen=True)
class Cpu:
    """The run times of threads (ns, by TID) and their samples.

    ``groups`` are those of equal threads. ``stacks`` are the samples of the whole session.
    ``stat_ns`` is busy time by /proc/stat. ``rate`` is samples per second and CPU, 0 without
    samples; ``lost`` counts samples without room in the map.
    """

    threads: Mapping[int, int]
    groups: Mapping[int, str]
    samples: Mapping[ThreadLayer, int]
    stacks: Mapping[Sample, int]
    host: host.CpuTimes
    stat_ns: int
    rate: int
    lost: int


def attach(session: Session) -> None:
    """Start sampling; without samples only nfsd's threads can be distinguished from others."""
    reader = session.state["cpu"] = Reader(session)
    # last, so that no samples hit this preparation
    reader.rate = _sample(session)


def _sample(session: Session) -> int:
    from bcc import PerfSWConfig, PerfType

    rate: int = session.state.get("rate", RATE)
    # a timer of the kernel: virtual machines often have no counters of the processor
    try:
        session.bpf.attach_perf_event(
            ev_type=PerfType.SOFTWARE,
            ev_config=PerfSWConfig.CPU_CLOCK,
            fn_name="cpu_sampled",
            sample_freq=rate,
        )
    # bcc raises Exception itself
    except Exception as error:
        session.missing += (Missing("perf:cpu-clock", f"cannot sample stacks: {error}"),)
        return 0
    return rate


def read(session: Session) -> Reading:
    """The counts since the session began."""
    reading: Reading = session.state["cpu"].read()
    return reading


def forget(session: Session, reading: Reading, now: float) -> None:
    """Free samples of threads that had ended, and stacks: in hours they become many."""
    del now
    session.state["cpu"].forget(reading)


def difference(after: Reading, before: Reading) -> Cpu:
    """The difference between two readings of one session."""
    spent = host.difference(after.host, before.host)
    samples = {key: n - before.samples.get(key, 0) for key, n in after.samples.items()}
    return Cpu(
        threads=host.difference_of_threads(after.threads, before.threads, spent.wall_ns),
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
    rows = [_row(name, spent, busy) for name in layers.LAYERS if name != layers.IDLE]
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
    idle = {"layer": layers.IDLE, "ns": wall - busy, "share": 1 - total["share"]}
    return [row for row in rows if row["ns"]] + [total, idle]


def _row(name: str, spent: Counter[tuple[str, str]], busy: int) -> dict[str, Any]:
    sides = {f"{side}_ns": spent[name, side] for side in layers.SIDES}
    ns = sum(sides.values())
    return {"layer": name, "ns": ns, "share": ns / busy if busy else 0.0, **sides}


def divide(snapshot: Cpu) -> Counter[LayerSide]:
    """Busy nanoseconds by layer and side; they add up to the host's busy time."""
    samples = _samples_by_thread(snapshot)
    ran = _ran(snapshot, samples)
    total = sum(ran.values())
    spent: Counter[LayerSide] = Counter()
    for key, ns in ran.items():
        for where, count in _shares(samples.get(key), key).items():
            spent[where] += round(ns * count * snapshot.host.busy_ns / total)
    return spent


def in_groups(snapshot: Cpu) -> dict[str, int]:
    """The run time of each group of threads, in ns."""
    times: Counter[str] = Counter()
    for thread, ns in snapshot.threads.items():
        times[snapshot.groups.get(thread, "")] += ns
    return {name: times[name] for name in (NFSD, WORKERS)}


def _samples_by_thread(snapshot: Cpu) -> dict[int | str, Counter[LayerSide]]:
    samples: dict[int | str, Counter[LayerSide]] = {}
    for (thread, name, side), count in snapshot.samples.items():
        if name != layers.IDLE:
            key = _key(snapshot, thread) if thread in snapshot.threads else _REST
            samples.setdefault(key, Counter())[name, side] += count
    return samples


def _ran(snapshot: Cpu, sampled: Iterable[int | str]) -> Counter[int | str]:
    """The time of each key of ``sampled``; the remaining busy time is unattributed."""
    times: Counter[int | str] = Counter()
    for thread, ns in snapshot.threads.items():
        key = _key(snapshot, thread)
        if key in (NFSD, WORKERS) or key in sampled:
            times[key] += ns
    # slightly negative at times, because the clocks are read one after the other
    times[_REST] = max(snapshot.host.busy_ns - sum(times.values()), 0)
    return +times


def _key(snapshot: Cpu, thread: int) -> int | str:
    return snapshot.groups.get(thread) or thread


def _shares(samples: Counter[LayerSide] | None, key: int | str) -> dict[LayerSide, float]:
    if samples:
        return {where: count / samples.total() for where, count in samples.items()}
    if key == NFSD:
        return {(layers.NFSD, layers.SERVER): 1.0}
    return {(layers.UNATTRIBUTED, layers.NEITHER): 1.0}


def stack_writer(file: Path) -> Callable[[Cpu], None]:
    """A function that writes the stacks of a snapshot and replaces ``file`` in one step.

    The format is that of flame graph programs, folded stacks.  A line has the thread and its
    functions, outermost first, separated by semicolons; then the number of samples.
    """
    if not file.parent.is_dir():
        raise UserError(f"{file.parent} is not a directory", "create it first")
    return lambda snapshot: write_atomically(file, _folded(snapshot))


def _folded(snapshot: Cpu) -> str:
    """The stacks of the whole session, without idle CPUs."""
    counts: Counter[str] = Counter()
    for sample, count in snapshot.stacks.items():
        if sample.where[0] != layers.IDLE:
            counts[";".join(map(_word, _path(sample)))] += count
    return "".join(f"{path} {count}\n" for path, count in sorted(counts.items()))


def _path(sample: Sample) -> list[str]:
    """From the thread to the running function; an interrupt takes the place of the thread."""
    inside = layers.uninterrupted(sample.stack)
    if len(inside) < len(sample.stack):
        entry = sample.stack[len(inside)]
        return ["interrupts", *map(_function, reversed([*inside, entry]))]
    return [sample.name, *(map(_function, reversed(inside)) if inside else ("user space",))]


def _function(frame: Frame) -> str:
    return f"{frame.function} [{frame.module}]" if frame.module else frame.function


def _word(text: str) -> str:
    # a thread chooses its name
    return printable(text).replace(";", ":")
