# SPDX-License-Identifier: Apache-2.0
"""Events of connections in an interval, from the probe set connections.

A connection that breaks flushes all its work requests, and a refused client reconnects at once.  So
equal events of an interval become one event with their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from nfsrdma_tools.live.collect.mount_clients import Known
from nfsrdma_tools.live.snapshot import Event, Mount
from nfsrdma_tools.probes.sets import connections

__all__ = ["events"]

_BAD = ("disconnect", "completion error", "timeout", "error", "device removed")
# normal steps of the RDMA connection manager
_ROUTINE = ("address resolved", "route resolved", "established", "end of wait")
_MOST = 50
# descriptions of events without a status
_WITHOUT_STATUS = {"timeout": "an RPC timed out", "device removed": "the driver removed it"}


def events(
    added: Sequence[connections.Event], mounts: Sequence[Mount], known: Known, epoch: float
) -> tuple[Event, ...]:
    """The events of an interval in order; ``epoch`` is when the monotonic clock was 0."""
    owners = _owners(mounts, known) if added else {}
    found: dict[tuple[str, str, str], Event] = {}
    times: dict[tuple[str, str, str], int] = {}
    for each in added:
        if not each.words or (each.kind == "cm" and each.words.startswith(_ROUTINE)):
            continue
        event = _event(each, owners, epoch)
        key = (event.kind, event.where, event.what)
        found.setdefault(key, event)
        times[key] = times.get(key, 0) + 1
    many = (
        replace(e, what=f"{e.what}, {times[key]} times") if times[key] > 1 else e
        for key, e in sorted(found.items(), key=lambda item: item[1].time)
    )
    return tuple(islice(many, _MOST))


def _owners(mounts: Sequence[Mount], known: Known) -> dict[object, str]:
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


def _event(each: connections.Event, owners: dict[object, str], epoch: float) -> Event:
    where = owners.get((each.ours, each.number)) or owners.get(each.peer) or each.peer
    flushed = each.words.startswith("flushed")
    failed = each.kind in _BAD or (each.kind in ("connect", "accept") and each.words != "done")
    words = _WITHOUT_STATUS.get(each.kind, each.words) if each.words == "done" else each.words
    return Event(
        time=epoch + each.time / 1e9,
        kind=each.kind,
        where=where or "unknown connection",
        what=f"{words} ({each.peer})" if each.peer and each.peer != where else words,
        severity="warning" if failed and not flushed else "note",
    )
