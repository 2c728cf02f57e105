# SPDX-License-Identifier: Apache-2.0
"""What `nfsrdma load` prints, its exit status, and its option --mix."""

from typing import Any

import pytest
import typer

from nfsrdma_tools.cli import load as cli
from nfsrdma_tools.client import load as client
from nfsrdma_tools.client.load import Operations, Outcome, Plan, Times
from nfsrdma_tools.errors import UsageError, UserError

NONE = Times(0, 0, 0, 0, 0, 0, 0, 0, 0)
SOME = Times(100, 10, 25, 20, 30, 40, 50, 50, 50.4)
READS = Operations("read", 100, 0, 409_600, 10, 1 << 20, SOME, SOME)
DONE = Outcome(
    address="10.9.1.1", device="card0", seconds=10, interrupted=False, kinds=(READS,),
    total=READS._replace(kind="all"), arrivals=0, dropped=0, unsent=0, unfinished=0, late=NONE,
    shares=(60, 40), connected=2, connect_seconds=0.25, connect=SOME, failures=0, up=2, lost=0,
    reconnects=0, outages=0, recovery_seconds=0, outage=NONE, resent=0, short_moves=0,
    mismatches=0, mismatch="", errors={}, message="",
)  # fmt: skip
TWO = Plan(sessions=2)


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("read=1", {"read": 1}),
        ("read=70,write=20,getattr=0", {"read": 70, "write": 20, "getattr": 0}),
    ],
)
def test_a_mix(text: str, weights: dict[str, int]) -> None:
    assert cli._mix(text) == weights


@pytest.mark.parametrize(
    "text", ["", "read", "read=", "read=x", "read=-1", "read=²", "read=1000000"]
)
def test_a_wrong_mix(text: str) -> None:
    with pytest.raises(UsageError, match="is no KIND=WEIGHT"):
        cli._mix(text)


def test_a_mix_with_a_kind_twice() -> None:
    with pytest.raises(UsageError, match="the mix has read twice"):
        cli._mix("read=1,write=1,read=2")


def ended(monkeypatch: pytest.MonkeyPatch, outcome: Outcome, **options: Any) -> tuple[Any, Plan]:
    """The exit status, and the plan that the options make."""
    plans: list[Plan] = []

    def put(_: str, plan: Plan, __: object) -> Outcome:
        plans.append(plan)
        return outcome

    monkeypatch.setattr(client, "load", put)
    status = 0
    try:
        cli.load("server:/export", **{"sessions": 2, **options})
    except typer.Exit as error:
        status = error.exit_code
    return status, plans[0]


def test_the_output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = ended(monkeypatch, DONE)
    assert status == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 of 2 sessions connected to 10.9.1.1 by card0 in 0.250 s",
        "connect times  p50 20 us, p99 40 us, max 50 us; 0 attempts failed",
        "10.0 s, closed loop, 1 at a time in each session",
        "      done  per second  MiB/s  failed  p50 us  p90  p99  p99.9  max",
        "read   100        10.0    1.0       0      20   30   40     50   50",
        "fairness       Jain's index 0.9615; operations of a session: 40 to 60",
    ]


def test_only_connections(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, plan = ended(monkeypatch, DONE._replace(seconds=0), duration="0", at_once=2)
    assert (status, plan.duration, plan.at_once) == (0, 0, 2)
    assert len(capsys.readouterr().out.splitlines()) == 2


FAILED = READS._replace(kind="all", failed=3)
LATE = SOME._replace(p99=5000)


@pytest.mark.parametrize(
    ("change", "status", "line"),
    [
        ({"total": FAILED, "errors": {"EIO": 2, "ESTALE": 1}}, 1, "errors         EIO 2, ESTALE 1"),
        ({"left": "d: no (remove)"}, 1, "left there     d: no (remove)"),
        ({"mismatches": 2, "mismatch": "file 0"}, 1, "wrong data     2 READs; file 0"),
        ({"unfinished": 4}, 1, "4 operations had no reply at the end"),
        ({"connected": 1, "up": 1, "message": "no\x1b"}, 1, "last failure   no?"),
        ({"up": 1, "lost": 1}, 0, "1 sessions had no connection at the end"),
        (
            {"up": 1, "lost": 1, "recovery_seconds": None},
            0,
            "connections    1 lost, 0 made again; not all of them; 0 calls sent again",
        ),
        (
            {"lost": 3, "reconnects": 3, "recovery_seconds": 1.5, "resent": 7},
            0,
            "connections    3 lost, 3 made again; 1.500 s until all were; 7 calls sent again",
        ),
        (
            {"arrivals": 90, "dropped": 7, "unsent": 5},
            0,
            "the server did not keep up: of 90 operations that were due, 7 found a full queue and "
            "5 were not sent; the response times leave them out",
        ),
        ({"interrupted": True}, 130, "10.0 s, closed loop, 1 at a time in each session"),
    ],
)
def test_what_a_reader_has_to_know(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    status: int,
    line: str,
) -> None:
    assert ended(monkeypatch, DONE._replace(**change))[0] == status
    assert line in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("options", [{}, {"rate": 5.0}, {"think": "1s"}])
def test_operations_that_were_due_began_late(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: dict[str, Any]
) -> None:
    """Without a rate or a think time, only the first operations are due at a time."""
    ended(monkeypatch, DONE._replace(late=LATE), **options)
    line = (
        "this host was late: 1% of the operations began 5000 us or more after they were due; "
        "give it more CPU time, or reduce the load"
    )
    assert (line in capsys.readouterr().out.splitlines()) is bool(options)


def test_a_host_with_enough_time_is_not_late() -> None:
    """A millisecond, or the median of the responses."""
    for late in (SOME, LATE._replace(p99=1000)):
        assert not cli._warnings(TWO, DONE._replace(late=late))


def test_an_error_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def put(*_: object) -> Outcome:
        raise OSError(13, "/dev/infiniband/rdma_cm: Permission denied")

    monkeypatch.setattr(client, "load", put)
    monkeypatch.setattr("nfsrdma_tools.doctor.ping.remedy", lambda *words: f"for {words[1]}")
    with pytest.raises(UserError, match=r"Permission denied \(for server\)"):
        cli.load("server:/export")


def test_the_directory_of_a_killed_load(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[object] = []
    monkeypatch.setattr(client, "remove", lambda *words: removed.append(words))
    cli.load("server:/export", remove="nfsrdma-load-00000000")
    assert removed == [("server:/export", "nfsrdma-load-00000000")]
