# SPDX-License-Identifier: Apache-2.0
"""Values that a report computes from the probe sets of trials with known figures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.sweep.trials_made import trial_of, with_columns

from nfsrdma_tools.report import build, cpu_figures
from nfsrdma_tools.report import study as studies
from nfsrdma_tools.sweep.cpu_breakdown import spending
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.store import Store, Trial

KIB = 1024
PLAN = Plan("server:/export", rsizes=(8 * KIB, 64 * KIB, 512 * KIB), read_aheads=(0, 1, 4),
            file_size=1 << 20, uid="p1")  # fmt: skip
# o_byte and o_io of client and server, in ns
TRUE = {"tcp": ((0.5, 30_000), (0.25, 20_000)), "rdma": ((0.125, 40_000), (0.0625, 25_000))}
HARNESS = 5_000_000


def cpu(layer: str, **sides: int) -> dict[str, Any]:
    ns = {f"{side}_ns": sides.get(side, 0) for side in ("client", "server", "neither")}
    return {"layer": layer, "ns": sum(ns.values()), "share": 0.0, **ns}


def trial(cell: Cell, device: str = "emulated NIC") -> Trial:
    count = PLAN.file_size // cell.rsize
    client, server = (round(count * (cell.rsize * b + i)) for b, i in TRUE[cell.transport])
    shared, nic = count * 1000, count * 9000 * (cell.transport == "rdma")
    rows = [
        cpu("nfs", client=client + HARNESS),
        cpu("nfsd", server=server),
        cpu("scheduling", neither=shared),
        cpu(device, client=nic // 3, neither=nic - nic // 3),
        cpu("tracing", neither=7_000_000),
        {**cpu("busy", client=1), "stat_ns": 1},
        {"layer": "idle", "ns": 10**9, "share": 0.5},
    ]
    chunks = {"procedure": "READ", "mount": "/mnt", "rpcs": count, "replies_write": count,
              "write_segments": 2 * count, "reply_segments": 0}  # fmt: skip
    other = {"procedure": "GETATTR", "mount": "/mnt", "replies_inline": 9, "write_segments": 9}
    carried: dict[str, list[dict[str, Any]]] = {
        "chunks": [chunks, other],
        "registrations": [{"mapped": 2 * count}],
    }
    return trial_of(
        "p1", cell, 1, 0, started="2026-11-20", bytes=PLAN.file_size, operations=count,
        throughput=100.0, cpu_share=0.5, busy_ns=client + server + shared + nic,
        reader_system_s=(client + nic // 3) / 1e9,
        probe_rows={"cpu": rows, **(carried if cell.transport == "rdma" else {})},
    )  # fmt: skip


def stored(path: Path, **changes: Any) -> Path:
    """A store of a trial of each cell, with these ``changes``."""
    with Store(path) as made:
        made.add_plan(PLAN)
        uid = made.add_environment({"lab link": "1gbit/100us", "lab clock": "wall", "cpus": "1"})
        for cell in PLAN.cells():
            made.add_trial(with_columns(trial(cell), environment=uid, **changes))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return stored(tmp_path / "s.db")


def test_cpu_breakdown_says_whose_time_it_was_and_how_the_data_went() -> None:
    spent = spending([trial(Cell("rdma", 65536, 4))] * 2, "read")
    assert spent
    byte, io = TRUE["rdma"][0]
    assert spent.cpu["client"] == pytest.approx(65536 * byte + io)
    assert (spent.cpu["shared"], spent.cpu["emulated NIC"], spent.called) == (1000, 9000, 3000)
    assert (spent.bytes, spent.segments, spent.registrations) == (65536, 2, 2)
    assert spent.ways == {"Write chunk": 1}


def test_registrations_of_a_kernel_whose_events_lack_them_have_no_figure(tmp_path: Path) -> None:
    """As on Linux 5.10: that is not the same as no registration."""
    counted = trial(Cell("rdma", 65536, 4))
    rows = {name: rows for name, rows in counted.probe_rows.items() if name != "registrations"}
    for kept, figure in ((rows, None), ({**rows, "registrations": []}, 0)):
        spent = spending([replace(counted, probe_rows=kept)], "read")
        assert spent
        assert (spent.registrations, spent.segments) == (figure, 2)
    path = tmp_path / "s.db"
    with Store(path) as made:
        made.add_plan(PLAN)
        for cell in PLAN.cells():
            uncounted = trial(cell)
            uncounted.probe_rows.pop("registrations", None)
            made.add_trial(uncounted)
    page = build.build(path, tmp_path / "out").files[0].read_text()
    assert page.count("2.00</td>") == sum(cell.transport == "rdma" for cell in PLAN.cells())
    assert "0.00</td>" not in page


def test_a_trial_without_accounts_says_nothing() -> None:
    assert spending([replace(trial(Cell("rdma", 65536, 4)), probe_rows={})], "read") is None


def test_a_modelled_card_counts_as_the_emulated_nic() -> None:
    spent = spending([trial(Cell("rdma", 65536, 4), "card model")], "read")
    assert spent
    assert (spent.cpu["shared"], spent.cpu["emulated NIC"], spent.called) == (1000, 9000, 3000)


def test_what_went_in_comes_out(store: Path) -> None:
    with Store(store, read_only=True) as opened:
        fits = {
            (line.transport, line.whose): line.fit
            for line in cpu_figures.lines(studies.load(opened))
        }
    for transport, sides in TRUE.items():
        for whose, (byte, io) in zip(("client", "server"), sides, strict=True):
            line = fits[transport, whose]
            assert line.per_byte.value == pytest.approx(byte, rel=1e-3)
            assert line.per_io.value == pytest.approx(io, rel=1e-3)
    # (40000 + 25000 + 1000 [+ 9000]) / (1000 / 125 ns per byte - 0.1875)
    assert fits["rdma", cpu_figures.HOST].enough_from(8.0) == pytest.approx(
        66000 / 7.8125, rel=1e-3
    )
    assert fits["rdma", cpu_figures.RAW].enough_from(8.0) == pytest.approx(75000 / 7.8125, rel=1e-3)
    assert ("tcp", cpu_figures.RAW) not in fits


def test_the_page_shows_it(store: Path, tmp_path: Path) -> None:
    report = build.build(store, tmp_path / "out")
    page = report.files[0].read_text()
    assert "overhead.png" in {path.name for path in report.files}
    for text in ("Overhead per byte and per I/O", "8 KiB", "registrations per read", "Write chunk",
                 "CPU % without emulated NIC", "without NIC", "time of the emulated"):  # fmt: skip
        assert text in page
    point = report.study.point(Cell("rdma", 65536, 4))
    assert point.cpu_of_host
    assert point.reader_of_host
    busy = 65536 * 0.1875 + 66000
    assert point.cpu_of_host.mean == pytest.approx(50 * busy / (busy + 9000), rel=1e-3)
    byte, io = TRUE["rdma"][0]
    assert point.reader_of_host.mean == pytest.approx((65536 * byte + io) * 16 / 1e6, rel=1e-3)


def test_cpu_figures_have_no_reader_s_time_of_few_ticks(tmp_path: Path) -> None:
    for seconds, shown in ((0.099, False), (0.101, True)):
        path = stored(tmp_path / f"{seconds}.db", reader_system_s=seconds)
        with Store(path, read_only=True) as opened:
            assert bool(cpu_figures.of_the_reader(studies.load(opened))) is shown


def test_nic_sampled_above_the_reader_s_time(tmp_path: Path) -> None:
    path = stored(tmp_path / "s.db", reader_system_s=1e-9)
    report = build.build(path, tmp_path / "out")
    assert report.study.point(Cell("rdma", 65536, 4)).reader_of_host is None
