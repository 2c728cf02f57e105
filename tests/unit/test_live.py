# SPDX-License-Identifier: Apache-2.0
"""Snapshots as JSON, in files, and what the sampler's parts make of a host."""

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from snapshots_made import HOSTILE, hostile, mount, op, served, snapshot, xprt

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import mountinfo, mountstats, nfsd_stats, rdma_ports, sunrpc
from nfsrdma_tools.host.cpu import CpuTimes
from nfsrdma_tools.live import facts, record
from nfsrdma_tools.live.feed import Asked, Feed
from nfsrdma_tools.live.limits import limit
from nfsrdma_tools.live.owners import Known, Owners
from nfsrdma_tools.live.plain import from_plain, to_plain
from nfsrdma_tools.live.sampler import Sampler
from nfsrdma_tools.live.snapshot import Credits, Processors, Snapshot, Waiting
from nfsrdma_tools.live.waits import Waits

DATA = Path(__file__).parent / "data"
CALM = Processors(2, 10**9, 10**8)


@pytest.mark.parametrize("taken", [snapshot(), hostile(), snapshot(2, (), server=served())])
def test_a_snapshot_is_json_and_back_the_same(taken: Snapshot) -> None:
    assert from_plain(Snapshot, json.loads(record.line(taken))) == taken


def test_what_is_nothing_is_not_said() -> None:
    assert to_plain(Snapshot(1.0, 2.0)) == {"time": 1.0, "seconds": 2.0}


def test_fields_of_a_newer_tool_are_left_out() -> None:
    assert from_plain(Snapshot, {"time": 1, "seconds": 2, "new": [3]}) == Snapshot(1, 2)


@pytest.mark.parametrize(
    "plain",
    [[], 3, {}, {"time": "x", "seconds": 1}, {"time": 1, "seconds": 1, "mounts": {}},
     {"time": 1, "seconds": 1, "mounts": [{"device": 3, "directory": "/"}]},
     {"time": True, "seconds": 1}],
)  # fmt: skip
def test_what_is_no_snapshot_is_said(plain: object) -> None:
    with pytest.raises(UserError, match="no Snapshot"):
        from_plain(Snapshot, plain)


def test_a_record_is_read_again_in_its_rhythm(tmp_path: Path) -> None:
    taken = [snapshot(number) for number in (1, 2, 4)]
    recorder = record.Recorder(tmp_path / "r")
    for each in taken:
        recorder.add(each)
    recorder.close()
    seen: list[Snapshot] = []
    waits: list[float] = []
    record.replayed(record.read(tmp_path / "r"), seen.append, waits.append)
    assert seen == taken
    assert waits == [1.0, 2.0]


def test_a_record_of_somebody_who_was_killed_ends_early(tmp_path: Path) -> None:
    recorder = record.Recorder(tmp_path / "r")
    recorder.add(snapshot())
    recorder.close()
    whole = (tmp_path / "r").read_text()
    (tmp_path / "r").write_text(whole + whole.splitlines()[1][:90])
    assert len(list(record.read(tmp_path / "r"))) == 1
    (tmp_path / "r").write_text(whole + "{}\n")
    with pytest.raises(UserError, match="no Snapshot"):
        list(record.read(tmp_path / "r"))
    with pytest.raises(UserError, match="is there already"):
        record.Recorder(tmp_path / "r")
    with pytest.raises(UserError, match="No such file"):
        list(record.read(tmp_path / "none"))


def test_mountstats_of_mounts_that_did_nothing_are_not_parsed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = mountinfo.read_text(DATA / "mountstats-6.12.txt")
    file = tmp_path / "mountstats"
    file.write_text(text)
    reader = mountstats.Reader(file)
    reader.read_all()
    again = text.replace("READ: 23 23 0 4048", "READ: 24 25 0 4048", 1)
    file.write_text(again)
    parsed: list[list[str]] = []
    real = mountstats._operations
    monkeypatch.setattr(mountstats, "_operations", lambda ls: parsed.append(ls) or real(ls))
    after = reader.read_all()
    assert sum(map(len, parsed)) == 1
    assert after == mountstats.parse(again)


TASKS = """\
 1093 2281 -11 0x3 0x5b6d2d7e 14999 nfs_ops [nfs] nfsv4 READ a:call_status [sunrpc] q:xprt_pending
 what else
 1094 2281 0 0x3 0x0        0 nfs_ops nfsv3 GETATTR a:call_reserveresult q:none
"""


def test_rpcs_under_way() -> None:
    found = sunrpc.parse_tasks(3, TASKS)
    assert [(t.number, t.procedure, t.waits_for) for t in found] == [
        (1093, "READ", "xprt_pending"), (1094, "GETATTR", "none"),
    ]  # fmt: skip


def test_connections_of_sysfs(tmp_path: Path) -> None:
    folder = tmp_path / "switch-0/xprt-7-rdma"
    folder.mkdir(parents=True)
    (folder / "dstaddr").write_text("10.9.1.1\n")
    (folder / "xprt_state").write_text("state=CONNECTED BOUND\n")
    info = "last_used=4295\ncur_cong=512\ncong_win=16384\nmax_num_slots=128\nnum_reqs=2\n"
    (folder / "xprt_info").write_text(info + "pending_q_len=2\nsrc_port=0\ndst_port=20049\n")
    (tmp_path / "switch-0/xprt-8-tcp").mkdir()
    rdma, gone = sunrpc.transports(switches=tmp_path)
    assert (rdma.number, rdma.kind, rdma.address) == (7, "rdma", "10.9.1.1")
    assert (rdma.credits, rdma.used, rdma.requests, rdma.pending) == (64, 2, 2, 2)
    assert rdma.connected
    assert not gone.connected
    assert sunrpc.transports({8}, tmp_path) == [gone]


def test_nfsd_counts_and_ports(tmp_path: Path) -> None:
    served = nfsd_stats.parse("rc 0 0 9\nio 4096 77\nth 8 0\nrpc 12 1 1 0 0\n\n")
    assert served == nfsd_stats.Served(4096, 77, 12, 1)
    folder = tmp_path / "rxe0/ports/1"
    folder.mkdir(parents=True)
    (folder / "state").write_text("1: DOWN\n")
    (folder / "phys_state").write_text("3: Disabled\n")
    assert rdma_ports.ports(tmp_path) == [rdma_ports.Port("rxe0/1", "", "DOWN", "Disabled")]


def test_an_rpc_grows_old(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(lambda client: sunrpc.parse_tasks(client, TASKS))
    known = Known({"/mnt": 3})
    busy = (mount(xprts=(xprt(pending=2),)),)
    assert waits.look(busy, known, 100.0)[0].waiting == ()
    oldest = waits.look(busy, known, 107.0)[0].waiting[0]
    assert oldest == Waiting("READ", 7.0, "xprt_pending", 3, 1093)
    assert waits.look((mount(),), known, 108.0)[0].waiting == ()


def test_mounts_from_the_kernels_own_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two readings of one text: nothing was done, and what is there is there."""
    monkeypatch.setattr(facts, "_INFO", DATA / "mountinfo-6.12.txt")
    monkeypatch.setattr(facts, "_FSTAB", tmp_path / "fstab")
    (tmp_path / "fstab").write_text("server:/export /mnt/b nfs proto=rdma 0 0\n")
    monkeypatch.setattr(Owners, "look", lambda self: None)
    host = facts.Facts(Owners())
    stats = {str(s.directory): s for s in mountstats.read_all(DATA / "mountstats-6.12.txt")}
    now = facts.Readings(stats, CpuTimes(5, 5, 9, 2, {}), None)
    found = {m.directory: m for m in host.mounts(now, now)}
    assert set(found) == {"/mnt/a", "/mnt/b", "/mnt/c d", "/mnt/e", "/mnt/g"}
    assert found["/mnt/b"].asked == "rdma"
    assert found["/mnt/b"].transport == "tcp"
    assert len(found["/mnt/b"].xprts) == 4
    assert found["/mnt/a"].ops == ()
    before = facts.Readings({}, None, None)
    assert {m.directory for m in host.mounts(before, now)} == set(found)


def test_a_host_without_nfs_or_root_has_snapshots_too() -> None:
    sampler = Sampler()
    sampler.take()
    second = sampler.take()
    assert second.number == 2
    assert second.seconds > 0
    assert second.processors.wall_ns > 0


def test_a_sampler_ends_when_it_is_told_to() -> None:
    sampler = Sampler(interval=0.01)
    seen: list[Snapshot] = []

    def deliver(taken: Snapshot) -> None:
        seen.append(taken)
        if len(seen) == 3:
            sampler.stop()

    sampler.run(deliver)
    assert [each.number for each in seen] == [2, 3, 4]
    assert "probes" in seen[-1].missing


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ops": ()}, "Idle"),
        ({"ops": (), "waiting": (Waiting("READ", 9.0, "xprt_pending", 3, 1),)}, "Stalled: READ"),
        ({"xprts": (xprt(credits=Credits(32, 32, 32, 40)),)}, "Credits: all 32"),
        ({"xprts": (xprt(credits=Credits(32, 32), sending=5),)}, "Credits: all 32"),
        ({"read_ahead_kb": 128, "ops": (op(count=500),)}, "Read-ahead: 128 KiB is 2 READs"),
        ({"read_ahead_kb": 128, "ops": (op(count=2900),)}, "The wire and the server"),
        ({"read_ahead_kb": 128, "ops": (op(count=500),), "direct": 6553600}, "The wire"),
        ({"ops": (op(count=500, queue_ms=900),)}, "Waiting to be sent"),
        ({"ops": (op(count=10),)}, "The application"),
        ({"ops": (op(count=9000),)}, "The wire and the server"),
        ({"ops": (op("GETATTR", received=0),)}, "Calls without data"),
    ],
)
def test_what_limits_a_mount(change: dict[str, object], said: str) -> None:
    assert limit(replace(mount(), **change), CALM, 1.0).startswith(said)


def test_a_busy_host_limits() -> None:
    full = replace(snapshot().processors, busy_ns=2 * 10**9)
    assert (
        limit(mount(), full, 1.0) == "CPU: 100% of this host is busy, most of it in emulated NIC."
    )


def test_hostile_names_survive(tmp_path: Path) -> None:
    recorder = record.Recorder(tmp_path / "r")
    recorder.add(hostile())
    recorder.close()
    assert next(record.read(tmp_path / "r")).mounts[1].directory == HOSTILE


def test_probes_that_break_are_said_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def read(self) -> None:
            raise TypeError("expected LP_c_uint")

    sampler = Sampler()
    sampler._counted = Broken()  # type: ignore[assignment]
    assert "expected LP_c_uint" in sampler.take().missing["probes"]
    assert sampler.take().number == 2


def test_a_feed_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def deliver(_: Snapshot) -> None:
        raise ZeroDivisionError("x")

    over = threading.Event()
    feed = Feed(Asked(interval=0.01, probes=False), deliver, over.set)
    feed.start()
    assert over.wait(30)
    feed.stop()
    assert "no more snapshots: ZeroDivisionError" in str(feed.failure)
