# SPDX-License-Identifier: Apache-2.0
"""Break down the CPU time and the messages of trials, from what their probe sets counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nfsrdma_tools.host.nfs.mountstats import DATA
from nfsrdma_tools.probes.cpu_layers import CARD, EMULATED, IDLE, NEITHER, SERVER, TCP_IP, TRACING
from nfsrdma_tools.probes.cpu_layers import NIC as NETWORK
from nfsrdma_tools.sweep.store import Trial

__all__ = ["CLIENT", "NIC", "SHARED", "SIDES", "Spending", "spending"]

CLIENT, SHARED, NIC = "client", "shared", EMULATED
SIDES = (CLIENT, SERVER, SHARED)
"""Sides that CPU time belongs to, besides an emulated NIC; shared: both, or unattributed.

A modelled card counts as an emulated NIC, and so do the network layers below soft-RoCE: over RDMA
they carry nothing else.
"""
# rows that are not work of the mount
_NOT_WORK = {TRACING, IDLE, "busy"}
# how data can be transferred, by the columns of the probe set (RFC 8166, section 3)
_WAYS = {
    "read": {
        "replies_inline": "inline",
        "replies_write": "Write chunk",
        "replies_reply": "Reply chunk",
        "replies_lane": "lane",
        "replies_padded": "inline, behind padding",
        "replies_optimistic": "optimistic RDMA Read",
    },
    "write": {
        "calls_inline": "inline",
        "calls_pulled_up": "inline, copied",
        "calls_gathered": "inline, gathered",
        "calls_read": "Read chunk",
        "calls_position_zero": "position-zero chunk",
        "calls_padded": "inline, behind padding",
    },
}


@dataclass(frozen=True)
class Spending:
    """Means per data operation over some trials.

    ``bytes`` of data; ``cpu``: nanoseconds by SIDES and NIC (empty without probe set cpu);
    ``called``: the part of the NIC's time on client threads.  ``segments`` of the chunks offered
    for its data, ``registrations`` of memory (None without that probe set); ``ways``: the share of
    the messages with data that each transfer method has (0 to 1).
    """

    bytes: float
    cpu: Mapping[str, float] = field(default_factory=dict)
    called: float = 0.0
    segments: float = 0.0
    registrations: float | None = None
    ways: Mapping[str, float] = field(default_factory=dict)

    @property
    def host(self) -> float:
        """Nanoseconds without the emulated NIC."""
        return sum(self.cpu.get(side, 0.0) for side in SIDES)

    @property
    def emulated(self) -> float:
        """The emulated NIC's share of the CPU time, 0 to 1."""
        return self.cpu.get(NIC, 0.0) / sum(self.cpu.values()) if any(self.cpu.values()) else 0.0


def spending(trials: Sequence[Trial], direction: str) -> Spending | None:
    """The breakdown of the trials with counts, for "read" or "write"; None without such trials."""
    kept = [trial for trial in trials if trial.probe_rows and trial.rpc.operations]
    count = sum(trial.rpc.operations for trial in kept)
    if not count:
        return None
    cpu = _sums(map(_cpu, kept))
    nic = _sums(row for t in kept for row in _rows([t], "cpu", _offloaded(t)))
    chunks = _sums(_rows(kept, "chunks", DATA[direction]))
    ways = {name: chunks[key] for key, name in _WAYS[direction].items() if chunks[key]}
    return Spending(
        bytes=sum(trial.transfer.bytes for trial in kept) / count,
        cpu={name: max(ns, 0) / count for name, ns in cpu.items()},
        called=nic[f"{CLIENT}_ns"] / count,
        segments=chunks["write_segments" if direction == "read" else "read_segments"] / count,
        registrations=_registrations(kept),
        ways={name: value / sum(ways.values()) for name, value in ways.items()},
    )


def _registrations(trials: Sequence[Trial]) -> float | None:
    """Per operation; None if the kernel's events lack what the probe set reads."""
    if not all("registrations" in trial.probe_rows for trial in trials):
        return None
    count = sum(trial.rpc.operations for trial in trials)
    return _sums(_rows(trials, "registrations"))["mapped"] / count


def _cpu(trial: Trial) -> dict[str, int]:
    """CPU time by side: the trial's busy time, divided as the probe set counted it."""
    rows = [row for row in _rows([trial], "cpu") if row["layer"] not in _NOT_WORK]
    if not rows:
        return {}
    offloaded = _offloaded(trial)
    work = _sums(row for row in rows if row["layer"] not in offloaded)
    by_side = {
        SERVER: work[f"{SERVER}_ns"],
        SHARED: work[f"{NEITHER}_ns"],
        NIC: sum(row["ns"] for row in rows if row["layer"] in offloaded),
    }
    # the probe set counts the harness as client time; busy time is without it
    return {CLIENT: trial.cpu.busy_ns - sum(by_side.values()), **by_side}


def _offloaded(trial: Trial) -> set[str]:
    """Layers that an RDMA card would replace: its model, or an emulated NIC and its network."""
    layers = {row["layer"] for row in _rows([trial], "cpu")}
    if EMULATED in layers:
        return {EMULATED, NETWORK, TCP_IP}
    return {CARD} & layers


def _rows(
    trials: Iterable[Trial], probe_set: str, names: Container[str] | None = None
) -> Iterator[dict[str, Any]]:
    """The rows of a probe set, restricted to layers or procedures."""
    for trial in trials:
        for row in trial.probe_rows.get(probe_set, ()):
            if names is None or row.get("layer", row.get("procedure")) in names:
                yield row


def _sums(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for row in rows:
        sums.update({key: n for key, n in row.items() if isinstance(n, int)})
    return sums
