# SPDX-License-Identifier: Apache-2.0
"""Maps RPCs to mounts, by the numbers of sunrpc's clients and transports.

The RPCs of a mount belong to one client.  Newer kernels list its number in /sys/fs/nfs
(fs/nfs/sysfs.c: one folder per superblock).  On older kernels this module sends an RPC to the
mount's server, and a tracefs instance of its own shows the number of the client.

In /sys/kernel/sunrpc (since Linux 5.14; net/sunrpc/sysfs.c) ``rpc-clients/clnt-N/switch`` links to
``xprt-switches/switch-M``, in which each transport has an entry ``xprt-NUMBER-KIND``.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs.mounts import Mount, mounts
from nfsrdma_tools.host.nfs.sunrpc import xprt_numbers
from nfsrdma_tools.probes.program import TRACEFS

__all__ = ["clients", "exists", "mounts_of_transports", "owner"]

_SYSFS_SUNRPC = Path("/sys/kernel/sunrpc")
# on every kernel "task:%08x@%08x"
_CLIENT = re.compile(r"rpc_request: task:[0-9a-f]+@([0-9a-f]+)")
# for a server that does not answer, in seconds
_TIMEOUT = 10.0


def clients(
    cache: dict[str, int | None] | None = None, machine: Machine = LIVE
) -> dict[int, tuple[str, ...]]:
    """Mount points by the number of their client; mounts with an unknown number are left out.

    Mounts of one superblock share a client and so its number.  ``cache`` keeps, by mount, the
    numbers found by sending an RPC: pass the same dict again to query only new mounts.
    """
    names: dict[int, list[str]] = {}
    cache = {} if cache is None else cache
    for mount in mounts(machine):
        number = _number_in_sysfs(mount, machine)
        if number is None:
            key = f"{mount.device} {mount.target}"
            if key not in cache:
                cache[key] = _number_in_trace(mount, machine)
            number = cache[key]
        if number is not None:
            names.setdefault(number, []).append(str(mount.directory))
    return {number: tuple(sorted(own)) for number, own in names.items()}


def owner(number: int, known: dict[int, tuple[str, ...]]) -> str:
    """The mount points of a client; "unattributed" for other clients (NFSv4 state, mounting)."""
    return ", ".join(known.get(number, ())) or "unattributed"


def _number_in_sysfs(mount: Mount, machine: Machine) -> int | None:
    try:
        link = (machine.path("sys/fs/nfs") / mount.device / "nfs_client").readlink()
    except OSError:
        return None
    return int(link.name.removeprefix("clnt-"))


def _number_in_trace(mount: Mount, machine: Machine) -> int | None:
    if machine.process != "self" and not _is_mounted_here(mount, machine):
        return None
    from nfsrdma_tools.undo import Remove, journal

    # an instance has buffers, events and filters of its own: other users of tracefs notice nothing
    folder = TRACEFS / "instances" / f"nfsrdma-{os.getpid()}"
    try:
        with journal() as undo:
            undo.add(Remove(str(folder)))
            folder.mkdir()
            # the file has threads, and this may be another one than the first of the process
            (folder / "set_event_pid").write_text(str(threading.get_native_id()))
            # the RPC is that of a child, which set_event_pid leaves out without this option
            (folder / "trace_options").write_text("event-fork")
            (folder / "events/sunrpc/rpc_request/enable").write_text("1")
            _send_rpc(machine.path(str(mount.directory).lstrip("/")))
            trace = (folder / "trace").read_text()
            (folder / "events/sunrpc/rpc_request/enable").write_text("0")
    except (OSError, UserError):
        return None
    numbers = _CLIENT.findall(trace)
    return int(numbers[-1], 16) if numbers else None


def _is_mounted_here(mount: Mount, machine: Machine) -> bool:
    """Whether a mount of another namespace is below the root: else another file is in its place."""
    place = machine.path(str(mount.directory).lstrip("/"))
    return any(other.directory == place and other.device == mount.device for other in mounts())


def _send_rpc(directory: Path) -> None:
    # statfs(2), because clients do not cache its result; in a child, because with a dead server it
    # sleeps until the server is back or a signal kills the process
    code = "import os, sys; os.statvfs(sys.argv[1])"
    with contextlib.suppress(UserError):
        run(sys.executable, "-I", "-c", code, str(directory), timeout=_TIMEOUT)


def mounts_of_transports(
    clients: dict[int, tuple[str, ...]], machine: Machine = LIVE
) -> dict[int, tuple[str, ...]]:
    """Mount points by the number of the transport they use; several may share one."""
    folder = machine.path("sys/kernel/sunrpc/rpc-clients")
    mounts_of: dict[int, set[str]] = {}
    for client, names in clients.items():
        for number in xprt_numbers(folder / f"clnt-{client}" / "switch"):
            mounts_of.setdefault(number, set()).update(names)
    return {number: tuple(sorted(names)) for number, names in mounts_of.items()}


def exists(ours: bool, number: int) -> bool:
    """Whether sunrpc has this transport (ours) or client; True if sysfs does not list them."""
    folder = f"xprt-switches/*/xprt-{number}-*" if ours else f"rpc-clients/clnt-{number}"
    return not _SYSFS_SUNRPC.is_dir() or any(_SYSFS_SUNRPC.glob(folder))
