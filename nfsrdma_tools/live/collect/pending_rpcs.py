# SPDX-License-Identifier: Apache-2.0
"""The age of pending RPCs.  The kernel lists them without an age.

The age counts from the interval that first saw the RPC, so it is up to one interval too low.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from nfsrdma_tools.host.nfs.sunrpc import Task, tasks
from nfsrdma_tools.live.collect.mount_clients import Known
from nfsrdma_tools.live.snapshot import Mount, Waiting, Xprt, xprt_groups

__all__ = ["Waits"]

_SHOWN = 5


class Waits:
    """Remembers when it first saw each RPC; ``look`` adds the oldest ones to their mounts."""

    def __init__(self, read_tasks: Callable[[int], list[Task]] = tasks) -> None:
        self._tasks = read_tasks
        self._since: dict[tuple[int, int], float] = {}

    def look(self, mounts: Sequence[Mount], known: Known, now: float) -> tuple[Mount, ...]:
        """The mounts with their oldest RPCs that two looks saw; ``now`` is in seconds."""
        busy = {key for key, xprts in xprt_groups(mounts).items() if _busy(xprts)}
        clients = {known.clients.get(m.directory) for m in mounts if busy and id(m.xprts) in busy}
        found = {
            (task.client, task.number): task
            for client in clients
            if client is not None
            for task in self._tasks(client)
        }
        self._since = {key: self._since.get(key, now) for key in found}
        old = [self._waiting(task, now) for key, task in found.items() if self._since[key] < now]
        old.sort(key=lambda each: -each.seconds)
        return tuple(_with(m, known, old) for m in mounts) if old else tuple(mounts)

    def _waiting(self, task: Task, now: float) -> Waiting:
        age = now - self._since[task.client, task.number]
        return Waiting(task.procedure, age, task.waits_for, task.client, task.number)


def _busy(xprts: Sequence[Xprt]) -> bool:
    return any(x.pending or x.sending or x.backlog or x.connected is not True for x in xprts)


def _with(mount: Mount, known: Known, old: Sequence[Waiting]) -> Mount:
    client = known.clients.get(mount.directory)
    waiting = tuple(each for each in old if each.client == client)[:_SHOWN]
    return replace(mount, waiting=waiting) if waiting else mount
