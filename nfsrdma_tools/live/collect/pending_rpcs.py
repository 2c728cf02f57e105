# SPDX-License-Identifier: Apache-2.0
"""The oldest RPCs of each mount: when they were first seen, and in which queue they wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from nfsrdma_tools.host.nfs.sunrpc import Task, tasks
from nfsrdma_tools.live.collect.client_finder import RpcClients
from nfsrdma_tools.live.snapshot import Mount, Waiting, Xprt, xprt_groups

__all__ = ["PendingRpcs"]

_MOST_RPCS = 5


class PendingRpcs:
    """Remembers when it first saw each RPC; ``add_to`` adds the oldest ones to their mounts."""

    def __init__(self, read_tasks: Callable[[int], list[Task]] = tasks) -> None:
        self._tasks = read_tasks
        self._since: dict[tuple[int, int], float] = {}

    def add_to(self, mounts: Sequence[Mount], known: RpcClients, now: float) -> tuple[Mount, ...]:
        """The mounts with their oldest RPCs that two looks saw; ``now`` is in seconds."""
        busy = {key for key, xprts in xprt_groups(mounts).items() if _busy(xprts)}
        clients = {known.clients.get(m.directory) for m in mounts if busy and id(m.xprts) in busy}
        pending = {
            (task.client, task.number): task
            for client in clients
            if client is not None
            for task in self._tasks(client)
        }
        # the kernel does not list when an RPC started (tasks_show in net/sunrpc/debugfs.c)
        self._since = {key: self._since.get(key, now) for key in pending}
        old = [self._waiting(task, now) for key, task in pending.items() if self._since[key] < now]
        old.sort(key=lambda rpc: -rpc.seconds)
        return tuple(_with_pending(m, known, old) for m in mounts) if old else tuple(mounts)

    def _waiting(self, task: Task, now: float) -> Waiting:
        age = now - self._since[task.client, task.number]
        return Waiting(task.procedure, age, task.waits_for, task.client, task.number)


def _busy(xprts: Sequence[Xprt]) -> bool:
    # None: without sysfs (before Linux 5.14), the lengths of the queues are unknown
    return any(x.pending or x.sending or x.backlog or x.connected is not True for x in xprts)


def _with_pending(mount: Mount, known: RpcClients, old: Sequence[Waiting]) -> Mount:
    client = known.clients.get(mount.directory)
    waiting = tuple(rpc for rpc in old if rpc.client == client)[:_MOST_RPCS]
    return replace(mount, waiting=waiting) if waiting else mount
