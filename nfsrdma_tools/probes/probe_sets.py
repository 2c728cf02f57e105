# SPDX-License-Identifier: Apache-2.0
"""The accounts there are: each a program in bpf/ and a module here that reads it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nfsrdma_tools.errors import UsageError
from nfsrdma_tools.probes.session import Session, session

__all__ = ["NAMES", "Account", "account", "attached"]

NAMES = ("chunks", "registrations", "latency", "connections", "server", "readahead", "cpu")
"""Files of bpf/ and modules of sets/."""


@dataclass(frozen=True)
class Account:
    """What a module of this room offers under its account's name.

    ``attach(session)`` and ``forget(session, reading, now)`` are optional.  ``read(session)`` is a
    snapshot, ``difference(after, before)`` another, and ``records(snapshot, clients)`` its rows,
    whose values are plain: numbers, texts, and lists of numbers for histograms.  One that is
    HOST_WIDE knows no mounts.
    """

    name: str
    module: Any

    @property
    def host_wide(self) -> bool:
        """Whether its rows are of the whole host, and not of mounts."""
        return getattr(self.module, "HOST_WIDE", False)

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters that it has, as names of fields of ``Filter``."""
        names: tuple[str, ...] = self.module.FILTERS
        return names

    @property
    def draws(self) -> bool:
        """Whether it samples stacks, of which ``flame`` makes a graph."""
        return hasattr(self.module, "flame")

    def flame(self, snapshot: Any) -> str:
        """The stacks of a snapshot, as SVG."""
        drawn: str = self.module.flame(snapshot)
        return drawn

    def attach(self, session: Any) -> None:
        """What a module does besides once its program is loaded, if it does."""
        if hasattr(self.module, "attach"):
            self.module.attach(session)

    @property
    def times(self) -> bool:
        """Whether it can tell the CPU time of what it counts, with probes that cost more."""
        return hasattr(self.module, "time_functions")

    def time(self, session: Any) -> None:
        """Attach those probes."""
        self.module.time_functions(session)

    def forget(self, session: Any, reading: Any, now: float) -> None:
        """Free what only differences to readings before this one would need, and idle rows.

        ``now`` is in seconds of a clock that does not jump.
        """
        if hasattr(self.module, "forget"):
            self.module.forget(session, reading, now)

    def read(self, session: Any) -> Any:
        """What was counted since the session began."""
        return self.module.read(session)

    def difference(self, after: Any, before: Any) -> Any:
        """What happened between two readings of one session."""
        return self.module.difference(after, before)

    def records(self, snapshot: Any, clients: dict[int, tuple[str, ...]]) -> list[dict[str, Any]]:
        """A snapshot's rows, in the order to be shown."""
        rows: list[dict[str, Any]] = self.module.records(snapshot, clients)
        return rows


def account(name: str, known: Sequence[str] = NAMES) -> Account:
    """The account of this name; UsageError when there is none."""
    if name not in known:
        raise UsageError(f"unknown probe set {name!r}", f"the probe sets are {', '.join(known)}")
    return Account(name, importlib.import_module(f"nfsrdma_tools.probes.sets.{name}"))


@contextlib.contextmanager
def attached(
    names: Sequence[str],
    timed: bool = False,
    rate: int | None = None,
    sums_only: bool = False,
    pid: int = 0,
) -> Iterator[Session]:
    """A session of these accounts, in which each has done what it does besides its program.

    ``timed``: those that can also tell CPU time do so.  ``rate``: samples a second on each CPU,
    for those that sample.  ``sums_only``: for who reads again and again, and shows no single
    RPCs, no histograms of phases and no stacks: these are not read.  ``pid``: counts RPCs of that
    process only.
    """
    with session(names, pid) as counting:
        counting.state["sums only"] = sums_only
        if rate:
            counting.state["rate"] = rate
        for each in map(account, names):
            each.attach(counting)
            if timed and each.times:
                each.time(counting)
        yield counting
