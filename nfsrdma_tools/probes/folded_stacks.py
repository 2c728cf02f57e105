# SPDX-License-Identifier: Apache-2.0
"""Sampled stacks as folded stacks, the format that flame graph programs read.

A line has the thread and its functions, outermost first, separated by semicolons; then the number
of samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nfsrdma_tools.errors import UsageError, UserError, printable
from nfsrdma_tools.files import write_atomically
from nfsrdma_tools.probes.cpu import layer_names as names
from nfsrdma_tools.probes.cpu import layers
from nfsrdma_tools.probes.cpu.attribution import Cpu, Seen
from nfsrdma_tools.probes.cpu.layers import Frame
from nfsrdma_tools.probes.probe_sets import ProbeSet

__all__ = ["folded", "writer"]


def folded(snapshot: Cpu) -> str:
    """The stacks of the whole session, without idle CPUs."""
    counts: Counter[str] = Counter()
    for seen, samples in snapshot.stacks.items():
        if seen.where[0] != names.IDLE:
            counts[";".join(map(_word, _path(seen)))] += samples
    return "".join(f"{path} {samples}\n" for path, samples in sorted(counts.items()))


def _path(seen: Seen) -> list[str]:
    """From the thread to the running function; an interrupt takes the place of the thread."""
    inside = layers.uninterrupted(seen.stack)
    if len(inside) < len(seen.stack):
        entry = seen.stack[len(inside)]
        return ["interrupts", *map(_function, reversed([*inside, entry]))]
    return [seen.name, *(map(_function, reversed(inside)) if inside else ("user space",))]


def _function(frame: Frame) -> str:
    return f"{frame.function} [{frame.module}]" if frame.module else frame.function


def _word(text: str) -> str:
    # a thread chooses its name
    return printable(text).replace(";", ":")


def writer(probe_set: ProbeSet, file: Path) -> Callable[[Any], None]:
    """A function that writes the stacks of a snapshot and replaces ``file`` in one step.

    Raises UsageError if the probe set samples no stacks, UserError if the directory is missing.
    """
    if not probe_set.has_stacks:
        raise UsageError(f"trace {probe_set.name} has no option --folded", "use trace cpu --folded")
    if not file.parent.is_dir():
        raise UserError(f"{file.parent} is not a directory", "create it first")
    return lambda snapshot: write_atomically(file, folded(snapshot))
