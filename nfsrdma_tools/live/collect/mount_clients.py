# SPDX-License-Identifier: Apache-2.0
"""The sunrpc client and the connections of each mount, found in a thread beside the sampler.

If the kernel does not report them, an RPC to the mount's server does (probes/rpc_clients.py).  A
server that is down blocks that RPC, so a thread of its own sends it when mounts change.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.nfs.sunrpc import numbers
from nfsrdma_tools.probes.rpc_clients import clients

__all__ = ["Known", "Owners"]

_CLIENTS = Path("/sys/kernel/sunrpc/rpc-clients")


@dataclass(frozen=True)
class Known:
    """By mount point: the number of the client, and those of its connections in ascending order."""

    clients: dict[str, int] = field(default_factory=dict)
    xprts: dict[str, tuple[int, ...]] = field(default_factory=dict)


class Owners:
    """``known`` is the newest result of ``look``; ``has_failed`` if the newest look failed."""

    def __init__(self) -> None:
        self.known = Known()
        self.has_failed = False
        self._answers: dict[str, int | None] = {}
        self._thread: threading.Thread | None = None

    def look(self, wait: bool = False) -> None:
        """Start a thread that updates ``known``, unless one runs; ``wait`` for its end."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._find, daemon=True)
            self._thread.start()
        if wait:
            self._thread.join()

    def _find(self) -> None:
        try:
            found = clients(self._answers)
            known = _known(found.items())
        except (OSError, UserError):
            # mounts changed meanwhile, for example
            self.has_failed = True
            return
        self.known, self.has_failed = known, False


def _known(found: Iterable[tuple[int, tuple[str, ...]]]) -> Known:
    ids = {directory: number for number, names in found for directory in names}
    xprts = {n: tuple(numbers(_CLIENTS / f"clnt-{n}" / "switch")) for n in set(ids.values())}
    return Known(ids, {directory: xprts[n] for directory, n in ids.items()})
