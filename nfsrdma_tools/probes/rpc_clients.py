# SPDX-License-Identifier: Apache-2.0
"""Maps RPCs to mounts: sunrpc numbers its clients, and the RPCs of a mount belong to one client.

Newer kernels list the number in /sys/fs/nfs (fs/nfs/sysfs.c: one folder per superblock).  On
older kernels this module sends an RPC to the mount's server, and a tracefs instance of its own
shows the number of the client.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.nfs.mounts import Mount, mounts
from nfsrdma_tools.probes.trace_events import TRACEFS
from nfsrdma_tools.undo import Remove, journal

__all__ = ["clients", "owner"]

_SYSFS = Path("/sys/fs/nfs")
# on every kernel "task:%08x@%08x"
_CLIENT = re.compile(r"rpc_request: task:[0-9a-f]+@([0-9a-f]+)")
# limit the wait for a server that does not answer, in seconds
_PATIENCE = 10.0


def clients(cache: dict[str, int | None] | None = None) -> dict[int, tuple[str, ...]]:
    """Mount points by the number of their client; mounts with an unknown number are left out.

    Mounts of one superblock share a client and so its number.  ``cache`` keeps, by mount, the
    numbers found by sending an RPC: pass the same dict again to query only new mounts.
    """
    found: dict[int, list[str]] = {}
    cache = {} if cache is None else cache
    for mount in mounts():
        number = _number_in_sysfs(mount)
        if number is None:
            name = f"{mount.device} {mount.target}"
            if name not in cache:
                cache[name] = _number_in_trace(mount)
            number = cache[name]
        if number is not None:
            found.setdefault(number, []).append(str(mount.directory))
    return {number: tuple(sorted(names)) for number, names in found.items()}


def owner(number: int, known: dict[int, tuple[str, ...]]) -> str:
    """The mount points of a client; "unattributed" for other clients (NFSv4 state, mounting)."""
    return ", ".join(known.get(number, ())) or "unattributed"


def _number_in_sysfs(mount: Mount) -> int | None:
    try:
        link = (_SYSFS / mount.device / "nfs_client").readlink()
    except OSError:
        return None
    return int(link.name.removeprefix("clnt-"))


def _number_in_trace(mount: Mount) -> int | None:
    folder = TRACEFS / "instances" / f"nfsrdma-{os.getpid()}"
    try:
        with journal() as undo:
            undo.add(Remove(str(folder)))
            folder.mkdir()
            (folder / "set_event_pid").write_text(str(os.getpid()))
            (folder / "trace_options").write_text("event-fork")
            (folder / "events/sunrpc/rpc_request/enable").write_text("1")
            _send_rpc(mount.directory)
            trace = (folder / "trace").read_text()
            (folder / "events/sunrpc/rpc_request/enable").write_text("0")
    except (OSError, UserError):
        return None
    numbers = _CLIENT.findall(trace)
    return int(numbers[-1], 16) if numbers else None


def _send_rpc(directory: Path) -> None:
    code = "import os, sys; os.statvfs(sys.argv[1])"
    with contextlib.suppress(UserError):
        run(sys.executable, "-I", "-c", code, str(directory), timeout=_PATIENCE)
