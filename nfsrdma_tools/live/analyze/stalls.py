# SPDX-License-Identifier: Apache-2.0
"""The stall finder: what an administrator should be told, from one snapshot after the other.

It keeps what it needs of the snapshots before, of mounts that are still there, and says each thing
once while it lasts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nfsrdma_tools.live.connections import shared
from nfsrdma_tools.live.snapshot import Event, Mount, Port, Snapshot, Xprt

__all__ = ["Finder"]

_LOOP_SECONDS, _LOOP_CONNECTS = 60.0, 3
_CREDITS_SECONDS = 3.0
_CONNECTING = ("connect", "cm")


@dataclass
class _Memory:
    """What is remembered of a mount."""

    connected: dict[int, bool] = field(default_factory=dict)
    connects: deque[tuple[float, int]] = field(default_factory=deque)
    said: set[str] = field(default_factory=set)
    silent: float = 0.0
    starved: float = 0.0
    # the numbers of connections that were up when there was nothing else to remember
    well: tuple[int, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that was told and is to be ended, or that may have to be."""
        return not (self.said or self.connects or self.silent or self.starved)


class Finder:
    """Gives the events of snapshots, in their order; ``patience`` in seconds makes an RPC old."""

    def __init__(self, patience: float = 5.0) -> None:
        self.patience = patience
        self._mounts: dict[str, _Memory] = {}
        self._ports: dict[str, Port] = {}

    def look(self, snapshot: Snapshot) -> tuple[Event, ...]:
        """What is to be told of this snapshot, besides what it has."""
        there = {mount.device for mount in snapshot.mounts}
        self._mounts = {d: memory for d, memory in self._mounts.items() if d in there}
        found = [*self._links(snapshot)]
        calm = {key: _calm(xprts) for key, xprts in shared(snapshot.mounts).items()}
        for mount in snapshot.mounts:
            memory = self._mounts.get(mount.device)
            up = calm[id(mount.xprts)]
            if memory and up is not None and up == memory.well and _is_well(mount):
                continue
            memory = self._mounts.setdefault(mount.device, memory or _Memory())
            for look in (self._stall, _loop, _connection, _credits, _transport):
                found += look(mount, memory, snapshot)
            memory.well = up if memory.is_empty else None
        return tuple(found)

    def _links(self, snapshot: Snapshot) -> Iterator[Event]:
        before, self._ports = self._ports, {port.name: port for port in snapshot.ports}
        for port in snapshot.ports:
            was = before.get(port.name, port)
            if was.state != port.state:
                yield _link(snapshot.time, port, was.state)
        for name in before.keys() - self._ports.keys():
            yield Event(
                snapshot.time, "device gone", name, "the RDMA device is not there any more",
                "look at dmesg: a driver unloaded, a card reset or a link deleted", "error",
            )  # fmt: skip

    def _stall(self, mount: Mount, memory: _Memory, now: Snapshot) -> Iterator[Event]:
        pending = any(map(_is_silent, mount.xprts))
        memory.silent = memory.silent + now.seconds if pending and not mount.rpcs else 0.0
        oldest = max((each.seconds for each in mount.waiting), default=memory.silent)
        if oldest < self.patience:
            if _ended("stall", memory):
                yield Event(now.time, "stall ended", mount.directory, "RPCs are answered again")
            return
        if _begins("stall", memory):
            yield _stalled(mount, oldest, now.time)


def _is_silent(xprt: Xprt) -> bool:
    # of a connection that others share, their answers are seen
    return bool(xprt.pending or xprt.sending) and not xprt.counters.get("recvs")


def _calm(xprts: Iterable[Xprt]) -> tuple[int, ...] | None:
    """The numbers of connections of which there is nothing to be told; None if there is."""
    calm = all(x.connected and not (x.connects or x.sending or x.pending) for x in xprts)
    return tuple(x.number for x in xprts) if calm else None


def _is_well(mount: Mount) -> bool:
    return not mount.waiting and not mount.credit_waits and not (mount.asked and mount.has_another)


def _begins(name: str, memory: _Memory) -> bool:
    new = name not in memory.said
    memory.said.add(name)
    return new


def _ended(name: str, memory: _Memory) -> bool:
    was = name in memory.said
    memory.said.discard(name)
    return was


def _link(time: float, port: Port, was: str) -> Event:
    if port.active:
        return Event(time, "link up", port.name, f"{port.netdev}: {was} to {port.state}")
    what = f"{port.netdev}: {was} to {port.state}, physically {port.physical}"
    advice = "look at the cable, the switch port and `ip link`; mounts go on when it is back"
    return Event(time, "link down", port.name, what, advice, "error")


def _stalled(mount: Mount, seconds: float, time: float) -> Event:
    what = f"no answer for {seconds:.0f} s"
    if mount.waiting:
        first = mount.waiting[0]
        what = f"{first.procedure} has waited for {first.seconds:.0f} s ({first.waits_for})"
    down = [x for x in mount.xprts if x.connected is False]
    advice = f"see whether {mount.target.partition(':/')[0]} runs: nfsrdma doctor HOST"
    if down:
        what += f"; the connection is down ({' '.join(down[0].states)})"
        advice = "see why: nfsrdma trace connections, and `nfsrdma link list` on both sides"
    return Event(time, "stall", mount.directory, what, advice, "error")


def _loop(mount: Mount, memory: _Memory, now: Snapshot) -> Iterator[Event]:
    made = sum(xprt.connects for xprt in mount.xprts)
    if made:
        memory.connects.append((now.time, made))
    while memory.connects and memory.connects[0][0] < now.time - _LOOP_SECONDS:
        memory.connects.popleft()
    times = sum(count for _, count in memory.connects)
    if times < _LOOP_CONNECTS * max(len(mount.xprts), 1):
        memory.said.discard("loop")
    elif _begins("loop", memory):
        what = f"connected {times} times within {_LOOP_SECONDS:.0f} s"
        advice = "nfsrdma trace connections tells the reason of each disconnect"
        yield Event(now.time, "reconnect loop", mount.directory, what, advice, "error")


def _connection(mount: Mount, memory: _Memory, now: Snapshot) -> Iterator[Event]:
    before, memory.connected = memory.connected, {}
    told = any(e.kind in _CONNECTING and e.where == mount.directory for e in now.events)
    for xprt in mount.xprts:
        if xprt.number < 0 or xprt.connected is None:
            continue
        memory.connected[xprt.number] = xprt.connected
        was = before.get(xprt.number, xprt.connected)
        if was != xprt.connected:
            yield _changed(mount, xprt, now.time)
        elif xprt.connects and xprt.connected and not told:
            what = f"connection {xprt.number} to {xprt.address} broke and was made again"
            yield Event(now.time, "reconnected", mount.directory, what, "", "warning")


def _changed(mount: Mount, xprt: Xprt, time: float) -> Event:
    if xprt.connected:
        what = f"connection {xprt.number} to {xprt.address} is up"
        return Event(time, "connected", mount.directory, what)
    what = f"connection {xprt.number} to {xprt.address} is down ({' '.join(xprt.states)})"
    advice = "an idle connection is closed after minutes; a busy one: nfsrdma trace connections"
    return Event(time, "disconnected", mount.directory, what, advice, "warning")


def _credits(mount: Mount, memory: _Memory, now: Snapshot) -> Iterator[Event]:
    starved = mount.starved
    memory.starved = memory.starved + now.seconds if starved else 0.0
    if not starved:
        memory.said.discard("credits")
    elif memory.starved >= _CREDITS_SECONDS and _begins("credits", memory):
        granted = starved[0].credits.granted
        what = f"all {granted} credits were in use for {memory.starved:.0f} s"
        if mount.credit_waits:
            what += f", {mount.credit_waits} calls waited in the last {now.seconds:.0f} s"
        advice = "have the server grant more (svc_rdma.max_requests), or mount with nconnect"
        yield Event(now.time, "credits used up", mount.directory, what, advice, "warning")


def _transport(mount: Mount, memory: _Memory, now: Snapshot) -> Iterable[Event]:
    if not mount.has_another:
        memory.said.discard("transport")
    elif _begins("transport", memory):
        what = f"fstab asks for {mount.asked}, the mount has {mount.transport}"
        advice = "unmount all mounts of that server, then mount this one first"
        return (Event(now.time, "other transport", mount.directory, what, advice, "error"),)
    return ()
