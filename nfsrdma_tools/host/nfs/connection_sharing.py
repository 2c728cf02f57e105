# SPDX-License-Identifier: Apache-2.0
"""Which connections the RPCs of a mount use.

Mounts of one server share connections: NFSv3 mounts with equal address, port and transport, and
*all* NFSv4 mounts of a minor version.  For NFSv4 the server tells the client that the second
connection leads to the same server, and the client uses the first one (trunking discovery,
nfs41_walk_client_list in fs/nfs/nfs4client.c).  So a second mount may use the transport of the
first one, whatever it requests.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path

from nfsrdma_tools.host.nfs.sunrpc import numbers

__all__ = ["connection", "server", "transports"]

_SYSFS = Path("/sys/fs/nfs")
_VOLUMES = Path("/proc/fs/nfsfs/volumes")


def connection(device: str, sysfs: Path = _SYSFS, volumes: Path = _VOLUMES) -> str | None:
    """A name for the connections of ``device`` ("0:45"); None if the kernel does not provide it.

    Mounts with equal names, transports and versions share connections.
    """
    switch, volume = _switch(sysfs / device), _volume(device, volumes)
    return switch.name if switch else " ".join(volume) if volume else None


def transports(device: str, sysfs: Path = _SYSFS) -> list[int] | None:
    """The numbers of the transports of ``device``; None if the kernel does not provide them."""
    switch = _switch(sysfs / device)
    return numbers(switch) if switch else None


def server(device: str, volumes: Path = _VOLUMES) -> tuple[str, int] | None:
    """The address and the port that ``device`` is connected to; None if it is not in the list."""
    volume = _volume(device, volumes)
    if not volume:
        return None
    _, address, port = volume
    return str(ipaddress.ip_address(bytes.fromhex(address))), int(port, 16)


def _switch(server: Path) -> Path | None:
    # since "NFS: add superblock sysfs entries" (in v6.5) a mount's folder links to its RPC client,
    # whose transport switch holds the connections; its other RPC clients are for ACLs and locks
    switch = server / "nfs_client" / "switch"
    return switch.resolve() if switch.exists() else None


def _volume(device: str, volumes: Path) -> tuple[str, str, str] | None:
    """The version, the address and the port (both hexadecimal) of a mount."""
    try:
        lines = volumes.read_text().splitlines()[1:]
    except OSError:
        return None
    for version, server, port, dev, *_ in (line.split() for line in lines):
        if dev == device:
            return version, server, port
    return None
