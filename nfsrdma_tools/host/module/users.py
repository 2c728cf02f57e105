# SPDX-License-Identifier: Apache-2.0
"""The users of a transport module, so that an administrator can release it.

Each client connection, and each listener and connection of nfsd, holds a reference to its
transport module.  A mount in another namespace, or one unmounted lazily, holds a reference that
cannot be seen in mountinfo; /sys/kernel/sunrpc has the addresses of its server.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.nfs.mounts import mounts
from nfsrdma_tools.host.nfsd import nfsctl
from nfsrdma_tools.host.transports import owner, serves_as

__all__ = ["refuse_used", "users"]

_SWITCHES = Path("/sys/kernel/sunrpc/xprt-switches")
# after the last unmount the kernel closes its connections asynchronously
_PATIENCE_S = 10.0
_STEP_S = 0.1
_NFSD = "nfsd listening on "


def users(name: str) -> list[str]:
    """The visible users of the transport module ``name``."""
    module = kernel_modules.loaded().get(name)
    if module is None:
        return []
    found: list[str] = []
    if name == owner():
        found += [f"mount {m.directory} of {m.target}" for m in mounts() if _is_rdma(m.options)]
    with contextlib.suppress(PermissionError):
        here = serves_as(name)
        found += [f"{_NFSD}{each}" for each in nfsctl.listeners() if each.transport == here]
    return found + [f"module {each}" for each in module.used_by]


def refuse_used(name: str) -> None:
    """UserError that names the users of a module; waits while connections are closing."""
    end = time.monotonic() + _PATIENCE_S
    while not (found := users(name)) and _references(name):
        if time.monotonic() > end:
            found = [_unseen(name)]
            break
        time.sleep(_STEP_S)
    if found:
        raise UserError(f"module {name} is in use by {', '.join(found)}", _way_out(found))


def _way_out(found: list[str]) -> str:
    serves = any(user.startswith(_NFSD) for user in found)
    others = not all(user.startswith(_NFSD) for user in found)
    if not serves:
        return "unmount, then try again"
    first = "unmount, then " if others else ""
    return f"{first}systemctl stop nfs-server, try again, then systemctl start nfs-server"


def _is_rdma(options: dict[str, str]) -> bool:
    return options.get("proto", "").startswith("rdma")


def _references(name: str) -> int:
    module = kernel_modules.loaded().get(name)
    return module.users if module else 0


def _unseen(name: str) -> str:
    to = f" to {', '.join(servers)}" if (servers := _servers()) else ""
    count = _references(name)
    where = f"connections{to} of another mount namespace, or of a lazy unmount"
    return f"{count} reference{'s' * (count > 1)}: {where}"


def _servers() -> list[str]:
    files = _SWITCHES.glob("*/xprt-*-rdma/dstaddr")
    return sorted({path.read_text().strip() for path in files})
