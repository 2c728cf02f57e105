# SPDX-License-Identifier: Apache-2.0
"""Which connections the RPCs of a mount use.

Mounts of one server share connections: NFSv3 mounts with equal address, port and transport, and
*all* NFSv4 mounts of a minor version.  For NFSv4 the server tells the client that the second
connection leads to the same server, and the client uses the first one (trunking discovery,
nfs41_walk_client_list in fs/nfs/nfs4client.c).  So a second mount may use the transport of the
first one, whatever it requests.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["connection"]

_SYSFS = Path("/sys/fs/nfs")
_VOLUMES = Path("/proc/fs/nfsfs/volumes")


def connection(device: str, sysfs: Path = _SYSFS, volumes: Path = _VOLUMES) -> str | None:
    """A name for the connections of ``device`` ("0:45"); None if the kernel does not provide it.

    Mounts with equal names, transports and versions share connections.
    """
    return _switch(sysfs / device) or _server(device, volumes)


def _switch(server: Path) -> str | None:
    # since "NFS: add superblock sysfs entries" (in v6.5) a mount's folder links to its RPC client,
    # whose transport switch holds the connections; its other RPC clients are for ACLs and locks
    switch = server / "nfs_client" / "switch"
    return switch.resolve().name if switch.exists() else None


def _server(device: str, volumes: Path) -> str | None:
    try:
        lines = volumes.read_text().splitlines()[1:]
    except OSError:
        return None
    for version, server, port, dev, *_ in (line.split() for line in lines):
        if dev == device:
            return f"{version} {server} {port}"
    return None
