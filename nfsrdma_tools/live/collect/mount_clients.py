# SPDX-License-Identifier: Apache-2.0
"""Which client of sunrpc's, and which connections, a mount has; asked for beside the sampler.

Where the kernel does not say, a mount's server has to be asked (probes/rpc_clients.py), and one
that is gone keeps us waiting.  So a thread of its own asks whenever mounts came or went.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.probes.rpc_clients import clients
from nfsrdma_tools.probes.rpc_transports import parse

__all__ = ["Known", "Owners"]

_CLIENTS = Path("/sys/kernel/sunrpc/rpc-clients")


@dataclass(frozen=True)
class Known:
    """By mount point: the number of its client, and those of its connections, ascending."""

    clients: dict[str, int] = field(default_factory=dict)
    xprts: dict[str, tuple[int, ...]] = field(default_factory=dict)


class Owners:
    """``known`` is what was found out last; ``look`` has it found out again."""

    def __init__(self) -> None:
        self.known = Known()
        self._heard: dict[str, int | None] = {}
        self._thread: threading.Thread | None = None

    def look(self, wait: bool = False) -> None:
        """Find out, unless that is under way; with ``wait``, before this returns."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._find, daemon=True)
            self._thread.start()
        if wait:
            self._thread.join()

    def _find(self) -> None:
        try:
            found = clients(self._heard)
        except (OSError, UserError):
            # mounts came and went meanwhile; the next look finds them
            return
        self.known = _known(found.items())


def _known(found: Iterable[tuple[int, tuple[str, ...]]]) -> Known:
    numbers = {directory: number for number, names in found for directory in names}
    xprts = {n: tuple(parse(_CLIENTS / f"clnt-{n}" / "switch")) for n in set(numbers.values())}
    return Known(numbers, {directory: xprts[n] for directory, n in numbers.items()})
