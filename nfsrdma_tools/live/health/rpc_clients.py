# SPDX-License-Identifier: Apache-2.0
"""The pending RPCs of all RPC clients, and the superblocks that they belong to.

/sys/kernel/debug/sunrpc/rpc_clnt/ID/tasks lists RPCs, for root (net/sunrpc/debugfs.c); the links
``xprt`` and ``xprt1`` beside it lead to the connections.  Since Linux 6.5, /sys/fs/nfs/MAJOR:MINOR
links to the clients of a superblock, also of one that ``umount -l`` took out of the tree
(fs/nfs/sysfs.c); before, the server's address is all that a client and a mount have in common.

None of these files waits for a server: the kernel reads lists in its memory under spin locks.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.files import beginning
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs.sunrpc import Task, parse_tasks

__all__ = ["RpcConnection", "RpcList", "devices_of_clients", "pending_rpcs"]

_CLIENTS = "sys/kernel/debug/sunrpc/rpc_clnt"
_CLIENT = re.compile(r"[0-9a-f]{1,8}")
_LINK = re.compile(r"clnt-([0-9]{1,10})")
_DEVICE = re.compile(r"[0-9]{1,7}:[0-9]{1,7}")
_MOST_CLIENTS = 50_000
_MOST_TASKS_BYTES = 256 << 10
"""Of a client: about 2,000 RPCs."""
_MOST_BYTES = 32 << 20
_MOST_INFO = 4096
_MOST_CONNECTIONS = 64
# include/linux/sunrpc/xprt.h, the same on all kernels that have debugfs
_CONNECTED, _CONNECTING = 1 << 1, 1 << 2
_PROGRAMS = ("nfs", "nfsacl", "lockd")


@dataclass(frozen=True)
class RpcConnection:
    """A connection of a client: "tcp", "rdma", "tcp6" ...; ``state`` is that of the kernel now."""

    netid: str
    address: str
    port: str
    state: str
    """"connected", "connecting", "not connected", or "" if it is unknown."""


class RpcList(NamedTuple):
    """The RPCs of NFS that are pending now, by client."""

    tasks: dict[int, list[Task]]
    connections: dict[int, tuple[RpcConnection, ...]]
    unseen: str = ""
    """Why there is no list of RPCs, or no whole one; "" if there is."""


def pending_rpcs(machine: Machine) -> RpcList:
    """The RPCs that the kernel lists for root; ``unseen`` says why there are none."""
    folder = str(machine.path(_CLIENTS))
    try:
        names = [name for name in os.listdir(folder) if _CLIENT.fullmatch(name)]  # noqa: PTH208
    except OSError as error:
        return RpcList({}, {}, _reason(machine, error))
    rpcs = RpcList({}, {})
    left = _MOST_BYTES
    for name in sorted(names)[:_MOST_CLIENTS]:
        try:
            text = beginning(f"{folder}/{name}/tasks", min(_MOST_TASKS_BYTES, left))
        except FileNotFoundError:
            # a client that ended meanwhile
            continue
        except OSError as error:
            return rpcs._replace(unseen=_reason(machine, error))
        left -= len(text)
        tasks = parse_tasks(int(name, 16), text.decode("ascii", "replace")) if text else []
        if text and not tasks and not rpcs.unseen:
            rpcs = rpcs._replace(unseen="the kernel's list of RPCs has an unknown format")
        if own := [task for task in tasks if task.program in _PROGRAMS]:
            rpcs.tasks[int(name, 16)] = own
            rpcs.connections[int(name, 16)] = _connections(f"{folder}/{name}")
    if len(names) > _MOST_CLIENTS or left <= 0:
        rpcs = rpcs._replace(unseen="there are too many RPCs to read all of them")
    return rpcs


def _reason(machine: Machine, error: OSError) -> str:
    debug = machine.path("sys/kernel/debug")
    if isinstance(error, PermissionError):
        return f"only root may read {debug}/sunrpc"
    if not isinstance(error, FileNotFoundError):
        return machine.unreadable(error)
    try:
        mounted = any(os.scandir(debug))
    except OSError:
        mounted = False
    if mounted:
        # sunrpc is not loaded: then no NFS is mounted, or debugfs lacks it
        return f"{debug} has no sunrpc"
    return f"debugfs is not mounted on {debug}"


def _connections(client: str) -> tuple[RpcConnection, ...]:
    connections = []
    for number in range(_MOST_CONNECTIONS):
        try:
            text = beginning(f"{client}/xprt{number or ''}/info", _MOST_INFO)
        except OSError:
            break
        pairs = (line.partition(":") for line in text.decode("ascii", "replace").split("\n"))
        fields = {name: value.strip() for name, _, value in pairs}
        connections.append(
            RpcConnection(
                fields.get("netid", ""),
                fields.get("addr", "").partition("%")[0],
                fields.get("port", ""),
                _state(fields.get("state", "")),
            )
        )
    return tuple(connections)


def _state(text: str) -> str:
    if not re.fullmatch(r"0x[0-9a-f]{1,16}", text):
        return ""
    bits = int(text, 16)
    if bits & _CONNECTED:
        return "connected"
    return "connecting" if bits & _CONNECTING else "not connected"


def devices_of_clients(machine: Machine) -> dict[int, set[str]]:
    """The superblocks ("0:42") that use a client; {} before Linux 6.5.

    A client for the state of NFSv4 belongs to all superblocks of its server.
    """
    folder = machine.path("sys/fs/nfs")
    devices: dict[int, set[str]] = {}
    for device in _listed(folder):
        if not _DEVICE.fullmatch(device):
            continue
        for name in _listed(folder / device):
            if not name.endswith("_client"):
                continue
            try:
                # a text: nothing is opened
                link = os.readlink(f"{folder}/{device}/{name}")  # noqa: PTH115
            except OSError:
                continue
            if match := _LINK.fullmatch(link.rpartition("/")[2]):
                devices.setdefault(int(match[1]), set()).add(device)
    return devices


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
