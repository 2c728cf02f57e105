# SPDX-License-Identifier: Apache-2.0
"""Stores of blocks beside mounts: the store of results, shares of the ends, tables, and files."""

from pathlib import Path
from typing import Any

import pytest

from bench import markdown
from bench.blocks import measure as blocks
from bench.blocks import page, tensors
from bench.blocks.measure import FOUR, MANY, ONE, Store, instructions, layer
from bench.cells import named
from nfsrdma_tools.sizes import size_label

# nanoseconds of samples: half of all is the card model's work
SIDES = {"client": 300, "server": 100, "neither": 100, "card": 500}
LAYERS = {"client application": 250}


def result(whole: float, rpcs: float, moves: float) -> dict[str, Any]:
    """A block with ``whole`` thousands of instructions."""
    counts = {
        "busy": whole * 1e3, "nfsd rpcs": rpcs, "nfsd reads": moves, "nfsd writes": moves,
        "nfsd lookups": 0.0, "ns": 4e9,
    }  # fmt: skip
    return {
        "first": {**counts, "nfsd rpcs": 3.0, "nfsd lookups": 1.0}, "block": counts,
        "sides": SIDES, "layers": LAYERS,
    }  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A result of each cell: a store costs half of what a mount does."""
    made = Store(tmp_path / "6.12")
    made.describe("`make bench NAME=blocks`, made up.")
    for part in blocks.parts():
        for curve in part.curves:
            is_store = curve.startswith("store")
            for cell in part.cells:
                each = result(100.0 if is_store else 200.0, 1.0 if is_store else 2.0, 1.0)
                size = {"card bytes": 1.01 * cell.size, "network bytes": 1.02 * cell.size}
                made.put(part.name, curve, cell, {**each, "block": {**each["block"], **size}})
    return made


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Copies of both pages."""
    copies = []
    for module, name in ((markdown, "PAGE"), (page, "HOW_TO")):
        copy = tmp_path / f"{name}.md"
        copy.write_text(vars(module)[name].read_text())
        copies.append(copy)
    sections = {
        name: (copies[where == page.HOW_TO], lines)
        for name, (where, lines) in page.SECTIONS.items()
    }
    monkeypatch.setattr(page, "SECTIONS", sections)
    return copies


def test_the_ends_have_all_but_the_work_of_the_card() -> None:
    measured = result(200.0, 2.0, 1.0)
    client, server = (instructions(measured, side) for side in ("client", "server"))
    assert client + server == pytest.approx(100.0)
    assert client == pytest.approx(3 * server)
    assert layer(measured, "client application") == pytest.approx(50.0)
    assert layer(measured, "client nfs") == 0


def test_cells_with_a_result_are_not_measured_again(store: Store) -> None:
    assert not blocks.jobs(store, 1)
    assert [job.number for job in blocks.jobs(store, 2, ["many"])] == [1]
    store.path("get", ONE, named(blocks.parts(), "get").cells[1]).unlink()
    (job,) = blocks.jobs(store, 1)
    assert (job.part.name, list(job.curves)) == ("get", [ONE])


def test_tables_have_the_numbers_of_the_store(store: Store, pages: list[Path]) -> None:
    page.write(store, "6.12")
    text = pages[0].read_text()
    assert "| 256 KiB | mount, RDMA | 2.00 | 1.00 | 75.0 | 50.0 | 25.0 | 100.0 | 1.00 |" in text
    assert "| 2 MiB | store, 4 sessions | 1.00 | 0.00 | 37.5 | 25.0 | 12.5 | 50.0 | 0.50 |" in text
    assert "1.010 to 1.020 bytes for each byte of a block" in text
    assert "takes 0.50 to 0.50 of the instructions" in text
    assert "the first round: 0.00 (goal: 0)" in text
    assert "256 KiB: 0.50 of those of the mount over RDMA (goal: 0.5)" in text
    assert "| store, 4 sessions | 3.000 | 1.000 | 1.000 | 0.000 | 100.0 |" in text
    assert "| mmap of a mount, TCP | 4.00 | 2 | 3 | 1.020 | 0 | 0 |" in text
    assert "| store, 4 sessions | 1.0 | 38 | 12 | 1.0 | 38 | 12 |" in pages[1].read_text()


def test_a_part_that_is_not_measured_leaves_the_page(store: Store, pages: list[Path]) -> None:
    store.path("many", FOUR, MANY).unlink()
    before = pages[0].read_text()
    page.write(store, "6.12")
    begin, end = "<!-- begin: blocks many -->", "<!-- end: blocks many -->"
    parts = [text.split(begin)[1].split(end)[0] for text in (before, pages[0].read_text())]
    assert parts[0] == parts[1]


def test_blocks_fit_the_memory_of_the_node() -> None:
    """In the server's memory, and in that of the client."""
    for part in blocks.parts():
        assert all(2 * cell.size * cell.blocks < 3 << 30 for cell in part.cells)


def test_the_page_has_the_size_of_the_model() -> None:
    text = f"{tensors.FILES} files of safetensors, {size_label(blocks.MODEL_SIZE)} together"
    assert text in markdown.PAGE.read_text()


def test_tensors_of_a_file_are_those_that_were_written(tmp_path: Path) -> None:
    tensors.write_model(tmp_path, 40 << 20)
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == tensors.FILES
    names: set[str] = set()
    for path in paths:
        data = path.read_bytes()
        found = tensors.tensors_of(memoryview(data))
        # the tensors fill the file
        length = int.from_bytes(data[:8], "little")
        assert sum(map(len, found.values())) == len(data) - 8 - length
        assert length % 8 == 0
        names |= found.keys()
    assert len(tensors.checksums(tmp_path)) == len(names)
    assert len(set(tensors.checksums(tmp_path).values())) > len(names) // 2


def published(page: Path, section: str) -> list[list[str]]:
    """The rows of a table that the benchmark wrote."""
    _, _, text = page.read_text().partition(f"<!-- begin: blocks {section} -->")
    lines = [line for line in text.partition("<!-- end:")[0].splitlines() if line.startswith("|")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def test_the_summary_has_the_numbers_of_the_tables() -> None:
    rows: dict[str, list[float]] = {}
    for section in ("get", "put"):
        for size, way, rpcs, _, client, _, server, *_ in published(markdown.PAGE, section):
            if size == "256 KiB":
                rows.setdefault(way, []).extend(map(float, (rpcs, client, server)))
    summary = published(page.HOW_TO, "summary")
    assert len(summary) == 4
    for way, *found in summary:
        # the tables have one digit more
        for value, exact, most in zip(found, rows[way], (0.05, 0.5, 0.5) * 2, strict=True):
            assert float(value) == pytest.approx(exact, rel=0, abs=most), (way, value)
