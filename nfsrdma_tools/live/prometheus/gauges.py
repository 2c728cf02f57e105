# SPDX-License-Identifier: Apache-2.0
"""The gauges of the newest snapshot."""

from __future__ import annotations

from collections.abc import Iterator

from nfsrdma_tools.live.connections import connections, name
from nfsrdma_tools.live.snapshot import Mount, Server, Snapshot, Xprt

__all__ = ["Labels", "gauges"]

Labels = tuple[str, ...]
_Value = tuple[str, float, Labels]


def gauges(snapshot: Snapshot) -> Iterator[_Value]:
    """The name, value and labels of each series (metric_names.py)."""
    for mount in snapshot.mounts:
        yield from _mount(mount)
    for each in connections(snapshot.mounts):
        yield from _xprt(each.xprt, each.labels)
    if snapshot.server:
        yield from _server(snapshot.server)
    for port in snapshot.ports:
        yield "nfsrdma_port_active", port.active, (port.name, port.netdev)
    for what in snapshot.missing:
        yield "nfsrdma_missing", 1, (what,)
    yield "nfsrdma_sampler_last_snapshot_timestamp_seconds", snapshot.time, ()


def _server(server: Server) -> Iterator[_Value]:
    yield "nfsrdma_server_threads", server.threads, ()
    for gauge, value in (
        ("exposed_bytes", server.exposed),
        ("dones_outstanding", server.dones_outstanding),
        ("lanes", server.lanes),
        ("granted_bytes", server.granted),
    ):
        if value is not None:
            yield f"nfsrdma_server_{gauge}", value, ()


def _mount(mount: Mount) -> Iterator[_Value]:
    own = (mount.directory, mount.transport)
    sizes = map(str, (mount.rsize, mount.wsize, mount.nconnect))
    yield "nfsrdma_mount_info", 1, (*own, mount.target, mount.vers, *sizes)
    yield "nfsrdma_mount_read_ahead_bytes", mount.read_ahead_kb * 1024, own
    oldest = max((each.seconds for each in mount.waiting), default=0.0)
    yield "nfsrdma_mount_oldest_rpc_seconds", oldest, own
    if mount.asked:
        yield "nfsrdma_mount_other_transport", mount.has_another, (*own, mount.asked)
    for index in range(len(mount.xprts)):
        yield "nfsrdma_mount_xprt_info", 1, (*own, name(mount, index))


def _xprt(xprt: Xprt, own: Labels) -> Iterator[_Value]:
    yield "nfsrdma_xprt_info", 1, (*own, xprt.address)
    if xprt.connected is not None:
        yield "nfsrdma_xprt_connected", xprt.connected, own
        for queue in ("requests", "pending", "backlog"):
            yield f"nfsrdma_xprt_{queue}", getattr(xprt, queue), own
    if xprt.credits.granted:
        yield "nfsrdma_xprt_credits", xprt.credits.granted, own
        yield "nfsrdma_xprt_credits_used", xprt.credits.used, own
    if xprt.personality:
        yield "nfsrdma_xprt_personality_info", 1, (*own, xprt.personality.name)
        for gauge, value in xprt.personality.gauges.items():
            yield f"nfsrdma_xprt_{gauge}", value, own
