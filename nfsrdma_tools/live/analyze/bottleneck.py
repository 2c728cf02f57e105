# SPDX-License-Identifier: Apache-2.0
"""One plain sentence for each mount: what limits it now, with the figures that say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nfsrdma_tools.host.nfs.mountstats import DATA
from nfsrdma_tools.live.snapshot import Mount, Op, Processors

__all__ = ["IDLE", "limit"]

_READS = DATA["read"]
_DATA = (*_READS, *DATA["write"])
# the host is full above this share of its CPUs
_FULL = 0.92
# READs in a read-ahead window that is large enough not to be suspected
_WINDOWS = 8
# of an RPC's time, what makes it the thing that counts
_MOST = 0.5


IDLE = "Idle: nothing was asked for."
"""Said of a mount on which nothing was done and nothing waits."""


@dataclass(frozen=True)
class _Case:
    mount: Mount
    processors: Processors
    seconds: float

    @property
    def data(self) -> Op | None:
        """The procedure that moved most data."""
        moved = [op for op in self.mount.ops if op.name in _DATA and op.count]
        return max(moved, key=lambda op: op.sent + op.received, default=None)

    @property
    def in_flight(self) -> float:
        """How many data RPCs were on the wire, on average (Little's law)."""
        return self.data.rtt_ms / 1000 / self.seconds if self.data and self.seconds else 0.0


def limit(mount: Mount, processors: Processors, seconds: float) -> str:
    """What limits ``mount`` in this interval; the first thing that fits."""
    if not mount.ops and not mount.waiting:
        return IDLE
    case = _Case(mount, processors, seconds)
    return next(filter(None, (rule(case) for rule in _RULES)), "")


def _stalled(case: _Case) -> str:
    down = [x for x in case.mount.xprts if x.connected is False]
    if case.mount.waiting and case.mount.rpcs == 0:
        oldest = case.mount.waiting[0]
        why = "it is not connected" if down else "the server does not answer"
        return f"Stalled: {oldest.procedure} waits for {oldest.seconds:.0f} s; {why}."
    return ""


def _idle(case: _Case) -> str:
    return "" if case.mount.rpcs else IDLE


def _credits(case: _Case) -> str:
    starved = case.mount.starved
    if not starved:
        return ""
    granted = starved[0].credits.granted
    return (
        f"Credits: all {granted} that the server grants are in use, and calls wait for one; "
        "have the server grant more (svc_rdma.max_requests), or use nconnect."
    )


def _processors(case: _Case) -> str:
    if case.processors.share < _FULL:
        return ""
    most = max(case.processors.layers, key=lambda layer: layer.ns, default=None)
    where = f", most of it in {most.name}" if most else ""
    return f"CPU: {case.processors.share:.0%} of this host is busy{where}."


def _read_ahead(case: _Case) -> str:
    """One window is read ahead while another is waited for: no more can be under way."""
    mount, data = case.mount, case.data
    window = mount.read_ahead_kb * 1024 / mount.rsize if mount.rsize else 0.0
    reads = data is not None and data.name in _READS and mount.direct < mount.read / 2
    if not data or not reads or window >= _WINDOWS or case.in_flight < _MOST:
        return ""
    if data.execute_ms / 1000 / case.seconds > 2 * window + 1:
        return ""
    return (
        f"Read-ahead: {mount.read_ahead_kb} KiB is {window:.3g} READs of rsize, so only "
        f"{case.in_flight:.2g} are under way, {_each(data)}; try a larger window "
        "(nfsrdma sweep finds it, nfsrdma tune apply keeps it)."
    )


def _waiting_here(case: _Case) -> str:
    data = case.data
    if not data or data.queue_ms < _MOST * max(data.execute_ms, 1):
        return ""
    return (
        f"Waiting to be sent: {data.queue_ms / data.execute_ms:.0%} of each {data.name} is spent "
        "before it leaves (slots, credits or the connection's turn); try nconnect."
    )


def _application(case: _Case) -> str:
    if case.data and case.in_flight < _MOST:
        return (
            f"The application: on average {case.in_flight:.2g} {case.data.name} is under way; "
            "nothing here is full."
        )
    return ""


def _server(case: _Case) -> str:
    data = case.data
    if not data:
        slowest = max(case.mount.ops, key=lambda op: op.execute_ms)
        return f"Calls without data: most time goes into {slowest.name}, {_each(slowest)}."
    return (
        f"The wire and the server: {case.in_flight:.2g} {data.name} under way, {_each(data)}, "
        "while this host has CPU to spare."
    )


def _each(op: Op) -> str:
    return f"{op.rtt_ms / max(op.count, 1):.3g} ms for an answer"


_RULES: tuple[Callable[[_Case], str], ...] = (
    _stalled,
    _idle,
    _credits,
    _processors,
    _read_ahead,
    _waiting_here,
    _application,
    _server,
)
