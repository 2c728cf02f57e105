# SPDX-License-Identifier: Apache-2.0
"""What the kernel says about each superblock of NFS: pending RPCs, silence, waiting threads."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import beginning
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.host.nfs.mountinfo import Entry
from nfsrdma_tools.host.nfs.mountstats import MountStats
from nfsrdma_tools.host.nfs.sunrpc import Task, Transport, Transports, xprt_numbers
from nfsrdma_tools.live.health import mount_table
from nfsrdma_tools.live.health.ages import Ages, Sight
from nfsrdma_tools.live.health.mount_table import MountTable, server_address
from nfsrdma_tools.live.health.rpc_clients import (
    RpcConnection,
    RpcList,
    devices_of_clients,
    pending_rpcs,
)
from nfsrdma_tools.live.health.threads import BlockedThread, waiting_threads

__all__ = ["Observation", "PendingRpc", "Silence", "WaitingThread", "observe"]

_MOST_THREADS = 5_000
"""Reading them takes about 0.1 s of CPU time."""
_MOST_STATS = 64 << 20
_MOST_NAMESPACES = 1000
_QUIET = "silent"
_FORGET = 600.0
"""Seconds after which a Call without a reply does not count any more, if no other one waits.

A client repeats a Call after three minutes at most, by default (timeo=600,retrans=2 in nfs(5)).
"""


class PendingRpc(NamedTuple):
    """The oldest RPC of a client; ``age`` is in seconds, and a lower bound."""

    client: int
    number: int
    procedure: str
    queue: str
    action: str
    age: float


class Silence(NamedTuple):
    """Calls to a server, and no reply to any of them."""

    seconds: float
    """From the first run that saw a Call wait, to the last run that did."""
    pending: bool
    """Whether a Call waits, or was sent since the last run."""


class WaitingThread(NamedTuple):
    """A thread that waits in NFS, and for how many seconds at least."""

    thread: BlockedThread
    age: float


@dataclass
class Observation:
    """What one run sees, by superblock ("0:42") and, without one, by client."""

    table: MountTable
    rpcs: dict[str, PendingRpc] = field(default_factory=dict)
    guessed: set[str] = field(default_factory=set)
    """Superblocks of which an RPC may be, by their server (before Linux 6.5)."""
    silences: dict[str, Silence] = field(default_factory=dict)
    connections: dict[str, tuple[RpcConnection, ...]] = field(default_factory=dict)
    elsewhere: dict[str, tuple[int, Entry]] = field(default_factory=dict)
    """Superblocks that only another mount namespace has: a process of it, and the mount there."""
    namespaces_hidden: bool = False
    """Whether there are mount namespaces that this user cannot read."""
    threads: list[WaitingThread] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    """What this user cannot see, or the kernel does not show."""
    rpcs_seen: bool = True
    counted: set[str] = field(default_factory=set)
    """Superblocks whose sent Calls and received replies are counted in mountstats."""


def observe(machine: Machine, ages: Ages) -> Observation:
    """Read the kernel's files.  UserError if the mounts cannot be read."""
    path = machine.of_process("mountinfo")
    try:
        table = mount_table.read(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "see --path.procfs") from error
    if table.is_empty:
        raise UserError(f"{path} lists no mount", "see --path.procfs")
    observation = Observation(table)
    if table.invalid:
        observation.unseen.append(f"{table.invalid} lines of {path} about NFS were left out")
    rpcs = pending_rpcs(machine)
    if rpcs.unseen:
        observation.rpcs_seen = False
        observation.unseen += [f"pending RPCs: {rpcs.unseen}"] if table.mounts else []
    _attribute(observation, rpcs, machine, ages)
    _threads(observation, machine, ages)
    _silences(observation, machine, ages)
    return observation


def _attribute(observation: Observation, rpcs: RpcList, machine: Machine, ages: Ages) -> None:
    """The oldest RPC of each superblock."""
    if not rpcs.tasks:
        return
    known = devices_of_clients(machine)
    table = observation.table
    for client, tasks in rpcs.tasks.items():
        oldest = max((_aged(task, ages) for task in tasks), key=lambda rpc: rpc.age)
        connections = rpcs.connections[client]
        devices = known.get(client, set()) if known else _same_server(connections, table.mounts)
        for device in devices or {f"client {client}"} if _is_nfs(tasks) or devices else ():
            was = observation.rpcs.get(device)
            if was is None or was.age < oldest.age:
                observation.rpcs[device] = oldest
                observation.connections[device] = connections
    if not known:
        observation.guessed.update(observation.rpcs)
    missing = {device for device in observation.rpcs if ":" in device} - table.devices.keys()
    if missing:
        _search_namespaces(observation, missing, machine)


def _is_nfs(tasks: Sequence[Task]) -> bool:
    # lockd's client of a host may serve another kernel's server
    return any(task.program == "nfs" for task in tasks)


def _aged(task: Task, ages: Ages) -> PendingRpc:
    age = ages.age(f"rpc:{task.client:x}:{task.number:x}", f"{task.xid:x}", joins="0")
    where = task.waits_for, task.action
    return PendingRpc(task.client, task.number, task.procedure, *where, age)


def _same_server(connections: Iterable[RpcConnection], mounts: Iterable[Entry]) -> set[str]:
    to = {(connection.address, "rdma" in connection.netid) for connection in connections}
    return {e.device for e in mounts if (server_address(e), e.over_rdma) in to}


def _search_namespaces(observation: Observation, missing: set[str], machine: Machine) -> None:
    """Find mounts of these superblocks in the mount namespaces of other processes."""
    procfs = machine.path("proc")
    processes, hidden = _namespaces(procfs)
    observation.namespaces_hidden = hidden or len(processes) > _MOST_NAMESPACES
    if observation.namespaces_hidden:
        observation.unseen.append("not all mount namespaces can be read")
    for process in processes[:_MOST_NAMESPACES]:
        try:
            table = mount_table.read(procfs / str(process) / "mountinfo")
        except OSError:
            continue
        for entry in table.mounts:
            if entry.device in missing:
                observation.elsewhere.setdefault(entry.device, (process, entry))


def _namespaces(procfs: Path) -> tuple[list[int], bool]:
    """A process of each mount namespace, and whether some may not be read."""
    namespaces: dict[str, int] = {}
    hidden = False
    for process in _processes(procfs):
        try:
            namespaces.setdefault((procfs / str(process) / "ns/mnt").readlink().name, process)
        except PermissionError:
            hidden = True
        except OSError:
            continue
    return [*namespaces.values()], hidden


def _processes(procfs: Path) -> list[int]:
    try:
        return sorted(int(path.name) for path in procfs.iterdir() if path.name.isdecimal())
    except OSError:
        return []


def _silences(observation: Observation, machine: Machine, ages: Ages) -> None:
    """Calls without replies: where RPCs cannot be seen, and of mounts that give RPCs up."""
    soft = any({"soft", "softerr"} & entry.options.keys() for entry in observation.table.mounts)
    if observation.rpcs_seen and not soft:
        return
    path = machine.of_process("mountstats")
    try:
        text = beginning(path, _MOST_STATS).decode("utf-8", "surrogateescape")
        counters = mountstats.parse(text, observation.table.mounts, with_operations=False)
    except (OSError, UserError) as error:
        observation.unseen.append(
            f"cannot read {path}: {error.strerror if isinstance(error, OSError) else error}"
        )
        return
    busy = _Busy(machine)
    for device, sends, receives in _counts(counters, observation.table.mounts):
        observation.counted.add(device)
        pending = device in observation.rpcs if observation.rpcs_seen else busy(device)
        if pending is None and f"{_QUIET}:{device}" in ages.previous:
            # before Linux 6.5: what waits may be the Call that an earlier run saw
            pending = bool(observation.threads)
        silence = _silence(device, sends, receives, bool(pending), ages)
        if silence:
            observation.silences[device] = silence
    if missing := observation.table.devices.keys() - observation.counted:
        observation.unseen.append(
            f"{path} has counters of {len(observation.counted)} NFS superblocks, and none of "
            f"{len(missing)} that are mounted"
        )


def _counts(
    counters: Iterable[MountStats], mounts: Iterable[Entry]
) -> Iterator[tuple[str, int, int]]:
    """Each superblock that has counters, its Calls that were sent and the replies to them."""
    # mounts with equal names have records in the same order as in mountinfo
    devices: defaultdict[tuple[str, Path, str], deque[str]] = defaultdict(deque)
    for entry in mounts:
        devices[entry.source, entry.directory, entry.fstype].append(entry.device)
    done: set[str] = set()
    for stats in counters:
        same_name = devices[stats.device, stats.directory, stats.fstype]
        device = same_name.popleft() if same_name else ""
        connections = [xprt.counters for xprt in stats.xprts]
        # a record that is cut has no connections, or one without counters
        if not device or device in done or not all("recvs" in c for c in connections or [{}]):
            continue
        done.add(device)
        sends, receives = (sum(c[name] for c in connections) for name in ("sends", "recvs"))
        yield device, sends, receives


class _Busy:
    """Whether an RPC waits on a connection of a superblock, from sysfs, which all users may read.

    None for one that the kernel does not list (before Linux 6.5).
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._transports: dict[int, Transport] | None = None

    def __call__(self, device: str) -> bool | None:
        if self._transports is None:
            self._transports = Transports(None, self._machine).read()
        switch = self._machine.path("sys/fs/nfs") / device / "nfs_client" / "switch"
        numbers = xprt_numbers(switch)
        own = (self._transports.get(number) for number in numbers)
        return any(transport and _waits(transport) for transport in own) if numbers else None


def _waits(transport: Transport) -> bool:
    # a connection is made when an RPC needs it
    return (
        bool(transport.pending or transport.sending or transport.backlog)
        or "CONNECTING" in transport.states
    )


def _silence(device: str, sends: int, receives: int, pending: bool, ages: Ages) -> Silence | None:
    calls, quiet = f"calls:{device}", f"{_QUIET}:{device}"
    was, begun = ages.previous.get(calls), ages.previous.get(quiet)
    ages.note(calls, Sight(f"{sends:x}/{receives:x}", ages.now, ages.now))
    if begun and begun.mark != f"{receives:x}":
        # a reply came
        begun = None
    if was and was.mark.partition("/")[2] == f"{receives:x}":
        pending = pending or was.mark.partition("/")[0] != f"{sends:x}"
    if not pending and (not begun or ages.now - begun.last > _FORGET):
        return None
    since = begun.since if begun else ages.now
    last = ages.now if pending or not begun else begun.last
    ages.note(quiet, Sight(f"{receives:x}", since, last))
    return Silence(last - since, pending)


def _threads(observation: Observation, machine: Machine, ages: Ages) -> None:
    threads = waiting_threads(machine.path("proc"), _MOST_THREADS)
    if not threads.complete:
        observation.unseen.append(f"threads that wait: there are more than {_MOST_THREADS}")
    if not observation.rpcs_seen and any(not blocked.function for blocked in threads.found):
        observation.unseen.append("only root may read where a thread waits")
    for thread in threads.found:
        if thread.in_nfs and thread.switches:
            key = f"thread:{thread.number:x}"
            age = ages.age(key, f"{thread.start:x}-{int(thread.switches):x}")
            observation.threads.append(WaitingThread(thread, age))
