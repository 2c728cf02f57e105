# SPDX-License-Identifier: Apache-2.0
"""The one sampler: reads host and probes once an interval, and hands the snapshot to all faces.

It runs in a thread of its own.  Probes are attached in another one, because compiling them takes
seconds; until then, and where they cannot be, the snapshots say what is missing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from nfsrdma_tools.live.analyze import connection_events
from nfsrdma_tools.live.analyze.bottleneck import IDLE, limit
from nfsrdma_tools.live.analyze.stalls import Finder
from nfsrdma_tools.live.collect.host_statistics import Facts, Readings, host_name
from nfsrdma_tools.live.collect.mount_clients import Owners
from nfsrdma_tools.live.collect.pending_rpcs import Waits
from nfsrdma_tools.live.collect.probe_statistics import (
    Counted,
    clients,
    counting,
    on_mounts,
    with_layers,
)
from nfsrdma_tools.live.snapshot import Mount, Server, Snapshot
from nfsrdma_tools.probes.probe_sets import NAMES
from nfsrdma_tools.probes.program import present

__all__ = ["Sampler"]

Deliver = Callable[[Snapshot], None]
_ATTACHING = "being attached, which takes some seconds"
_NOT_WANTED = "not asked for"


class Sampler:
    """``run`` delivers a snapshot each ``interval`` seconds until ``stop``.

    ``accounts`` are those wanted of the probes, none for no probes; ``patience`` (seconds) makes an
    RPC a stall.
    """

    def __init__(
        self, interval: float = 1.0, accounts: Sequence[str] = NAMES, patience: float = 5.0
    ) -> None:
        self.interval = interval
        self._accounts = accounts
        self._owners = Owners()
        self._facts = Facts(self._owners)
        self._waits = Waits()
        self._finder = Finder(patience)
        self._stop = threading.Event()
        self._before: Readings | None = None
        self._at = 0.0
        self._number = 0
        self._counted: Counted | None = None
        self._lock = threading.Lock()
        self._missing: dict[str, str] = {}
        self._lost: Counter[str] = Counter()
        self._name = host_name()

    def stop(self) -> None:
        """End ``run``; may be called from any thread."""
        self._stop.set()

    def run(self, deliver: Deliver) -> None:
        """Take snapshots until ``stop``; periods do not drift, and a missed one is left out."""
        probes = threading.Thread(target=self._probe, daemon=True)
        self._missing = {"probes": _ATTACHING if self._accounts else _NOT_WANTED}
        if self._accounts:
            probes.start()
        self.take()
        due = time.monotonic() + self.interval
        while not self._stop.wait(max(due - time.monotonic(), 0.0)):
            deliver(self.take())
            due = max(due + self.interval, time.monotonic())
        if self._accounts:
            probes.join()

    def take(self) -> Snapshot:
        """What happened since the last time; the first has nothing but what is."""
        spent, now, clock = time.thread_time_ns(), self._facts.read(), time.monotonic()
        before, then = self._before or now, self._at
        self._before, self._at, self._number = now, clock, self._number + 1
        snapshot = self._with_probes(
            Snapshot(
                time=time.time(),
                seconds=clock - then if then else 0.0,
                number=self._number,
                host=self._name[0],
                kernel=self._name[1],
                mounts=self._facts.mounts(now, before),
                server=self._facts.server(now, before),
                processors=self._facts.processors(now, before),
                ports=self._facts.ports(),
            )
        )
        snapshot = self._with_limits(snapshot)
        events = (*snapshot.events, *self._finder.look(snapshot))
        self._lost.update(snapshot.lost)
        missing = {**self._facts.missing, **self._missing, **_lost(self._lost)}
        cost = time.thread_time_ns() - spent
        return replace(snapshot, events=events, missing=missing, cost_ns=cost)

    def _with_probes(self, snapshot: Snapshot) -> Snapshot:
        known = self._owners.known
        waiting = self._waits.look(snapshot.mounts, known, time.monotonic())
        snapshot = replace(snapshot, mounts=waiting)
        found = self._found()
        if found is None:
            return snapshot
        epoch = time.time() - time.monotonic()
        return replace(
            snapshot,
            mounts=on_mounts(snapshot.mounts, found, known),
            server=_served(snapshot.server, found),
            processors=with_layers(snapshot.processors, found),
            lost=found["lost"],
            events=connection_events.events(
                found["connections"].events, snapshot.mounts, known, epoch
            ),
        )

    def _found(self) -> dict[str, Any] | None:
        # not while they are taken away
        with self._lock:
            try:
                return self._counted.read() if self._counted else None
            except Exception as error:
                self._counted = None
                self._missing["probes"] = f"they cannot be read any more: {error!r}"
                return None

    def _with_limits(self, snapshot: Snapshot) -> Snapshot:
        def said(mount: Mount) -> Mount:
            # as a mount begins
            if mount.limit is IDLE and not mount.ops and not mount.waiting:
                return mount
            now = limit(mount, snapshot.processors, snapshot.seconds)
            return mount if mount.limit == now else replace(mount, limit=now)

        return replace(snapshot, mounts=tuple(map(said, snapshot.mounts)))

    def _probe(self) -> None:
        """Attach, and again whenever a module with events that are counted came or went."""
        while not self._stop.is_set():
            there = present(self._accounts)
            self._missing = {"probes": _ATTACHING}
            missing: dict[str, str] = {}
            with ExitStack() as stack:
                counted = self._attached(stack, missing)
                self._missing, self._counted = missing, counted
                while present(self._accounts) == there and not self._stop.wait(1.0):
                    pass
                with self._lock:
                    self._counted = None

    def _attached(self, stack: ExitStack, missing: dict[str, str]) -> Counted | None:
        try:
            return stack.enter_context(counting(missing, self._accounts))
        # whatever bcc or a kernel does: the rest goes on without probes
        except Exception as error:
            missing["probes"] = f"they cannot be read: {error!r}"
            return None


def _lost(sums: Counter[str]) -> dict[str, str]:
    return {f"lost {what}": f"the probes could not count {n}" for what, n in sums.items()}


def _served(server: Server | None, found: dict[str, Any]) -> Server | None:
    rows = clients(found["server"])
    return replace(server, clients=rows) if server else None
