# SPDX-License-Identifier: Apache-2.0
"""The probe set cpu: CPU time by layer, of the whole host (bpf/cpu.c).

The kernel itself counts how long the CPUs were busy and each thread ran, to the nanosecond;
samples of their stacks only divide that time among layers (probes/cpu_layers.py).
"""

from __future__ import annotations

import bisect
import ctypes
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from nfsrdma_tools.errors import UserError, printable
from nfsrdma_tools.files import write_atomically
from nfsrdma_tools.host import cpu_time as host
from nfsrdma_tools.host.cpu_time import ThreadTime
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.probes import cpu_layers as layers
from nfsrdma_tools.probes import kallsyms
from nfsrdma_tools.probes.columns import Column, Record, words
from nfsrdma_tools.probes.cpu_layers import Frame
from nfsrdma_tools.probes.maps import drained, text
from nfsrdma_tools.probes.probe_sets import ProbeSet
from nfsrdma_tools.probes.program import Missing
from nfsrdma_tools.probes.session import Session

__all__ = [
    "NFSD", "PROBE_SET", "RATE", "WORKERS", "Cpu", "LayerSide", "Reader", "Reading", "Sample",
    "Stack", "Symbols", "ThreadLayer", "divide", "group", "in_groups",
]  # fmt: skip

WORKERS, NFSD = "kworker", "nfsd"
"""Groups of equal threads: their times and samples are added up."""
Stack = tuple[Frame, ...]
"""Kernel functions, the innermost first; empty in user space."""
LayerSide = tuple[str, str]
"""A layer and a side."""
ThreadLayer = tuple[int, str, str]
"""A thread, and the layer and side of a sample."""


class Sample(NamedTuple):
    """A sample: the thread and its stack."""

    name: str
    stack: Stack
    where: LayerSide


# the most stacks that a session keeps, and the size of the caches of names and layers
_MOST_STACKS, _CACHED = 20_000, 4096
# the fields before the addresses in struct cpu_sample of bpf/cpu.c: a name and a TID
_BEFORE = 24
_NFSD = f"{NFSD}\0".encode()
_TRACING: LayerSide = layers.TRACING, layers.NEITHER


class Reading(NamedTuple):
    """Sums since the session began; ``groups`` and ``stacks`` grow with it."""

    host: host.CpuCounters
    stat: tuple[int, dict[int, int]]
    threads: dict[int, ThreadTime]
    groups: dict[int, str]
    samples: dict[ThreadLayer, int]
    stacks: Counter[Sample]
    rate: int
    lost: int


@lru_cache(maxsize=_CACHED)
def _layer_and_side(stack: Stack, nfsd: bool) -> LayerSide:
    return layers.layer(stack), layers.side(stack, nfsd=nfsd)


def group(name: str) -> str:
    """The group of threads of this name; "" if there is none."""
    return name if name == NFSD else WORKERS if name.startswith("kworker/") else ""


def _group(raw: bytes) -> str:
    name = text(raw)
    return group(name) or name


class Reader:
    """The sums of a session; the kernel keeps only new samples.  ``rate`` as in Cpu."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.machine: Machine = session.state.get("machine", LIVE)
        # samples have the numbers that the host has for threads
        self.own = _own_number(self.machine.path("proc"))
        self.rate = 0
        self.groups: dict[int, str] = {}
        self.samples: Counter[ThreadLayer] = Counter()
        self.stacks: Counter[Sample] = Counter()
        self.symbols = Symbols(session.bpf.ksym)
        # cache names of functions by address, because a lookup is expensive
        self._stack = lru_cache(_CACHED)(self._stack_of)
        self._layer_side = lru_cache(_CACHED)(self._layer_side_of)
        # load modules now, not while clocks are compared
        host.snapshot(self.machine)
        if not kallsyms.are_hidden():
            session.bpf.ksym(0)

    def read(self) -> Reading:
        """The current sums since the session began."""
        now, stat = host.snapshot(self.machine), host.idle_ticks(self.machine)
        ran = host.snapshot_threads(self.machine)
        for thread in ran.keys() - self.groups.keys():
            self.groups[thread] = group(host.thread_name(thread, self.machine))
        self._drain()
        lost = sum(self.session.table("cpu_lost")[ctypes.c_int(0)])
        samples = dict(self.samples)
        return Reading(now, stat, ran, self.groups, samples, self.stacks, self.rate, lost)

    def _drain(self) -> None:
        sums_only = self.session.state.get("sums only")
        for name, thread, addresses, count in self._new():
            nfsd = name.startswith(_NFSD)
            where = _TRACING if thread == self.own else self._layer_side(addresses, nfsd)
            self.samples[thread, *where] += count
            if not sums_only:
                self._keep(Sample(_group(name), self._stack(addresses), where), count)

    def _new(self) -> Iterator[tuple[bytes, int, bytes, int]]:
        """The name, thread, addresses and count of each new sample."""
        for keys, counts in drained(self.session, "cpu_samples"):
            numbers = struct.unpack(f"={len(counts) // 8}Q", counts)
            form = f"=16sQ{len(keys) // len(numbers) - _BEFORE}s"
            for key, count in zip(struct.iter_unpack(form, keys), numbers, strict=True):
                yield *key, count

    def _keep(self, sample: Sample, count: int) -> None:
        if sample in self.stacks or len(self.stacks) < _MOST_STACKS:
            self.stacks[sample] += count

    def forget(self, reading: Reading) -> None:
        """Drop all stacks, and the samples and groups of threads that ended before ``reading``."""
        alive = reading.threads
        for key in [key for key in self.samples if key[0] not in alive]:
            del self.samples[key]
        for thread in self.groups.keys() - alive.keys():
            del self.groups[thread]
        self.stacks.clear()

    def _layer_side_of(self, addresses: bytes, nfsd: bool) -> LayerSide:
        return _layer_and_side(self._stack(addresses), nfsd)

    def _stack_of(self, addresses: bytes) -> Stack:
        numbers = struct.unpack(f"={len(addresses) // 8}Q", addresses)
        return self.symbols.frames(tuple(takewhile(bool, numbers)))


def _own_number(proc: Path) -> int:
    """The number of this process in ``proc``; 0 if it is not listed there."""
    try:
        return int((proc / "self").readlink().name)
    except (OSError, ValueError):
        return 0


class Symbols:
    """Maps addresses to functions, with a cache; modules loaded later have no layers.

    ``ksym`` is bcc's; it returns bytes such as ``do_task [rdma_rxe]`` or ``vfs_read [kernel]``.
    """

    def __init__(self, ksym: Callable[..., bytes], machine: Machine = LIVE) -> None:
        self.ksym = ksym
        self.known: dict[int, Frame] = {}
        rows = (row.split() for row in machine.path("proc/modules").read_text().splitlines())
        self.modules = sorted((int(row[5], 16), row[0]) for row in rows)

    def frames(self, addresses: Sequence[int]) -> tuple[Frame, ...]:
        """The functions at these addresses."""
        try:
            return tuple(map(self.known.__getitem__, addresses))
        except KeyError:
            return tuple(map(self.frame, addresses))

    def frame(self, address: int) -> Frame:
        """The function at an address."""
        frame = self.known.get(address)
        if frame is None:
            symbol = self.ksym(address, show_module=True).decode(errors="replace")
            function, _, module = symbol.partition(" [")
            named = Frame(function, module.rstrip("]").removeprefix("kernel"))
            frame = self.known[address] = self._live(named, address)
        return frame

    def _live(self, frame: Frame, address: int) -> Frame:
        """The frame, or one of the module whose code now is where another's init code was.

        ftrace keeps names of freed functions (ftrace_mod_get_kallsym in kernel/trace/ftrace.c),
        and other modules reuse their memory.
        """
        index = bisect.bisect(self.modules, (address, "~")) - 1
        loaded = self.modules[index][1] if index >= 0 else ""
        if loaded == frame.module or frame.module not in {name for _, name in self.modules}:
            return frame
        return Frame("(no name)", loaded)


RATE = 499
"""Default samples per second and CPU: a prime, so that samples do not run in step with timers."""
# ended threads, interrupts of idle CPUs, and threads that ran too briefly to be sampled
_REST = "rest"
_SAMPLES = "perf:cpu-clock"
_HIDDEN = "the kernel hides its addresses from this program, which lacks CAP_SYSLOG"


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
    # bcc would read the list of all symbols again for each address
    if kallsyms.are_hidden():
        session.missing += (Missing(_SAMPLES, _HIDDEN),)
        return 0
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
        session.missing += (Missing(_SAMPLES, f"cannot sample stacks: {error}"),)
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


def _milliseconds(key: str, head: str) -> Column:
    """Nanoseconds as milliseconds; blank for 0."""
    return Column(head, lambda record: f"{record[key] / 1e6:.1f}" if record.get(key) else "")


def _sampling(record: Record) -> str:
    """The source of the sum of all layers."""
    if "stat_ns" not in record:
        return ""
    lost = f", {record['lost']} lost" if record["lost"] else ""
    sampled = f"{record['samples']} samples at {record['rate']} Hz{lost}"
    stat = f"/proc/stat: {record['stat_ns'] / 1e6:.0f}"
    return f"{stat}; {sampled if record['rate'] else 'no samples'}"


PROBE_SET = ProbeSet(
    "cpu", "Which layer uses the CPU?",
    (
        words("layer"),
        # ten characters for 50 %
        Column("share", lambda record: "#" * round(float(record["share"]) * 20)),
        Column("%", lambda record: f"{record['share']:.1%}"), _milliseconds("ns", "ms"),
        *(_milliseconds(f"{side}_ns", side) for side in layers.SIDES), Column("", _sampling),
    ),
    read, difference, records,
    host_wide=True, attach=attach, forget=forget, stack_writer=stack_writer,
)  # fmt: skip
