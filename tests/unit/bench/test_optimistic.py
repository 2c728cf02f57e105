# SPDX-License-Identifier: Apache-2.0
"""The figures of optimistic reads: cells, commands, and what is drawn."""

from pathlib import Path
from typing import Any

from bench.optimistic import measure as optimistic
from bench.optimistic import page as optimistic_page
from bench.optimistic.measure import DIRECT, INLINE, OURS_NAME, Store
from bench.optimistic_user import measure as optimistic_user

SIDES = {"client": 300, "server": 100, "neither": 100, "card": 500, "samples": 99}


def store(folder: Path, nic: str) -> Store:
    results = Store(folder / f"6.12-{nic}")
    results.describe(f"`make bench NAME=optimistic`, {nic}, made up.")
    return results


def result(curve: str) -> dict[str, Any]:
    slow = optimistic.THREE.index(curve) if curve in optimistic.THREE else 2
    return {
        "operations": 1000,
        "ns": 90000 - 20000 * slow,
        "busy": 80000 - 20000 * slow,
        "bytes": 4096.0,
        "nfsd ns": 0.0 if slow == 2 else 9000.0,
        "nfsd rpcs": 0.0 if slow == 2 else 1.0,
        "nfsd reads": 0.0,
        "optimistic_reads": 1.0,
        "sides": SIDES | ({"server": 0} if slow == 2 else {}),
        "layers": {"sunrpc": 300, "nfs": 200},
        "then": {"ns": 70000},
    }


def fill(results: Store, nic: str) -> None:
    """A result for each cell."""
    for part in optimistic.parts():
        for name in part.curves if nic in part.nics else ():
            for cell in part.cells:
                results.put(part.name, name, cell, result(name))


def test_each_cell_has_a_file_of_its_own(tmp_path: Path) -> None:
    results = store(tmp_path, "card")
    paths = [
        results.path(part.name, name, cell)
        for part in optimistic.parts()
        for name in part.curves
        for cell in part.cells
    ]
    assert len(set(paths)) == len(paths)


def test_an_interrupted_run_continues(tmp_path: Path) -> None:
    results = store(tmp_path, "card")
    jobs = optimistic.jobs(results, "card", ["response"])
    assert [job.curve.name for job in jobs] == [INLINE, DIRECT, OURS_NAME]
    results.put("response", INLINE, jobs[0].cells[0], {})
    assert optimistic.jobs(results, "card", ["response"])[0].cells == jobs[0].cells[1:]
    fill(results, "card")
    assert optimistic.jobs(results, "card", []) == []


def test_cells_of_a_mount_have_one_link_and_one_fault(tmp_path: Path) -> None:
    for job in optimistic.jobs(store(tmp_path, "card"), "card", []):
        for name in ("link", "refuse", "recoverable"):
            assert len({cell.get(name) for cell in job.cells}) == 1


def test_soft_roce_has_table_3_only(tmp_path: Path) -> None:
    jobs = optimistic.jobs(store(tmp_path, "rxe"), "rxe", [])
    assert {job.part.name for job in jobs} == {"response"}


def test_the_reader_gets_as_many_words_as_it_reads() -> None:
    for part in optimistic.parts():
        for cell in part.cells:
            asked = optimistic.request(part, cell)
            for argv in (*asked.warm, *asked.short, *asked.long, *asked.then):
                program, kind, *words = argv
                if program.endswith("optimistic_reader"):
                    assert len(words) == {"random": 6, "files": 5}[kind]


def test_the_server_of_an_optimistic_read_takes_no_time() -> None:
    measured = result(OURS_NAME)
    assert optimistic_page.of_side(measured, "server") == 0
    assert optimistic_page.of_side(measured, "client") + optimistic_page.of_device(measured) == 40.0


# --- without a mount ---

US = {"inline": 40.0, "direct": 45.0, "optimistic": 5.0}


def user_result(way: str) -> dict[str, Any]:
    by_rpc = float(way != "optimistic")
    return {"us": US[way], "rpcs": by_rpc, "by_reference": 1 - by_rpc, "mb_s": 1000 / US[way]}


def user_store(folder: Path) -> Store:
    """A store with a result for each cell."""
    results = Store(folder / "6.12")
    results.describe("`make bench NAME=optimistic-user`, made up.")
    for part in optimistic_user.parts():
        for way in part.curves:
            for cell in part.cells:
                results.put(part.name, way, cell, user_result(way))
    return results


def test_a_run_without_mounts_continues_by_link(tmp_path: Path) -> None:
    results = Store(tmp_path)
    todo = optimistic_user.jobs(results, [])
    links = [job.cell["link"] for job in todo]
    assert links == sorted(links)
    results.put(todo[0].part.name, todo[0].way, todo[0].cell, {})
    assert optimistic_user.jobs(results, []) == todo[1:]
    assert {job.part.name for job in optimistic_user.jobs(results, ["files"])} == {"files"}
    assert optimistic_user.jobs(user_store(tmp_path), []) == []


def test_files_of_a_wire_and_without_are_apart(tmp_path: Path) -> None:
    results = Store(tmp_path)
    todo = optimistic_user.jobs(results, [])
    assert len({results.path(job.part.name, job.way, job.cell) for job in todo}) == len(todo)
