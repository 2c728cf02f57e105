# SPDX-License-Identifier: Apache-2.0
"""The probe set chunks: how a client's messages are sent (bpf/chunks.c; RFC 8166, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nfsrdma_tools.probes.columns import Column, Record, number, rare, size, words
from nfsrdma_tools.probes.maps import Row, free, increase, row_of, rows, split, total
from nfsrdma_tools.probes.probe_sets import ProbeSet
from nfsrdma_tools.probes.rpc_clients import owner
from nfsrdma_tools.probes.session import Session
from nfsrdma_tools.sizes import format_size

__all__ = ["COUNTS", "KINDS", "PROBE_SET", "Chunks"]

KINDS = ("read", "position_zero", "write", "reply")
"""Kinds of chunks: Read chunk of data, Read chunk of a whole Call, Write chunk, Reply chunk."""
# enum chunk_count of bpf/chunks.c
COUNTS = (
    *("rpcs", "calls_inline", "calls_pulled_up", "calls_gathered", "calls_read"),
    *("calls_position_zero", "calls_padded"),
    *("replies_inline", "replies_write", "replies_reply", "replies_lane", "replies_padded"),
    "replies_optimistic",
    *(f"{kind}_segments" for kind in KINDS),
    *(f"{kind}_bytes" for kind in KINDS),
    *("inline_bytes", "pulled_up_bytes", "fixed_up_bytes"),
    *("optimistic_bytes", "optimistic_refused"),
    *("write_used", "reply_used", "reply_unused"),
)
"""``calls_*`` and ``replies_*`` count messages by how a Call was sent and its reply was offered.

An inline Call is ``pulled_up`` if its data was copied into the send buffer, ``gathered`` if it was
sent from its pages.  ``*_bytes`` were offered in ``*_segments``; the server wrote ``*_used`` of
them, and did not use ``reply_unused`` Reply chunks.  ``fixed_up_bytes`` were copied out of the
receive buffer.  ``replies_optimistic`` are READs that read ``optimistic_bytes`` from the server's
page cache, without a Call; ``optimistic_refused`` ones became ordinary Calls.
"""
_Counts = tuple[int, ...]
_Decoded = tuple[Row, _Counts, _Counts]


@dataclass(frozen=True)
class Chunks:
    """Counters by COUNTS, and histograms of chunk sizes, one per kind in the order of KINDS.

    Slot n counts sizes from 2^(n-1) to below 2^n bytes.
    """

    counts: dict[Row, tuple[int, ...]]
    sizes: dict[Row, tuple[int, ...]]

    def count(self, name: str, procedure: str = "") -> int:
        """A counter, of one procedure or of all."""
        where = COUNTS.index(name)
        return sum(c[where] for row, c in self.counts.items() if procedure in ("", row.procedure))


def read(session: Session) -> Chunks:
    """The counts since the session began."""
    decoded = rows(session, "chunk_rows", row_of, _decoded)
    return Chunks(
        counts={row: counts for row, counts, _ in decoded},
        sizes={row: sizes for row, _, sizes in decoded},
    )


def _decoded(row: Row, leaves: list[Any]) -> _Decoded:
    return row, total(leaf.counts for leaf in leaves), total(leaf.sizes for leaf in leaves)


def forget(session: Session, reading: Chunks, now: float) -> None:
    """Remove idle rows from the map; ``now`` in seconds."""
    free(session, "chunk_rows", now, reading.counts, reading.sizes)


def difference(after: Chunks, before: Chunks) -> Chunks:
    """The difference between two readings of one session."""
    return Chunks(increase(after.counts, before.counts), increase(after.sizes, before.sizes))


def records(snapshot: Chunks, clients: dict[int, tuple[str, ...]]) -> list[dict[str, Any]]:
    """A row for each mount and procedure: COUNTS, and the sizes of each kind of chunk."""
    return [
        {
            "mount": owner(row.client, clients),
            "client": row.client,
            "procedure": row.procedure,
            **dict(zip(COUNTS, counts, strict=True)),
            "sizes": split(snapshot.sizes.get(row, ()), KINDS),
        }
        for row, counts in sorted(snapshot.counts.items())
    ]


def _sizes(record: Record) -> str:
    """Histograms per kind of chunk: ``w64k:23`` is 23 Write chunks from 64 KiB to below 128."""
    return " ".join(
        f"{kind[0]}{format_size(1 << (slot - 1)) if slot else 0}:{times}"
        for kind, slots in record["sizes"].items()
        for slot, times in enumerate(slots)
        if times
    )


def _inline(record: Record) -> str:
    """The Calls that were sent inline, in each of three ways."""
    ways = ("calls_inline", "calls_pulled_up", "calls_gathered")
    return str(sum(record[way] for way in ways) or "")


PROBE_SET = ProbeSet(
    "chunks", "Does my data travel by chunks or inline, and how much of it is copied?",
    (
        *map(words, ("mount", "procedure")), number("rpcs", "RPCs"), Column("inline", _inline),
        number("calls_read", "read"), number("calls_position_zero", "long"),
        number("replies_inline", "| inline"), number("replies_write", "write"),
        number("replies_reply", "reply"), number("reply_unused", "unused"),
        *rare(
            number("replies_optimistic", "optimistic"), number("optimistic_refused", "refused"),
        ),
        size("inline_bytes", "| sent inline"), size("pulled_up_bytes", "copied"),
        size("read_bytes", "by read"), size("write_used", "by write"),
        size("reply_used", "by reply"), *rare(size("optimistic_bytes", "by optimistic")),
        Column("sizes", _sizes),
    ),
    read, difference, records, filters=("mount", "pid", "procedures"), forget=forget,
)  # fmt: skip
