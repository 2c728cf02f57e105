# SPDX-License-Identifier: Apache-2.0
"""nfs-server.service under systemd, and its configuration in nfs.conf(5)."""

from __future__ import annotations

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, UserError

__all__ = ["UNIT", "active", "asks_for", "enabled", "rdma_port", "render", "set_boot", "systemctl"]

UNIT = "nfs-server.service"
_YES = frozenset({"1", "t", "true", "y", "yes", "on"})


def active() -> bool:
    """True if systemd has started the NFS server."""
    return run("systemctl", "is-active", "--quiet", UNIT, check=False).returncode == 0


def enabled() -> bool:
    """True if systemd starts the NFS server at boot."""
    return run("systemctl", "is-enabled", "--quiet", UNIT, check=False).returncode == 0


def systemctl(verb: str) -> None:
    """``start``, ``stop`` or ``restart`` the NFS server; MismatchError if that failed."""
    run("systemctl", verb, UNIT, hint=f"see: journalctl -u {UNIT}")
    if active() != (verb != "stop"):
        raise MismatchError(
            UNIT,
            "inactive" if verb == "stop" else "active",
            "active" if active() else "inactive",
            f"see: journalctl -u {UNIT}",
        )


def set_boot(on: bool) -> None:
    """Enable or disable the NFS server at boot."""
    run("systemctl", "enable" if on else "disable", "--quiet", UNIT)
    if enabled() != on:
        words = ("enabled", "disabled") if on else ("disabled", "enabled")
        raise MismatchError(f"{UNIT} at boot", *words, f"see: systemctl status {UNIT}")


def rdma_port() -> int:
    """The RDMA port in nfs.conf and its drop-ins; 0 if they do not enable RDMA."""
    if _get("rdma").lower() not in _YES:
        return 0
    port = _get("rdma-port") or "nfsrdma"
    if port != "nfsrdma" and not port.isdigit():
        raise UserError(f"nfs.conf has rdma-port={port}", "set a number or nfsrdma")
    return 20049 if port == "nfsrdma" else int(port)


def asks_for(port: int, versions: tuple[str, ...]) -> bool:
    """True if nfs.conf enables RDMA on ``port`` and disables none of these NFS versions."""
    return rdma_port() == port and not any(_off(version) for version in versions)


def render(port: int, versions: tuple[str, ...]) -> str:
    """The text of a drop-in of nfs.conf that makes nfsd listen on RDMA ``port``."""
    lines = [
        "# written by nfsrdma server enable; nfsrdma server disable removes it",
        "[nfsd]",
        "rdma=y",
        f"rdma-port={port}",
        *(f"vers{version}=y" for version in versions),
    ]
    return "\n".join(lines) + "\n"


def _off(version: str) -> bool:
    values = [_get(key) for key in (f"vers{version}", f"vers{version[0]}")]
    return any(value and value.lower() not in _YES for value in values)


def _get(key: str) -> str:
    # status 1 means not set
    return run("nfsconf", "--get", "nfsd", key, check=False).stdout.strip()
