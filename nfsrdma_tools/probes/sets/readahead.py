# SPDX-License-Identifier: Apache-2.0
"""The probe set readahead: pages that were read ahead, and whether they were used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.nfs.mounts import mounts
from nfsrdma_tools.host.nfs.readahead import get_kb
from nfsrdma_tools.probes.columns import number, words
from nfsrdma_tools.probes.maps import decoded, increase, total
from nfsrdma_tools.probes.probe_sets import ProbeSet
from nfsrdma_tools.probes.session import Session

__all__ = ["COUNTS", "PROBE_SET", "ReadAhead", "device"]

# enum ahead_count of bpf/readahead.c
COUNTS = ("windows", "demanded", "ahead", "used", "late", "dropped")
"""``windows`` that the kernel requested from NFS, and their pages: ``demanded`` by the program, or
read ``ahead``.  Of those ahead: ``used`` later, of these ``late`` if the program had to wait (up to
64 pages), and ``dropped`` from the page cache unused."""


@dataclass(frozen=True)
class ReadAhead:
    """Counters by COUNTS for each device ("MAJOR:MINOR", as in mountinfo)."""

    counts: dict[str, tuple[int, ...]]


def attach(session: Session) -> None:
    """Attach to the start of reads through the page cache, to detect pages that came too late.

    All such reads call that function, and direct reads do not (fs/nfs/file.c).
    """
    session.attach_kprobe("nfs_start_io_read", "readahead_enters")


def read(session: Session) -> ReadAhead:
    """The counts since the session began."""
    return ReadAhead(dict(decoded(session, "ahead_rows", _decoded)))


def _decoded(key: Any, leaves: Any) -> tuple[str, tuple[int, ...]]:
    return device(key.value), total(leaf.counts for leaf in leaves)


def device(number: int) -> str:
    """A dev_t of the kernel, as mountinfo prints it (include/linux/kdev_t.h)."""
    return f"{number >> 20}:{number & 0xFFFFF}"


def difference(after: ReadAhead, before: ReadAhead) -> ReadAhead:
    """The difference between two readings of one session."""
    return ReadAhead(increase(after.counts, before.counts))


def records(snapshot: ReadAhead, clients: dict[int, tuple[str, ...]]) -> list[dict[str, Any]]:
    """A row for each mount; ``waiting`` pages were read ahead but neither used nor dropped yet."""
    del clients
    names = {mount.device: str(mount.directory) for mount in mounts()}
    return [
        {
            "mount": names.get(where, f"device {where}"),
            "read_ahead_kb": _window(where),
            **dict(zip(COUNTS, counts, strict=True)),
            "waiting": counts[2] - counts[3] - counts[5],
        }
        for where, counts in sorted(snapshot.counts.items())
    ]


def _window(where: str) -> int:
    try:
        return get_kb(where)
    except UserError:
        # unmounted meanwhile
        return 0


PROBE_SET = ProbeSet(
    "readahead", "Is the read-ahead window too small, or too large?",
    (words("mount"), number("read_ahead_kb", "KiB"), *map(number, (*COUNTS, "waiting"))),
    read, difference, records, filters=("mount",), attach=attach,
)  # fmt: skip
