# SPDX-License-Identifier: Apache-2.0
"""The wordings of the kernel's messages of NFS and RPC by release.

Read from the sources of 60 releases, 3.10 to 7.1: net/sunrpc, fs/nfs, fs/nfsd, fs/lockd, fs and
drivers/infiniband/core.  A bound is empty if the release beside it was not at hand.  Kernels of
distributions and of stable series may have a wording of a later release.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["NEWEST", "OLDEST", "WORDINGS", "YEARS", "Span", "Wording", "span_of", "year"]

OLDEST = "3.10"
"""The oldest release that was read: a wording since then may be older."""
NEWEST = "7.1"
"""The newest: a wording until then may be in later ones, too."""

YEARS = {
    2013: ("3.10", "3.12"),
    2014: ("3.13", "3.18"),
    2015: ("3.19", "4.3"),
    2016: ("4.4", "4.9"),
    2017: ("4.10", "4.14"),
    2018: ("4.15", "4.20"),
    2019: ("5.0", "5.4"),
    2020: ("5.5", "5.10"),
    2021: ("5.11", "5.15"),
    2022: ("5.16", "6.1"),
    2023: ("6.2", "6.6"),
    2024: ("6.7", "6.12"),
    2025: ("6.13", "6.18"),
    2026: ("6.19", "7.2"),
}
"""The first and the last release of each year."""


class Wording(NamedTuple):
    """The form of a message in the kernel's sources, and the releases that print it."""

    message: str
    """Name of the entry in MESSAGES."""
    format: str
    """As printk() gets it, without the end of the line and what pr_fmt() adds."""
    since: str
    """The first release with it; empty: unknown."""
    until: str
    """The last release with it; empty: unknown."""


@dataclass(frozen=True)
class Span:
    """Releases that print a line; "" and None are unknown bounds."""

    since: str
    since_year: int | None
    until: str
    until_year: int | None

    @property
    def is_old(self) -> bool:
        """Whether the newest release that was read does not print it any more."""
        return self.until != NEWEST

    @property
    def text(self) -> str:
        """As "Linux 3.10 to 4.18 (2013 to 2018)"; "" if no bound is known."""
        if not self.is_old:
            return f"Linux {self.since} or later ({self.since_year})" if self.since else ""
        if not self.since:
            return f"Linux up to {self.until} ({self.until_year})" if self.until else ""
        if not self.until:
            return f"Linux {self.since} ({self.since_year}) and some later ones"
        return f"Linux {self.since} to {self.until} ({self.since_year} to {self.until_year})"


def _order(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def year(release: str) -> int:
    """The year of a release."""
    wanted = _order(release)
    return next(
        number for number, (first, last) in YEARS.items() if _order(first) <= wanted <= _order(last)
    )


_CONVERSION = re.compile(r"%[-+ #0-9.*lhzj]*(?:p[A-Za-z0-9]*|[a-zA-Z])")


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    parts = map(re.escape, _CONVERSION.split(text))
    return re.compile(r"(?:[\w-]{1,16}: ?)?" + ".{0,200}?".join(parts))


def span_of(message: str, text: str) -> Span | None:
    """The releases that print a line of a message; None if its form is not in the table."""
    wordings = [
        wording
        for wording in WORDINGS
        if wording.message == message and _pattern(wording.format).fullmatch(text)
    ]
    if not wordings:
        return None
    # forms that differ in a conversion only print the same line
    unknown = (
        any(not wording.since for wording in wordings),
        any(not wording.until for wording in wordings),
    )
    known_since = sorted((wording.since for wording in wordings if wording.since), key=_order)
    known_until = sorted((wording.until for wording in wordings if wording.until), key=_order)
    since = known_since[0] if known_since and (not unknown[0] or known_since[0] == OLDEST) else ""
    until = known_until[-1] if known_until and (not unknown[1] or known_until[-1] == NEWEST) else ""
    return Span(since, year(since) if since else None, until, year(until) if until else None)


WORDINGS: tuple[Wording, ...] = (
    Wording("server not responding", "%s: server %s not responding, still trying", "3.10", "7.1"),
    Wording("server responds again", "%s: server %s OK", "3.10", "7.1"),
    Wording("request timed out", "%s: server %s not responding, timed out", "3.10", "7.1"),
    Wording("RPC call failed", "%s: RPC call returned error %d", "3.10", "7.1"),
    Wording(
        "authentication refused", "RPC: server %s requires stronger authentication.", "3.10", "7.1"
    ),
    Wording(
        "connection limit reached",
        "SUNRPC: reached max allowed number (%d) did not add transport to server: %s",
        "5.15",
        "7.1",
    ),
    Wording(
        "connection not added",
        "RPC:   rpc_clnt_test_xprt failed: %d addr %s not added",
        "4.9",
        "7.1",
    ),
    Wording("transport registered", "RPC: Registered %s transport module.", "3.10", "7.1"),
    Wording("transport registered", "RPC: Unregistered %s transport module.", "3.10", "7.1"),
    Wording(
        "callback not answered", "RPC: Could not send backchannel reply error: %d", "3.10", "7.1"
    ),
    Wording("callbacks overflow", "RPC/RDMA backchannel overflow", "", "7.1"),
    Wording(
        "device cannot register memory",
        "RPC: Unsupported memory registration mode: %d",
        "3.16",
        "4.7",
    ),
    Wording(
        "device cannot register memory",
        "rpcrdma: 'frwr' mode is not supported by device %s",
        "4.8",
        "7.1",
    ),
    Wording(
        "device cannot register memory",
        "rpcrdma: 'fmr' mode is not supported by device %s",
        "4.8",
        "4.20",
    ),
    Wording(
        "device cannot register memory",
        "rpcrdma: Device %s does not support memreg mode %d",
        "4.12",
        "",
    ),
    Wording("device has too few segments", "rpcrdma: HCA provides only %d send SGEs", "4.9", ""),
    Wording("device has too few segments", "rpcrdma: HCA provides only %u send SGEs", "", "7.1"),
    Wording("address not supported", "rpcrdma: Unrecognized address family", "4.1", "7.1"),
    Wording("client work failed", "rpcrdma: Send: %s (%u/0x%x)", "", ""),
    Wording("client work failed", "rpcrdma: %s: %s (%u/0x%x)", "", ""),
    Wording("client work failed", "rpcrdma: Recv: %s (%u/0x%x)", "", ""),
    Wording("queue pair failed", "RPC:       %s: %s on device %s ep %p", "3.19", "4.9"),
    Wording("connection not set up", "rpcrdma: rdma_create_qp returned %d", "4.12", "5.6"),
    Wording(
        "connection begins",
        "rpcrdma: connection to %pI4:%u on %s, memreg %d slots %d ird %d%s",
        "3.10",
        "4.0",
    ),
    Wording(
        "connection begins",
        "rpcrdma: connection to %pIS:%u on %s, memreg '%s', %d credits, %d responders%s",
        "4.1",
        "4.12",
    ),
    Wording("connection closed", "rpcrdma: connection to %pI4:%u closed (%d)", "3.10", "4.0"),
    Wording("connection closed", "rpcrdma: connection to %pIS:%u closed (%d)", "4.1", "4.12"),
    Wording("device removed", "rpcrdma: removing device %s for %pIS:%u", "4.13", "4.15"),
    Wording("device removed", "rpcrdma: removing device %s for %s:%s", "4.16", "5.6"),
    Wording("device removed", "rpcrdma: removing device %s for %pISpc", "5.7", "6.10"),
    Wording(
        "state recovery failed",
        "NFS: state manager%s%s failed on NFSv4 server %s with error %d",
        "3.10",
        "7.1",
    ),
    Wording("locks lost", "NFS: %s: Lock reclaim failed!", "3.10", "5.18"),
    Wording("locks lost", "NFS: %s: lost %d locks", "5.19", "7.1"),
    Wording("open file lost", "NFS: %s: unhandled error %d", "3.13", "7.1"),
    Wording(
        "open file lost",
        "NFSv4: state recovery failed for open file %pd2, error = %d",
        "5.3",
        "7.1",
    ),
    Wording(
        "client identity in use", "NFS: Server %s reports our clientid is in use", "3.10", "7.1"
    ),
    Wording(
        "server discovery failed",
        "NFS: %s unhandled error %d. Exiting with error EIO",
        "3.10",
        "7.1",
    ),
    Wording("bad sequence", "NFS: v4 server %s  returned a bad sequence-id error!", "3.10", "7.1"),
    Wording("server wrote nothing", "NFS: Server wrote zero bytes, expected %u.", "3.10", "7.1"),
    Wording("callback service failed", "NFS: bind callback service failed", "3.10", "7.1"),
    Wording("callback service failed", "NFS: callback service start failed", "3.10", "7.1"),
    Wording(
        "callback service failed", "nfs_callback_create_svc: create service failed", "3.10", "7.1"
    ),
    Wording("mount option unknown", "%s: Unknown parameter '%s'", "", "7.1"),
    Wording("mount option unknown", "%s: Bad value for '%s'", "", ""),
    Wording("mount option unknown", "Bad value for '%s'", "", "7.1"),
    Wording("mount option refused", "NFS: bad mount option value specified: %s", "3.10", ""),
    Wording("mount option refused", "NFS: Unrecognized transport protocol", "", "7.1"),
    Wording("mount option refused", "NFS: Value for '%s' out of range", "", "7.1"),
    Wording("mount option refused", "NFS: Server address does not match proto= option", "", "7.1"),
    Wording("transport not there", "RPC: transport (%d) not supported", "3.10", "7.1"),
    Wording("locks not monitored", "lockd: cannot monitor %s", "3.10", "7.1"),
    Wording(
        "lock not reclaimed",
        "lockd: failed to reclaim lock for pid %d (errno %d, status %d)",
        "3.10",
        "7.1",
    ),
    Wording("server work failed", "svcrdma: %s: %s (%u/0x%x)", "", "4.12"),
    Wording("server work not posted", "svcrdma: Error %d posting RDMA_READ", "3.10", "4.12"),
    Wording(
        "server work not posted", "svcrdma: failed to send reply chunks, rc=%d", "3.10", "4.11"
    ),
    Wording(
        "server work not posted",
        "svcrdma: could not post a receive buffer, err=%d.Closing transport %p.",
        "3.10",
        "",
    ),
    Wording(
        "server work not posted", "svcrdma: could not post a receive buffer, err=%d.", "", "4.15"
    ),
    Wording("queue shortened", "svcrdma: reducing receive depth to %d", "4.14", "6.7"),
    Wording("queue shortened", "svcrdma: reducing send depth to %d", "4.14", "6.7"),
    Wording("listener lost", "Listener dead, address change failed for device %s", "6.11", "7.1"),
    Wording(
        "rpcbind refused", "svc: failed to register %sv%u RPC service (errno %d).", "3.10", "7.1"
    ),
    Wording(
        "connection limit of the server",
        "%s: too many open connections, consider increasing the %s",
        "3.10",
        "6.13",
    ),
    Wording(
        "reply not sent",
        "rpc-srv/tcp: %s: %s %d when sending %d bytes - shutting down socket",
        "3.10",
        "6.17",
    ),
    Wording(
        "reply not sent",
        "rpc-srv/tcp: %s: %s %d when sending %zu bytes - shutting down socket",
        "6.18",
        "7.1",
    ),
    Wording("request too large", "RPC: fragment too large: %d", "", "5.7"),
    Wording("request too large", "svc: %s %s RPC fragment too large: %d", "5.8", "6.18"),
    Wording("server stopped", "nfsd: last server has exited, flushing export cache", "3.10", "6.6"),
    Wording("grace period", "NFSD: starting %ld-second grace period (net %p)", "3.10", "4.14"),
    Wording("grace period", "NFSD: starting %ld-second grace period (net %x)", "4.15", ""),
    Wording(
        "grace period",
        "NFSD: all clients done reclaiming, ending NFSv4 grace period (net %x)",
        "",
        "7.1",
    ),
    Wording(
        "grace period",
        "NFSD: no clients to reclaim, skipping NFSv4 grace period (net %x)",
        "",
        "7.1",
    ),
    Wording("grace period", "NFSD: starting %lld-second grace period (net %x)", "", "7.1"),
    Wording("client tracking", "NFSD: Using nfsdcld client tracking operations.", "", "7.1"),
    Wording("client tracking", "NFSD: Using UMH upcall client tracking operations.", "", "7.1"),
    Wording(
        "no client tracking",
        "NFSD: Unable to initialize client recovery tracking! (%d)",
        "3.10",
        "7.1",
    ),
    Wording(
        "client record not stored",
        "NFSD: Unable to create client record on stable storage: %d",
        "3.10",
        "7.1",
    ),
    Wording("client record not stored", "NFSD: Unable to end grace period: %d", "3.10", "7.1"),
    Wording("names not mapped", "nfsd: nfsv4 idmapping failing: has idmapd %s?", "3.10", "7.1"),
    Wording("address moved", "RDMA CM addr change for ndev %s used by id %p", "3.10", "7.1"),
    Wording(
        "connection identifier stuck",
        "%s: cm_id=%p timed out. state %d -> %d, refcnt=%d",
        "6.9",
        "7.1",
    ),
    Wording("no memory regions", "%s: failed to allocated %d MRs", "4.7", ""),
    Wording("no memory regions", "%s: failed to allocated %u MRs", "", "7.1"),
)
