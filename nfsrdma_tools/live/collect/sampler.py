# SPDX-License-Identifier: Apache-2.0
"""The sampler: reads the host and the probes once an interval and delivers a snapshot.

It runs in a thread of its own.  Another thread attaches the probes, because compiling them takes
seconds.  Until they are attached, and if they fail, ``missing`` in a snapshot has the reason.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs.sunrpc import tasks
from nfsrdma_tools.live.collect.client_finder import ClientFinder
from nfsrdma_tools.live.collect.host_statistics import HostReader
from nfsrdma_tools.live.collect.namespace import host_name
from nfsrdma_tools.live.collect.pending_rpcs import PendingRpcs
from nfsrdma_tools.live.collect.probe_statistics import (
    SETS,
    ProbeReader,
    clients,
    connection_events,
    counting,
    on_mounts,
    with_layers,
)
from nfsrdma_tools.live.collect.readings import Readings
from nfsrdma_tools.live.snapshot import Server, Snapshot
from nfsrdma_tools.probes.program import Pair, present
from nfsrdma_tools.probes.sets.server import granted

__all__ = ["Sampler"]

Deliver = Callable[[Snapshot], None]
_ATTACHING = "attaching, this takes some seconds"
_DISABLED = "disabled by an option"
_RETRY = 300.0
"""Seconds until probes that failed are attached again: an attempt computes for seconds."""


class Sampler:
    """``run`` delivers a snapshot every ``interval`` seconds until ``stop``.

    ``sets`` are the probe sets to attach.  ``pending_rpcs`` reads the RPCs that nfsd works on.
    """

    def __init__(
        self,
        interval: float = 1.0,
        sets: Sequence[str] = SETS,
        machine: Machine = LIVE,
        pending_rpcs: bool = False,
    ) -> None:
        self.interval = interval
        self._sets = sets
        self._machine = machine
        self._clients = ClientFinder(machine)
        self._host = HostReader(self._clients, machine, pending_rpcs)
        self._pending = PendingRpcs(partial(tasks, machine=machine))
        self._stop = threading.Event()
        self._before: Readings | None = None
        self._at = 0.0
        self._number = 0
        self._probes: ProbeReader | None = None
        self._lock = threading.Lock()
        self._missing: dict[str, str] = {}
        self._unread: dict[str, str] = {}
        self._lost: Counter[str] = Counter()
        self._name = host_name()

    def stop(self) -> None:
        """End ``run``, from any thread."""
        self._stop.set()

    def run(self, deliver: Deliver) -> None:
        """Deliver snapshots until ``stop``; intervals do not drift, and a missed one is skipped."""
        probes = threading.Thread(target=self._probe, daemon=True)
        self._missing = {"probes": _ATTACHING if self._sets else _DISABLED}
        if self._sets:
            probes.start()
        self.take()
        due = time.monotonic() + self.interval
        while not self._stop.wait(max(due - time.monotonic(), 0.0)):
            deliver(self.take())
            due = max(due + self.interval, time.monotonic())
        if self._sets:
            probes.join()

    def take(self) -> Snapshot:
        """A snapshot of the time since the last ``take``; the first one has no counts."""
        spent, now, clock = time.thread_time_ns(), self._host.read(), time.monotonic()
        before, then = self._before or now, self._at
        self._before, self._at, self._number = now, clock, self._number + 1
        mounts, server = self._host.mounts(now, before), self._host.server(now, before)
        in_use = {mount.device for mount in mounts if mount.ops}
        active = in_use or (server and server.answered)
        processors = self._host.processors(now, before, in_use if active else None)
        snapshot = self._with_probes(
            Snapshot(
                time=time.time(),
                # by the monotonic clock: NTP or an administrator may set the time of day
                seconds=clock - then if then else 0.0,
                number=self._number,
                host=self._name[0],
                kernel=self._name[1],
                mounts=mounts,
                server=server,
                processors=processors,
                ports=self._host.ports(),
                links=self._host.links(now, before),
            )
        )
        self._lost.update(snapshot.lost)
        missing = {**self._host.missing, **self._missing, **self._unread, **_lost(self._lost)}
        cost = time.thread_time_ns() - spent
        return replace(snapshot, missing=missing, cost_ns=cost)

    def _with_probes(self, snapshot: Snapshot) -> Snapshot:
        known = self._clients.known
        waiting = self._pending.add_to(snapshot.mounts, known, time.monotonic())
        snapshot = replace(snapshot, mounts=waiting)
        counts = self._probe_counts()
        if counts is None:
            return snapshot
        # bpf_ktime_get_ns(), the time of an event, is the monotonic clock
        epoch = time.time() - time.monotonic()
        return replace(
            snapshot,
            mounts=on_mounts(snapshot.mounts, counts, known),
            server=_with_clients(snapshot.server, counts),
            processors=with_layers(snapshot.processors, counts),
            lost=counts["lost"],
            events=connection_events(
                getattr(counts.get("connections"), "events", ()), snapshot.mounts, known, epoch
            ),
        )

    def _probe_counts(self) -> dict[str, Any] | None:
        # the other thread detaches them under this lock
        with self._lock:
            counts = self._probes.read() if self._probes else None
            self._unread = self._probes.failed if self._probes else {}
            return counts

    def _probe(self) -> None:
        """Attach the probes, and again when a module with their events is loaded or unloaded.

        Also again some time after they could not be attached or read.
        """
        while not self._stop.is_set():
            events = present(self._sets)
            if not self._attach_while(events):
                due = time.monotonic() + _RETRY
                while time.monotonic() < due and self._unchanged(events):
                    pass

    def _attach_while(self, events: Sequence[Pair]) -> bool:
        """Attach the probes until the kernel's events differ; False if they fail."""
        self._missing, missing = {"probes": _ATTACHING}, dict[str, str]()
        with ExitStack() as stack:
            reader = self._attached(stack, missing)
            self._missing, self._probes = missing, reader
            if not reader:
                return False
            while not reader.is_broken and self._unchanged(events):
                pass
            with self._lock:
                self._probes = None
        if reader.is_broken:
            self._missing = {**missing, "probes": "; ".join(reader.failed.values())}
        return not reader.is_broken

    def _unchanged(self, events: Sequence[Pair]) -> bool:
        """Wait a second; False if the sampler stops, or if the kernel's events differ."""
        return not self._stop.wait(1.0) and present(self._sets) == events

    def _attached(self, stack: ExitStack, missing: dict[str, str]) -> ProbeReader | None:
        try:
            return stack.enter_context(counting(missing, self._sets, self._machine))
        # bcc raises anything: continue without probes
        except Exception as error:
            missing["probes"] = f"attaching them failed: {error!r}"
            return None


def _lost(sums: Counter[str]) -> dict[str, str]:
    return {f"lost {kind}": f"not counted by the probes: {n}" for kind, n in sums.items()}


def _with_clients(server: Server | None, counts: dict[str, Any]) -> Server | None:
    if not server or "server" not in counts:
        return server
    return replace(server, clients=clients(counts["server"]), grants=granted(counts["server"]))
