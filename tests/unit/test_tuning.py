# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from nfsrdma_tools.cli import tune
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.tune.tuning import TuneRequest
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.store import Store, Trial

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
            made.add_trial(Trial("p1", cell, 1, order, throughput=speed, bytes=1, busy_ns=1))
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


def test_sizes_of_options() -> None:
    assert tune.request_of_values(WHERE, "1M", "64k", 2) == TuneRequest(WHERE, 1 << 20, 64 << 10, 2)
    assert tune.request_of_values(Path("/no/such/../such/mount"), None, None, 0) == TuneRequest(
        WHERE, read_ahead=0
    )
    with pytest.raises(UserError, match="nothing to tune"):
        tune.request_of_values(WHERE, None, None, None)
    with pytest.raises(UserError, match="not a size"):
        tune.request_of_values(WHERE, "", None, None)
