# SPDX-License-Identifier: Apache-2.0
"""The probe set server: how Calls arrive, and where their time goes, per client (bpf/server.c)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nfsrdma_tools.probes.columns import Column, Record, microseconds, number, rare, size, words
from nfsrdma_tools.probes.maps import address, decoded, free, increase, rows, text, total
from nfsrdma_tools.probes.probe_sets import ProbeSet
from nfsrdma_tools.probes.session import Session

__all__ = [
    "COUNTS", "EXPOSURES", "GRANTS", "MISSED", "NO_CALLS", "PHASES", "PROBE_SET", "REVOKED",
    "THREADLESS", "Server", "ServerRow", "granted", "with_threadless",
]  # fmt: skip

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
_OF_REPLIES = ("exposures", "exposed_bytes", "dones", "done_timeouts", "stray_dones")
REVOKED = (
    *("modified", "attributes", "moved", "opened", "listener", "unmounted"),
    *("expired", "limit", "memory", "replaced"),
)
"""Reasons for which the server ends a grant: the file, its attributes or its place changed, a
process opened it for writing or has a lease, somebody listens for accesses, its file system is
unmounted; the lifetime is over,
optimistic_memory or a client's quarter of it is full, memory is short, a grant for more of the
extent follows."""
GRANTS = ("grants", "granted_bytes", *(f"revoked_{reason}" for reason in REVOKED))
"""Extents of files that the client may read (personality optimistic), and their bytes; those that
the server revoked, by reason."""
MISSED = (
    *("absent", "expired", "changed", "open", "lease", "listener"),
    *("pages", "size", "memory", "queue", "share"),
)
"""Reasons for which nfsd gets a READ that might have been threadless: no READ of the file and user
was answered on this connection in the last second, or that was longer ago; the file changed, is
open for writing, has a lease, or somebody listens for accesses to it; data is not in the page
cache, is too long, or begins beyond the end of the file; memory or the send queue is full; hits
have used their share of the CPU while a task waits."""
THREADLESS = ("threadless_hits", "threadless_bytes", *(f"threadless_missed_{x}" for x in MISSED))
"""READs that our module answered without a thread of nfsd, and their bytes of data; those that nfsd
got after all, by reason."""
# enum exposure_count of bpf/server_ours.c
EXPOSURES = (*_OF_REPLIES, *GRANTS, *THREADLESS, "dones_outstanding")
"""Replies that the client read from the server's memory (personality read-read of our module), and
their bytes; how the access to them ended: by an RDMA_DONE or by the timeout; RDMA_DONEs for no
Reply; GRANTS; THREADLESS.  The last one is not a sum: Replies that clients may read now."""
_NO_EXPOSURES = dict.fromkeys(EXPOSURES, 0)
_NOTHING = tuple(_NO_EXPOSURES.values())
NO_CALLS = (0,) * (1 + len(PHASES) + len(COUNTS))
"""The sums of a row whose Calls nfsd did not get."""


class ServerRow(NamedTuple):
    """The key of counters: a client's address, a procedure."""

    peer: str
    procedure: str


class Connection(NamedTuple):
    """The key of exposures: a connection's number and its client's address."""

    number: int
    peer: str


_Decoded = tuple[ServerRow, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Server:
    """``sums``: ns in total, ns in each of PHASES, then COUNTS; ``times`` in units of 1024 ns.

    ``exposed`` has EXPOSURES.
    """

    sums: dict[ServerRow, tuple[int, ...]]
    times: dict[ServerRow, tuple[int, ...]]
    exposed: dict[Connection, tuple[int, ...]] = field(default_factory=dict)


def read(session: Session) -> Server:
    """The counts since the session began."""
    calls = rows(session, "server_rows", _row_key, _decoded)
    exposed = dict(decoded(session, "exposure_rows", _exposure))
    return Server({a: sums for a, sums, _ in calls}, {a: times for a, _, times in calls}, exposed)


def _exposure(number: Any, row: Any) -> tuple[Connection, tuple[int, ...]]:
    return Connection(number.value, address(bytes(row.peer))), tuple(row.counts)


def _row_key(leaf: Any) -> ServerRow:
    return ServerRow(text(leaf.id.peer), text(leaf.id.procedure))


def _decoded(key: ServerRow, leaves: list[Any]) -> _Decoded:
    sums = total((leaf.sum, *leaf.phases, *leaf.counts) for leaf in leaves)
    return key, sums, total(leaf.times for leaf in leaves)


def forget(session: Session, reading: Server, now: float) -> None:
    """Remove idle rows from the map; ``now`` in seconds."""
    free(session, "server_rows", now, reading.sums, reading.times)


def difference(after: Server, before: Server) -> Server:
    """The difference between two readings of one session."""
    grown = increase(_only_sums(after.exposed), _only_sums(before.exposed))
    return Server(
        increase(after.sums, before.sums),
        increase(after.times, before.times),
        {key: (*sums, after.exposed[key][-1]) for key, sums in grown.items()},
    )


def _only_sums(exposed: dict[Connection, tuple[int, ...]]) -> dict[Connection, tuple[int, ...]]:
    return {key: counts[:-1] for key, counts in exposed.items()}


def records(snapshot: Server, clients: dict[int, tuple[str, ...]]) -> list[dict[str, Any]]:
    """A row for each client and procedure; times in microseconds per Call.

    "calls" and times are those of nfsd.  The row READ has those that our module answered without
    nfsd, as THREADLESS; "answered" is the sum of both.
    "mean_us" ends when the reply is posted; "send" is additional, per Send, if one was completed.
    A client that reads Replies from the server's memory has a row of the procedure "RDMA_DONE", one
    that reads the page cache a row "GRANT".
    """
    del clients
    calls = []
    for key, own in with_threadless(snapshot):
        row = _row(key, snapshot.sums.get(key, NO_CALLS), snapshot.times.get(key, ())) | own
        row["answered"] = row["calls"] + row["threadless_hits"]
        calls.append(row)
    return calls + list(_exposed(snapshot))


def with_threadless(snapshot: Server) -> list[tuple[ServerRow, dict[str, int]]]:
    """Each row of ``sums`` with its THREADLESS without zeros, which only rows READ have.

    A client whose READs nfsd did not execute has such a row, too.
    """
    peers = {_plain(key.peer): key for key in snapshot.sums if key.procedure == "READ"}
    counted = {key: dict[str, int]() for key in snapshot.sums}
    for connection, counts in snapshot.exposed.items():
        named = zip(EXPOSURES, counts, strict=True)
        own = {name: count for name, count in named if count and name in THREADLESS}
        if own:
            plain = _plain(connection.peer)
            row = counted.setdefault(peers.get(plain, ServerRow(connection.peer, "READ")), {})
            for name, count in own.items():
                row[name] = row.get(name, 0) + count
    return sorted(counted.items())


def _plain(peer: str) -> str:
    """An address without brackets and zone: sunrpc prints IPv6 without brackets."""
    return peer.strip("[]").partition("%")[0]


def _exposed(snapshot: Server) -> Iterator[dict[str, Any]]:
    """Up to two rows for each client, its connections added up."""
    for peer in sorted({key.peer for key in snapshot.exposed}):
        exposures = (counts for key, counts in snapshot.exposed.items() if key.peer == peer)
        of_replies = dict(zip(EXPOSURES, total(exposures), strict=True))
        granted = {name: of_replies.pop(name) for name in GRANTS}
        for name in THREADLESS:
            del of_replies[name]
        for procedure, counts in (("RDMA_DONE", of_replies), ("GRANT", granted)):
            if any(counts.values()):
                yield _row(ServerRow(peer, procedure), NO_CALLS, ()) | counts


def granted(snapshot: Server) -> dict[str, int]:
    """GRANTS of all clients, without zeros."""
    counts = total([_NOTHING, *snapshot.exposed.values()])
    return {n: c for n, c in zip(EXPOSURES, counts, strict=False) if c and n in GRANTS}


def _row(key: ServerRow, sums: tuple[int, ...], times: tuple[int, ...]) -> dict[str, Any]:
    spent, phases, counts = sums[0], sums[1 : 1 + len(PHASES)], sums[1 + len(PHASES) :]
    calls, sends = counts[0], counts[-1]
    divisors = [calls] * (len(PHASES) - 1) + [sends]
    return {
        "peer": key.peer,
        "procedure": key.procedure,
        **dict(zip(COUNTS, counts, strict=True)),
        "answered": calls,
        **_NO_EXPOSURES,
        "mean_us": spent / calls / 1000 if calls else 0.0,
        "phases_us": {
            phase: ns / n / 1000 for phase, ns, n in zip(PHASES, phases, divisors, strict=True) if n
        },
        "times": list(times),
    }


def _by_reason(prefix: str, reasons: Sequence[str], head: str) -> Column:
    """Counts of reasons: ``modified 3, expired 1``."""

    def show(record: Record) -> str:
        counts = {reason: record[prefix + reason] for reason in reasons}
        return ", ".join(f"{reason} {count}" for reason, count in counts.items() if count)

    return Column(head, show)


def _in_all(record: Record) -> str:
    """READs that nfsd and the module answered; blank if the module answered none."""
    return str(record["answered"]) if record["threadless_hits"] else ""


PROBE_SET = ProbeSet(
    "server", "How does the server work for each client?",
    (
        words("peer", "client"), words("procedure"), number("calls", "Calls"),
        *(number(f"{way}_calls", way) for way in ("read", "write", "reply")),
        size("read_bytes", "| fetched"), size("room", "offered"), size("written"),
        number("invalidates", "invalidated"),
        *rare(
            size("exposed_bytes", "| exposed"), number("dones", "done"),
            number("dones_outstanding", "not done"), number("done_timeouts", "late"),
            number("grants", "| granted"), size("granted_bytes", "bytes granted"),
            _by_reason("revoked_", REVOKED, "revoked"),
            number("threadless_hits", "| threadless"), size("threadless_bytes", "by threadless"),
            _by_reason("threadless_missed_", MISSED, "missed"), Column("in all", _in_all),
        ),
        microseconds("mean_us", "| mean us"),
        *(microseconds(phase, phase, "phases_us") for phase in PHASES),
    ),
    read, difference, records, filters=("client", "procedures"), forget=forget,
)  # fmt: skip
