# SPDX-License-Identifier: Apache-2.0
"""The stall finder: events for the administrator, from consecutive snapshots.

It remembers what it needs of the mounts in earlier snapshots, and reports a condition once while it
lasts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nfsrdma_tools.live.snapshot import Event, Mount, Port, Snapshot, Xprt, xprt_groups

__all__ = ["EventFinder"]

_LOOP_SECONDS, _LOOP_CONNECTS = 60.0, 3
_CREDITS_SECONDS = 3.0
_CONNECTING = ("connect", "cm")


@dataclass
class _Memory:
    """The memory of a mount."""

    connected: dict[int, bool] = field(default_factory=dict)
    connects: deque[tuple[float, int]] = field(default_factory=deque)
    reported: set[str] = field(default_factory=set)
    silent: float = 0.0
    starved: float = 0.0
    # the numbers of the connections, all up, when there was nothing else to remember
    well: tuple[int, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no condition is reported or may become one."""
        return not (self.reported or self.connects or self.silent or self.starved)


class EventFinder:
    """Finds events in snapshots; an RPC older than ``patience`` seconds is a stall."""

    def __init__(self, patience: float = 5.0) -> None:
        self.patience = patience
        self._mounts: dict[str, _Memory] = {}
        self._ports: dict[str, Port] = {}
        # of the snapshots: the time of day may be set meanwhile
        self._elapsed = 0.0

    def add(self, snapshot: Snapshot) -> tuple[Event, ...]:
        """The new events of this snapshot."""
        self._elapsed += snapshot.seconds
        there = {mount.device for mount in snapshot.mounts}
        self._mounts = {d: memory for d, memory in self._mounts.items() if d in there}
        events = [*self._links(snapshot)]
        steady = {key: _steady(xprts) for key, xprts in xprt_groups(snapshot.mounts).items()}
        for mount in snapshot.mounts:
            memory = self._mounts.get(mount.device)
            up = steady[id(mount.xprts)]
            if memory and up is not None and up == memory.well and _is_well(mount):
                continue
            memory = self._mounts.setdefault(mount.device, memory or _Memory())
            for find in (self._stall, self._loop, _connection, _credits, _transport):
                events += find(mount, memory, snapshot)
            memory.well = up if memory.is_empty else None
        return tuple(events)

    def _links(self, snapshot: Snapshot) -> Iterator[Event]:
        before, self._ports = self._ports, {port.name: port for port in snapshot.ports}
        for port in snapshot.ports:
            was = before.get(port.name, port)
            if was.state != port.state:
                yield _link(snapshot.time, port, was.state)
        for name in before.keys() - self._ports.keys():
            yield Event(
                snapshot.time, "device gone", name, "the RDMA device disappeared",
                "check dmesg: a driver unloaded, a card reset or a link was deleted", "error",
            )  # fmt: skip

    def _stall(self, mount: Mount, memory: _Memory, now: Snapshot) -> Iterator[Event]:
        pending = any(map(_is_silent, mount.xprts))
        memory.silent = memory.silent + now.seconds if pending and not mount.rpcs else 0.0
        oldest = max((rpc.seconds for rpc in mount.waiting), default=memory.silent)
        if oldest < self.patience:
            if _ended("stall", memory):
                yield Event(now.time, "stall ended", mount.directory, "the server replies again")
            return
        if _begins("stall", memory):
            yield _stalled(mount, oldest, now.time)

    def _loop(self, mount: Mount, memory: _Memory, now: Snapshot) -> Iterator[Event]:
        connects = sum(xprt.connects for xprt in mount.xprts)
        if connects:
            memory.connects.append((self._elapsed, connects))
        while memory.connects and memory.connects[0][0] < self._elapsed - _LOOP_SECONDS:
            memory.connects.popleft()
        times = sum(count for _, count in memory.connects)
        if times < _LOOP_CONNECTS * max(len(mount.xprts), 1):
            memory.reported.discard("loop")
        elif _begins("loop", memory):
            text = f"{times} connects in {_LOOP_SECONDS:.0f} s"
            advice = "nfsrdma trace connections shows the reason of each disconnect"
            yield Event(now.time, "reconnect loop", mount.directory, text, advice, "error")


def _is_silent(xprt: Xprt) -> bool:
    # on a shared connection, replies to other mounts count, too
    return bool(xprt.pending or xprt.sending) and not xprt.counters.get("recvs")


def _steady(xprts: Iterable[Xprt]) -> tuple[int, ...] | None:
    """The numbers of connections without anything to report; None if there is."""
    steady = all(x.connected and not (x.connects or x.sending or x.pending) for x in xprts)
    return tuple(x.number for x in xprts) if steady else None


def _is_well(mount: Mount) -> bool:
    return not mount.waiting and not mount.credit_waits and not (mount.asked and mount.has_another)


def _begins(name: str, memory: _Memory) -> bool:
    new = name not in memory.reported
    memory.reported.add(name)
    return new


def _ended(name: str, memory: _Memory) -> bool:
    was = name in memory.reported
    memory.reported.discard(name)
    return was


def _link(time: float, port: Port, was: str) -> Event:
    if port.active:
        return Event(time, "link up", port.name, f"{port.netdev}: {was} to {port.state}")
    text = f"{port.netdev}: {was} to {port.state}, physical state {port.physical}"
    advice = "check the cable, the switch port and `ip link`; mounts resume when the link is up"
    return Event(time, "link down", port.name, text, advice, "error")


def _stalled(mount: Mount, seconds: float, time: float) -> Event:
    text = f"no reply for {seconds:.0f} s"
    if mount.waiting:
        first = mount.waiting[0]
        text = f"{first.procedure} has waited for {first.seconds:.0f} s ({first.waits_for})"
    down = [x for x in mount.xprts if x.connected is False]
    advice = f"check that {mount.target.partition(':/')[0]} runs: nfsrdma doctor HOST"
    if down:
        text += f"; the connection is down ({' '.join(down[0].states)})"
        advice = "find the reason: nfsrdma trace connections, and nfsrdma link show on both hosts"
    return Event(time, "stall", mount.directory, text, advice, "error")


def _connection(mount: Mount, memory: _Memory, now: Snapshot) -> Iterator[Event]:
    before, memory.connected = memory.connected, {}
    announced = any(e.kind in _CONNECTING and e.where == mount.directory for e in now.events)
    for xprt in mount.xprts:
        if xprt.number < 0 or xprt.connected is None:
            continue
        memory.connected[xprt.number] = xprt.connected
        was = before.get(xprt.number, xprt.connected)
        if was != xprt.connected:
            yield _changed(mount, xprt, now.time)
        elif xprt.connects and xprt.connected and not announced:
            text = f"connection {xprt.number} to {xprt.address} broke and reconnected"
            yield Event(now.time, "reconnected", mount.directory, text, "", "warning")


def _changed(mount: Mount, xprt: Xprt, time: float) -> Event:
    if xprt.connected:
        text = f"connection {xprt.number} to {xprt.address} is up"
        return Event(time, "connected", mount.directory, text)
    text = f"connection {xprt.number} to {xprt.address} is down ({' '.join(xprt.states)})"
    advice = "normal after minutes without RPCs; otherwise run nfsrdma trace connections"
    return Event(time, "disconnected", mount.directory, text, advice, "warning")


def _credits(mount: Mount, memory: _Memory, now: Snapshot) -> Iterator[Event]:
    starved = mount.starved
    memory.starved = memory.starved + now.seconds if starved else 0.0
    if not starved:
        memory.reported.discard("credits")
    elif memory.starved >= _CREDITS_SECONDS and _begins("credits", memory):
        granted = starved[0].credits.granted
        text = f"all {granted} credits were in use for {memory.starved:.0f} s"
        if mount.credit_waits:
            text += f", {mount.credit_waits} Calls waited in the last {now.seconds:.0f} s"
        advice = "raise svc_rdma.max_requests on the server, or mount with nconnect"
        yield Event(now.time, "credits used up", mount.directory, text, advice, "warning")


def _transport(mount: Mount, memory: _Memory, now: Snapshot) -> Iterable[Event]:
    if not mount.has_another:
        memory.reported.discard("transport")
    elif _begins("transport", memory):
        text = f"transport: requested {mount.asked}, got {mount.transport}"
        advice = "unmount all mounts of that server, and mount this one first"
        return (Event(now.time, "other transport", mount.directory, text, advice, "error"),)
    return ()
