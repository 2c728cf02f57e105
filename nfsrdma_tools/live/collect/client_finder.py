# SPDX-License-Identifier: Apache-2.0
"""Finds the RPC clients of mounts and their connections, in a thread: the kernel may be slow."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs.sunrpc import xprt_numbers
from nfsrdma_tools.probes.rpc_clients import clients

__all__ = ["ClientFinder", "RpcClients"]


@dataclass(frozen=True)
class RpcClients:
    """By mount point: the number of the client, and those of its connections in ascending order."""

    clients: dict[str, int] = field(default_factory=dict)
    xprts: dict[str, tuple[int, ...]] = field(default_factory=dict)


class ClientFinder:
    """``known`` is the newest result of ``look_up``; ``has_failed`` if the newest one failed."""

    def __init__(self, machine: Machine = LIVE) -> None:
        self.known = RpcClients()
        self.has_failed = False
        self._machine = machine
        self._answers: dict[str, int | None] = {}
        self._thread: threading.Thread | None = None

    def look_up(self, wait: bool = False) -> None:
        """Start a thread that updates ``known``, unless one runs; ``wait`` for its end."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._find, daemon=True)
            self._thread.start()
        if wait:
            self._thread.join()

    def _find(self) -> None:
        try:
            names_by_client = clients(self._answers, self._machine)
            known = _rpc_clients(names_by_client, self._machine.path("sys/kernel/sunrpc"))
        except (OSError, UserError):
            # mounts changed meanwhile, for example
            self.has_failed = True
            return
        self.known, self.has_failed = known, False


def _rpc_clients(names_by_client: Mapping[int, tuple[str, ...]], sysfs: Path) -> RpcClients:
    ids = {directory: number for number, names in names_by_client.items() for directory in names}
    folder = sysfs / "rpc-clients"
    xprts = {n: tuple(xprt_numbers(folder / f"clnt-{n}" / "switch")) for n in set(ids.values())}
    return RpcClients(ids, {directory: xprts[n] for directory, n in ids.items()})
