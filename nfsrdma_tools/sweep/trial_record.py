# SPDX-License-Identifier: Apache-2.0
"""The record of a trial, as stored, exported and charted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.sweep.plan import Cell

__all__ = ["FAILED", "NOT_OFFERED", "OK", "Trial"]

OK = "ok"
FAILED = "failed"
NOT_OFFERED = "not_offered"


@dataclass(frozen=True)
class Trial:
    """One run of one cell.  Figures are 0 or empty unless ``status`` is ``ok``.

    ``throughput`` and ``ceiling`` are in MB/s of 1,000,000 bytes; the ceiling is rsize divided by
    the mean round trip, the limit of one request at a time.  ``duration_ns`` is the reader's,
    from its first to its last request, within ``wall_ns`` from ``began`` (UTC) on.
    ``busy_ns`` (not idle), ``task_ns`` (running tasks, by schedstat) and ``cpu_share`` (busy share
    of all CPUs, 0 to 1) cover the whole host while the reader ran, without ``harness_ns``, the
    cost of starting and watching it.  ``cpu_modes`` and ``steal_s`` (seconds, in ticks) span
    ``wall_ns``, start and end included.
    Round trip, queue and execute times are means per data operation in milliseconds, from
    mountstats.  ``rdma`` has the sum of each counter of the rdma transports.
    ``accounts`` has the rows of each attached probe set by its name (trial_probes.py).
    """

    plan: str
    cell: Cell
    run: int
    order: int
    status: str = OK
    reason: str = ""
    environment: str = ""
    started: str = ""
    duration_ns: int = 0
    bytes: int = 0
    throughput: float = 0.0
    busy_ns: int = 0
    task_ns: int = 0
    harness_ns: int = 0
    wall_ns: int = 0
    cpu_share: float = 0.0
    cpu_modes: dict[str, float] = field(default_factory=dict)
    steal_s: float = 0.0
    reader_user_s: float = 0.0
    reader_system_s: float = 0.0
    operations: int = 0
    rpc_counts: dict[str, int] = field(default_factory=dict)
    rtt_ms: float = 0.0
    queue_ms: float = 0.0
    execute_ms: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    retransmits: int = 0
    ceiling: float = 0.0
    rdma: dict[str, int] = field(default_factory=dict)
    verified: bool = False
    cache: str = ""
    mount: dict[str, str] = field(default_factory=dict)
    read_ahead_kb_before: int = 0
    read_ahead_kb_after: int = 0
    axes: dict[str, str] = field(default_factory=dict)
    accounts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    began: str = ""

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.status == OK

    def to_json(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        """The trial of ``to_json``; UserError when it is not one."""
        known = {item.name for item in fields(cls)}
        if not known.issuperset(data) or not {"plan", "cell", "run", "order"}.issubset(data):
            raise UserError("this is not a trial", "was it written by another version?")
        return cls(**{**data, "cell": Cell.from_json(data["cell"])})
