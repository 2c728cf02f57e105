# SPDX-License-Identifier: Apache-2.0
"""The bottleneck of a mount: one sentence with the figures that show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from nfsrdma_tools.host.nfs.mountstats import DATA
from nfsrdma_tools.live.snapshot import IDLE, Mount, Op, Processors, Snapshot

__all__ = ["limit", "with_limits"]

_READS = DATA["read"]
_DATA = (*_READS, *DATA["write"])
# above this busy share, the CPUs are the bottleneck
_FULL = 0.92
# a read-ahead window of so many READs is not the bottleneck
_WINDOWS = 8
# a share of an RPC's time, and a number in flight, that is significant
_MOST = 0.5


@dataclass(frozen=True)
class _Case:
    mount: Mount
    processors: Processors
    seconds: float

    @property
    def data(self) -> Op | None:
        """The operation that transferred most data."""
        moved = [op for op in self.mount.ops if op.name in _DATA and op.count]
        return max(moved, key=lambda op: op.sent + op.received, default=None)

    @property
    def in_flight(self) -> float:
        """The average number of data RPCs in flight (Little's law)."""
        return self.data.rtt_ms / 1000 / self.seconds if self.data and self.seconds else 0.0


def with_limits(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the bottleneck of each mount."""

    def with_limit(mount: Mount) -> Mount:
        if mount.limit is IDLE and not mount.ops and not mount.waiting:
            return mount
        now = limit(mount, snapshot.processors, snapshot.seconds)
        return mount if mount.limit == now else replace(mount, limit=now)

    return replace(snapshot, mounts=tuple(map(with_limit, snapshot.mounts)))


def limit(mount: Mount, processors: Processors, seconds: float) -> str:
    """The bottleneck of ``mount`` in this interval: the first rule that matches."""
    if not mount.ops and not mount.waiting:
        return IDLE
    case = _Case(mount, processors, seconds)
    return next(filter(None, (rule(case) for rule in _RULES)), "")


def _stalled(case: _Case) -> str:
    down = [x for x in case.mount.xprts if x.connected is False]
    if case.mount.waiting and case.mount.rpcs == 0:
        oldest = case.mount.waiting[0]
        why = "the connection is down" if down else "the server does not reply"
        return f"Stalled: {oldest.procedure} has waited for {oldest.seconds:.0f} s; {why}."
    return ""


def _idle(case: _Case) -> str:
    return "" if case.mount.rpcs else IDLE


def _credits(case: _Case) -> str:
    starved = case.mount.starved
    if not starved:
        return ""
    granted = starved[0].credits.granted
    return (
        f"Credits: all {granted} that the server grants are in use, and Calls wait. "
        "Raise svc_rdma.max_requests on the server, or mount with nconnect."
    )


def _processors(case: _Case) -> str:
    if case.processors.share < _FULL:
        return ""
    most = max(case.processors.layers, key=lambda layer: layer.ns, default=None)
    where = f", most of it in {most.name}" if most else ""
    return f"CPU: {case.processors.share:.0%} of this host is busy{where}."


def _read_ahead(case: _Case) -> str:
    """The kernel reads one window ahead while the program waits for another: two are in flight."""
    mount, data = case.mount, case.data
    window = mount.read_ahead_kb * 1024 / mount.rsize if mount.rsize else 0.0
    reads = data is not None and data.name in _READS and mount.direct < mount.read / 2
    if not data or not reads or window >= _WINDOWS or case.in_flight < _MOST:
        return ""
    if data.execute_ms / 1000 / case.seconds > 2 * window + 1:
        return ""
    return (
        f"Read-ahead: {mount.read_ahead_kb} KiB is {window:.3g} READs of rsize, so only "
        f"{case.in_flight:.2g} are in flight ({_rtt(data)}). Try a larger window: "
        "nfsrdma sweep finds it, nfsrdma tune apply keeps it."
    )


def _queue(case: _Case) -> str:
    data = case.data
    if not data or data.queue_ms < _MOST * max(data.execute_ms, 1):
        return ""
    return (
        f"Queue: a {data.name} spends {data.queue_ms / data.execute_ms:.0%} of its time before "
        "transmission (it waits for a slot, a credit or the connection). Try nconnect."
    )


def _application(case: _Case) -> str:
    if case.data and case.in_flight < _MOST:
        return (
            f"Application: on average {case.in_flight:.2g} {case.data.name} is in flight; "
            "no resource of this host is exhausted."
        )
    return ""


def _server(case: _Case) -> str:
    data = case.data
    if not data:
        slowest = max(case.mount.ops, key=lambda op: op.execute_ms)
        return f"Metadata: {slowest.name} takes most time ({_rtt(slowest)})."
    return (
        f"Network and server: {case.in_flight:.2g} {data.name} in flight ({_rtt(data)}), "
        "and this host has idle CPU time."
    )


def _rtt(op: Op) -> str:
    return f"avg RTT {op.rtt_ms / max(op.count, 1):.3g} ms"


_RULES: tuple[Callable[[_Case], str], ...] = (
    _stalled,
    _idle,
    _credits,
    _processors,
    _read_ahead,
    _queue,
    _application,
    _server,
)
