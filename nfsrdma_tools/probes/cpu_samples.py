# SPDX-License-Identifier: Apache-2.0
"""Reads the samples of bpf/cpu.c with function names, and the run time of each thread."""

from __future__ import annotations

import bisect
import ctypes
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.host import cpu_time as host
from nfsrdma_tools.host.cpu_time import ThreadTime
from nfsrdma_tools.probes import cpu_layers as layers
from nfsrdma_tools.probes.cpu_layers import Frame
from nfsrdma_tools.probes.maps import drained, text
from nfsrdma_tools.probes.session import Session

__all__ = [
    "NFSD",
    "WORKERS",
    "LayerSide",
    "Reader",
    "Reading",
    "Sample",
    "Stack",
    "Symbols",
    "ThreadLayer",
    "group",
]

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
        self.rate = 0
        self.groups: dict[int, str] = {}
        self.samples: Counter[ThreadLayer] = Counter()
        self.stacks: Counter[Sample] = Counter()
        self.symbols = Symbols(session.bpf.ksym)
        # cache names of functions by address, because a lookup is expensive
        self._stack = lru_cache(_CACHED)(self._stack_of)
        self._layer_side = lru_cache(_CACHED)(self._layer_side_of)
        # load modules now, not while clocks are compared
        host.snapshot()
        session.bpf.ksym(0)

    def read(self) -> Reading:
        """The current sums since the session began."""
        now, stat, ran = host.snapshot(), host.idle_ticks(), host.snapshot_threads()
        for thread in ran.keys() - self.groups.keys():
            self.groups[thread] = group(host.thread_name(thread))
        self._drain()
        lost = sum(self.session.table("cpu_lost")[ctypes.c_int(0)])
        samples = dict(self.samples)
        return Reading(now, stat, ran, self.groups, samples, self.stacks, self.rate, lost)

    def _drain(self) -> None:
        own, sums_only = os.getpid(), self.session.state.get("sums only")
        for name, thread, addresses, count in self._new():
            nfsd = name.startswith(_NFSD)
            where = _TRACING if thread == own else self._layer_side(addresses, nfsd)
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


class Symbols:
    """Maps addresses to functions, with a cache; modules loaded later have no layers.

    ``ksym`` is bcc's; it returns bytes such as ``do_task [rdma_rxe]`` or ``vfs_read [kernel]``.
    """

    def __init__(self, ksym: Callable[..., bytes], modules: Path = Path("/proc/modules")) -> None:
        self.ksym = ksym
        self.known: dict[int, Frame] = {}
        rows = (row.split() for row in modules.read_text().splitlines())
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
