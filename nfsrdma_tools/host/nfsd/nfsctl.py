# SPDX-License-Identifier: Apache-2.0
"""The state and the counters of the kernel's NFS server.

The state is in /proc/fs/nfsd (fs/nfsd/nfsctl.c), the counters are in /proc/net/rpc/nfsd
(fs/nfsd/stats.c, net/sunrpc/stats.c).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError, printable
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfsd_status import NfsdStatus

__all__ = [
    "PORTLIST",
    "Listener",
    "PoolCounts",
    "Served",
    "io_mode",
    "is_hidden",
    "listen",
    "listeners",
    "listening",
    "numbers",
    "parse_statistics",
    "pool_counts",
    "read_statistics",
    "running",
    "splice_read",
    "threads",
    "versions",
]

_NFSD = "proc/fs/nfsd"
PORTLIST = LIVE.path(f"{_NFSD}/portlist")
"""The listeners; a line that is written to it adds one."""
_DEBUG = "sys/kernel/debug/nfsd"
_NUMBER = re.compile(r"[0-9]{1,9}")
_LISTENER = re.compile(r"([\w-]{1,32})\s+([0-9]{1,5})")
_SHOWN = 60
# lines of counts by procedure of NFSv3 (RFC 1813) and by operation of NFSv4 (RFC 8881), and the
# number of READ; a count of the numbers comes first
_READS = {"proc3": 6, "proc4ops": 25}


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


class Served(NamedTuple):
    """Since module nfsd was loaded: file bytes read and written, Calls, refused Calls, READs."""

    read_bytes: int = 0
    write_bytes: int = 0
    calls: int = 0
    bad_calls: int = 0
    reads: int = 0
    """READs of NFSv3 and NFSv4, also those that failed."""


class PoolCounts(NamedTuple):
    """Since nfsd started: connections with work that were queued, and threads woken for them.

    A connection is queued for each Call, and for each change of its state.  If no thread is idle,
    none is woken: the connection waits (svc_xprt_enqueue in net/sunrpc/svc_xprt.c).
    """

    queued: int = 0
    woken: int = 0


def pool_counts(machine: Machine = LIVE) -> PoolCounts:
    """The sums over all pools of threads; 0 if nfsd does not run."""
    try:
        rows = [row.split() for row in _read(machine.path(f"{_NFSD}/pool_stats")).splitlines()]
    # the kernel has no pools while nfsd is stopped
    except OSError:
        return PoolCounts()
    pools = [row for row in rows if len(row) >= 4 and "".join(row[:4]).isdecimal()]
    return PoolCounts(sum(int(row[2]) for row in pools), sum(int(row[3]) for row in pools))


def threads(machine: Machine = LIVE) -> int:
    """The number of nfsd threads; 0 if the server is stopped or its filesystem is not mounted.

    UserError if the file has no number.
    """
    text = _read(machine.path(f"{_NFSD}/threads")).strip()
    if text and not _NUMBER.fullmatch(text):
        raise UserError(f"threads of nfsd: {text[:_SHOWN]!r} is no number")
    return int(text or 0)


def listeners(machine: Machine = LIVE) -> list[Listener]:
    """The listeners of nfsd; IPv4 and IPv6 count as one.  UserError for a line that is none."""
    text = _read(machine.path(f"{_NFSD}/portlist"))
    lines = (line.strip() for line in text.split("\n"))
    return sorted(set(map(_listener, filter(None, lines))))


def running(status: NfsdStatus) -> int | None:
    """The number of nfsd threads by netlink; None if it is unknown."""
    return None if status.pool_threads is None else sum(status.pool_threads)


def listening(status: NfsdStatus) -> tuple[Listener, ...] | None:
    """The listeners by netlink, as ``listeners`` has them; None if they are unknown."""
    if status.listeners is None:
        return None
    return tuple(sorted({Listener(sock.transport, sock.port) for sock in status.listeners}))


def is_hidden(machine: Machine) -> bool:
    """Whether a container lacks nfsd's filesystem while nfsd is loaded, and may run."""
    # /proc/net/rpc/nfsd is there as long as nfsd is loaded (svc_proc_register)
    if machine.path("proc/fs/nfsd/portlist").exists() or not machine.in_container:
        return False
    return machine.path("proc/net/rpc/nfsd").exists()


def _listener(line: str) -> Listener:
    match = _LISTENER.fullmatch(line)
    if not match:
        raise UserError(f"portlist of nfsd: {line[:_SHOWN]!r} is no listener")
    return Listener(match[1], int(match[2]))


def numbers(path: Path) -> tuple[int, ...]:
    """The numbers in a file of nfsd; () if it does not exist, or this user may not read it."""
    try:
        return tuple(map(int, _read(path).split()))
    except (PermissionError, UserError, ValueError):
        return ()


def io_mode(machine: Machine, name: str) -> str | None:
    """The I/O mode ``io_cache_read`` or ``io_cache_write``; None if it cannot be read.

    Documentation/filesystems/nfs/nfsd-io-modes.rst.
    """
    text = machine.text(f"{_DEBUG}/{name}").strip()
    modes = {"0": "buffered", "1": "dontcache", "2": "direct"}
    return modes.get(text, printable(text)) if text else None


def splice_read(machine: Machine) -> bool | None:
    """Whether nfsd may splice pages into a reply (fs/nfsd/debugfs.c); None if unknown."""
    return {"0": True, "1": False}.get(machine.text(f"{_DEBUG}/disable-splice-read").strip())


def listen(transport: str, port: int, machine: Machine = LIVE) -> None:
    """Add a listener to a running nfsd.  UserError if the kernel refuses it.

    It remains until nfsd stops.
    """
    try:
        machine.path(f"{_NFSD}/portlist").write_text(f"{transport} {port}\n")
    except OSError as error:
        hint = "run nfsrdma doctor, or see dmesg"
        raise UserError(f"nfsd cannot listen on {transport} {port}: {error}", hint) from error


def versions(machine: Machine = LIVE) -> list[str]:
    """The NFS versions that nfsd offers, like ``3`` and ``4.2``; empty if it was never started."""
    words = set(_read(machine.path(f"{_NFSD}/versions")).split())
    offered = {word[1:] for word in words if re.fullmatch(r"\+(3|4\.\d)", word)}
    # the file lists 4.0 only if it is off
    return sorted(offered | ({"4.0"} if "+4" in words and "-4.0" not in words else set()))


def read_statistics(machine: Machine = LIVE) -> Served | None:
    """The counters; None if nfsd is not loaded."""
    # not proc/net: that is the network namespace of the process that reads it
    text = files.read(machine.of_process("net/rpc/nfsd"))
    return parse_statistics(text) if text else None


def parse_statistics(text: str) -> Served:
    """Parse ``io``, ``rpc`` and the READs of the counters; a missing value is 0."""
    reads = sum(_numbers(text, name, 2 + number)[-1] for name, number in _READS.items())
    (read, written), (calls, bad) = _numbers(text, "io", 2), _numbers(text, "rpc", 2)
    return Served(read, written, calls, bad, reads)


def _numbers(text: str, name: str, count: int) -> list[int]:
    """The first numbers of a line; zeros if it does not have as many."""
    line = f"\n{text}".partition(f"\n{name} ")[2].partition("\n")[0]
    words = line.split(None, count)[:count]
    return list(map(int, words)) if len(words) == count else [0] * count


def _read(path: Path) -> str:
    """Text of a file, "" if it does not exist.

    Unlike files.read() it raises UserError for other bytes than text: an unreadable list is not an
    empty one.
    """
    try:
        return files.text(path)
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise UserError(f"{path.name} of nfsd is no text") from error
