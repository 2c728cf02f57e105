# SPDX-License-Identifier: Apache-2.0
"""An account read again and again: what was added in each interval."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.nfs.mounts import find
from nfsrdma_tools.probes.bpf_stats import Cost, counted, spent
from nfsrdma_tools.probes.losses import Losses, lost
from nfsrdma_tools.probes.probe_sets import Account, attached
from nfsrdma_tools.probes.program import Missing
from nfsrdma_tools.probes.rpc_clients import clients

__all__ = ["Interval", "WatchOptions", "of_mount", "watch"]

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class WatchOptions:
    """What is to be watched: one mount or all, every so many seconds, so often (0: without end).

    ``cpu``: with the CPU time of what is counted.  ``cost``: with what the probes themselves cost.
    """

    directory: Path | None = None
    interval: float = 1.0
    count: int = 0
    cost: bool = False
    cpu: bool = False


@dataclass(frozen=True)
class Interval:
    """The rows of an interval, what they lack, and what the probes cost, if that was asked for."""

    records: Records
    lost: Losses
    cost: Cost | None = None


class _Reading(NamedTuple):
    counted: Any
    lost: Losses
    cost: Cost | None


def watch(
    account: Account,
    asked: WatchOptions,
    begun: Callable[[tuple[Missing, ...]], None],
    ended: Callable[[Any], None] | None = None,
) -> Iterator[Interval]:
    """What was added in each interval.

    ``begun`` is called once with what cannot be counted here, ``ended`` with a snapshot of all
    intervals when the caller stops asking.  Raises UserError when nothing can be counted, or the
    mount is none.
    """
    if asked.directory and account.host_wide:
        raise UserError(f"{account.name} is of the whole host", "leave --mount away")
    if asked.cpu and not account.times:
        raise UserError(
            f"{account.name} knows no CPU time", "ask registrations, or the account cpu"
        )
    mount = _mount(asked.directory) if asked.directory else None
    heard: dict[str, int | None] = {}
    if not account.host_wide:
        # before anything is counted: it may have to ask servers
        clients(heard)
    with attached([account.name], asked.cpu) as open_session, counted(asked.cost):
        begun(open_session.missing)
        first = last = _read(account, open_session, asked.cost)
        done = 0
        try:
            while not asked.count or done < asked.count:
                time.sleep(asked.interval)
                now = _read(account, open_session, asked.cost)
                known = {} if account.host_wide else clients(heard)
                added = account.difference(now.counted, last.counted)
                rows = of_mount(account.records(added, known), mount)
                cost = now.cost - last.cost if now.cost and last.cost else None
                yield Interval(rows, now.lost - last.lost, cost)
                last, done = now, done + 1
        finally:
            if ended:
                ended(account.difference(last.counted, first.counted))


def _read(account: Account, session: Any, cost: bool) -> _Reading:
    return _Reading(account.read(session), lost(session), spent(session) if cost else None)


def _mount(directory: Path) -> str:
    found = find(directory)
    if not found:
        raise UserError(f"{directory} is not an NFS mount point", "`nfsrdma mounts` lists them")
    return str(found.directory)


def of_mount(records: Records, mount: str | None) -> Records:
    """The rows of a mount point, or all; rows of the whole host are everybody's."""
    return [
        row
        for row in records
        if mount is None or "mount" not in row or mount in row["mount"].split(", ")
    ]
