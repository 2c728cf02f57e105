# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from unit.sweep.trials_made import trial_of

from nfsrdma_tools.cli import tune
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import mountinfo
from nfsrdma_tools.host.nfs.mounts import Mount
from nfsrdma_tools.host.tune.tuning import TuneRequest, require_measured
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.store import Store

WHERE = Path("/no/such/mount")


def store(path: Path, **changes: object) -> Path:
    """A sweep in which more is better, and RDMA best with half as much."""
    plan = Plan("server:/export", uid="p1", **changes)  # type: ignore[arg-type]
    with Store(path) as made:
        made.add_plan(plan)
        for order, cell in enumerate(plan.cells()):
            speed = cell.rsize * (1 + cell.read_ahead) / 1e6
            if cell.transport == "rdma" and cell.rsize > 128 << 10:
                speed = 1.0
            made.add_trial(trial_of("p1", cell, 1, order, throughput=speed, bytes=1, busy_ns=1))
    return path


def test_takes_the_winner_of_the_transport(tmp_path: Path) -> None:
    sweep = store(tmp_path / "s.db")
    assert tune.request_of_store(sweep, WHERE, "tcp") == TuneRequest(
        WHERE, rsize=512 << 10, read_ahead=16
    )
    # a sweep has no figures by address family
    for transport in ("rdma", "rdma6"):
        assert tune.request_of_store(sweep, WHERE, transport) == TuneRequest(
            WHERE, rsize=128 << 10, read_ahead=16
        )
    with pytest.raises(UserError, match="--transport"):
        tune.request_of_store(sweep, WHERE, "")
    with pytest.raises(UserError, match="mounted on 0 directories"):
        tune.request_of_store(sweep, None, "tcp")


def test_other_directions_tune_other_things(tmp_path: Path) -> None:
    writes = store(tmp_path / "w.db", direction="write", transports=("tcp",))
    assert tune.request_of_store(writes, WHERE, "") == TuneRequest(WHERE, wsize=512 << 10)
    direct = store(tmp_path / "d.db", direct=True, transports=("tcp",))
    assert tune.request_of_store(direct, WHERE, "") == TuneRequest(WHERE, rsize=512 << 10)
    with pytest.raises(UserError, match="no figures for rdma"):
        tune.request_of_store(direct, WHERE, "rdma")


def test_a_direct_winner_beside_buffered_reads_sets_no_read_ahead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = {"with_direct": True, "depths": (1, 8), "transports": ("tcp",), "read_aheads": (0,)}
    sweep = store(tmp_path / "s.db", **both)
    with Store(sweep) as opened:
        plan = opened.plan()
        deep = max(plan.cells(), key=lambda cell: (cell.depth, cell.rsize))
        opened.add_trial(trial_of("p1", deep, 2, 99, throughput=99.0, bytes=1, busy_ns=1))
    assert tune.request_of_store(sweep, WHERE, "") == TuneRequest(WHERE, rsize=512 << 10)
    assert "the winner also has O_DIRECT with depth 8; set that" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ("vers=4.2,proto=rdma,nconnect=4", ""),
        ("vers=4,rdma,nconnect=4", ""),
        ("proto=rdma6,nconnect=4", ""),
        (
            "vers=3,proto=rdma,nconnect=4",
            "/mnt/data has vers 3, and the sweep measured vers 4.2 (change",
        ),
        ("vers=4.1,proto=rdma,nconnect=4", "has vers 4.1, and the sweep measured vers 4.2"),
        ("proto=rdma", "has nconnect 1, and the sweep measured nconnect 4"),
        (
            "vers=3",
            "has transport tcp, vers 3, nconnect 1, and the sweep measured transport rdma, "
            "vers 4.2, nconnect 4",
        ),
    ],
)
@pytest.mark.parametrize("transport", ["rdma", "nfsrdma"])
def test_another_mount_than_the_measured_one_is_refused_by_its_line_in_fstab(
    tmp_path: Path, transport: str, options: str, difference: str
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/fstab").write_text(f"server:/export /mnt/data nfs {options} 0 0\n")

    def require() -> None:
        require_measured(Path("/mnt/data"), transport, "4.2", 4, Machine(tmp_path))

    if difference:
        with pytest.raises(UserError) as caught:
            require()
        assert difference in str(caught.value)
    else:
        require()
    require_measured(Path("/mnt/other"), transport, "3", 1, Machine(tmp_path))


@pytest.mark.parametrize(
    ("given", "current", "difference"),
    [
        ("rdma", "nfsrdma", "has transport nfsrdma, and the sweep measured transport rdma"),
        ("tcp", "rdma", "has transport rdma, and the sweep measured transport tcp"),
        ("", "rdma", "has vers 3, nconnect 4, and the sweep measured vers 4.2, nconnect 1"),
    ],
)
def test_another_mount_than_the_measured_one_is_refused_by_its_values_in_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, current: str, difference: str
) -> None:
    vers, connections = ("4.2", 1) if given else ("3", 4)
    line = (
        f"9 1 0:9 / {WHERE} rw - nfs server:/export rw,vers={vers},rsize=8192,proto=rdma,"
        f"nconnect={connections}"
    )
    (entry,) = mountinfo.parse(line)
    mount = Mount.of(entry, "rpcrdma" if current == "rdma" else current)
    assert mount.transport == current
    monkeypatch.setattr("nfsrdma_tools.host.nfs.mounts.find", lambda _: mount)
    sweep = store(tmp_path / "s.db")
    with pytest.raises(UserError) as caught:
        tune.request_of_store(sweep, WHERE, given)
    assert f"{WHERE} {difference}" in str(caught.value)


def test_sizes_of_options() -> None:
    assert tune.request_of_values(WHERE, "1M", "64k", 2) == TuneRequest(WHERE, 1 << 20, 64 << 10, 2)
    assert tune.request_of_values(Path("/no/such/../such/mount"), None, None, 0) == TuneRequest(
        WHERE, read_ahead=0
    )
    with pytest.raises(UserError, match="nothing to tune"):
        tune.request_of_values(WHERE, None, None, None)
    with pytest.raises(UserError, match="not a size"):
        tune.request_of_values(WHERE, "", None, None)
