# SPDX-License-Identifier: Apache-2.0
"""What the probes counted in an interval, put beside the mounts and clients it belongs to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.live.owners import Known
from nfsrdma_tools.live.snapshot import (
    Ahead,
    Chunks,
    Client,
    Credits,
    Layer,
    Mount,
    Processors,
    Regions,
    Timing,
)
from nfsrdma_tools.probes import accounts, chunks, latency, readahead, registrations, server

__all__ = [
    "Counted",
    "clients",
    "counting",
    "on_mounts",
    "with_layers",
]

# naming stacks costs more than all the rest: CPU by layer is read less often
CPU_EVERY = 10.0


class Counted:
    """Accounts of one session; ``read`` tells what was added since the last time."""

    def __init__(self, session: Any, names: Sequence[str]) -> None:
        self.session = session
        self._accounts = {name: accounts.account(name) for name in names}
        self._last = {name: each.read(session) for name, each in self._accounts.items()}
        self._cpu_at = time.monotonic()
        self._cpu: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """By account, what was added."""
        found = {name: self._added(name) for name in self._accounts if name != "cpu"}
        if "cpu" in self._accounts:
            found["cpu"] = self._layers()
        return found

    def _added(self, name: str) -> Any:
        account = self._accounts[name]
        now, before = account.read(self.session), self._last[name]
        self._last[name] = now
        return account.difference(now, before)

    def _layers(self) -> dict[str, Any]:
        if not self._cpu or time.monotonic() - self._cpu_at > CPU_EVERY:
            added, self._cpu_at = self._added("cpu"), time.monotonic()
            rows = self._accounts["cpu"].records(added, {})
            self._cpu = {"rows": rows, "ns": added.host.wall_ns}
            return {**self._cpu, "fresh": True}
        return {**self._cpu, "fresh": False}


@contextmanager
def counting(
    missing: dict[str, str], names: Sequence[str] = accounts.NAMES
) -> Iterator[Counted | None]:
    """All accounts in one session; None where that cannot be, and ``missing`` says why."""
    with ExitStack() as stack:
        try:
            session = stack.enter_context(accounts.attached(names))
        except UserError as error:
            missing["probes"] = str(error)
            yield None
            return
        missing.update({each.event: each.reason for each in session.missing})
        yield Counted(session, names)


def on_mounts(mounts: Sequence[Mount], found: Mapping[str, Any], known: Known) -> tuple[Mount, ...]:
    """The mounts with what was counted on them."""
    return tuple(_on(mount, found, known) for mount in mounts)


def _on(mount: Mount, found: Mapping[str, Any], known: Known) -> Mount:
    client = known.clients.get(mount.directory)
    ahead = found["readahead"].counts.get(mount.device)
    mount = replace(mount, ahead=Ahead(_named(readahead.COUNTS, ahead)) if ahead else None)
    if client is None:
        return mount
    xprts = known.xprts.get(mount.directory, ())
    ours = mount.transport == "nfsrdma"
    owners = [(True, n) for n in xprts] if ours else [(False, client)]
    return replace(
        mount,
        timings=_timings(found["latency"], client),
        chunks=_chunks(found["chunks"], client),
        regions=_regions(found["registrations"], owners),
        xprts=_with_credits(mount, found["connections"].credits, ours, client),
    )


def _timings(added: latency.Latency, client: int) -> tuple[Timing, ...]:
    return tuple(
        Timing(
            row.procedure, sums[0], sums[1], _named(latency.PHASES, sums[2:]),
            _slots(added.times.get(row, ())),
        )
        for row, sums in sorted(added.sums.items())
        if row.client == client
    )  # fmt: skip


def _chunks(added: chunks.Chunks, client: int) -> tuple[Chunks, ...]:
    return tuple(
        Chunks(
            row.procedure,
            _named(chunks.COUNTS, counts),
            {k: _slots(added.sizes[row, k]) for k in chunks.KINDS if (row, k) in added.sizes},
        )
        for row, counts in sorted(added.counts.items())
        if row.client == client
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


def _with_credits(
    mount: Mount, credits: Mapping[tuple[bool, int], Any], ours: bool, client: int
) -> tuple[Any, ...]:
    def of(number: int) -> Credits | None:
        row = credits.get((True, number) if ours else (False, client))
        return row and Credits(row.granted, row.used, row.most_used, row.waits)

    return tuple(replace(x, credits=of(x.number) or x.credits) for x in mount.xprts)


def clients(added: server.Server) -> tuple[Client, ...]:
    """The server's clients, a row for each procedure."""
    phases = len(server.PHASES)
    return tuple(
        Client(
            asked.peer, asked.procedure, _named(server.COUNTS, sums[1 + phases :]), sums[0],
            _named(server.PHASES, sums[1 : 1 + phases]), _slots(added.times.get(asked, ())),
        )
        for asked, sums in sorted(added.sums.items())
    )  # fmt: skip


def with_layers(spent: Processors, found: Mapping[str, Any]) -> Processors:
    """CPU time with the layers that were last counted."""
    cpu = found.get("cpu")
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
