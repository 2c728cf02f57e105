# SPDX-License-Identifier: Apache-2.0
"""The mounts of a snapshot: their counts between two readings, and their connections."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs import definitions, mountinfo, mountstats, readahead, sunrpc
from nfsrdma_tools.host.nfs.mounts import Mount as Effect
from nfsrdma_tools.host.nfs.mounts import nfs_mounts
from nfsrdma_tools.live.collect.client_finder import ClientFinder, RpcClients
from nfsrdma_tools.live.collect.readings import SLOWLY, Readings
from nfsrdma_tools.live.snapshot import IDLE, Credits, Mount, Op, Personality, Xprt
from nfsrdma_tools.nfs_ports import RDMA_PORT

__all__ = ["MountReader"]

# columns of a connection that are not counters
_NOT_COUNTED = {*mountstats.STATES, "bind_count", "connect_time"}


class MountReader:
    """Keeps the list of mounts, and adds their counts and connections."""

    def __init__(self, clients: ClientFinder, machine: Machine) -> None:
        self._clients, self._machine = clients, machine
        self._watch = _watch(machine)
        self._mounts: list[Mount] = []
        self._known = RpcClients()
        self._transports = self._transports_of(())
        self._turn = 0

    def mounts(self, now: Readings, before: Readings) -> tuple[Mount, ...]:
        """All NFS superblocks with their counts between two readings."""
        self._refresh()
        transports = self._transports.read()
        shared: dict[tuple[tuple[int, ...] | str, str], tuple[Xprt, ...]] = {}
        mounts = []
        for mount in self._mounts:
            stats = now.mounts.get(mount.directory)
            if stats is None:
                mounts.append(mount)
                continue
            added = _difference(stats, before.mounts.get(mount.directory))
            numbers = self._known.xprts.get(mount.directory, ())
            # mounts that share connections share the tuple of them
            key = numbers or mount.directory, mount.transport
            if key not in shared:
                states = tuple(transports[n] for n in numbers if n in transports)
                xprts = _xprts(added.xprts, states, mount.transport)
                shared[key] = tuple(_with_personality(xprt, now, before) for xprt in xprts)
            mounts.append(_with_counts(mount, added, shared[key]))
        return tuple(mounts)

    def _refresh(self) -> None:
        """Update the lists of mounts and connections if they changed, and some of the settings."""
        self._turn += 1
        if self._watch.changed():
            entries = mountinfo.read(self._machine)
            requested = _requested(self._machine, entries)
            grouped = _grouped(nfs_mounts(entries, self._machine), requested)
            self._mounts = [_with_read_ahead(mount, self._machine) for mount in grouped]
            self._clients.look_up()
        elif self._clients.has_failed:
            self._clients.look_up()
        if self._known is not self._clients.known:
            self._known = self._clients.known
            self._transports = self._transports_of(set().union(*self._known.xprts.values()))
        for i in range(self._turn % SLOWLY, len(self._mounts), SLOWLY):
            self._mounts[i] = _with_read_ahead(self._mounts[i], self._machine)

    def _transports_of(self, numbers: Container[int]) -> sunrpc.Transports:
        return sunrpc.Transports(numbers, self._machine)


def _watch(machine: Machine) -> mountinfo.Watch:
    path = machine.of_process("mountinfo")
    try:
        return mountinfo.Watch(machine)
    except OSError as error:
        other = path != LIVE.of_process("mountinfo")
        hint = "the path of procfs has to be the /proc of a host" if other else ""
        raise UserError(f"cannot read {path}: {error.strerror}", hint) from error


def _requested(machine: Machine, entries: Sequence[mountinfo.Entry]) -> dict[Path, str]:
    """The requested transports by mount point; {} if the host's files cannot be read."""
    try:
        return definitions.requested_transports(machine, mountinfo.closed(entries))
    except OSError:
        # in a container without the host's root, /proc/1/root needs CAP_SYS_PTRACE
        return {}


def _grouped(mounts: Iterable[Effect], requested: Mapping[Path, str]) -> list[Mount]:
    by_device: dict[str, Mount] = {}
    for mount in mounts:
        directory = str(mount.directory)
        asked = requested.get(mount.directory) or _asked_by_port(mount)
        first = by_device.get(mount.device)
        if first:
            # a request that is not met, of any mount point, is the one to report
            asked = first.asked if first.has_another else asked or first.asked
            by_device[mount.device] = replace(first, also=(*first.also, directory), asked=asked)
            continue
        by_device[mount.device] = Mount(
            device=mount.device,
            directory=directory,
            target=str(mount.target),
            fstype=mount.fstype,
            transport=mount.transport,
            asked=asked,
            vers=mount.vers,
            rsize=mount.rsize,
            wsize=mount.wsize,
            nconnect=mount.nconnect,
            limit=IDLE,
        )
    return list(by_device.values())


def _asked_by_port(mount: Effect) -> str:
    """RDMA, if the mount has its port: also of mounts by autofs or a CSI driver.

    The options in effect have the port that was requested, and the transport of the connection,
    which may be that of an earlier mount (nfs_show_mount_options() in fs/nfs/super.c).
    """
    return "rdma" if mount.options.get("port") == str(RDMA_PORT) else ""


def _with_read_ahead(mount: Mount, machine: Machine) -> Mount:
    try:
        window = readahead.get_kb(mount.device, machine)
    except UserError:
        return mount
    return mount if window == mount.read_ahead_kb else replace(mount, read_ahead_kb=window)


def _difference(
    now: mountstats.MountStats, before: mountstats.MountStats | None
) -> mountstats.MountStats:
    """The counts between two readings; none for a mount that is new in this interval."""
    # a new mount on the same directory often has the same device, too: the kernel gives the lowest
    # free number to a superblock (get_anon_bdev in fs/super.c)
    with contextlib.suppress(UserError):
        return mountstats.difference(now, before or now)
    return mountstats.difference(now, now)


def _with_counts(mount: Mount, added: mountstats.MountStats, xprts: tuple[Xprt, ...]) -> Mount:
    busy = ((n, op) for n, op in added.operations.items() if op.operations or op.transmissions)
    counted = added.bytes
    return replace(
        mount,
        read=counted.server_read,
        written=counted.server_write,
        direct=counted.direct_read + counted.direct_write,
        ops=tuple(_op(name, counts) for name, counts in busy),
        xprts=xprts,
    )


def _op(name: str, counts: mountstats.Operation) -> Op:
    again = max(counts.transmissions - counts.operations, 0)
    return Op(
        name, counts.operations, counts.errors, counts.timeouts, again, counts.bytes_sent,
        counts.bytes_received, counts.queue_ms, counts.rtt_ms, counts.execute_ms,
    )  # fmt: skip


def _xprts(
    counted: tuple[mountstats.Xprt, ...], transports: tuple[sunrpc.Transport, ...], transport: str
) -> tuple[Xprt, ...]:
    # both list connections in the order of their creation: the kernel appends to the list of a
    # switch (xprt_switch_add_xprt_locked in net/sunrpc/xprtmultipath.c)
    if len(counted) != len(transports):
        return tuple(map(_from_mountstats, counted))
    return tuple(
        _with_state(_from_mountstats(c), t, transport)
        for c, t in zip(counted, transports, strict=True)
    )


def _with_personality(xprt: Xprt, now: Readings, before: Readings) -> Xprt:
    state = now.transports.get(xprt.number)
    if not state:
        return xprt
    then = before.transports.get(xprt.number, state)
    # counters restart at 0 with a connection
    grown = {
        name: grown
        for name, count in state.counters.items()
        if (grown := count - (had if (had := then.counters.get(name, 0)) <= count else 0))
    }
    return replace(xprt, personality=Personality(state.personality, state.gauges, grown))


def _from_mountstats(xprt: mountstats.Xprt) -> Xprt:
    counters = {n: count for n, count in xprt.counters.items() if count and n not in _NOT_COUNTED}
    return Xprt(kind=xprt.proto, connects=counters.pop("connect_count", 0), counters=counters)


def _with_state(xprt: Xprt, state: sunrpc.Transport, transport: str) -> Xprt:
    # sunrpc's congestion window has the credits of the kernel's transport, not of our module
    credits = Credits(state.credits, state.used) if transport == "rdma" else Credits()
    return replace(
        xprt,
        number=state.number,
        address=state.address,
        states=state.states,
        connected=state.connected,
        credits=credits,
        requests=state.requests,
        sending=state.sending,
        pending=state.pending,
        backlog=state.backlog,
    )
