# SPDX-License-Identifier: Apache-2.0
"""The probe sets of each trial: attached while trials run, detached while modules change."""

from __future__ import annotations

import contextlib
from typing import Any

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.probes import session
from nfsrdma_tools.probes.probe_sets import attached, probe_set
from nfsrdma_tools.probes.row_filter import of_mount
from nfsrdma_tools.probes.rpc_clients import clients

__all__ = ["NAMES", "Accounts"]

NAMES = ("cpu", "chunks", "registrations")
"""Together they add some 3 % to a 4 KiB read (docs/dev/cost-of-observation.md)."""


class Accounts:
    """Attaches the probe sets on first use; ``release`` detaches them until the next use.

    ``said`` lists them, or has the reason for none: not wanted, or what this machine lacks.
    """

    def __init__(self, wanted: bool = False) -> None:
        why_not = _why_not(wanted)
        self.kept = not why_not
        self.said = f"none: {why_not}" if why_not else ", ".join(NAMES)
        self._open = contextlib.ExitStack()
        self._session: Any = None
        self._clients: dict[int, tuple[str, ...]] = {}

    def attach(self) -> None:
        """Attach them unless they are attached; UserError when that fails."""
        if not self._session:
            self._session = self._attached()

    def begin(self) -> dict[str, Any]:
        """A reading of each probe set, for ``end``; UserError if attaching fails."""
        if not self.kept:
            return {}
        self.attach()
        # before counting starts: it may send RPCs to servers
        self._clients = clients()
        return {name: probe_set(name).read(self._session) for name in NAMES}

    def end(self, before: dict[str, Any], directory: str) -> dict[str, list[dict[str, Any]]]:
        """The rows counted since: those of the mount, or of the host for sets without mounts."""
        found = {}
        for name, reading in before.items():
            kind = probe_set(name)
            grown = kind.difference(kind.read(self._session), reading)
            found[name] = of_mount(kind.records(grown, self._clients), directory)
        return found

    def release(self) -> None:
        """Detach; the next trial attaches again."""
        self._open.close()
        self._session = None

    def _attached(self) -> Any:
        try:
            return self._open.enter_context(attached(NAMES, sums_only=True))
        except UserError as error:
            raise UserError(error.message, f"{error.hint}; or sweep with --no-probes") from error


def _why_not(wanted: bool) -> str:
    if not wanted:
        return "not requested"
    try:
        session.available()
    except UserError as error:
        return error.message
    return ""
