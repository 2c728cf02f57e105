# SPDX-License-Identifier: Apache-2.0
"""Logs of two hosts side by side: one event, two clocks."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nfsrdma_tools.cli import explain as command
from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.host.kernel_log.lines import host_of
from nfsrdma_tools.host.kernel_log.story import (
    CLOCKS,
    DOUBT,
    SKEW,
    Story,
    events,
    stories,
    timeline,
)

BEGIN = datetime(2026, 3, 7, 7, 5, 0, tzinfo=UTC)
ROW = "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"
REMOTE_ACCESS = (
    "infiniband mlx5_1: dump_cqe:272:(pid 9): dump error cqe",
    *(f"000000{at}0: {ROW}" for at in range(3)),
    "00000030: 00 00 00 00 00 00 88 13 08 00 02 2a 11 22 33 d2",
)
GAVE_UP = ("nfs: server store7 not responding, timed out",)
WAITS = ("nfs: server store7 not responding, still trying",)
CRASH = (
    "BUG: kernel NULL pointer dereference, address: 0000000000000010",
    "CPU: 1 PID: 700 Comm: nfsd Not tainted 6.12.0 #1",
    "RIP: 0010:nfsd4_encode_fattr4+0x11/0x900 [nfsd]",
    "Call Trace:",
    " nfsd4_encode_operation+0x1/0x2 [nfsd]",
    "---[ end trace 0000000000000000 ]---",
)
FORMS = ("%Y-%m-%dT%H:%M:%S+0000 {host} kernel: {text}", "[%a %b %d %H:%M:%S %Y] {text}",
         "%Y-%m-%dT%H:%M:%S.%f+00:00 {host} kernel: {text}")  # fmt: skip


def log(form: str, host: str, *parts: tuple[float, tuple[str, ...]]) -> list[str]:
    """The lines of records by their second since ``BEGIN``."""
    return [
        (BEGIN + timedelta(seconds=at)).strftime(form).format(host=host, text=text)
        for at, texts in parts
        for text in texts
    ]


def told(client: list[str], server: list[str]) -> list[Story]:
    return stories(timeline([events("client", client), events("server", server)]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("difference", [-3.0, 0.0, 3.0])
def test_one_event_of_two_clocks_is_one_story(form: str, difference: float) -> None:
    client = log(form, "c", (600, GAVE_UP))
    server = log(form, "store7.example.com", (601 + difference, REMOTE_ACCESS))
    (story,) = told(client, server)
    assert story.text == (
        "server: an RDMA operation failed; it may be because client had withdrawn its memory"
    )
    assert (story.cause.log, story.cause.meaning.name) == ("client", "request timed out")
    assert story.effect.meaning.name == "RDMA Write failed: remote access error"


def test_a_client_that_waits_for_a_crashed_server_is_one_story() -> None:
    client = log(FORMS[0], "c", (20, WAITS), (25, WAITS))
    server = log(FORMS[1], "store7", (7, CRASH))
    (story,) = told(client, server)
    assert (story.effects, story.cause.meaning.name) == (2, "NFS server crashed")
    assert story.text == "client waits; it may be because the kernel of server reported an error"


def test_events_of_one_log_and_those_far_apart_are_no_story() -> None:
    apart = log(FORMS[0], "store7", (100 + CLOCKS + 1, REMOTE_ACCESS))
    assert told(log(FORMS[0], "c", (100, GAVE_UP)), apart) == []
    both = log(FORMS[0], "c", (100, GAVE_UP), (101, REMOTE_ACCESS))
    assert told(both, log(FORMS[0], "store7", (0, ("a line without a meaning",)))) == []


@pytest.mark.parametrize("seed", range(20))
def test_the_last_cause_before_the_effect_is_taken_whatever_else_happened(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 -- repeatable
    at = chance.uniform(0, 5000)
    far = [(at + chance.choice((-1, 1)) * chance.uniform(4, CLOCKS), GAVE_UP) for _ in range(5)]
    client = log(FORMS[2], "c", *sorted([*far, (at - chance.uniform(0.1, 3), GAVE_UP)]))
    (story,) = told(client, log(FORMS[2], "store7", (at, REMOTE_ACCESS)))
    assert 0 <= story.effect.at - story.cause.at <= 3.01


def test_a_cause_before_the_effect_is_preferred_to_a_nearer_one_after_it() -> None:
    client = log(FORMS[0], "c", (80, GAVE_UP), (101, GAVE_UP))
    (story,) = told(client, log(FORMS[0], "store7", (100, REMOTE_ACCESS)))
    assert (story.effect.at - story.cause.at, story.doubt) == (20, DOUBT)


@pytest.mark.parametrize("early", [SKEW - 1, SKEW + 1, 17])
def test_an_effect_is_before_its_cause_only_as_far_as_clocks_differ(early: float) -> None:
    client = log(FORMS[0], "c", (100, GAVE_UP))
    linked = told(client, log(FORMS[0], "store7", (100 - early, REMOTE_ACCESS)))
    assert bool(linked) == (early <= SKEW)
    for story in linked:
        assert [label for label, _ in story.parts] == ["effect", "cause"]
        assert story.doubt.endswith("by the hosts' clocks, the effect is 4 s before the cause")


@pytest.mark.parametrize("skew", ["40s", "0.5m", "1s", None])
@pytest.mark.parametrize("late", [-41, -39, -6, -4, -0.5, 24, 27, 29, 31, 64, 66])
def test_the_user_says_how_far_clocks_differ(
    late: float, skew: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client, server = tmp_path / "client", tmp_path / "server"
    client.write_text("\n".join(log(FORMS[2], "c", (600, GAVE_UP))))
    server.write_text("\n".join(log(FORMS[2], "store7", (600 + late, REMOTE_ACCESS))))
    command.explain([str(client), str(server)], skew=skew)
    seconds = {"40s": 40, "0.5m": 30, "1s": 1, None: 5}[skew]
    shown = capsys.readouterr().out.splitlines()[-1]
    assert shown[0] == str(int(-seconds <= late <= 25 + seconds))


@pytest.mark.parametrize("files", [["a", "b"], ["a"], None])
def test_a_skew_is_a_time_and_needs_two_logs(files: list[str] | None, tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in files] if files else None
    skew = "1x" if names and len(names) > 1 else "1s"
    with pytest.raises(UsageError, match=r"is not a time|needs two logs"):
        command.explain(names, skew=skew)


@pytest.mark.parametrize(
    ("server", "host", "linked"),
    [
        ("store7", "store7", True),
        ("STORE7.example.com", "store7", True),
        ("other9", "store7", False),
        ("other9.example.com", "store7.example.com", False),
        # an address tells nothing of a name, nor do the lines of an anonymized log
        ("192.168.7.9", "store7", True),
        ("fe80::1", "store7", True),
        ("other9", "host", True),
        ("other9", "localhost", True),
    ],
)
@pytest.mark.parametrize("effect", [REMOTE_ACCESS, CRASH])
def test_a_log_of_another_server_is_not_linked(
    server: str, host: str, linked: bool, effect: tuple[str, ...]
) -> None:
    texts = tuple(text.replace("store7", server) for text in (*GAVE_UP, *WAITS))
    client = log(FORMS[0], "c", (101, texts))
    assert bool(told(client, log(FORMS[0], host, (101, effect)))) == linked
    # dmesg -T names no host
    assert told(client, log(FORMS[1], host, (101, effect)))


def test_a_log_of_several_hosts_is_linked_by_any_of_them() -> None:
    client = log(FORMS[0], "c", (100, GAVE_UP))
    both = log(FORMS[0], "a", (90, ("x",))) + log(FORMS[0], "store7", (101, REMOTE_ACCESS))
    assert told(client, both)
    assert not told(client, [line.replace("store7", "b") for line in both])


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("2026-03-07T08:15:03+0100 store7 kernel: text", "store7"),
        ("Mar  7 08:15:03 store7.example.com kernel: [   12.3] text", "store7.example.com"),
        ("<6>1 2026-03-07T08:15:03.123+01:00 store7 kernel - - - text", "store7"),
        ('{"__REALTIME_TIMESTAMP":"1", "_HOSTNAME":"store7", "MESSAGE":"text"}', "store7"),
        ("[   12.3] infiniband rxe0: text", ""),
        ("[Sat Mar  7 08:15:03 2026] infiniband rxe0: text", ""),
        ("2026-03-07T08:15:03,123456+01:00 infiniband rxe0: text", ""),
        ("2026-03-07T08:15:03+0100 kernel: text", ""),
        ("<6>text", ""),
    ],
)
def test_the_host_of_a_line(line: str, host: str) -> None:
    assert host_of(line) == host


def test_times_since_the_boot_cannot_be_compared() -> None:
    with pytest.raises(UserError, match="times since the boot of its host only"):
        events("a.txt", [f"[   77.0] {GAVE_UP[0]}"])


def test_the_command_shows_stories_and_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client, server = tmp_path / "client", tmp_path / "server"
    client.write_text("\n".join(log(FORMS[0], "c", (600, GAVE_UP))))
    server.write_text("\n".join(log(FORMS[0], "store7", (603, REMOTE_ACCESS))))
    command.explain([str(client), str(server)])
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith(f"it may be because {client} had withdrawn its memory, once")
    assert shown[3] == f"    doubt: {DOUBT}"
    assert shown[-1] == "1 story of 2 events in 2 logs"
    command.explain([str(client), str(server)], as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert set(facts) == {"schema_version", "stories", "events"}
    assert facts["stories"][0]["doubt"] == DOUBT
    assert facts["stories"][0]["cause"]["file"] == str(client)
    assert [event["file"] for event in facts["events"]] == [str(client), str(server)]
    with pytest.raises(UsageError):
        command.explain([str(client), str(client)])
