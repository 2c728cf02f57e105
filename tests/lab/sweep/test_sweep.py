# SPDX-License-Identifier: Apache-2.0
"""Sweeps on real mounts. The lab's fixture sees to it that no mount and no journal stays behind."""

import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.report import build
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.store import Store, Trial
from nfsrdma_tools.undo import recover
from testbed.exports import SMALL, small_export
from testbed.node.programs import call
from testbed.remote import on

pytestmark = pytest.mark.lab

TARGET = "server:/export"
# attaching takes seconds on emulated processors, so only tests of probe sets do it
# NFSv3: these tests count its RPCs, and a server that restarts has no grace period for it
TINY = ("--vers", "3", "--file-size", "4M", "--runs", "1", "--exhaustive", "--no-probes")
STORE = "/root/sweep.db"
BACKGROUND = f"""
cd /tmp; rm -f {STORE}* log; mkdir -p /mnt/sweep
nfsrdma sweep {TARGET} --mount /mnt/sweep --output {STORE} --json "$@" >log 2>&1 & pid=$!
trials() {{ grep -c trialdone log; }}
mounted() {{ grep -q ' /mnt/sweep nfs ' /proc/mounts; }}
reading() {{ mounted && pgrep -f /sweep/[r]eader.py >/dev/null; }}
"""


@pytest.fixture(scope="module")
def solo_lab() -> Iterator[Lab]:
    """On the instruction clock waiting takes no time, and a sweep half as long."""
    with Lab(LabConfig(f"test-sweep-{os.getpid()}", clock="instructions")) as lab:
        yield lab


@pytest.fixture
def node(solo: Lab) -> Iterator[Lab]:
    yield solo
    solo.run("client", "sh", "-c", f"rm -rf {STORE}* /tmp/log /mnt/sweep")
    assert solo.run("client", "ls", "-A", "/export").stdout == ""


def swept(node: Lab, *words: str) -> list[Trial]:
    """Sweep from nothing in one command, and return the trials in its store."""
    argv = ("nfsrdma", "sweep", TARGET, "--output", STORE, *TINY, *words)
    node.run("client", *argv, timeout=400)
    return stored(node)


def stored(node: Lab) -> list[Trial]:
    return [Trial.from_json(trial) for trial in exported(node)["trials"]]


def exported(node: Lab) -> dict[str, Any]:
    text = node.run("client", "nfsrdma", "results", "export", STORE, "--format", "json").stdout
    contents: dict[str, Any] = json.loads(text)
    return contents


def copied(node: Lab, path: Path) -> Path:
    """The node's store, on this host: drawing takes minutes on an emulated processor."""
    contents = exported(node)
    with Store(path) as store:
        store.add_all(
            map(Plan.from_json, contents["plans"]),
            contents["environments"].values(),
            map(Trial.from_json, contents["trials"]),
        )
    return path


def in_background(node: Lab, script: str, *words: str) -> str:
    """Start a sweep, do what ``script`` says while it runs, and return what that printed."""
    argv = ("bash", "-c", BACKGROUND + script, "bash", *words)
    return node.run("client", *argv, timeout=400).stdout


@on("client")
def blocks_read(*programs: str) -> int:
    """Start programs; returns how many blocks they had to read."""
    for program in programs:
        call(program, "-V" if "nfs" in program else "--version", check=False)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock


def test_the_clock_does_not_run_while_programs_are_read(node: Lab) -> None:
    programs = ("fio", "setpriv", "mount", "umount", "mount.nfs", "umount.nfs")
    assert blocks_read(node, *programs) == 0


def test_a_tiny_sweep_measures_what_it_asked_for(node: Lab) -> None:
    trials = swept(node, "--rsize", "8k,32k", "--read-ahead", "0,4")
    assert len(trials) == len({trial.cell for trial in trials}) == 8
    for trial in trials:
        cell = trial.cell
        # without read-ahead an eighth of the file
        size = 4 << 20 if cell.read_ahead else 4 << 17
        assert (trial.status, trial.verified, trial.transfer.bytes) == ("ok", True, size)
        assert trial.in_effect.mount["proto"] == cell.transport
        assert int(trial.in_effect.mount["rsize"]) == cell.rsize
        window = cell.read_ahead * cell.rsize // 1024
        assert trial.in_effect.read_ahead_kb_before == trial.in_effect.read_ahead_kb_after == window
        assert trial.transfer.throughput == pytest.approx(
            trial.transfer.bytes * 1000 / trial.transfer.duration_ns
        )
        assert 0 < trial.cpu.cpu_share <= 1
        assert trial.cpu.task_ns < trial.cpu.wall_ns * 2
        assert size < trial.rpc.bytes_received < size * 1.25
        assert bool(trial.rpc.rdma) == (cell.transport == "rdma")
    # without read-ahead a page at a time is read, with it whole blocks: so it is in effect
    reads = {trial.cell: trial.rpc.operations for trial in trials}
    speed = {trial.cell: trial.transfer.throughput for trial in trials}
    for transport in ("tcp", "rdma"):
        assert reads[Cell(transport, 32768, 0)] == 128
        assert reads[Cell(transport, 8192, 4)] == 512
        assert reads[Cell(transport, 32768, 4)] <= 140
        assert speed[Cell(transport, 32768, 4)] > 3 * speed[Cell(transport, 32768, 0)]
    for rdma in (trial for trial in trials if trial.rpc.rdma):
        # a busy machine loses soft-RoCE packets, and RPCs are sent again
        assert rdma.rpc.rdma["sends"] == sum(rdma.rpc.rpc_counts.values()) + rdma.rpc.retransmits


@pytest.mark.nightly
def test_the_store_has_the_probe_sets_of_each_trial(node: Lab, tmp_path: Path) -> None:
    # as long as some hundred samples take
    words = ("--rsize", "8k,64k", "--read-ahead", "4", "--file-size", "32M", "--probes")
    trials = swept(node, *words)
    assert len(trials) == 4
    for trial in trials:
        layers = {row["layer"]: row for row in trial.probe_rows["cpu"]}
        # read around the trial: the harness and both readings are in it, too
        assert layers["busy"]["ns"] >= trial.cpu.busy_ns
        assert layers["busy"]["server_ns"] > 0
        assert ("emulated NIC" in layers) == (trial.cell.transport == "rdma")
    for trial in (trial for trial in trials if trial.rpc.rdma):
        (reads,) = (row for row in trial.probe_rows["chunks"] if row["procedure"] == "READ")
        assert reads["rpcs"] == reads["replies_write"] == trial.rpc.operations
        assert (
            reads["write_segments"] >= trial.rpc.rdma["write_chunk_count"] >= trial.rpc.operations
        )
        (regions,) = trial.probe_rows["registrations"]
        assert regions["mapped"] == reads["write_segments"]
    report = build.build(copied(node, tmp_path / "s.db"), tmp_path / "report")
    assert "CPU % without emulated NIC" in report.files[0].read_text()


@pytest.mark.nightly
def test_kill_9_then_resume_and_only_one_on_a_mount_point(node: Lab) -> None:
    printed = in_background(
        node,
        f"""
        until [ "$(trials)" -ge 2 ] && reading; do sleep 0.1; done
        nfsrdma sweep {TARGET} --mount /mnt/../mnt/sweep --output /tmp/other.db; echo status $?
        rm -f /tmp/other.db*
        until reading; do sleep 0.05; done
        kill -9 $pid; wait $pid; echo killed $?
        mounted && echo mounted
        """,
        # enough trials to outlast the other sweep, which starts while they run
        *TINY, "--rsize", "4k..64k", "--read-ahead", "0", "--whole-file",
    )  # fmt: skip
    assert printed.split() == ["status", "1", "killed", "137", "mounted"]
    before = stored(node)
    assert 2 <= len(before) < 10
    node.run("client", "nfsrdma", "sweep", "--resume", STORE, timeout=400)
    after = stored(node)
    assert after[: len(before)] == before
    assert len(after) == len({trial.cell for trial in after}) == 10
    assert all(trial.ok for trial in after)


@pytest.mark.nightly
def test_a_server_gone_in_mid_trial_fails_the_trial_not_the_machine(node: Lab) -> None:
    printed = in_background(
        node,
        """
        until [ "$(trials)" -ge 1 ] && reading; do sleep 0.1; done
        systemctl stop nfs-server
        wait $pid; echo $?
        mounted && echo still mounted
        systemctl start nfs-server
        cat log
        """,
        *TINY, "--file-size", "8M", "--rsize", "4k,8k,32k,64k,128k",
        "--read-ahead", "0", "--transport", "tcp", "--whole-file",
    )  # fmt: skip
    status, *log = printed.splitlines()
    assert status == "1"
    assert "still mounted" not in printed
    assert "Traceback" not in printed
    assert log[-1].startswith("nfsrdma: stopped: 3 trials in a row failed")
    assert ".nfsrdma-sweep-8M stays on the server" in log[-1]
    assert json.loads(log[-2])["event"] == "finished"
    trials = stored(node)
    assert trials[0].ok
    failed = [trial for trial in trials if not trial.ok]
    assert {trial.status for trial in failed} == {"failed"}
    assert all(trial.reason and "\n" not in trial.reason for trial in failed)
    node.run("client", "nfsrdma", "sweep", "--resume", STORE, timeout=400)
    assert len({trial.cell for trial in stored(node) if trial.ok}) == 5


def test_an_axis_takes_effect_and_is_put_back(node: Lab) -> None:
    knobs = ("sunrpc.rdma_max_inline_read", "sunrpc.svc_rdma.max_req_size")
    before = node.run("client", "sysctl", *knobs).stdout
    trials = swept(
        node, "--transport", "rdma", "--rsize", "4k", "--direct", "--file-size", "1M",
        "--whole-file",
        "--axis", f"{knobs[0]}=4096,8192", "--axis", f"server:{knobs[1]}=4096,8192",
    )  # fmt: skip
    assert node.run("client", "sysctl", *knobs).stdout == before
    assert [trial.in_effect.axes for trial in trials] == [dict(trial.cell.axes) for trial in trials]
    # RFC 8166: data goes inline only when both ends have room for it, else by RDMA Write
    written = {
        tuple(trial.in_effect.axes.values()): trial.rpc.rdma["write_chunk_count"]
        for trial in trials
    }
    assert written.pop(("8192", "8192")) < 10
    assert all(count >= 256 for count in written.values())


# /proc/fs/nfsd, and what rpcbind tells clients that use NFSv3: ports may change, services may not
NFSD = """
cd /proc/fs/nfsd; cat max_block_size threads; sort portlist; rpcinfo -p | awk '$1 == 100003' | sort
"""


@on("client")
def restore() -> None:
    """The next command undoes what its predecessor left."""
    assert recover() == []


def nfsd(node: Lab) -> str:
    return node.run("client", "sh", "-c", NFSD).stdout


@pytest.mark.nightly
def test_the_servers_largest_block_is_an_axis(node: Lab) -> None:
    before = nfsd(node)
    assert " tcp   2049 " in before
    trials = swept(
        node, "--rsize", "32k,128k", "--read-ahead", "4", "--file-size", "1M",
        "--axis", "server:nfsd.max_block_size=32768,262144",
    )  # fmt: skip
    assert nfsd(node) == before
    by_cell = {(t.cell.transport, t.cell.rsize, t.cell.axes[0][1]): t for t in trials}
    assert len(by_cell) == 8
    for (_, rsize, block), trial in by_cell.items():
        if rsize > int(block):
            assert trial.status == "not_offered"
            assert "rsize: requested 131072, got 32768" in trial.reason
        else:
            assert trial.ok, trial.reason
            assert trial.in_effect.axes == {"server:nfsd.max_block_size": block}


@pytest.mark.nightly
def test_kill_9_leaves_the_largest_block_to_the_next_command(node: Lab) -> None:
    before = nfsd(node)
    printed = in_background(
        node,
        """
        until reading; do sleep 0.05; done
        kill -9 $pid; wait $pid; echo killed $?
        cat /proc/fs/nfsd/max_block_size
        """,
        *TINY, "--rsize", "32k", "--read-ahead", "0", "--whole-file",
        "--axis", "server:nfsd.max_block_size=65536",
    )  # fmt: skip
    assert printed.split() == ["killed", "137", "65536"]
    restore(node)
    assert nfsd(node) == before
    node.run("client", "nfsrdma", "sweep", "--resume", STORE, timeout=400)
    assert nfsd(node) == before


def test_what_is_not_offered_is_said_with_both_values(node: Lab) -> None:
    trials = swept(node, "--transport", "rdma", "--rsize", "512,8k,1M", "--read-ahead", "1,2")
    by_size = {trial.cell.rsize: trial for trial in trials}
    assert by_size[8192].ok
    assert {by_size[512].status, by_size[1 << 20].status} == {"not_offered"}
    assert "512 bytes, and Linux would round it" in by_size[512].reason
    assert "rsize: requested 1048576, got 524288" in by_size[1 << 20].reason
    assert len(trials) == 6


@pytest.mark.nightly
def test_depth_beside_read_ahead(node: Lab) -> None:
    argv = ("nfsrdma", "sweep", TARGET, "--output", STORE, *TINY, "--whole-file")
    words = ("--transport", "rdma", "--rsize", "32k", "--read-ahead", "0,4", "--depth", "1,8")
    report = node.run("client", *argv, *words, timeout=400).stdout
    trials = {trial.cell: trial for trial in stored(node)}
    near, far = (Cell("rdma", 32768, ahead) for ahead in (0, 4))
    single, eight = (Cell("rdma", 32768, 0, depth=depth, direct=True) for depth in (1, 8))
    assert set(trials) == {near, far, single, eight}
    for trial in trials.values():
        assert (trial.status, trial.verified, trial.transfer.bytes) == ("ok", True, 4 << 20), (
            trial.reason
        )
    # buffered reads fetch a page at a time, or whole blocks; O_DIRECT reads are as large as rsize
    assert trials[near].rpc.operations == 1024
    assert trials[far].rpc.operations <= 140
    assert trials[single].rpc.operations == trials[eight].rpc.operations == 128
    assert [trials[cell].in_effect.read_ahead_kb_after for cell in (near, far)] == [0, 128]
    # eight requests in flight wait for each other
    assert trials[eight].rpc.execute_ms > 2 * trials[single].rpc.execute_ms
    best = next(line for line in report.splitlines() if line.startswith("best: rdma 32k, "))
    kinds = ["direct", "buffered"] if "direct, depth" in best else ["buffered", "direct"]
    assert f"\n  {' against '.join(kinds)}: " in report


def test_writing(node: Lab) -> None:
    trials = swept(node, "--write", "--rsize", "8k,64k")
    assert len(trials) == 4
    for trial in trials:
        assert (trial.status, trial.verified) == ("ok", True)
        assert int(trial.in_effect.mount["wsize"]) == trial.cell.rsize
        assert (
            trial.rpc.rpc_counts["WRITE"] == trial.rpc.operations >= (4 << 20) // trial.cell.rsize
        )


def test_no_space_on_the_server(node: Lab) -> None:
    sweep = f"nfsrdma sweep server:{SMALL} --vers 3 --output {STORE} --file-size 4M"
    with small_export(node, "client", "2M"):
        ended = node.run("client", "sh", "-c", f"{sweep}; echo status $?; ls -A {SMALL}")
    # and nothing of the file
    probes, version, step, *rest = ended.stdout.splitlines()
    assert probes == "probe sets: cpu, chunks, registrations"
    assert version.startswith("NFS version: 3 (")
    assert step.startswith("sweep: making and reading the 4M test file once over tcp and rdma (")
    assert rest == ["status 1"]
    assert len(ended.stderr.splitlines()) == 1
    assert "no space on the server for .nfsrdma-sweep-4M" in ended.stderr


@pytest.mark.nightly
@pytest.mark.xdist_group("sweep-wall")
@pytest.mark.parametrize("rate", ["25gbit", "100gbit"])
def test_a_sweep_on_hardware_is_by_time_and_has_loads(rate: str) -> None:
    """On the wall clock: processors of a lab may not fill such a wire, but trials have a length."""
    config = LabConfig(f"test-wall-{os.getpid()}", clock="wall", link=f"{rate}/20us", nic="card")
    short = ("--seconds", "0.5", "--rsize", "256k", "--runs", "1", "--exhaustive", "--no-probes")
    with Lab(config) as lab:
        argv = ("nfsrdma", "sweep", TARGET, "--output", STORE, "--read-ahead", "4", *short)
        report = lab.run("client", *argv, "--jobs", "1,2", "--nconnect", "1,2", timeout=900).stdout
        contents = exported(lab)
        trials = [Trial.from_json(trial) for trial in contents["trials"]]
        assert next(iter(contents["environments"].values()))["lab link"].startswith(rate)
        assert "measuring how large the test file has to be for trials of 0.5 s" in report
        assert "8 trials of up to 0.5 s, after a warm-up of 0.1 s" in report
        assert "fstab: server:/export  /MOUNT/POINT  nfs  vers=4.2,proto=" in report
        assert {(t.cell.transport, t.cell.jobs, t.cell.nconnect) for t in trials} == {
            (transport, jobs, nconnect)
            for transport in ("tcp", "rdma")
            for jobs in (1, 2)
            for nconnect in (1, 2)
        }
        for trial in trials:
            assert (trial.status, trial.verified) == ("ok", True), trial.reason
            assert trial.in_effect.mount["vers"] == "4.2"
            assert int(trial.in_effect.mount.get("nconnect", "1")) == trial.cell.nconnect
            # it ends after its time, or with the file
            assert trial.transfer.duration_ns >= 0.49e9 or trial.transfer.bytes == trial.file_size
            assert 0 < trial.transfer.bytes <= trial.file_size
        assert len({trial.file_size for trial in trials}) == 1
        lab.run("client", "sh", "-c", f"rm -f {STORE}*")
        # O_DIRECT reads begin with the file again
        words = ("--direct", "--depth", "1,8", "--rsize", "8k", "--transport", "rdma")
        report = lab.run("client", *argv, *words, "--file-size", "64k", timeout=900).stdout
        assert "a trial reads the file again when it is at its end (O_DIRECT)" in report
        trials = stored(lab)
        assert {trial.cell.depth for trial in trials} == {1, 8}
        for trial in trials:
            assert (trial.status, trial.verified) == ("ok", True), trial.reason
            assert trial.transfer.duration_ns >= 0.49e9
            assert trial.transfer.bytes > trial.file_size == 64 << 10
        assert report.count(" times the file") == 2
        assert lab.run("client", "ls", "-A", "/export").stdout == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nosuchhost:/export",), "unknown host 'nosuchhost'"),
        (("server:/nothing",), "does not export '/nothing'"),
        (("server:/export", "--mount", "/proc"), "in use"),
        (("server:/export", "--axis", "sunrpc.nothing=1"), "no tunable sunrpc.nothing"),
        (("server:/$(reboot) x",), "export"),
    ],
)
def test_bad_input_is_one_clear_line(node: Lab, words: tuple[str, ...], message: str) -> None:
    argv = ("nfsrdma", "sweep", *words, "--vers", "3", "--output", STORE)
    ended = node.run("client", *argv, check=False)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert message in ended.stderr
