# SPDX-License-Identifier: Apache-2.0
"""`top --batch`: frames of text and of JSON, from a recording."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from unit.forked import nfsrdma
from unit.live.snapshots_made import HOSTILE, held, hostile, mount, served, snapshot, xprt

from nfsrdma_tools.cli.live import frame
from nfsrdma_tools.live import snapshot_json
from nfsrdma_tools.live.snapshot import Event, Snapshot


def taken(number: int) -> Snapshot:
    mounts = (
        mount("/mnt/idle", read=0, ops=(), limit="No RPCs."),
        mount("/mnt/data", read=number * 10**6, limit="The network: 2.3 READ at a time."),
    )
    event = Event(1_800_000_000.0, "disconnected", "/mnt", "connection 5 is down", "", "warning")
    missing = {"probes": "only root may attach probes"}
    return snapshot(number, mounts, events=(event,), server=served(), missing=missing)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    recorder = snapshot_json.Recorder(tmp_path / "record")
    for number in (1, 2, 3):
        recorder.add(taken(number))
    recorder.close()
    return tmp_path / "record"


def test_a_frame_has_the_busiest_mount_first_and_says_what_is_unavailable() -> None:
    text = frame(taken(2))
    head = next(line for line in text if line.startswith("MOUNT"))
    first, second = text[text.index(head) + 1 : text.index(head) + 3]
    assert first.startswith("/mnt/data  rdma 4.2")
    assert first.endswith("The network: 2.3 READ at a time.")
    assert second.startswith("/mnt/idle")
    assert head.index("BOTTLENECK") == first.index("The network") == second.index("No RPCs.")
    assert any(line.startswith("CLIENT") for line in text)
    assert any("warning: disconnected /mnt: connection 5 is down" in line for line in text)
    assert "unavailable: probes: only root may attach probes" in text
    assert text[-1] == ""


def test_a_frame_has_the_rpcs_that_nfsd_holds() -> None:
    shown = replace(taken(2), server=replace(served(), held=(held(), held())))
    line = "nfsd: pending: 0x0aa6501c NFSv3 WRITE for 86.9 s from 10.9.1.11"
    assert frame(shown).count(line) == 2
    bad = replace(held(), client=HOSTILE)
    text = "\n".join(frame(replace(shown, server=replace(served(), held=(bad,)))))
    assert HOSTILE not in text


def test_a_frame_has_no_control_characters() -> None:
    text = "\n".join(frame(hostile()))
    assert HOSTILE not in text
    assert "\x1b" not in text


def test_a_host_without_mounts_has_a_frame() -> None:
    assert frame(snapshot(1, ()))[1].startswith("MOUNT")


@pytest.mark.parametrize(("words", "frames"), [((), 3), (("-n", "2"), 2), (("-c", "9"), 3)])
def test_a_recording_is_printed_frame_by_frame(
    words: tuple[str, ...], frames: int, record: Path, tmp_path: Path
) -> None:
    done = nfsrdma("top", "-b", "--replay", str(record), *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("MOUNT") == frames
    lines = nfsrdma("top", "-b", "-j", "--replay", str(record), *words, cwd=tmp_path).stdout
    numbers = [json.loads(line)["number"] for line in lines.splitlines()]
    assert numbers == [1, 2, 3][:frames]
    assert json.loads(lines.splitlines()[0])["schema_version"] == 1


@pytest.mark.parametrize("words", [("--json",), ("-n", "3")])
def test_options_of_batch_need_batch(words: tuple[str, ...], tmp_path: Path) -> None:
    done = nfsrdma("top", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "--batch" in done.stderr


def test_a_connection_that_is_down_is_a_mount_like_others() -> None:
    down = mount("/mnt/down", xprts=(xprt(connected=False),), limit="Stalled.")
    assert any(line.startswith("/mnt/down") for line in frame(snapshot(1, (down,))))
