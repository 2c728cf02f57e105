# SPDX-License-Identifier: Apache-2.0
"""The papers' figures: cells, store, exposed memory, shares of the ends, and what is drawn."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench import published
from bench.cells import own_work
from bench.papers import measure as papers
from bench.papers import page as papers_page
from bench.papers.measure import CURVES, Job, Store, cell
from bench.sequential_reads.measure import OLD
from nfsrdma_tools.personalities import PERSONALITIES

SIDES = {"client": 300, "server": 100, "neither": 100, "card": 500, "nfsd": 90, "samples": 99,
         "layers": {"busy": 300, "nfs": 200, "sunrpc": 100}}  # fmt: skip
EVENTS = [
    ["1.000010", "mr_fastreg", "xprt=1 handle=0x01 length=4096 entries=1 offset=0x0 peer=writes"],
    ["1.000020", "mr_fastreg", "xprt=1 handle=0x02 length=8192 entries=1 offset=0x0 peer=writes"],
    ["1.000030", "done", "xprt=1 xid=0x5"],
    ["1.000040", "mr_remoteinv", "xprt=1 handle=0x01 length=4096 entries=1 offset=0x0 peer=writes"],
    ["1.000060", "mr_localinv", "xprt=1 handle=0x02 length=8192 entries=1 offset=0x0 peer=writes"],
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    results = Store(tmp_path / "6.12")
    results.describe("`make bench NAME=papers`, made up.")
    return results


def result(speed: float) -> dict[str, Any]:
    counts = {f"card {name}": 16.0 for name in papers_page.COUNTED}
    return {
        "rate": speed, "cpu": 0.5, "process": 0.1, "ms": 2.0, "us": 100 + speed, "wire": 1.01,
        "sides": SIDES, **counts,
    }  # fmt: skip


def fill(store: Store, number: int = 0) -> None:
    """A result for each cell; curves and sizes differ."""
    for part in papers.parts():
        for at, name in enumerate(part.curves):
            for each in part.cells:
                measured = result(each.record / 4096 + 10 * at + 200 * (part.name == "far"))
                events = {"events": EVENTS}
                kept = events if part.what == "trace" else measured
                store.put(part.name, name, each, kept, number)


def test_every_personality_is_a_curve() -> None:
    assert set(PERSONALITIES) < set(CURVES)
    assert set(PERSONALITIES) < {*papers.parts()[0].curves}


def test_cells_read_whole_records_and_pages() -> None:
    for part in papers.parts():
        assert len({str(each) for each in part.cells}) == len(part.cells)
        for each in part.cells:
            assert each.record % 4096 == 0
            assert each.total >= each.depth * each.record
            assert 0 <= each.copy <= each.record


def test_all_cells_of_one_module_follow_each_other(store: Store) -> None:
    jobs = papers.jobs(store, 1)
    modules = [job.curve.module for job in jobs]
    assert sum(a != b for a, b in pairwise(modules)) == 1
    assert {job.part.name for job in papers.jobs(store, 1, ["near"])} == {"near"}
    assert "near, read-read, 1 cells, round 0" in map(str, jobs)


def test_an_interrupted_run_continues(store: Store) -> None:
    part = next(each for each in papers.parts() if each.name == "blocks")
    first, *rest = part.cells
    store.put(part.name, "cached", first, result(1))
    assert store.missing(part, "cached", 0) == rest
    assert store.missing(part, "cached", 1) == list(part.cells)
    assert store.missing(part, "read-write", 0) == list(part.cells)
    fill(store)
    assert papers.jobs(store, 1) == []
    again = papers.jobs(store, 2)
    assert {job.number for job in again} == {1}


def test_a_value_is_the_median_of_the_rounds(store: Store) -> None:
    some_cell = cell()
    with pytest.raises(KeyError, match="no result"):
        store.value("p", "cached", some_cell, papers_page.rate)
    for number, speed in enumerate((5.0, 1.0, 3.0)):
        store.put("p", "cached", some_cell, result(speed), number)
    assert store.value("p", "cached", some_cell, papers_page.rate) == 3.0


def test_cells_that_differ_have_files_that_differ(store: Store) -> None:
    for part in papers.parts():
        paths = {store.path(part.name, name, c, 0) for name in part.curves for c in part.cells}
        assert len(paths) == len(part.curves) * len(part.cells)


def test_a_client_has_the_personality() -> None:
    part = papers.parts()[0]
    assert Job(part, CURVES["cached"], 0, part.cells).client.personality == "cached"
    assert Job(part, CURVES[OLD], 0, part.cells).client.transport == "tcp"


def test_the_card_is_no_end_and_shared_time_is_divided() -> None:
    measured = result(1)
    # half of the time is the card's; three quarters of the rest are the client's
    assert own_work(measured, "client") == pytest.approx(0.375)
    assert own_work(measured, "server") == pytest.approx(0.125)
    assert papers.time_of_client(measured) == pytest.approx(0.75)
    assert papers.time_of_both(measured) == pytest.approx(1.0)


def test_the_clients_time_is_divided_among_layers(store: Store) -> None:
    fill(store)
    (table,) = ["\n".join(papers_page.lines_of_same(store))]
    # 2 ms for a MiB, three eighths of it the client's
    assert "| 8 reads at a time | 46.9 (1.00) | 46.9 (1.00) | 46.9 (1.00) |" in table
    assert "| of the first row: nfs | 31.2 | 31.2 | 31.2 |" in table


def test_ratios_are_those_of_both_ends(store: Store) -> None:
    part = next(each for each in papers.parts() if each.name == "direct")
    for name, ms in ((OLD, 4.0), (papers.KERNELS, 1.0)):
        for each in part.cells:
            # whichever share the samples give the client
            sides = {"client": each.record, "server": 1 << 20, "neither": 0, "card": 0}
            store.put("direct", name, each, {"ms": ms, "sides": sides})
    assert {y for _, y in papers_page.ratios(store, papers.KERNELS)} == {0.25}


def test_exposed_memory_over_time() -> None:
    steps = papers.exposed(EVENTS)
    assert [round(time) for time, _ in steps] == [0, 10, 30, 50]
    assert [size for _, size in steps] == [4096, 12288, 8192, 0]
    assert papers.mean_exposed(steps) == pytest.approx((4096 * 10 + 12288 * 20 + 8192 * 20) / 50)
    assert papers.exposed([]) == []


def test_the_papers_values() -> None:
    assert published.point("15", "TCP")["rate"] == 60
    assert published.point("3", "NFS pre-posting")["from"] == 32768
    assert all(point["paper"] for point in published.points())


def test_round_trips_are_what_a_longer_wire_adds(store: Store) -> None:
    fill(store)
    assert papers_page.trips(store, "read-read") == pytest.approx(1.0)
    reads = papers.DEEP.total / papers.DEEP.record
    assert papers_page.dones(store, "read-read") == pytest.approx(1 / reads)
