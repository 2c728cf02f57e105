# SPDX-License-Identifier: Apache-2.0
"""The probe set registrations: memory regions registered and invalidated (registrations.c)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.probes.columns import Column, Record, number, rare, size, words
from nfsrdma_tools.probes.maps import increase, mapped
from nfsrdma_tools.probes.probe_sets import ProbeSet
from nfsrdma_tools.probes.program import has_system
from nfsrdma_tools.probes.rpc_clients import mounts_of_transports, owner
from nfsrdma_tools.probes.session import Session

__all__ = ["COUNTS", "MAPS", "PROBE_SET", "TAKES_BACK", "Owner", "Registrations"]

# enum region_count of bpf/registrations.c
COUNTS = (
    *("mapped", "registered", "local_invalidations", "remote_invalidations", "unmapped"),
    *("reused", "pages", "bytes", "lifetime_ns", "mapping_ns", "invalidating_ns"),
    *("high_water", "mapped_bytes"),
)
"""``mapped`` regions got a new key, ``registered`` ones were posted; each is invalidated by the
peer's Send (``remote_``) or by its own work request (``local_``), then ``unmapped``.  ``reused``
ones were still registered (personality cached).  ``pages`` are the kernel's.  ``lifetime_ns`` is
the sum of the times from mapped to unmapped, ``mapping_ns`` and ``invalidating_ns`` the CPU time in
MAPS and TAKES_BACK, 0 if not timed.  Of the regions that were mapped since the session began,
``high_water`` is the maximum at once, ``mapped_bytes`` the size of those that are mapped now.
"""
MAPS = {"rpcrdma": ("frwr_map",), "nfsrdma": ("nfr_mem_prepare",)}
"""Functions that map regions (net/sunrpc/xprtrdma/frwr_ops.c, kmod/memory/region.c).  None of the
probed functions sleeps, and all are called from another file, so the compiler does not inline
them."""
TAKES_BACK = {
    "rpcrdma": ("frwr_reminv", "frwr_unmap_async"),
    "nfsrdma": ("nfr_client_revoke", "nfr_mem_release"),
}
"""Functions that post invalidations, or handle the peer's, and unmap regions."""
# the counts before it are sums, the others states
_HIGH_WATER = COUNTS.index("high_water")
# columns of mountstats, RDMA only
_MADE = ("mrs_allocated", "mrs_recycled", "mrs_orphaned")
_NONE_MADE = dict.fromkeys(_MADE, 0)

Owner = tuple[bool, int]
"""Whether the transport is ours, and sunrpc's number: of a transport for ours, else of a client."""


@dataclass(frozen=True)
class Registrations:
    """Counters by COUNTS; ``lifetimes``: slot n counts 2^(n-1) to below 2^n microseconds.

    ``allocated`` and ``destroyed`` count regions of all mounts, for the kernel's transport only.
    """

    counts: dict[Owner, tuple[int, ...]]
    lifetimes: dict[Owner, tuple[int, ...]]
    allocated: int
    destroyed: int

    def count(self, name: str) -> int:
        """A counter, summed over all owners."""
        return sum(counts[COUNTS.index(name)] for counts in self.counts.values())


def time_functions(session: Session) -> None:
    """Attach to entry and return of the functions of MAPS and TAKES_BACK."""
    for transport in filter(has_system, MAPS):
        for name in (*MAPS[transport], *TAKES_BACK[transport]):
            session.attach_kprobe(name, "registrations_begin")
        for name in TAKES_BACK[transport]:
            session.attach_kretprobe(name, "registrations_end")


def read(session: Session) -> Registrations:
    """The counts since the session began."""
    decoded = mapped(session, "region_rows", _decoded)
    allocated, destroyed = (0, 0) if session.state.get("sums only") else _lives(session)
    return Registrations(
        counts={owner: counts for owner, counts, _ in decoded},
        lifetimes={owner: lifetimes for owner, _, lifetimes in decoded},
        allocated=allocated,
        destroyed=destroyed,
    )


def _lives(session: Session) -> tuple[int, int]:
    allocated, destroyed = (sum(lives) for _, lives in session.table("region_lives").items())
    return allocated, destroyed


def _decoded(row: Any) -> tuple[Owner, tuple[int, ...], tuple[int, ...]]:
    return (bool(row.owner.ours), row.owner.number), tuple(row.counts), tuple(row.lifetimes)


def difference(after: Registrations, before: Registrations) -> Registrations:
    """The difference between two readings; the states are those of ``after``."""
    grown = increase(_sums(after), _sums(before))
    return Registrations(
        counts={key: (*counts, *after.counts[key][_HIGH_WATER:]) for key, counts in grown.items()},
        lifetimes=increase(after.lifetimes, before.lifetimes),
        allocated=after.allocated - before.allocated,
        destroyed=after.destroyed - before.destroyed,
    )


def _sums(taken: Registrations) -> dict[Owner, tuple[int, ...]]:
    return {key: counts[:_HIGH_WATER] for key, counts in taken.counts.items()}


def records(snapshot: Registrations, clients: dict[int, tuple[str, ...]]) -> list[dict[str, Any]]:
    """A row for each client (the kernel's transport) or transport (ours).

    ``outstanding`` regions were mapped and not unmapped in the interval.  ``mrs_*`` are the
    mount's own counters since it was mounted (mountstats).
    """
    transports, mount_counters = mounts_of_transports(clients), _mount_counters()
    return [
        {
            "mount": owner(number, whose),
            "transport": "nfsrdma" if ours else "rdma",
            "number": number,
            **dict(zip(COUNTS, counts, strict=True)),
            "outstanding": counts[0] - counts[4],
            "lifetimes_us": list(snapshot.lifetimes.get((ours, number), ())),
            **next(
                (mount_counters[n] for n in whose.get(number, ()) if n in mount_counters),
                _NONE_MADE,
            ),
        }
        for (ours, number), counts in sorted(snapshot.counts.items())
        for whose in [transports if ours else clients]
    ]


def _mount_counters() -> dict[str, dict[str, int]]:
    """The mounts' own counters, by mount point."""
    return {
        str(stats.directory): {n: sum(x.counters.get(n, 0) for x in stats.xprts) for n in _MADE}
        for stats in mountstats.read_all()
    }


def _mean(head: str, total: str, count: str, scale: float, blank: bool = False) -> Column:
    """A sum divided by a count, and by ``scale``; ``blank`` if the sum is 0, not timed."""

    def show(record: Record) -> str:
        is_known = record[count] and (record[total] or not blank)
        return f"{record[total] / record[count] / scale:.4g}" if is_known else ""

    return Column(head, show)


PROBE_SET = ProbeSet(
    "registrations", "How much memory is registered, for how long, and which side invalidates it?",
    (
        *map(words, ("mount", "transport")), *map(number, ("mapped", "registered")),
        number("remote_invalidations", "invalidated by peer"),
        number("local_invalidations", "by client"), number("unmapped"), *rare(number("reused")),
        _mean("pages each", "pages", "mapped", 1),
        _mean("us each", "lifetime_ns", "unmapped", 1000),
        _mean("CPU us: map", "mapping_ns", "mapped", 1000, blank=True),
        _mean("invalidate", "invalidating_ns", "unmapped", 1000, blank=True),
        number("outstanding"), number("high_water", "peak"), size("mapped_bytes", "bytes"),
        *(number(name, name.removeprefix("mrs_")) for name in _MADE),
    ),
    read, difference, records, filters=("mount",), time=time_functions,
)  # fmt: skip
