# SPDX-License-Identifier: Apache-2.0
"""Which mount an RPC belongs to: sunrpc numbers its clients, and a mount's RPCs are one client's.

Newer kernels tell in /sys/fs/nfs (fs/nfs/sysfs.c: one folder for each superblock).  On others a
question is put to the mount's server, and a tracefs instance of our own hears which client asks.
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
# a server that does not answer must not keep us
_PATIENCE = 10.0


def clients(heard: dict[str, int | None] | None = None) -> dict[int, tuple[str, ...]]:
    """Mount points by the number of their client; those whose number cannot be told are left out.

    Mounts of one superblock share a client, and so a number.  ``heard`` keeps, by mount, what had
    to be asked for: give the same one again, and only new mounts are asked.
    """
    found: dict[int, list[str]] = {}
    heard = {} if heard is None else heard
    for mount in mounts():
        number = _told(mount)
        if number is None:
            name = f"{mount.device} {mount.target}"
            if name not in heard:
                heard[name] = _heard(mount)
            number = heard[name]
        if number is not None:
            found.setdefault(number, []).append(str(mount.directory))
    return {number: tuple(sorted(names)) for number, names in found.items()}


def owner(number: int, known: dict[int, tuple[str, ...]]) -> str:
    """What to call a client: its mount points, or that it is none's (NFSv4's state, mounting)."""
    return ", ".join(known.get(number, ())) or "no mount's own"


def _told(mount: Mount) -> int | None:
    try:
        link = (_SYSFS / mount.device / "nfs_client").readlink()
    except OSError:
        return None
    return int(link.name.removeprefix("clnt-"))


def _heard(mount: Mount) -> int | None:
    folder = TRACEFS / "instances" / f"nfsrdma-{os.getpid()}"
    try:
        with journal() as book:
            book.add(Remove(str(folder)))
            folder.mkdir()
            (folder / "set_event_pid").write_text(str(os.getpid()))
            (folder / "trace_options").write_text("event-fork")
            (folder / "events/sunrpc/rpc_request/enable").write_text("1")
            _ask(mount.directory)
            said = (folder / "trace").read_text()
            (folder / "events/sunrpc/rpc_request/enable").write_text("0")
    except (OSError, UserError):
        return None
    numbers = _CLIENT.findall(said)
    return int(numbers[-1], 16) if numbers else None


def _ask(directory: Path) -> None:
    code = "import os, sys; os.statvfs(sys.argv[1])"
    with contextlib.suppress(UserError):
        run(sys.executable, "-I", "-c", code, str(directory), timeout=_PATIENCE)
