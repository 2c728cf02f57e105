# SPDX-License-Identifier: Apache-2.0
"""Reads a probe set at intervals and yields the increase in each interval."""

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
    """What to watch: one mount or all, ``interval`` in seconds, ``count`` intervals (0: no limit).

    ``cpu`` adds the CPU time of the counted events, ``cost`` the overhead of the probes.
    """

    directory: Path | None = None
    interval: float = 1.0
    count: int = 0
    cost: bool = False
    cpu: bool = False


@dataclass(frozen=True)
class Interval:
    """The rows of an interval, the lost counts, and the overhead of the probes if requested."""

    records: Records
    lost: Losses
    cost: Cost | None = None


class _Reading(NamedTuple):
    counted: Any
    lost: Losses
    cost: Cost | None


def watch(
    account: Account,
    options: WatchOptions,
    begun: Callable[[tuple[Missing, ...]], None],
    ended: Callable[[Any], None] | None = None,
) -> Iterator[Interval]:
    """Yield the increase in each interval.

    Calls ``begun`` once with the events that cannot be counted here, and ``ended`` with a snapshot
    of all intervals when the caller stops.  Raises UserError if nothing can be counted, or if
    the directory is not an NFS mount point.
    """
    if options.directory and account.host_wide:
        raise UserError(f"{account.name} covers the whole host", "omit --mount")
    if options.cpu and not account.times:
        raise UserError(
            f"{account.name} does not measure CPU time", "use the probe set registrations or cpu"
        )
    mount = _mount(options.directory) if options.directory else None
    numbers: dict[str, int | None] = {}
    if not account.host_wide:
        # before the probes are attached, because it may send RPCs to servers
        clients(numbers)
    with attached([account.name], options.cpu) as open_session, counted(options.cost):
        begun(open_session.missing)
        first = last = _read(account, open_session, options.cost)
        done = 0
        try:
            while not options.count or done < options.count:
                time.sleep(options.interval)
                now = _read(account, open_session, options.cost)
                known = {} if account.host_wide else clients(numbers)
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
        raise UserError(f"{directory} is not an NFS mount point", "see `nfsrdma mounts`")
    return str(found.directory)


def of_mount(records: Records, mount: str | None) -> Records:
    """The rows of a mount point, or all; rows of the whole host belong to every mount."""
    return [
        row
        for row in records
        if mount is None or "mount" not in row or mount in row["mount"].split(", ")
    ]
