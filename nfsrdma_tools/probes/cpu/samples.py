# SPDX-License-Identifier: Apache-2.0
"""Reads the samples of bpf/cpu.c with function names, and the run time of each thread."""

from __future__ import annotations

import ctypes
import os
import struct
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple

from nfsrdma_tools.host import cpu_time as host
from nfsrdma_tools.host import thread_time
from nfsrdma_tools.host.thread_time import Ran
from nfsrdma_tools.probes.counters import text
from nfsrdma_tools.probes.cpu import layer_names as names
from nfsrdma_tools.probes.cpu import layers
from nfsrdma_tools.probes.cpu.attribution import NFSD, Placed, Seen, Stack, Where, group
from nfsrdma_tools.probes.cpu.symbols import Symbols
from nfsrdma_tools.probes.maps import drained

__all__ = ["Reader", "Reading"]

# cache sizes: stacks with their names, and stacks with their layer
_KEPT, _PLACED = 20_000, 4096
# the fields before the addresses in struct cpu_sample of bpf/cpu.c: a name and a TID
_BEFORE = 24
_NFSD = f"{NFSD}\0".encode()
_TRACING: Where = names.TRACING, layers.NEITHER


class Reading(NamedTuple):
    """Sums since the session began; ``groups`` and ``stacks`` grow with it."""

    host: host.CpuCounters
    stat: tuple[int, dict[int, int]]
    threads: dict[int, Ran]
    groups: dict[int, str]
    samples: dict[Placed, int]
    stacks: Counter[Seen]
    rate: int
    lost: int


@lru_cache(maxsize=_PLACED)
def _placed(stack: Stack, nfsd: bool) -> Where:
    return layers.layer(stack), layers.side(stack, nfsd=nfsd)


def _group(raw: bytes) -> str:
    name = text(raw)
    return group(name) or name


class Reader:
    """The sums of a session; the kernel keeps only new samples.  ``rate`` as in Cpu."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.rate = 0
        self.groups: dict[int, str] = {}
        self.samples: Counter[Placed] = Counter()
        self.stacks: Counter[Seen] = Counter()
        self.symbols = Symbols(session.bpf.ksym)
        # cache names of functions by address, because a lookup is expensive
        self._stack = lru_cache(_PLACED)(self._named)
        self._where = lru_cache(_PLACED)(self._found)
        # load modules now, not while clocks are compared
        host.snapshot()
        session.bpf.ksym(0)

    def read(self) -> Reading:
        """The current sums since the session began."""
        now, stat, ran = host.snapshot(), host.idle_ticks(), thread_time.snapshot()
        for thread in ran.keys() - self.groups.keys():
            self.groups[thread] = group(thread_time.name(thread))
        self._drain()
        lost = sum(self.session.table("cpu_lost")[ctypes.c_int(0)])
        samples = dict(self.samples)
        return Reading(now, stat, ran, self.groups, samples, self.stacks, self.rate, lost)

    def _drain(self) -> None:
        own, sums_only = os.getpid(), self.session.state.get("sums only")
        for name, thread, addresses, count in self._new():
            nfsd = name.startswith(_NFSD)
            where = _TRACING if thread == own else self._where(addresses, nfsd)
            self.samples[thread, *where] += count
            if not sums_only:
                self._keep(Seen(_group(name), self._stack(addresses), where), count)

    def _new(self) -> Iterator[tuple[bytes, int, bytes, int]]:
        """The name, thread, addresses and count of each new sample."""
        for keys, counts in drained(self.session, "cpu_samples"):
            numbers = struct.unpack(f"={len(counts) // 8}Q", counts)
            form = f"=16sQ{len(keys) // len(numbers) - _BEFORE}s"
            for key, count in zip(struct.iter_unpack(form, keys), numbers, strict=True):
                yield *key, count

    def _keep(self, seen: Seen, count: int) -> None:
        if seen in self.stacks or len(self.stacks) < _KEPT:
            self.stacks[seen] += count

    def forget(self, reading: Reading) -> None:
        """Drop all stacks, and the samples and groups of threads that ended before ``reading``."""
        there = reading.threads
        for key in [key for key in self.samples if key[0] not in there]:
            del self.samples[key]
        for thread in self.groups.keys() - there.keys():
            del self.groups[thread]
        self.stacks.clear()

    def _found(self, addresses: bytes, nfsd: bool) -> Where:
        return _placed(self._stack(addresses), nfsd)

    def _named(self, addresses: bytes) -> Stack:
        numbers = struct.unpack(f"={len(addresses) // 8}Q", addresses)
        return self.symbols.frames(tuple(takewhile(bool, numbers)))
