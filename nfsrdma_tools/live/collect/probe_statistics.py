# SPDX-License-Identifier: Apache-2.0
"""The counts and events of the probes in an interval, assigned to mounts, clients and layers.

A connection that breaks flushes all its work requests, and a refused client reconnects at once.  So
equal events of an interval become one event with their number.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.live.collect.client_finder import RpcClients
from nfsrdma_tools.live.snapshot import (
    Ahead,
    Chunks,
    Client,
    Credits,
    Event,
    Layer,
    Mount,
    Processors,
    Regions,
    Timing,
    Xprt,
)
from nfsrdma_tools.probes import probe_sets
from nfsrdma_tools.probes.maps import Row, lost, split
from nfsrdma_tools.probes.session import Session
from nfsrdma_tools.probes.sets import chunks, connections, latency, readahead, registrations, server

__all__ = [
    "SETS", "ProbeReader", "clients", "connection_events", "counting", "on_mounts", "with_layers",
]  # fmt: skip

SETS = ("chunks", "connections", "cpu", "latency", "readahead", "registrations", "server")
"""The probe sets that a snapshot has counts of."""
# resolving stacks costs more than all other probe sets: sample less, and read less often
CPU_EVERY, CPU_RATE = 10.0, 97
FREE_EVERY = 60.0
# readings in a row that may fail before the probes are attached anew
_PATIENCE = 10


class ProbeReader:
    """The probe sets of one session; ``read`` returns the counts since the last ``read``.

    A set that cannot be read is absent from that interval, and the next reading includes its
    counts.  ``failed`` has the reason by set.
    """

    def __init__(self, session: Session, names: Sequence[str]) -> None:
        self.session = session
        self._sets = {name: probe_sets.probe_set(name) for name in names}
        # cpu first: it may load symbols for seconds, and the others' first interval begins here
        order = sorted(self._sets, key=lambda name: name != "cpu")
        self._last = {name: self._sets[name].read(session) for name in order}
        self._cpu_at = time.monotonic()
        self._cpu: dict[str, Any] = {}
        self._lost = lost(session)
        self._freed_at = time.monotonic()
        self.failed: dict[str, str] = {}
        self._failures: Counter[str] = Counter()

    @property
    def is_broken(self) -> bool:
        """Whether a set could not be read several times in a row."""
        return any(count >= _PATIENCE for count in self._failures.values())

    def read(self) -> dict[str, Any]:
        """The new counts by probe set; "lost" has the numbers of uncounted events by kind."""
        self.failed = {}
        counts: dict[str, Any] = {}
        for name in self._sets:
            with self._noting(name):
                counts[name] = self._layers() if name == "cpu" else self._added(name)
        with self._noting("idle rows"):
            self._free()
        missed: dict[str, int] = {}
        with self._noting("losses"):
            missed = self._missed(counts)
        return {**counts, "lost": missed}

    @contextmanager
    def _noting(self, metric: str) -> Iterator[None]:
        try:
            yield
            del self._failures[metric]
        # bcc raises anything, and an error may be gone at the next reading
        except Exception as error:
            self.failed[metric] = f"reading the probes failed: {error!r}"
            self._failures[metric] += 1

    def _missed(self, counts: Mapping[str, Any]) -> dict[str, int]:
        before, self._lost = self._lost, lost(self.session)
        missed = (self._lost - before)._asdict()
        if "connections" in counts:
            missed["events"] = counts["connections"].lost
        if counts.get("cpu", {}).get("fresh"):
            missed["samples"] = counts["cpu"]["lost"]
        return {name: count for name, count in missed.items() if count}

    def _free(self) -> None:
        now = time.monotonic()
        if now - self._freed_at < FREE_EVERY:
            return
        self._freed_at = now
        for name in self._last.keys() - {"cpu"}:
            self._sets[name].forget(self.session, self._last[name], now)

    def _added(self, name: str) -> Any:
        probe_set = self._sets[name]
        now, before = probe_set.read(self.session), self._last[name]
        self._last[name] = now
        return probe_set.difference(now, before)

    def _layers(self) -> dict[str, Any]:
        if not self._cpu or time.monotonic() - self._cpu_at > CPU_EVERY:
            added, self._cpu_at = self._added("cpu"), time.monotonic()
            self._sets["cpu"].forget(self.session, self._last["cpu"], self._cpu_at)
            rows = self._sets["cpu"].records(added, {})
            self._cpu = {"rows": rows, "ns": added.host.wall_ns, "lost": added.lost}
            return {**self._cpu, "fresh": True}
        return {**self._cpu, "fresh": False}


@contextmanager
def counting(
    missing: dict[str, str], names: Sequence[str], machine: Machine
) -> Iterator[ProbeReader | None]:
    """The probe sets in one session; None, and the reason in ``missing``, if they do not attach.

    ``machine`` is the host, whose threads are listed.
    """
    with ExitStack() as stack:
        try:
            attached = probe_sets.attached(names, rate=CPU_RATE, sums_only=True, machine=machine)
            session = stack.enter_context(attached)
        except UserError as error:
            missing["probes"] = str(error)
            yield None
            return
        missing.update({event.event: event.reason for event in session.missing})
        yield ProbeReader(session, session.sets)


def on_mounts(
    mounts: Sequence[Mount], counts: Mapping[str, Any], known: RpcClients
) -> tuple[Mount, ...]:
    """The mounts with the counts of the probes; a mount without counts is the same object.

    ``counts`` has the probe sets that are attached: any of them may be absent.
    """
    rows = _Rows(
        counts,
        _by_client(_part(counts, "latency", "sums")),
        _by_client(_part(counts, "chunks", "counts")),
    )
    seen = rows.owners()
    return tuple(
        _on(mount, rows, known) if _is_in(mount, seen, known) else mount for mount in mounts
    )


class _Rows(NamedTuple):
    """The counts, and the rows of latency and chunks by client."""

    counts: Mapping[str, Any]
    timings: dict[int, list[Row]]
    messages: dict[int, list[Row]]

    def owners(self) -> set[Any]:
        """Clients, transports of our module, and devices that have counts."""
        clients = {(False, client) for client in (*self.timings, *self.messages)}
        return clients.union(self.regions, self.credits, self.ahead)

    @property
    def regions(self) -> Mapping[tuple[bool, int], Sequence[int]]:
        """Operations on memory regions by their owner."""
        return _part(self.counts, "registrations", "counts")

    @property
    def credits(self) -> Mapping[tuple[bool, int], connections.Credit]:
        """Credits by their owner."""
        return _part(self.counts, "connections", "credits")

    @property
    def ahead(self) -> Mapping[str, Sequence[int]]:
        """Read-ahead by device."""
        return _part(self.counts, "readahead", "counts")


def _part(counts: Mapping[str, Any], probe_set: str, name: str) -> Mapping[Any, Any]:
    """A mapping of a probe set's counts; empty if the set is not attached."""
    part: Mapping[Any, Any] = getattr(counts.get(probe_set), name, {})
    return part


def _by_client(rows: Iterable[Row]) -> dict[int, list[Row]]:
    by_client: dict[int, list[Row]] = {}
    for row in sorted(rows):
        by_client.setdefault(row.client, []).append(row)
    return by_client


def _is_in(mount: Mount, seen: set[Any], known: RpcClients) -> bool:
    if mount.device in seen or mount.transport == "nfsrdma":
        return True
    return (False, known.clients.get(mount.directory)) in seen


def _on(mount: Mount, rows: _Rows, known: RpcClients) -> Mount:
    parts: dict[str, Any] = {}
    if ahead := rows.ahead.get(mount.device):
        parts["ahead"] = Ahead(_named(readahead.COUNTS, ahead))
    client = known.clients.get(mount.directory)
    if client in rows.timings:
        parts["timings"] = _timings(rows.counts["latency"], rows.timings[client])
    if client in rows.messages:
        parts["chunks"] = _chunks(rows.counts["chunks"], rows.messages[client])
    owners = _owners(mount, client, known)
    if rows.regions and (regions := _regions(rows.counts["registrations"], owners)):
        parts["regions"] = regions
    parts |= _credits(mount, rows.credits, owners)
    return replace(mount, **parts) if parts else mount


def _owners(mount: Mount, client: int | None, known: RpcClients) -> list[tuple[bool, int]]:
    """The owners of the mount's regions and credits: connections of our module, else the client."""
    if client is None:
        return []
    if mount.transport != "nfsrdma":
        return [(False, client)]
    return [(True, number) for number in known.xprts.get(mount.directory, ())]


def _timings(added: latency.Latency, rows: Iterable[Row]) -> tuple[Timing, ...]:
    return tuple(_timing(row, added.sums[row], added.times.get(row, ())) for row in rows)


def _timing(row: Row, sums: Sequence[int], times: Sequence[int]) -> Timing:
    phases = _named(latency.PHASES, sums[2:])
    return Timing(row.procedure, sums[0], sums[1], phases, _slots(times))


def _chunks(added: chunks.Chunks, rows: Iterable[Row]) -> tuple[Chunks, ...]:
    return tuple(
        Chunks(
            row.procedure,
            _named(chunks.COUNTS, added.counts[row]),
            {k: _slots(s) for k, s in split(added.sizes.get(row, ()), chunks.KINDS).items()},
        )
        for row in rows
    )


def _regions(
    added: registrations.Registrations, owners: Sequence[tuple[bool, int]]
) -> Regions | None:
    rows = [added.counts[owner] for owner in owners if owner in added.counts]
    if not rows:
        return None
    counts = _named(registrations.COUNTS, [sum(column) for column in zip(*rows, strict=True)])
    lives = [added.lifetimes[owner] for owner in owners if owner in added.lifetimes]
    return Regions(counts, _slots([sum(column) for column in zip(*lives, strict=True)]))


def _credits(
    mount: Mount,
    credits: Mapping[tuple[bool, int], connections.Credit],
    owners: Sequence[tuple[bool, int]],
) -> dict[str, Any]:
    """The credits that only probes know.

    Our transport module has a row per connection.  The kernel's has a row per client, which may
    have several connections: the row has the number of Calls that waited, and sysfs has the credits
    of each connection (mount_statistics.py).
    """
    rows = [credits[owner] for owner in owners if owner in credits]
    if mount.transport == "nfsrdma":
        own = {number: row for (_, number), row in credits.items() if (True, number) in owners}
        return {"xprts": tuple(_with(x, own.get(x.number)) for x in mount.xprts)} if own else {}
    if mount.transport != "rdma" or not rows:
        return {}
    parts: dict[str, Any] = {"credit_waits": rows[0].waits} if rows[0].waits else {}
    if len(mount.xprts) == 1 and mount.xprts[0].number < 0:
        parts["xprts"] = (_with(mount.xprts[0], rows[0]),)
    return parts


def _with(xprt: Xprt, row: connections.Credit | None) -> Xprt:
    return replace(xprt, credits=Credits(row.granted, row.used)) if row else xprt


def clients(added: server.Server) -> tuple[Client, ...]:
    """The server's clients, one row per client and procedure."""
    phases = len(server.PHASES)
    rows = []
    for asked, threadless in server.with_threadless(added):
        spent, *sums = added.sums.get(asked, server.NO_CALLS)
        rows.append(
            Client(
                asked.peer, asked.procedure, _named(server.COUNTS, sums[phases:]) | threadless,
                spent, _named(server.PHASES, sums[:phases]), _slots(added.times.get(asked, ())),
            )
        )  # fmt: skip
    return tuple(rows)


def with_layers(spent: Processors, counts: Mapping[str, Any]) -> Processors:
    """CPU time with the newest counts by layer."""
    cpu = counts.get("cpu")
    if not cpu:
        return spent
    rows = [row for row in cpu["rows"] if "client_ns" in row and row["layer"] != "busy"]
    layers = tuple(
        Layer(row["layer"], row["client_ns"], row["server_ns"], row["neither_ns"]) for row in rows
    )
    return replace(spent, layers=layers, layers_ns=cpu["ns"], fresh=cpu["fresh"])


def _named(names: Sequence[str], counts: Sequence[int]) -> dict[str, int]:
    return {name: count for name, count in zip(names, counts, strict=True) if count}


def _slots(counts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((slot, count) for slot, count in enumerate(counts) if count)


_FAILURES = ("disconnect", "completion error", "timeout", "error", "device removed")
# normal steps of the RDMA connection manager
_ROUTINE = ("address resolved", "route resolved", "established", "end of wait")
_MOST_EVENTS = 50
# descriptions of events without a status
_WITHOUT_STATUS = {"timeout": "an RPC timed out", "device removed": "the driver removed it"}


def connection_events(
    added: Sequence[connections.Event], mounts: Sequence[Mount], known: RpcClients, epoch: float
) -> tuple[Event, ...]:
    """The events of an interval in order; ``epoch`` is when the monotonic clock was 0."""
    owners = _event_owners(mounts, known) if added else {}
    merged: dict[tuple[str, str, str], Event] = {}
    times: dict[tuple[str, str, str], int] = {}
    for row in added:
        if not row.words or (row.kind == "cm" and row.words.startswith(_ROUTINE)):
            continue
        event = _connection_event(row, owners, epoch)
        key = (event.kind, event.where, event.what)
        merged.setdefault(key, event)
        times[key] = times.get(key, 0) + 1
    many = (
        replace(event, what=f"{event.what}, {times[key]} times") if times[key] > 1 else event
        for key, event in sorted(merged.items(), key=lambda item: item[1].time)
    )
    return tuple(islice(many, _MOST_EVENTS))


def _event_owners(mounts: Sequence[Mount], known: RpcClients) -> dict[object, str]:
    """A mount per client, per transport of our module, and per server address."""
    owners: dict[object, str] = {}
    for directory, client in known.clients.items():
        owners.setdefault((False, client), directory)
        for number in known.xprts.get(directory, ()):
            owners.setdefault((True, number), directory)
    for mount in mounts:
        for xprt in mount.xprts:
            if mount.transport in ("rdma", "nfsrdma"):
                owners.setdefault(xprt.address, mount.directory)
    return owners


def _connection_event(row: connections.Event, owners: dict[object, str], epoch: float) -> Event:
    where = owners.get((row.ours, row.number)) or owners.get(row.peer) or row.peer
    # a broken connection flushes its work requests (IB_WC_WR_FLUSH_ERR): they fail because of it
    flushed = row.words.startswith("flushed")
    failed = row.kind in _FAILURES or (row.kind in ("connect", "accept") and row.words != "done")
    words = _WITHOUT_STATUS.get(row.kind, row.words) if row.words == "done" else row.words
    return Event(
        time=epoch + row.time / 1e9,
        kind=row.kind,
        where=where or "unknown connection",
        what=f"{words} ({row.peer})" if row.peer and row.peer != where else words,
        severity="warning" if failed and not flushed else "note",
    )
