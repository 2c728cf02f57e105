# SPDX-License-Identifier: Apache-2.0
"""Filters of `nfsrdma trace`: mount, process, procedure, client.

bpf/issuer.c filters by process; the others select rows after the kernel counted them.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs.mounts import find

__all__ = ["Filter", "of_mount"]

Records = list[dict[str, Any]]
_OPTIONS = {"mount": "--mount", "pid": "--pid", "procedures": "--procedure", "client": "--client"}


@dataclass(frozen=True)
class Filter:
    """The counted RPCs: of a mount point, a process, procedures, a client's address or network."""

    mount: Path | None = None
    pid: int = 0
    procedures: tuple[str, ...] = ()
    client: str = ""

    def check(self, name: str, known: tuple[str, ...]) -> None:
        """Raise UsageError if probe set ``name``, which has the filters ``known``, lacks one.

        Raises UserError when the mount or the process does not exist.
        """
        for item in fields(self):
            if getattr(self, item.name) and item.name not in known:
                others = ", ".join(_OPTIONS[option] for option in known)
                hint = f"its filters: {others}" if known else "it has no filters"
                raise UsageError(f"trace {name} has no filter {_OPTIONS[item.name]}", hint)
        if self.pid and not Path(f"/proc/{self.pid}").is_dir():
            raise UserError(f"no process {self.pid}")
        if self.client:
            _network(self.client)

    def mount_point(self, machine: Machine = LIVE) -> str | None:
        """The mount point as in mountinfo; None: all.  UserError if there is no NFS mount."""
        if self.mount is None:
            return None
        nfs_mount = find(self.mount, machine)
        if not nfs_mount:
            raise UserError(
                f"{self.mount} is not an NFS mount point", "`nfsrdma mounts` lists them"
            )
        return str(nfs_mount.directory)

    def select(self, records: Records, mount: str | None) -> Records:
        """The rows of a mount point (None: all), of the procedures and of the client."""
        wanted = {procedure.upper() for procedure in self.procedures}
        client = _network(self.client) if self.client else None
        return [
            row
            for row in of_mount(records, mount)
            if (not wanted or row["procedure"].split()[0] in wanted)
            and (client is None or _within(row["peer"], client))
        ]


def of_mount(records: Records, mount: str | None) -> Records:
    """The rows of a mount point (None: all), and rows that belong to no mount, as of the CPU."""
    return [
        row
        for row in records
        if mount is None or "mount" not in row or mount in row["mount"].split(", ")
    ]


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _network(text: str) -> _Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        hint = "examples: 192.0.2.1, 192.0.2.0/24, 2001:db8::1"
        raise UsageError(f"{text!r} is not an address or network", hint) from error


def _within(peer: str, network: _Network) -> bool:
    try:
        return ipaddress.ip_address(peer.strip("[]")) in network
    except ValueError:
        # rows of no peer, such as credits
        return False
