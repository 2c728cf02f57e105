# SPDX-License-Identifier: Apache-2.0
"""Reads the samples of bpf/cpu.c, in names, and beside them what each thread ran."""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple

from nfsrdma_tools.host import cpu as host
from nfsrdma_tools.host import threads
from nfsrdma_tools.host.threads import Ran
from nfsrdma_tools.probes import layer_names as names
from nfsrdma_tools.probes import layers
from nfsrdma_tools.probes.counting import text
from nfsrdma_tools.probes.cpu_context import NFSD, Placed, Seen, Stack, Where, group
from nfsrdma_tools.probes.symbols import Symbols

__all__ = ["Reader", "Reading"]

# stacks that are remembered with their names, and those whose layer is
_KEPT, _PLACED = 20_000, 4096


class Reading(NamedTuple):
    """Sums since the session began; ``groups`` and ``stacks`` grow with it."""

    host: host.CpuTimes
    stat: tuple[int, int]
    threads: dict[int, Ran]
    groups: dict[int, str]
    samples: dict[Placed, int]
    stacks: Counter[Seen]
    rate: int
    lost: int


@lru_cache(maxsize=_PLACED)
def _placed(stack: Stack, nfsd: bool) -> Where:
    return layers.layer(stack), layers.side(stack, nfsd=nfsd)


class Reader:
    """A session's sums, of which the kernel keeps only what is new; ``rate`` as in Cpu."""

    def __init__(self, bpf: Any) -> None:
        self.bpf = bpf
        self.rate = 0
        self.groups: dict[int, str] = {}
        self.samples: Counter[Placed] = Counter()
        self.stacks: Counter[Seen] = Counter()
        self.symbols = Symbols(bpf.ksym)
        # what these load is not to be loaded while clocks are compared
        host.snapshot()
        bpf.ksym(0)

    def read(self) -> Reading:
        """Everything since the session began, as of now."""
        now, stat, ran = host.snapshot(), host.not_idle(), threads.snapshot()
        for thread in ran.keys() - self.groups.keys():
            self.groups[thread] = group(threads.name(thread))
        self._drain()
        lost = sum(self.bpf["cpu_lost"][ctypes.c_int(0)])
        samples = dict(self.samples)
        return Reading(now, stat, ran, self.groups, samples, self.stacks, self.rate, lost)

    def _drain(self) -> None:
        own = os.getpid()
        for key, count in self.bpf["cpu_samples"].items_lookup_and_delete_batch():
            seen = self._seen(key, key.thread == own)
            self.samples[key.thread, *seen.where] += count.value
            if seen in self.stacks or len(self.stacks) < _KEPT:
                self.stacks[seen] += count.value

    def forget(self, reading: Reading) -> None:
        """Keep samples and groups of threads that were there then, and no stacks."""
        there = reading.threads
        for key in [key for key in self.samples if key[0] not in there]:
            del self.samples[key]
        for thread in self.groups.keys() - there.keys():
            del self.groups[thread]
        self.stacks.clear()

    def _seen(self, key: Any, own: bool) -> Seen:
        # a slice of ctypes' arrays is made at once
        addresses = takewhile(bool, key.stack[:])
        stack = tuple(map(self.symbols.frame, addresses))
        name = text(key.name)
        name = group(name) or name
        where = (names.TRACING, layers.NEITHER) if own else _placed(stack, name == NFSD)
        return Seen(name, stack, where)
