# SPDX-License-Identifier: Apache-2.0
"""The kernel's NFS server as /proc/fs/nfsd shows it (fs/nfsd/nfsctl.c)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.errors import UserError

__all__ = ["RDMA_PORT", "Listener", "listen", "listeners", "threads", "versions"]

RDMA_PORT = 20049
"""The port IANA gave to NFS over RDMA (RFC 8267, section 6)."""
_NFSD = Path("/proc/fs/nfsd")


@dataclass(frozen=True, order=True)
class Listener:
    """A transport and port nfsd listens on."""

    transport: str
    """``tcp``, ``udp``, ``rdma``, or what our module's server was named (server_name)."""
    port: int

    @property
    def over_rdma(self) -> bool:
        """Whether it is for RDMA: only the two kinds of sockets are not."""
        return self.transport not in ("tcp", "udp")

    def __str__(self) -> str:
        return f"{self.transport} {self.port}"


def threads(nfsd: Path = _NFSD) -> int:
    """How many nfsd threads run; 0 when the server is stopped or its filesystem not mounted."""
    text = _read(nfsd / "threads").strip()
    return int(text) if text else 0


def listeners(nfsd: Path = _NFSD) -> list[Listener]:
    """What nfsd listens on; IPv4 and IPv6 count as one.  PermissionError for others than root."""
    rows = (line.split() for line in _read(nfsd / "portlist").splitlines())
    return sorted({Listener(row[0], int(row[1])) for row in rows if len(row) == 2})


def listen(transport: str, port: int, nfsd: Path = _NFSD) -> None:
    """Have a running nfsd listen on one more transport.  UserError when the kernel cannot.

    It lasts until nfsd stops.
    """
    try:
        (nfsd / "portlist").write_text(f"{transport} {port}\n")
    except OSError as error:
        hint = "see: nfsrdma doctor, dmesg | tail"
        raise UserError(f"nfsd cannot listen on {transport} {port}: {error}", hint) from error


def versions(nfsd: Path = _NFSD) -> list[str]:
    """The versions nfsd offers, like ``3`` and ``4.2``; empty when it was never started."""
    words = set(_read(nfsd / "versions").split())
    found = {word[1:] for word in words if re.fullmatch(r"\+(3|4\.\d)", word)}
    # 4.0 is named only when it is off
    return sorted(found | ({"4.0"} if "+4" in words and "-4.0" not in words else set()))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
