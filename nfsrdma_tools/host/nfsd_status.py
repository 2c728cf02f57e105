# SPDX-License-Identifier: Apache-2.0
"""What nfsd reports by netlink: threads, listeners, versions, and the RPCs that it works on.

host/nfsd_netlink.py reads it; bundles have it in netlink.json.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nfsrdma_tools import nfs_procedures

__all__ = [
    "INVALID_REPLY",
    "LIST_ENDS_EARLY",
    "LIST_TOO_LONG",
    "MOST_RPCS",
    "NO_FAMILY",
    "REASONS",
    "SINCE",
    "NfsdStatus",
    "PendingList",
    "PendingRpc",
    "Socket",
    "too_old",
]

MOST_RPCS = 256
"""The most RPCs that are kept, the oldest ones."""
SINCE = {
    "rpc-status-get": "6.7",
    "threads-get": "6.10",
    "version-get": "6.10",
    "listener-get": "6.10",
    "pool-mode-get": "6.11",
}
"""The commands that read, and the Linux version that has each first."""
NO_FAMILY = "the kernel has no netlink family nfsd (before Linux 6.7)"
INVALID_REPLY = "the kernel's reply is invalid"
LIST_ENDS_EARLY = "the kernel's list ends early"
LIST_TOO_LONG = "the kernel's list is too long"


def too_old(command: str) -> str:
    """The reason why a kernel that has the family does not know a command."""
    return f"the kernel does not report it (before Linux {SINCE[command]})"


REASONS = frozenset(
    [NO_FAMILY, INVALID_REPLY, LIST_ENDS_EARLY, LIST_TOO_LONG, *map(too_old, SINCE)]
)
"""All reasons of ``unknown`` and ``cut``, except the texts of error numbers."""


@dataclass(frozen=True, order=True)
class Socket:
    """A listener of nfsd: the name of its transport, its address ("" if unknown), its port."""

    transport: str
    address: str
    port: int


@dataclass(frozen=True)
class PendingRpc:
    """An RPC that a thread of nfsd works on: received, decoded, and not answered."""

    xid: int
    program: int
    version: int
    procedure: int
    age_us: int
    """Microseconds since a thread of nfsd received it."""
    client: str = ""
    """The address that it came from: a network if the kernel reports a part (IPv6), or ""."""
    client_port: int = 0
    """0 over RDMA."""
    server: str = ""
    """The address that it came to."""
    server_port: int = 0
    operations: tuple[int, ...] = ()
    """The numbers of the operations of a COMPOUND; the kernel reports the first 16."""

    @property
    def name(self) -> str:
        """Version and procedure, or the operations: ``NFSv3 READ``, ``NFSv4 READ``."""
        return nfs_procedures.name(self.program, self.version, self.procedure, self.operations)

    @property
    def seconds(self) -> float:
        """The age in seconds."""
        return self.age_us / 1e6

    def __str__(self) -> str:
        return f"{self.xid:#010x} {self.name} for {self.seconds:.1f} s from {self.source}"

    @property
    def source(self) -> str:
        """Address and port of the client, as in a URL: ``10.9.1.2:703``, ``[fd00::2]:703``.

        Without a port over RDMA, where svcrdma sets it to 0 (handle_connect_req).
        """
        if not self.client_port:
            return self.client or "an unknown address"
        address = f"[{self.client}]" if ":" in self.client else self.client
        return f"{address}:{self.client_port}"


@dataclass(frozen=True)
class PendingList:
    """The RPCs that threads of nfsd work on, the oldest first."""

    rpcs: tuple[PendingRpc, ...] = ()
    """At most MOST_RPCS."""
    count: int = 0
    """The RPCs that the kernel listed."""
    cut: str = ""
    """Why the kernel's list lacks some, "" if it has all."""


@dataclass(frozen=True)
class NfsdStatus:
    """The replies of nfsd; None for one that is not known, ``unknown`` has the reason."""

    pool_threads: tuple[int, ...] | None = None
    """The threads of each pool; the most, where the kernel changes their number (Linux 7.0)."""
    min_threads: int | None = None
    """The least number of threads; None if their number is fixed."""
    listeners: tuple[Socket, ...] | None = None
    versions: tuple[str, ...] | None = None
    """The NFS versions that nfsd offers, such as ``3`` and ``4.2``."""
    pool_mode: str | None = None
    pending: PendingList | None = None
    unknown: dict[str, str] = field(default_factory=dict)
    """The reason by the command's name in the kernel's specification, such as ``threads-get``."""
