# SPDX-License-Identifier: Apache-2.0
"""The probe sets: each is a program in bpf/ and a module in sets/ that reads it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nfsrdma_tools.errors import UsageError
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.probes.columns import Column, Record
from nfsrdma_tools.probes.program import NAMES
from nfsrdma_tools.probes.session import Session, session

__all__ = ["NAMES", "ProbeSet", "attached", "probe_set"]


@dataclass(frozen=True)
class ProbeSet:
    """A probe set; the PROBE_SET of each module of sets/.

    ``question`` and the names of ``filters``, fields of ``Filter``, are in the help and on the page
    of `nfsrdma trace`, whose tables have ``columns``.  ``read(session)`` is a snapshot,
    ``difference(after, before)`` another, and ``records(snapshot, clients)`` its rows, whose values
    are plain: numbers, texts, and lists of numbers for histograms.  ``attach(session)`` attaches
    further probes once the program is loaded, ``time(session)`` more expensive ones that measure
    the CPU time of events.  ``forget(session, reading, now)`` frees data that only differences to
    earlier readings would need, and idle rows; ``now`` is in seconds of a monotonic clock.
    ``stack_writer(file)`` is a function that writes the stacks of a snapshot; UserError if the
    directory is missing.  A probe set that is ``host_wide`` does not distinguish mounts.
    """

    name: str
    question: str
    columns: Sequence[Column]
    read: Callable[[Session], Any]
    difference: Callable[[Any, Any], Any]
    records: Callable[[Any, dict[int, tuple[str, ...]]], list[Record]]
    filters: tuple[str, ...] = ()
    host_wide: bool = False
    attach: Callable[[Session], object] = id
    time: Callable[[Session], object] | None = None
    forget: Callable[[Session, Any, float], object] = lambda *_: None
    stack_writer: Callable[[Path], Callable[[Any], None]] | None = None


def probe_set(name: str, known: Sequence[str] = NAMES) -> ProbeSet:
    """The probe set of this name.  UsageError if there is none."""
    if name not in known:
        raise UsageError(f"unknown probe set {name!r}", f"the probe sets are {', '.join(known)}")
    module = importlib.import_module(f"nfsrdma_tools.probes.sets.{name}")
    found: ProbeSet = module.PROBE_SET
    return found


@contextlib.contextmanager
def attached(
    names: Sequence[str],
    timed: bool = False,
    rate: int | None = None,
    sums_only: bool = False,
    pid: int = 0,
    machine: Machine = LIVE,
) -> Iterator[Session]:
    """A session with these probe sets attached, but for those that this kernel's events lack.

    ``timed`` adds the CPU time of events to probe sets that can measure it.  ``rate`` is in samples
    per second and CPU, for probe sets that sample.  ``sums_only`` skips single RPCs, histograms of
    phases and stacks, for callers that read often and do not print them.  ``pid`` counts only RPCs
    of that process.  ``machine`` is the host that has the threads: in a container, its /proc.
    """
    with session(names, pid) as open_session:
        open_session.state["sums only"] = sums_only
        open_session.state["machine"] = machine
        if rate:
            open_session.state["rate"] = rate
        for probes in map(probe_set, open_session.sets):
            probes.attach(open_session)
            if timed and probes.time:
                probes.time(open_session)
        yield open_session
