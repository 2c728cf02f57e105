# SPDX-License-Identifier: Apache-2.0
"""Which mounts share connections, and which connections of the kernel are those of a mount.

Mounts of one server share connections: NFSv3 mounts with equal address, port and transport, and
*all* NFSv4 mounts of a minor version.  For NFSv4 the server tells the client that the second
connection leads to the same server, and the client uses the first one (trunking discovery,
nfs41_walk_client_list in fs/nfs/nfs4client.c).  So a second mount may use the transport of the
first one, whatever it requests.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs.mounts import Mount
from nfsrdma_tools.host.nfs.personality import ClientTransport
from nfsrdma_tools.host.nfs.sunrpc import xprt_numbers

__all__ = [
    "Sharing",
    "client_transports",
    "connection",
    "of_same_server",
    "server",
    "sharing",
    "switch",
    "transport_numbers",
]


def sharing(mount: Mount, others: Sequence[Mount], machine: Machine = LIVE) -> tuple[Path, ...]:
    """The mount points in ``others`` that share ``mount``'s connections."""
    return Sharing((mount, *others), machine).others(mount)


class Sharing:
    """Which mounts share connections."""

    def __init__(self, mounts: Iterable[Mount], machine: Machine) -> None:
        self._names: dict[str, str | None] = {}
        self._directories: dict[tuple[str, str, str], list[Path]] = {}
        machine = machine.once()
        for mount in mounts:
            if mount.device not in self._names:
                self._names[mount.device] = connection(mount.device, machine)
            if key := self._key(mount):
                self._directories.setdefault(key, []).append(mount.directory)

    def _key(self, mount: Mount) -> tuple[str, str, str] | None:
        name = self._names[mount.device]
        return (name, mount.transport, mount.vers) if name else None

    def others(self, mount: Mount) -> tuple[Path, ...]:
        """The other mount points that share the connections of one of the mounts."""
        same = self._directories.get(key, ()) if (key := self._key(mount)) else ()
        return tuple(dict.fromkeys(directory for directory in same if directory != mount.directory))


def connection(device: str, machine: Machine = LIVE) -> str | None:
    """A name for the connections of ``device`` ("0:45"); None if the kernel does not provide it.

    Mounts with equal names, transports and versions share connections.
    """
    if folder := switch(device, machine):
        return folder.name
    volume = _volume(device, machine)
    return " ".join(volume) if volume else None


def client_transports(
    device: str, known: Sequence[ClientTransport], machine: Machine = LIVE
) -> tuple[ClientTransport, ...]:
    """The transports of the mount ``device`` ("0:45") among ``known``.

    If the kernel does not provide their numbers, all transports to the address and port of its
    server.
    """
    numbers = transport_numbers(device, machine) if known else None
    if numbers is not None:
        return tuple(transport for transport in known if transport.number in numbers)
    address = server(device, machine) if known else None
    # a zone is no part of the address in the kernel's list
    return tuple(t for t in known if (t.server.partition("%")[0], t.port) == address)


def transport_numbers(device: str, machine: Machine = LIVE) -> list[int] | None:
    """The numbers of the transports of ``device``; None if the kernel does not provide them."""
    folder = switch(device, machine)
    return xprt_numbers(folder) if folder else None


def switch(device: str, machine: Machine = LIVE) -> Path | None:
    """The folder of the transport switch of ``device``; None before Linux 6.5."""
    # since "NFS: add superblock sysfs entries" (in v6.5) a mount's folder links to its RPC client,
    # whose transport switch holds the connections; its other RPC clients are for ACLs and locks
    folder = machine.path("sys/fs/nfs") / device / "nfs_client" / "switch"
    return folder.resolve() if folder.exists() else None


def server(device: str, machine: Machine = LIVE) -> tuple[str, int] | None:
    """The address and the port that ``device`` is connected to; None if it is not in the list."""
    volume = _volume(device, machine)
    if not volume:
        return None
    _, address, port = volume
    return str(ipaddress.ip_address(bytes.fromhex(address))), int(port, 16)


def of_same_server(device: str, machine: Machine = LIVE) -> list[str]:
    """The devices of all mounts of its server and version, of other mount namespaces, too."""
    volumes = _volumes(machine)
    own = volumes.get(device)
    return [other for other, volume in volumes.items() if own and volume == own]


def _volume(device: str, machine: Machine) -> tuple[str, str, str] | None:
    """The version, the address and the port (both hexadecimal) of a mount."""
    return _volumes(machine).get(device)


def _volumes(machine: Machine) -> dict[str, tuple[str, str, str]]:
    try:
        return _parsed_volumes(machine.kernel_text("proc/fs/nfsfs/volumes"))
    except OSError:
        return {}


@lru_cache(maxsize=1)
def _parsed_volumes(text: str) -> dict[str, tuple[str, str, str]]:
    rows = (row for row in map(str.split, text.splitlines()[1:]) if len(row) > 3)
    return {device: (version, address, port) for version, address, port, device, *_ in rows}
