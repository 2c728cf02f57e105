# SPDX-License-Identifier: Apache-2.0
"""Reads the samples of bpf/cpu.c, in names, and beside them what each thread ran."""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from itertools import takewhile
from typing import Any, NamedTuple

from nfsrdma_tools.host import cpu as host
from nfsrdma_tools.host import threads
from nfsrdma_tools.host.threads import Ran
from nfsrdma_tools.probes import layer_names as names
from nfsrdma_tools.probes import layers
from nfsrdma_tools.probes.counting import text
from nfsrdma_tools.probes.cpu_context import NFSD, Placed, Seen, group
from nfsrdma_tools.probes.symbols import Symbols

__all__ = ["Reader", "Reading"]

# stacks that are remembered with their names
_KEPT = 20_000


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


class Reader:
    """A session's sums, of which the kernel keeps only what is new; ``rate`` as in Cpu."""

    def __init__(self, bpf: Any) -> None:
        self.bpf = bpf
        self.rate = 0
        self.groups: dict[int, str] = {}
        self.samples: Counter[Placed] = Counter()
        self.stacks: Counter[Seen] = Counter()
        self.known: dict[bytes, Seen] = {}
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
        for key, count in self.bpf["cpu_samples"].items_lookup_and_delete_batch():
            seen = self._seen(key)
            self.samples[key.thread, *seen.where] += count.value
            if seen in self.stacks or len(self.stacks) < _KEPT:
                self.stacks[seen] += count.value

    def _seen(self, key: Any) -> Seen:
        raw = bytes(key.name) + bytes(key.stack) + bytes([key.thread == os.getpid()])
        if raw not in self.known:
            if len(self.known) > _KEPT:
                self.known.clear()
            stack = tuple(self.symbols.frame(address) for address in takewhile(bool, key.stack))
            name = group(text(key.name)) or text(key.name)
            where = layers.layer(stack), layers.side(stack, nfsd=name == NFSD)
            if key.thread == os.getpid():
                where = names.TRACING, layers.NEITHER
            self.known[raw] = Seen(name, stack, where)
        return self.known[raw]
