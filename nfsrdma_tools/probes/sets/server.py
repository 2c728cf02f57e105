# SPDX-License-Identifier: Apache-2.0
"""The probe set server: how Calls arrive, and where their time goes, per client (bpf/server.c)."""

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
"""Wait for a thread; fetch Read chunks; execute; write results and post the reply; then the reply
is in flight, until its Send completes."""
COUNTS = (
    *("calls", "read_calls", "write_calls", "reply_calls"),
    *("read_segments", "read_bytes", "room", "written", "invalidates", "sends"),
)
"""Calls; of them those with Read chunks, answered by Write chunk, by Reply chunk.  Segments and
bytes fetched; ``room`` offered by clients in chunks, bytes ``written`` there; replies that
invalidated a key of the client; completed ``sends``, with our server none."""


class ServerRow(NamedTuple):
    """The key of counters: a client's address, a procedure."""

    peer: str
    procedure: str


_Decoded = tuple[ServerRow, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Server:
    """``sums``: ns in total, ns in each of PHASES, then COUNTS; ``times`` in units of 1024 ns."""

    sums: dict[ServerRow, tuple[int, ...]]
    times: dict[ServerRow, tuple[int, ...]]


def read(session: Any) -> Server:
    """The counts since the session began."""
    found = rows(session, "server_rows", _row_key, _decoded)
    return Server({a: sums for a, sums, _ in found}, {a: times for a, _, times in found})


def _row_key(leaf: Any) -> ServerRow:
    return ServerRow(text(leaf.id.peer), text(leaf.id.procedure))


def _decoded(key: ServerRow, leaves: list[Any]) -> _Decoded:
    sums = total((leaf.sum, *leaf.phases, *leaf.counts) for leaf in leaves)
    return key, sums, total(leaf.times for leaf in leaves)


def forget(session: Any, reading: Server, now: float) -> None:
    """Remove idle rows from the map; ``now`` in seconds."""
    free(session, "server_rows", now, reading.sums, reading.times)


def difference(after: Server, before: Server) -> Server:
    """The difference between two readings of one session."""
    return Server(increase(after.sums, before.sums), increase(after.times, before.times))


def records(snapshot: Server, clients: dict[int, tuple[str, ...]]) -> list[dict[str, Any]]:
    """A row for each client and procedure; times in microseconds per Call.

    "mean_us" ends when the reply is posted; "send" is additional, per Send, if one was completed.
    """
    del clients
    return [
        _row(key, sums, snapshot.times.get(key, ())) for key, sums in sorted(snapshot.sums.items())
    ]


def _row(key: ServerRow, sums: tuple[int, ...], times: tuple[int, ...]) -> dict[str, Any]:
    spent, phases, counts = sums[0], sums[1 : 1 + len(PHASES)], sums[1 + len(PHASES) :]
    calls, sends = counts[0], counts[-1]
    each = [calls] * (len(PHASES) - 1) + [sends]
    return {
        "peer": key.peer,
        "procedure": key.procedure,
        **dict(zip(COUNTS, counts, strict=True)),
        "mean_us": spent / calls / 1000 if calls else 0.0,
        "phases_us": {
            phase: ns / n / 1000 for phase, ns, n in zip(PHASES, phases, each, strict=True) if n
        },
        "times": list(times),
    }
