# SPDX-License-Identifier: Apache-2.0
"""The probe set connections: their events and credits (bpf/connections.c)."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from nfsrdma_tools.host.rdma.completions import COMPLETIONS
from nfsrdma_tools.probes.columns import number, words
from nfsrdma_tools.probes.maps import address, decoded, text
from nfsrdma_tools.probes.probe_sets import ProbeSet
from nfsrdma_tools.probes.rpc_clients import exists, mounts_of_transports, owner
from nfsrdma_tools.probes.session import Session

__all__ = [
    "CM_EVENTS", "EVENTS", "PROBE_SET", "Connections", "Credit", "Event", "cm_event", "completion",
    "event_of",
]  # fmt: skip

# enum connection_event of bpf/connections.c
EVENTS = (
    *("connect", "disconnect", "cm", "completion error", "retransmission", "timeout"),
    *("accept", "error", "device removed", "lane", "lane end"),
)
CM_EVENTS = (
    *("address resolved", "address error", "route resolved", "route error", "connect request"),
    *("connect response", "connect error", "unreachable", "rejected", "established"),
    *("disconnected", "device removed", "multicast joined", "multicast error"),
    *("address changed", "end of wait after disconnect"),
)
"""Names of the connection manager's events by enum rdma_cm_event_type (include/rdma/rdma_cm.h)."""
_KEPT = 10_000


@dataclass(frozen=True)
class Event:
    """An event of a connection: ``time`` in ns of the monotonic clock.

    ``number`` is sunrpc's: of a transport for ours, else of a client; ``peer`` its address.
    """

    time: int
    kind: str
    ours: bool
    number: int
    peer: str
    words: str


@dataclass(frozen=True)
class Credit:
    """Credits granted by the server, used at the last Call, maximum used; Calls that waited."""

    granted: int
    used: int
    most_used: int
    waits: int


@dataclass(frozen=True)
class Connections:
    """The latest events, how many were ``lost``, and credits by owner (ours, number).

    ``received`` is the number of events since the session began.  The CPUs' buffers are read one
    after the other, so events are not sorted by time.
    """

    events: tuple[Event, ...]
    lost: int
    credits: dict[tuple[bool, int], Credit]
    received: int = 0


@dataclass
class EventBuffer:
    """Events received from the buffer; only the last 10,000 are kept."""

    events: list[Event] = field(default_factory=list)
    lost: int = 0
    received: int = 0


def attach(session: Session) -> None:
    """Open the program's perf buffer."""
    buffer = session.state.setdefault("connections", EventBuffer())

    def add(_cpu: int, data: Any, _size: int) -> None:
        buffer.events.append(event_of(session.table("connection_records").event(data)))
        buffer.received += 1
        del buffer.events[:-_KEPT]

    def lost(count: int) -> None:
        buffer.lost += count

    # a CPU's buffer has a power of two pages (perf_event_open(2))
    session.table("connection_records").open_perf_buffer(add, page_cnt=16, lost_cb=lost)


def read(session: Session) -> Connections:
    """The events and credits since the session began."""
    # bcc's default waits until there is an event
    session.bpf.perf_buffer_poll(timeout=0)
    buffer = session.state["connections"]
    credits = dict(decoded(session, "credits", _credit))
    return Connections(tuple(buffer.events), buffer.lost, credits, buffer.received)


def _credit(key: Any, row: Any) -> tuple[tuple[bool, int], Credit]:
    credit = Credit(row.granted, row.used, row.most_used, row.waits)
    return (bool(key.ours), key.number), credit


def forget(session: Session, reading: Connections, now: float) -> None:
    """Remove the credits of clients and transports that are gone from the map and ``reading``."""
    del now
    table = session.table("credits")
    for key in [key for key in reading.credits if not exists(*key)]:
        del table[table.Key(*key)], reading.credits[key]


def difference(after: Connections, before: Connections) -> Connections:
    """The difference between two readings; credits are the current ones, except the waits."""
    received = after.received - before.received
    new = min(received, len(after.events))
    none = Credit(0, 0, 0, 0)
    return Connections(
        after.events[len(after.events) - new :],
        after.lost - before.lost + received - new,
        {
            key: _since(credit, before.credits.get(key, none))
            for key, credit in after.credits.items()
        },
        new,
    )


def _since(after: Credit, before: Credit) -> Credit:
    waits = after.waits - before.waits
    return after if waits == after.waits else replace(after, waits=waits)


def records(snapshot: Connections, clients: dict[int, tuple[str, ...]]) -> list[dict[str, Any]]:
    """A row for each kind of event, with its count; then one for each owner of credits."""
    transports = mounts_of_transports(clients)

    def whose(ours: bool, number: int) -> str:
        return owner(number, transports if ours else clients) if number else ""

    times = Counter(
        (whose(e.ours, e.number), e.peer, e.kind, e.words) for e in snapshot.events if e.words
    )
    if snapshot.lost:
        times["", "", "lost", "events lost in the buffer"] = snapshot.lost
    return [
        *(
            {"mount": mount, "peer": peer, "what": kind, "words": words, "times": count}
            for (mount, peer, kind, words), count in sorted(times.items())
        ),
        *(
            {
                "mount": whose(*key),
                "peer": "",
                "what": "credits",
                "words": f"{c.granted} granted, {c.most_used} used at most, {c.waits} Calls waited",
                "times": 0,
                "granted": c.granted,
                "used": c.used,
                "most_used": c.most_used,
                "waits": c.waits,
            }
            for key, c in sorted(snapshot.credits.items())
            # TCP transports have no credits
            if key[0] or key[1] in clients
        ),
    ]


def event_of(raw: Any) -> Event:
    """The event in a record of the program."""
    kind = EVENTS[raw.event]
    peer = address(bytes(raw.address)) if raw.has_address else text(raw.peer)
    return Event(raw.time, kind, bool(raw.ours), raw.number, peer, _words(kind, raw))


def _words(kind: str, raw: Any) -> str:
    message = text(raw.text)
    if kind == "completion error":
        return f"{completion(raw.status)} (vendor 0x{raw.detail:x})"
    if kind == "cm":
        return cm_event(raw.detail, raw.status)
    if kind == "retransmission":
        return f"{message}, sent {raw.status} times"
    status = "" if raw.status == 0 else os.strerror(abs(raw.status))
    return ", ".join(filter(None, (message, status))) or "done"


def completion(status: int) -> str:
    """A failed completion as text."""
    if status not in COMPLETIONS:
        return f"status {status}: no description"
    return f"{COMPLETIONS[status].name}: {COMPLETIONS[status].cause}"


def cm_event(event: int, status: int) -> str:
    """A connection manager event with its status: an errno, or a reject reason."""
    name = CM_EVENTS[event] if event < len(CM_EVENTS) else f"event {event}"
    return f"{name}, status {status}" if status else name


PROBE_SET = ProbeSet(
    "connections", "Why did a connection break? Are the credits exhausted?",
    (*map(words, ("mount", "peer")), number("times"), words("what"), words("words", "")),
    read, difference, records, filters=("mount", "client"), attach=attach, forget=forget,
)  # fmt: skip
