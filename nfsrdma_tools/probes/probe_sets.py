# SPDX-License-Identifier: Apache-2.0
"""The probe sets: each is a program in bpf/ and a module in sets/ that reads it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nfsrdma_tools.errors import UsageError
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.probes.program import NAMES
from nfsrdma_tools.probes.session import Session, session

__all__ = ["NAMES", "ProbeSet", "among", "attached", "probe_set"]


@dataclass(frozen=True)
class ProbeSet:
    """A probe set: the interface of a module in sets/.

    ``attach(session)``, ``forget(session, reading, now)``, ``time_functions(session)`` and
    ``stack_writer(file)`` are optional.  ``read(session)`` is a
    snapshot, ``difference(after, before)`` another, and ``records(snapshot, clients)`` its rows,
    whose values are plain: numbers, texts, and lists of numbers for histograms.  A probe set that
    is HOST_WIDE does not distinguish mounts.
    """

    name: str
    module: Any

    @property
    def host_wide(self) -> bool:
        """Whether its rows cover the whole host instead of mounts."""
        return getattr(self.module, "HOST_WIDE", False)

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters that it has, as names of fields of ``Filter``."""
        names: tuple[str, ...] = self.module.FILTERS
        return names

    def stack_writer(self, file: Path) -> Callable[[Any], None]:
        """A function that writes the stacks of a snapshot to ``file``.

        Raises UsageError if the probe set samples no stacks, UserError if the directory is missing.
        """
        if not hasattr(self.module, "stack_writer"):
            raise UsageError(f"trace {self.name} has no option --folded", "use trace cpu --folded")
        writer: Callable[[Any], None] = self.module.stack_writer(file)
        return writer

    def attach(self, session: Session) -> None:
        """Attach further probes of the module, if any, once its program is loaded."""
        if hasattr(self.module, "attach"):
            self.module.attach(session)

    @property
    def times(self) -> bool:
        """Whether it can measure the CPU time of its events, with more expensive probes."""
        return hasattr(self.module, "time_functions")

    def time(self, session: Session) -> None:
        """Attach those probes."""
        self.module.time_functions(session)

    def forget(self, session: Session, reading: Any, now: float) -> None:
        """Free data that only differences to earlier readings would need, and idle rows.

        ``now`` is in seconds of a monotonic clock.
        """
        if hasattr(self.module, "forget"):
            self.module.forget(session, reading, now)

    def read(self, session: Session) -> Any:
        """The counts since the session began."""
        return self.module.read(session)

    def difference(self, after: Any, before: Any) -> Any:
        """The difference between two readings of one session."""
        return self.module.difference(after, before)

    def records(self, snapshot: Any, clients: dict[int, tuple[str, ...]]) -> list[dict[str, Any]]:
        """The rows of a snapshot, in output order."""
        rows: list[dict[str, Any]] = self.module.records(snapshot, clients)
        return rows


def among(names: Collection[str]) -> tuple[str, ...]:
    """The probe sets that have one of these names, such as those of collectors."""
    return tuple(name for name in NAMES if name in names)


def probe_set(name: str, known: Sequence[str] = NAMES) -> ProbeSet:
    """The probe set of this name.  UsageError if there is none."""
    if name not in known:
        raise UsageError(f"unknown probe set {name!r}", f"the probe sets are {', '.join(known)}")
    return ProbeSet(name, importlib.import_module(f"nfsrdma_tools.probes.sets.{name}"))


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
            if timed and probes.times:
                probes.time(open_session)
        yield open_session
