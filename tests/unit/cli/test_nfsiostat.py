# SPDX-License-Identifier: Apache-2.0
"""`trace nfsiostat` on the golden mountstats: the layout of nfsiostat(8), all connections summed.

See test_mountstats.py for what the mounts did.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from nfsrdma_tools.cli import nfsiostat
from nfsrdma_tools.host.machine import Machine, NotRecordedError, Recording
from nfsrdma_tools.host.nfs import mountinfo, mountstats
from nfsrdma_tools.host.nfs.mountstats import MountStats
from nfsrdma_tools.probes.row_filter import Filter

GOLDEN = Path(__file__).parents[1] / "data" / "mountstats-6.12.txt"
BEFORE = {str(stats.directory): stats for stats in mountstats.parse(mountinfo.read_text(GOLDEN))}


def test_the_layout_is_that_of_nfsiostat() -> None:
    report = nfsiostat.facts(BEFORE["/mnt/a"], 9.0)
    assert nfsiostat.lines(report) == [
        "",
        "server:/export mounted on /mnt/a:",
        "",
        "           ops/s       rpc bklog",
        "           6.111           0.000",
        "",
        "read:              ops/s            kB/s           kB/op         retrans"
        "    avg RTT (ms)    avg exe (ms)  avg queue (ms)          errors",
        "                   2.556         164.254          64.273        0 (0.0%)"
        "          20.435          21.130           0.435        0 (0.0%)",
        "write:             ops/s            kB/s           kB/op         retrans"
        "    avg RTT (ms)    avg exe (ms)  avg queue (ms)          errors",
        "                   0.556          35.714          64.285        0 (0.0%)"
        "          31.800          34.200           2.000        0 (0.0%)",
    ]


@pytest.mark.parametrize(("mount", "sends"), [("/mnt/b", 12 + 10 + 9 + 9), ("/mnt/c d", 40)])
def test_all_connections_count(mount: str, sends: int) -> None:
    report = nfsiostat.facts(BEFORE[mount], 2.0)
    assert report["ops_per_s"] == sends / 2
    # over RDMA nfsiostat(8) shows req_u here
    assert report["rpc_backlog"] == 0.0


def test_the_backlog_is_the_mean_queue_of_all_connections_per_second() -> None:
    xprts = tuple(mountstats.Xprt("rdma", {"sends": 10, "bklog_u": n}) for n in (30, 10))
    stats = MountStats(Path("/mnt"), "server:/export", "nfs", xprts=xprts)
    assert nfsiostat.facts(stats, 2.0)["rpc_backlog"] == (30 + 10) / 20 / 2


def test_a_recording_without_mountstats_says_so(tmp_path: Path) -> None:
    machine = Machine(tmp_path, recording=Recording(complete=False))
    with pytest.raises(NotRecordedError, match=r"^/proc/self/mountstats was not recorded$"):
        nfsiostat.run(Filter(), None, 0, as_json=False, machine=machine)


def test_procedures_select_the_lines() -> None:
    operations = nfsiostat.facts(BEFORE["/mnt/b"], 1.0, ("getattr", "READ"))["operations"]
    assert list(operations) == ["GETATTR", "READ"]
    assert operations["READ"]["operations"] == 23
    none = nfsiostat.facts(BEFORE["/mnt/b"], 1.0, ("LAYOUTGET",))["operations"]["LAYOUTGET"]
    assert set(none.values()) == {0}


def test_retransmissions_are_counted_and_in_percent() -> None:
    done = mountstats.Operation(200, 203, 0, 0, 0, 0, 0, 0, errors=1)
    stats = MountStats(Path("/mnt"), "s:/e", "nfs", operations={"READ": done})
    row = nfsiostat.lines(nfsiostat.facts(stats, 1.0, ("READ",)))[-1]
    assert row.endswith("1 (0.5%)") and "       3 (1.5%)" in row


def later(text: str) -> str:
    """Four more READs on /mnt/b, of 65000 bytes each."""
    old = "READ: 23 23 0 2484 1510272 9 929 969 0"
    assert text.count(old) == 1
    return text.replace(old, "READ: 27 27 0 2484 1770272 9 949 989 0").replace("age:\t6", "age:\t8")


def test_the_first_report_is_since_the_mount_the_others_are_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [GOLDEN.read_text(), later(GOLDEN.read_text())]
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(mountstats, "read_all", lambda _: mountstats.parse(texts.pop(0)))
    nfsiostat.run(Filter(procedures=("READ",)), 2.0, 2, as_json=True)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["schema_version"] == second["schema_version"] == 1
    reads = [mount_b(each)["operations"]["READ"]["operations"] for each in (first, second)]
    assert reads == [23, 4]
    assert [mount_b(each)["seconds"] for each in (first, second)] == [6.0, 2.0]
    assert mount_b(second)["operations"]["READ"]["rtt_ms"] == 5.0


def mount_b(report: dict[str, Any]) -> dict[str, Any]:
    (mount,) = (each for each in report["mounts"] if each["mount"] == "/mnt/b")
    return dict(mount)


def test_without_an_interval_one_report_is_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mountstats, "read_all", lambda _: [])
    nfsiostat.run(Filter(), None, 0, as_json=False)
    assert capsys.readouterr().out == "No NFS mount points were found\n"
