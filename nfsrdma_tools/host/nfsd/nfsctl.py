# SPDX-License-Identifier: Apache-2.0
"""The state of the kernel's NFS server in /proc/fs/nfsd (fs/nfsd/nfsctl.c)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.errors import UserError

__all__ = ["RDMA_PORT", "Listener", "listen", "listeners", "threads", "versions"]

RDMA_PORT = 20049
"""The port that IANA assigned to NFS over RDMA (RFC 8267, section 6)."""
_NFSD = Path("/proc/fs/nfsd")


@dataclass(frozen=True, order=True)
class Listener:
    """A transport and a port that nfsd listens on."""

    transport: str
    """``tcp``, ``udp``, ``rdma``, or the server_name of our module."""
    port: int

    @property
    def over_rdma(self) -> bool:
        """Whether it is an RDMA listener: all but TCP and UDP are."""
        return self.transport not in ("tcp", "udp")

    def __str__(self) -> str:
        return f"{self.transport} {self.port}"


def threads(nfsd: Path = _NFSD) -> int:
    """The number of nfsd threads; 0 if the server is stopped or its filesystem is not mounted."""
    text = _read(nfsd / "threads").strip()
    return int(text) if text else 0


def listeners(nfsd: Path = _NFSD) -> list[Listener]:
    """The listeners of nfsd; IPv4 and IPv6 count as one.  PermissionError unless root."""
    rows = (line.split() for line in _read(nfsd / "portlist").splitlines())
    return sorted({Listener(row[0], int(row[1])) for row in rows if len(row) == 2})


def listen(transport: str, port: int, nfsd: Path = _NFSD) -> None:
    """Add a listener to a running nfsd.  UserError if the kernel refuses it.

    It remains until nfsd stops.
    """
    try:
        (nfsd / "portlist").write_text(f"{transport} {port}\n")
    except OSError as error:
        hint = "run nfsrdma doctor, or see dmesg"
        raise UserError(f"nfsd cannot listen on {transport} {port}: {error}", hint) from error


def versions(nfsd: Path = _NFSD) -> list[str]:
    """The NFS versions that nfsd offers, like ``3`` and ``4.2``; empty if it was never started."""
    words = set(_read(nfsd / "versions").split())
    found = {word[1:] for word in words if re.fullmatch(r"\+(3|4\.\d)", word)}
    # the file lists 4.0 only if it is off
    return sorted(found | ({"4.0"} if "+4" in words and "-4.0" not in words else set()))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
