# SPDX-License-Identifier: Apache-2.0
"""The probe set latency: the phases of a client's RPCs, per procedure (bpf/latency.c)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nfsrdma_tools.probes.columns import microseconds, number, words
from nfsrdma_tools.probes.maps import Row, free, increase, row_of, rows, split, text, total
from nfsrdma_tools.probes.probe_sets import ProbeSet
from nfsrdma_tools.probes.rpc_clients import owner
from nfsrdma_tools.probes.session import Session

__all__ = ["PHASES", "PROBE_SET", "Latency", "Slow", "percentile", "slot_ns"]

# enum phase of bpf/latency.c
PHASES = ("slot", "queue", "marshal", "network_and_server", "reply", "wake_up", "decode")
"""Wait for a slot; for a credit and the turn; register, build and post; wire and server; read the
reply and invalidate memory; wake the task; decode the result."""
_Counts = tuple[int, ...]
_Decoded = tuple[Row, _Counts, _Counts, _Counts]
_SHOWN = 8


@dataclass(frozen=True)
class Slow:
    """One of the slowest RPCs: its end (monotonic, ns), its ns in total and in each phase."""

    end: int
    total: int
    phases: tuple[int, ...]
    client: int
    xid: int
    procedure: str


@dataclass(frozen=True)
class Latency:
    """Per client and procedure, in nanoseconds.

    ``sums``: the count of RPCs, their time, and their time in each of PHASES.  ``times``: a
    histogram of times, with the slots of ``slot_ns``.  ``phase_times``: one histogram per phase,
    slot n from 2^(n-1) to below 2^n units of 1024 ns.  ``slow``: the slowest RPCs since the last
    reading.
    """

    sums: dict[Row, tuple[int, ...]]
    times: dict[Row, tuple[int, ...]]
    phase_times: dict[Row, tuple[int, ...]]
    slow: tuple[Slow, ...]


def read(session: Session) -> Latency:
    """The counts since the session began, and the slowest RPCs since the last reading."""
    decoded = rows(session, "latency_rows", row_of, _decoded)
    brief = session.state.get("sums only")
    return Latency(
        sums={row: sums for row, sums, _, _ in decoded},
        times={row: times for row, _, times, _ in decoded},
        phase_times={} if brief else {row: slots for row, _, _, slots in decoded},
        slow=() if brief else _slowest(session.table("slowest")),
    )


def _decoded(row: Row, leaves: list[Any]) -> _Decoded:
    return (
        row,
        total((leaf.count, leaf.sum, *leaf.phases) for leaf in leaves),
        total(leaf.times for leaf in leaves),
        total(leaf.phase_times for leaf in leaves),
    )


def forget(session: Session, reading: Latency, now: float) -> None:
    """Remove idle rows from the map; ``now`` in seconds."""
    free(session, "latency_rows", now, reading.sums, reading.times, reading.phase_times)


def difference(after: Latency, before: Latency) -> Latency:
    """The difference between two readings of one session."""
    return Latency(
        increase(after.sums, before.sums),
        increase(after.times, before.times),
        increase(after.phase_times, before.phase_times),
        after.slow,
    )


def records(snapshot: Latency, clients: dict[int, tuple[str, ...]]) -> list[dict[str, Any]]:
    """A row for each mount and procedure, then the slowest RPCs; all times in microseconds."""
    return [
        *(_row(row, sums, snapshot, clients) for row, sums in sorted(snapshot.sums.items())),
        *(_slow(call, clients) for call in snapshot.slow[:_SHOWN]),
    ]


def _row(
    row: Row, sums: tuple[int, ...], snapshot: Latency, clients: dict[int, tuple[str, ...]]
) -> dict[str, Any]:
    count, spent, *phases = sums
    times = snapshot.times.get(row, ())
    histograms = split(snapshot.phase_times.get(row, ()), PHASES)
    return {
        "mount": owner(row.client, clients),
        "procedure": row.procedure,
        "count": count,
        "mean_us": spent / count / 1000,
        **{f"p{p}_us": percentile(times, p) / 1000 for p in (50, 95, 99)},
        "phases_us": _phases(phases, count),
        "phase_histograms": {phase: histograms.get(phase, []) for phase in PHASES},
        "times": list(times),
    }


def _slow(call: Slow, clients: dict[int, tuple[str, ...]]) -> dict[str, Any]:
    return {
        "mount": owner(call.client, clients),
        "procedure": f"{call.procedure} xid 0x{call.xid:08x}",
        "count": 1,
        "mean_us": call.total / 1000,
        "phases_us": _phases(call.phases, 1),
        "slowest": True,
    }


def _phases(phases: Any, count: int) -> dict[str, float]:
    return {name: spent / count / 1000 for name, spent in zip(PHASES, phases, strict=True)}


def _slowest(table: Any) -> tuple[Slow, ...]:
    # each CPU has its own; empty the map, so that the next reading has only later RPCs
    calls = [c for _, cpus in table.items() for kept in cpus for c in kept.calls if c.total]
    calls = [
        Slow(c.end, c.total, tuple(c.phases), c.client, c.xid, text(c.procedure)) for c in calls
    ]
    table.clear()
    return tuple(sorted(calls, key=lambda call: -call.total))


def slot_ns(slot: int) -> tuple[int, int]:
    """The bounds of a slot of ``times`` in ns, the upper one exclusive: four per power of two."""
    return _edge(slot), _edge(slot + 1)


def _edge(slot: int) -> int:
    if slot < 4:
        return slot << 10
    power, quarter = divmod(slot - 4, 4)
    return (4 + quarter) << (power + 10)


def percentile(times: tuple[int, ...], percent: float) -> float:
    """The percentile of times in ns, linear within a slot; 0 without RPCs."""
    wanted = sum(times) * percent / 100
    for slot, count in enumerate(times):
        if count and wanted <= count:
            low, high = slot_ns(slot)
            return low + (high - low) * wanted / count
        wanted -= count
    return 0.0


PROBE_SET = ProbeSet(
    "latency", "In which phase does a request wait?",
    (
        *map(words, ("mount", "procedure")), number("count", "RPCs"),
        microseconds("mean_us", "mean us"),
        *(microseconds(f"{p}_us", p) for p in ("p50", "p95", "p99")),
        microseconds("slot", "| slot", "phases_us"),
        *(microseconds(phase, phase, "phases_us") for phase in PHASES[1:]),
    ),
    read, difference, records, filters=("mount", "pid", "procedures"), forget=forget,
)  # fmt: skip
