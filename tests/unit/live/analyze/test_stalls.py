# SPDX-License-Identifier: Apache-2.0
"""The stall finder says each thing once, with what is known and what to do."""

from dataclasses import replace

from unit.live.snapshots_made import changed, mount, snapshot, xprt

from nfsrdma_tools.live.analyze.stalls import EventFinder
from nfsrdma_tools.live.collect.client_finder import RpcClients
from nfsrdma_tools.live.collect.probe_statistics import connection_events
from nfsrdma_tools.live.snapshot import Credits, Event, Port, Waiting
from nfsrdma_tools.probes.sets.connections import Event as Heard


def kinds(events: tuple[Event, ...]) -> list[str]:
    return [event.kind for event in events]


def test_nothing_is_said_of_a_mount_that_is_well() -> None:
    finder = EventFinder()
    assert [finder.add(snapshot(n)) for n in range(1, 9)] == [()] * 8


def test_an_old_rpc_is_a_stall_once_and_its_end_is_told() -> None:
    finder = EventFinder(patience=5)
    old = [(Waiting("READ", age, "xprt_pending", 3, 1093),) for age in (4.0, 5.0, 6.0)]
    events = [finder.add(changed(n, waiting=each)) for n, each in enumerate(old)]
    assert list(map(kinds, events)) == [[], ["stall"], []]
    assert "READ has waited for 5 s (xprt_pending)" in events[1][0].what
    assert "doctor" in events[1][0].advice
    assert kinds(finder.add(snapshot(4))) == ["stall ended"]


def test_a_stall_without_a_connection_says_so() -> None:
    down = xprt(connected=False, states=("CONNECTING",))
    old = (Waiting("READ", 9.0, "xprt_pending", 3, 1),)
    (event,) = EventFinder().add(changed(1, waiting=old, xprts=(down,)))
    assert "the connection is down (CONNECTING)" in event.what


def test_silence_is_a_stall_where_rpcs_cannot_be_listed() -> None:
    finder = EventFinder(patience=3)
    silent = [changed(n, ops=(), xprts=(xprt(pending=1, counters={}),)) for n in range(1, 5)]
    assert [kinds(finder.add(each)) for each in silent] == [[], [], ["stall"], []]


def test_a_mount_is_not_stalled_by_others_on_its_connection() -> None:
    finder = EventFinder(patience=3)
    idle = [changed(n, ops=(), xprts=(xprt(pending=1),)) for n in range(1, 9)]
    assert [finder.add(each) for each in idle] == [()] * 8


def test_a_connection_that_loops() -> None:
    finder = EventFinder()
    again = [changed(n, xprts=(xprt(connects=1),)) for n in range(1, 6)]
    event_kinds = [kinds(finder.add(each)) for each in again]
    assert [k.count("reconnect loop") for k in event_kinds] == [0, 0, 1, 0, 0]
    assert all("reconnected" in k for k in event_kinds)
    assert finder.add(snapshot(200)) == ()


def test_after_the_clock_stepped_back_three_connects_in_hours_are_no_loop() -> None:
    finder = EventFinder()
    hours = [replace(changed(n, xprts=(xprt(connects=1),)), seconds=3600.0, time=-3600.0 * n)
             for n in range(1, 9)]  # fmt: skip
    assert not any("reconnect loop" in kinds(finder.add(each)) for each in hours)


def test_up_and_down() -> None:
    finder = EventFinder()
    finder.add(snapshot(1))
    assert kinds(finder.add(changed(2, xprts=(xprt(connected=False),)))) == ["disconnected"]
    assert kinds(finder.add(snapshot(3))) == ["connected"]
    assert kinds(finder.add(snapshot(4, ports=(Port("rxe0/1", "eth1", "DOWN", "Disabled"),)))) == [
        "link down"
    ]
    assert kinds(finder.add(snapshot(5))) == ["link up"]
    assert kinds(finder.add(snapshot(6, ports=()))) == ["device gone"]


def test_credits_all_used_for_a_while() -> None:
    finder = EventFinder()
    full = [changed(n, xprts=(xprt(credits=Credits(32, 5)),), credit_waits=7) for n in range(1, 6)]
    events = [finder.add(each) for each in full]
    assert list(map(kinds, events)) == [[], [], ["credits used up"], [], []]
    assert "all 32 credits" in events[2][0].what
    assert "7 Calls waited" in events[2][0].what
    assert finder.add(snapshot(9)) == ()
    assert not any(map(finder.add, full[:2]))


def test_another_transport_than_the_requested_one() -> None:
    finder = EventFinder()
    (event,) = finder.add(changed(1, asked="rdma", transport="tcp"))
    assert event.what == "transport: requested rdma, got tcp"
    assert finder.add(changed(2, asked="rdma", transport="tcp")) == ()
    assert finder.add(changed(3, asked="rdma", transport="nfsrdma")) == ()


def test_of_mounts_that_are_gone_nothing_is_kept() -> None:
    finder = EventFinder()
    for n in range(1, 100):
        finder.add(snapshot(n, (mount(device=f"0:{n}"),)))
    assert len(finder._mounts) == 1


def heard(time: int, kind: str, words: str, number: int = 0, peer: str = "10.9.1.1") -> Heard:
    return Heard(time * 10**9, kind, False, number, peer, words)


def test_connection_events_are_few() -> None:
    """As in a lab whose server was restarted: refused again and again, all requests flushed."""
    flushed = "flushed: the connection failed before; look for the first error (vendor 0x0)"
    all_ = [
        heard(1, "cm", "disconnected"), heard(1, "disconnect", "Software caused connection abort"),
        *[heard(2, "completion error", flushed, peer="")] * 70,
        *[heard(3, "connect", "Connection refused"), heard(3, "cm", "address resolved")] * 9,
        heard(4, "cm", "established"), heard(4, "connect", "done"),
        heard(5, "retransmission", "READ, sent 2 times", number=7, peer=""),
        heard(5, "disconnect", ""), heard(6, "timeout", "READ", peer="192.0.2.1"),
    ]  # fmt: skip
    events = connection_events(all_, (mount(),), RpcClients({"/srv": 7}), 1000.0)
    assert [(e.time, e.kind, e.where, e.severity) for e in events] == [
        (1001, "cm", "/mnt", "note"),
        (1001, "disconnect", "/mnt", "warning"),
        (1002, "completion error", "unknown connection", "note"),
        (1003, "connect", "/mnt", "warning"),
        (1004, "connect", "/mnt", "note"),
        (1005, "retransmission", "/srv", "note"),
        (1006, "timeout", "192.0.2.1", "warning"),
    ]
    assert events[3].what == "Connection refused (10.9.1.1), 9 times"


def test_events_of_an_interval_are_bounded() -> None:
    many = [heard(1, "error", f"number {n}") for n in range(10_000)]
    assert len(connection_events(many, (), RpcClients(), 0.0)) == 50
