# SPDX-License-Identifier: Apache-2.0
"""Who uses a transport module, so that it can be given back by hand.

Each connection of a client and each listener of nfsd holds a reference to the module that carries
it.  A mount in another namespace, and one taken off lazily, hold theirs unseen; the addresses of
their servers are in /sys/kernel/sunrpc.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import modules, nfsd
from nfsrdma_tools.host.effect import mounts

__all__ = ["refuse_used", "users"]

_SWITCHES = Path("/sys/kernel/sunrpc/xprt-switches")
# after the last unmount the kernel closes its connections on its own time
_PATIENCE_S = 10.0
_STEP_S = 0.1


def users(name: str) -> list[str]:
    """Everybody who is seen to use the transport module ``name``, which carries NFS over RDMA."""
    module = modules.loaded().get(name)
    if module is None:
        return []
    found = [f"mount {m.directory} of {m.target}" for m in mounts() if _is_rdma(m.options)]
    with contextlib.suppress(PermissionError):
        heard = (str(each) for each in nfsd.listeners() if each.transport == "rdma")
        found += [f"nfsd listening on {each}" for each in heard]
    return found + [f"module {each}" for each in module.used_by]


def refuse_used(name: str) -> None:
    """UserError that names the users of a module; waits for connections that are being closed."""
    end = time.monotonic() + _PATIENCE_S
    while not (found := users(name)) and _references(name):
        if time.monotonic() > end:
            found = [_unseen(name)]
            break
        time.sleep(_STEP_S)
    if found:
        hint = "unmount, or stop nfsd, then do this again"
        raise UserError(f"module {name} is in use by {', '.join(found)}", hint)


def _is_rdma(options: dict[str, str]) -> bool:
    return options.get("proto", "").startswith("rdma")


def _references(name: str) -> int:
    module = modules.loaded().get(name)
    return module.users if module else 0


def _unseen(name: str) -> str:
    to = f" to {', '.join(servers)}" if (servers := _servers()) else ""
    count = _references(name)
    where = f"connections{to} of another mount namespace, or of a mount taken off lazily"
    return f"{count} reference{'s' * (count > 1)}: {where}"


def _servers() -> list[str]:
    files = _SWITCHES.glob("*/xprt-*-rdma/dstaddr")
    return sorted({path.read_text().strip() for path in files})
