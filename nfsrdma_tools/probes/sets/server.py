# SPDX-License-Identifier: Apache-2.0
"""The server's account: how Calls travel, and where their time goes, per client (bpf/server.c)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from nfsrdma_tools.probes.counters import increase, text, total
from nfsrdma_tools.probes.maps import free, rows

__all__ = [
    "COUNTS",
    "FILTERS",
    "PHASES",
    "Server",
    "ServerRow",
    "difference",
    "forget",
    "read",
    "records",
]

FILTERS = ("client", "procedures")
"""Filters of `nfsrdma trace` that it has (probes/row_filter.py)."""

# enum server_phase and server_count of bpf/server.c
PHASES = ("queue", "read_in", "nfsd", "write_out", "send")
"""Waited for a thread; its Read chunks were fetched; carried out; results written and answered;
then the answer is on its way, until its Send is completed."""
COUNTS = (
    *("calls", "read_calls", "write_calls", "reply_calls"),
    *("read_segments", "read_bytes", "room", "written", "invalidates", "sends"),
)
"""Calls; of them those with Read chunks, answered by Write chunk, by Reply chunk. Segments and
bytes that were fetched; ``room`` that clients offered in chunks, bytes ``written`` there; replies
that invalidated one of the client's keys; ``sends`` that were completed, with our server none."""


class ServerRow(NamedTuple):
    """Who asked for what: a client's address, a procedure."""

    peer: str
    procedure: str


_Decoded = tuple[ServerRow, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Server:
    """``sums``: ns in all, ns in each of PHASES, then COUNTS; ``times`` by units of 1024 ns."""

    sums: dict[ServerRow, tuple[int, ...]]
    times: dict[ServerRow, tuple[int, ...]]


def read(session: Any) -> Server:
    """What was counted since the session began."""
    found = rows(session, "server_rows", _asked, _decoded)
    return Server({a: sums for a, sums, _ in found}, {a: times for a, _, times in found})


def _asked(leaf: Any) -> ServerRow:
    return ServerRow(text(leaf.id.peer), text(leaf.id.procedure))


def _decoded(asked: ServerRow, leaves: list[Any]) -> _Decoded:
    sums = total((leaf.sum, *leaf.phases, *leaf.counts) for leaf in leaves)
    return asked, sums, total(leaf.times for leaf in leaves)


def forget(session: Any, reading: Server, now: float) -> None:
    """Take rows out of the map in which nothing was counted for a while; ``now`` in seconds."""
    free(session, "server_rows", now, reading.sums, reading.times)


def difference(after: Server, before: Server) -> Server:
    """What happened between two readings of one session."""
    return Server(increase(after.sums, before.sums), increase(after.times, before.times))


def records(snapshot: Server, clients: dict[int, tuple[str, ...]]) -> list[dict[str, Any]]:
    """A row for each client and procedure; times in microseconds per Call.

    "mean_us" ends when the answer is posted; "send" comes on top, per Send, if one was completed.
    """
    del clients
    return [
        _row(asked, sums, snapshot.times.get(asked, ()))
        for asked, sums in sorted(snapshot.sums.items())
    ]


def _row(asked: ServerRow, sums: tuple[int, ...], times: tuple[int, ...]) -> dict[str, Any]:
    spent, phases, counts = sums[0], sums[1 : 1 + len(PHASES)], sums[1 + len(PHASES) :]
    calls, sends = counts[0], counts[-1]
    each = [calls] * (len(PHASES) - 1) + [sends]
    return {
        "peer": asked.peer,
        "procedure": asked.procedure,
        **dict(zip(COUNTS, counts, strict=True)),
        "mean_us": spent / calls / 1000 if calls else 0.0,
        "phases_us": {
            phase: ns / n / 1000 for phase, ns, n in zip(PHASES, phases, each, strict=True) if n
        },
        "times": list(times),
    }
