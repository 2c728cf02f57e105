# SPDX-License-Identifier: Apache-2.0
"""nfs-server.service under systemd, and what nfs.conf(5) tells it."""

from __future__ import annotations

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, UserError

__all__ = ["UNIT", "active", "asks_for", "enabled", "rdma_port", "render", "set_boot", "systemctl"]

UNIT = "nfs-server.service"
_YES = frozenset({"1", "t", "true", "y", "yes", "on"})


def active() -> bool:
    """True when systemd has started the NFS server."""
    return run("systemctl", "is-active", "--quiet", UNIT, check=False).returncode == 0


def enabled() -> bool:
    """True when the NFS server is started at boot."""
    return run("systemctl", "is-enabled", "--quiet", UNIT, check=False).returncode == 0


def systemctl(verb: str) -> None:
    """``start``, ``stop`` or ``restart`` the NFS server; MismatchError when that did not help."""
    run("systemctl", verb, UNIT, hint=f"see: journalctl -u {UNIT}")
    if active() != (verb != "stop"):
        raise MismatchError(UNIT, f"it to {verb}", "active" if active() else "inactive")


def set_boot(on: bool) -> None:
    """Have the NFS server started at boot, or not."""
    run("systemctl", "enable" if on else "disable", "--quiet", UNIT)
    if enabled() != on:
        raise MismatchError(f"{UNIT} at boot", on, not on)


def rdma_port() -> int:
    """The RDMA port nfs.conf and its drop-ins ask for; 0 when they ask for no RDMA."""
    if _get("rdma").lower() not in _YES:
        return 0
    port = _get("rdma-port") or "nfsrdma"
    if port != "nfsrdma" and not port.isdigit():
        raise UserError(f"nfs.conf has rdma-port={port}", "expected a number or nfsrdma")
    return 20049 if port == "nfsrdma" else int(port)


def asks_for(port: int, versions: tuple[str, ...]) -> bool:
    """True when nfs.conf has RDMA on ``port`` and switches none of these NFS versions off."""
    return rdma_port() == port and not any(_off(version) for version in versions)


def render(port: int, versions: tuple[str, ...]) -> str:
    """The text of a drop-in of nfs.conf that has nfsd listen on RDMA ``port``."""
    lines = [
        "# written by nfsrdma server enable; it goes with nfsrdma server disable",
        "[nfsd]",
        "rdma=y",
        f"rdma-port={port}",
        *(f"vers{version}=y" for version in versions),
    ]
    return "\n".join(lines) + "\n"


def _off(version: str) -> bool:
    said = [_get(key) for key in (f"vers{version}", f"vers{version[0]}")]
    return any(value and value.lower() not in _YES for value in said)


def _get(key: str) -> str:
    # status 1 means not set
    return run("nfsconf", "--get", "nfsd", key, check=False).stdout.strip()
