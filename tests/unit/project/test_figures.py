# SPDX-License-Identifier: Apache-2.0
"""Figures of README.md and docs/ are those of the code and of the tables of measurements."""

import re
from typing import NamedTuple

import pytest
from distribution_tables import distributions
from pages import PAGES, ROOT

from nfsrdma_tools.doctor import bundle
from nfsrdma_tools.lab.config import KERNELS, MODULE_KERNELS
from nfsrdma_tools.personalities import PERSONALITIES

README = (ROOT / "README.md").read_text()


def state_of(part: str) -> list[str]:
    """The cells of a part's row in README's table of states."""
    (row,) = re.findall(rf"^\| {part} \|.*\|$", README, re.M)
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_readme_is_short() -> None:
    assert len(README.splitlines()) < 160


def test_readme_states_how_far_each_personality_is() -> None:
    rows = re.findall(r"^\| (?:module, |personality )`([\w-]+)` \| (\w+)", README, re.M)
    assert {name for name, _ in rows} == set(PERSONALITIES)
    assert dict(rows)["read-write"] == "experimental"
    assert all(state == "research" for name, state in rows if name != "read-write")


def test_readme_names_the_kernels_of_the_lab() -> None:
    for part, kernels in (("module, `read-write`", MODULE_KERNELS), ("lab", KERNELS)):
        named = re.findall(r"\d\.\d+", state_of(part)[2])
        assert set(named) == set(kernels)


def test_the_limits_of_a_bundle_are_those_of_collect() -> None:
    text = (ROOT / "docs/how-to/doctor.md").read_text()
    (read, kept) = re.findall(
        r"^`collect` reads at most (\d+) MiB of a file and keeps at most (\d+) MiB\.", text, re.M
    )[0]
    assert (int(read) << 20, int(kept) << 20) == (bundle._MOST_READ, bundle._MOST_KEPT)


def test_pages_agree_on_the_kernels_of_tools_and_probes() -> None:
    """Those of the tests that are run once per kernel, in all of them."""
    for name in ("doctor/test_doctor", "whole/test_lab", "trace/test_trace_kernels"):
        assert "KERNELS" in (ROOT / f"tests/lab/{name}.py").read_text()
    for part in ("tools: .*", "probes: .*"):
        assert set(re.findall(r"\d\.\d+", state_of(part)[2])) == set(KERNELS)
    trace = (ROOT / "docs/how-to/trace.md").read_text()
    (text,) = re.findall(
        r"`tests/lab/trace/test_trace_kernels\.py` attaches .*?To compile", trace, re.S
    )
    assert set(re.findall(r"\b[5-7]\.\d+", text)) == set(KERNELS)
    (row,) = (row for row in distributions() if row.kernel == "5.10")
    assert row.test("probes").startswith("tests/lab/trace/test_trace_kernels.py::")
    assert row.image == "untested"


@pytest.mark.parametrize("target", ["sweep", "test", "test-lab"])
def test_minutes_of_a_target_are_those_of_its_table(target: str) -> None:
    testing = (ROOT / "docs/dev/testing.md").read_text()
    (limit,) = re.findall(rf"^\| `make {target}` \|.*\| (\d+) min \|$", testing, re.M)
    (text,) = re.findall(rf"^{target}:.*## (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert re.findall(r"(\d+) minutes", text) == [limit]
    lines = re.findall(rf"^\$ make {target} +#(.*)$", README, re.M)
    assert lines or target == "test-lab"
    assert all(re.findall(r"(\d+) minutes", line) == [limit] for line in lines)


class Table(NamedTuple):
    """A table of a page below docs/: in a section that a benchmark writes, or anywhere."""

    page: str
    section: str = ""

    def value(self, row: str, column: str | int) -> float:
        """The first number of a cell, which the beginning of its row and its column name."""
        text = (ROOT / "docs" / self.page).read_text()
        if self.section:
            start, end = (f"<!-- {mark}: {self.section} -->" for mark in ("begin", "end"))
            text = text.split(start, 1)[1].split(end, 1)[0]
        values = set()
        for lines in re.findall(r"(?:^\|.*\n)+", text, re.M):
            head, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")]
                           for line in lines.splitlines()]  # fmt: skip
            if isinstance(column, str) and column not in head:
                continue
            at = head.index(column) if isinstance(column, str) else column
            values |= {cells[at] for cells in rows if " | ".join(cells).startswith(row)}
        (cell,) = values
        (number, *_) = re.findall(r"-?\d[\d,]*(?:\.\d+)?", cell)
        return float(number.replace(",", ""))


class Figure(NamedTuple):
    """A number of a page's prose, at the place of ``{}``, and its cell of a table.

    ``over``: the number is a ratio to this column; ``plus``: a sum with it.
    """

    page: str
    text: str
    table: Table
    row: str
    column: str | int
    scale: float = 1
    over: str = ""
    plus: int = 0


COSTS = Table("dev/benchmarks.md", "card costs")
READ, WRITE, SMALL = "1 MiB O_DIRECT read", "1 MiB O_DIRECT write", "4 KiB random O_DIRECT read |"
OURS = "nfsrdma : kernel's"
LAYERS = Table("dev/benchmarks.md", "card layers")
COUNTS = Table("dev/benchmarks.md", "instructions")
WIRES = Table("dev/benchmarks.md", "wires")
PROBES = Table("dev/cost-of-observation.md")
MEASURED = Table("dev/how-it-was-measured.md")
HOSTILE = Table("dev/testing-the-module.md")
PARAMETERS = Table("reference/module-parameters.md")
OVERHEAD = Table("explanation/overhead.md")
PAPERS, BENCHMARKS = "docs/explanation/papers.md", "docs/dev/benchmarks.md"
FIGURES = (
    Figure("CHANGELOG.md", "a direct read of 1 MiB costs {} of the", COSTS, READ, OURS),
    Figure("CHANGELOG.md", "a direct write {}, a read of 4 KiB", COSTS, WRITE, OURS),
    Figure("CHANGELOG.md", "a read of 4 KiB {}.", COSTS, SMALL, OURS),
    Figure("CHANGELOG.md", "starts from a snapshot in {} s", MEASURED, "`nfsrdma lab up`", "time"),
    Figure("docs/tutorial.md", "Later starts take {} seconds", MEASURED, "`nfsrdma lab up`", 1),
    Figure("CHANGELOG.md", "that send {} hand-made messages", HOSTILE, "hand-made messages", 1),
    Figure("CHANGELOG.md", "messages and {} replies", HOSTILE, "hand-made replies", 1),
    Figure(PAPERS, "the kernel's module takes {} and", COSTS, READ, "kernel's",
           over="TCP as in 2003"),
    Figure(PAPERS, "TCP as in 2003, and {} and", COSTS, READ, "kernel's", over="TCP"),
    Figure(PAPERS, "nfsrdma {} of the instructions of TCP as in 2003", COSTS, READ,
           "nfsrdma : TCP as in 2003"),
    Figure(PAPERS, "and {} of those of TCP with today's offloads", COSTS, READ, "nfsrdma : TCP"),
    Figure(PAPERS, "costs {} million instructions in place", COSTS, READ, "TCP", 1e-3),
    Figure(PAPERS, "in place of {} million.", COSTS, READ, "TCP as in 2003", 1e-3),
    Figure(PAPERS, "RDMA with {} % of the CPU", WIRES, "1 Gb/s", "RDMA, CPU busy"),
    Figure(PAPERS, "the CPU, TCP with {} %", WIRES, "1 Gb/s", "TCP, CPU busy"),
    Figure(PAPERS, "TCP as in 2003 with {} %", WIRES, "1 Gb/s", "TCP as in 2003, CPU busy"),
    # MB/s of the CPU's share, 125 of which are a Gb/s
    Figure(PAPERS, "the limit: at {} Gb/s", WIRES, "25 Gb/s", "TCP as in 2003, MB/s", 0.8,
           over="TCP as in 2003, CPU busy"),
    Figure(PAPERS, "at {} Gb/s for TCP, at", WIRES, "25 Gb/s", "TCP, MB/s", 0.8,
           over="TCP, CPU busy"),
    Figure(PAPERS, "at {} Gb/s for RDMA", WIRES, "25 Gb/s", "RDMA, MB/s", 0.8,
           over="RDMA, CPU busy"),
    Figure(BENCHMARKS, "the copy of a MiB is {} thousand instructions by", COUNTS,
           "1 MiB O_DIRECT read | nfsrdma", "copy"),
    Figure(BENCHMARKS, "A 4 KiB read takes {} thousand instructions", COSTS, SMALL, "nfsrdma"),
    Figure(BENCHMARKS, "by the [profile](#layers) {} are scheduling", LAYERS, "scheduling | 32.2",
           "nfsrdma"),
    Figure(BENCHMARKS, "are scheduling and {} sunrpc", LAYERS, "sunrpc | 25.3", "nfsrdma"),
    Figure("docs/explanation/modelled-card.md", "own work is {} % of the instructions", COUNTS,
           "4 KiB random O_DIRECT read | nfsrdma", 6, plus=8),
    Figure("docs/explanation/modelled-card.md", "and {} % for 1 MiB", COUNTS,
           "1 MiB O_DIRECT read | nfsrdma", 6, plus=8),
    Figure("docs/how-to/trace.md", "together cost {} % of the instructions", PROBES,
           "chunks and registrations", "more"),
    Figure("docs/how-to/trace.md", "all probe sets {} %, and", PROBES, "all of them | 194", "more"),
    Figure("docs/how-to/sweep.md", "cost a read of 4 KiB about {} % of its", PROBES,
           "chunks and registrations", "more"),
    Figure("docs/how-to/live.md", "Probes cost CPU time: {} % of the", PROBES, "all of them | 194",
           "more"),
    Figure("docs/how-to/live.md", "The process itself takes {} % of a CPU", PROBES, "all | 1 |",
           "of that CPU"),
    Figure("docs/explanation/racing.md", "a race takes {} to", MEASURED,
           "paper2003 | 0.2% | none | even | racing", "mean trials"),
    Figure("docs/explanation/racing.md", "to {} of them where runs", MEASURED,
           "measured | 0.2% | none | even | racing", "mean trials"),
    Figure("docs/explanation/racing.md", "and {} where they differ by 8 %", MEASURED,
           "flat | 8.0% | none | even | racing", "mean trials"),
    Figure("docs/dev/how-it-was-measured.md", "takes {} of 96 trials on the surface", MEASURED,
           "measured | 0.2% | none | even | racing", "mean trials"),
    Figure("docs/dev/how-it-was-measured.md", "and {} where the optimum is sharper", MEASURED,
           "sharp | 0.2% | none | even | racing", "mean trials"),
    Figure("docs/explanation/overhead.md", "over TCP each byte costs {} ±", OVERHEAD,
           "TCP | client", "ns per byte"),
    Figure("docs/explanation/overhead.md", "± {} instructions", OVERHEAD, "TCP | client", 3),
    Figure("docs/explanation/overhead.md", "the fit is {} ±", OVERHEAD,
           "RDMA | client", "ns per byte"),
    Figure("docs/explanation/overhead.md", "± {}: less than", OVERHEAD, "RDMA | client", 3),
    Figure("docs/explanation/overhead.md", "speed: {} KiB without the emulated", OVERHEAD,
           "RDMA | host |", "enough for 125.0 MB/s from"),
    Figure("docs/explanation/overhead.md", "work, {} KiB with it", OVERHEAD,
           "RDMA | host with emulated NIC", "enough for 125.0 MB/s from"),
    Figure("docs/explanation/optimistic-reads.md", "(`optimistic_spin_us`, {} us)", PARAMETERS,
           "`optimistic_spin_us`", "default"),
    Figure("docs/explanation/optimistic-reads.md", "`optimistic_lifetime` only, {} seconds",
           PARAMETERS, "`optimistic_lifetime`", "default"),
    Figure("docs/how-to/forty-clients.md", "`server_connections` ({}) bounds", PARAMETERS,
           "`server_connections`", "default"),
)  # fmt: skip


# pages for those who use the program; those for developers have ratios of their own runs
FOR_USERS = [
    page.relative_to(ROOT) for page in PAGES if (ROOT / "docs" / "dev") not in page.parents
]
USERS = ("CHANGELOG.md", *map(str, FOR_USERS))


def prose(page: str) -> str:
    """A page without its tables, blocks of code and generated sections, in one line."""
    text = re.sub(r"<!-- begin: .*?<!-- end: ", "", (ROOT / page).read_text(), flags=re.S)
    text = re.sub(r"^```.*?^```$|^\|[^\n]*$", "", text, flags=re.M | re.S)
    return " ".join(text.split())


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: f"{figure.page}: {figure.text}")
def test_a_figure_is_that_of_its_table(figure: Figure) -> None:
    before, after = map(re.escape, figure.text.split("{}"))
    (number,) = re.findall(rf"{before}(-?\d+(?:\.\d+)?){after}", prose(figure.page))
    digits = len(number.partition(".")[2])
    value = figure.table.value(figure.row, figure.column) * figure.scale
    if figure.over:
        value /= figure.table.value(figure.row, figure.over)
    if figure.plus:
        value += figure.table.value(figure.row, figure.plus)
    assert number == f"{value:.{digits}f}"


# versions of libraries, and figures that stand in no table
NO_RATIOS = {
    "CHANGELOG.md": {"0.27", "0.15"},
    "docs/how-to/trace.md": {"0.31"},
    "docs/explanation/instruction-clock.md": {"0.16", "0.19", "0.95"},
}


@pytest.mark.parametrize("page", USERS)
def test_each_ratio_is_compared(page: str) -> None:
    ratios = set(re.findall(r"(?<![\d.])0\.\d\d(?![\d.])", prose(page)))
    texts = [re.escape(figure.text) for figure in FIGURES if figure.page == page]
    compared = {
        number
        for text in texts
        for number in re.findall(text.replace(r"\{\}", r"-?([\d.]+\d)"), prose(page))
    }
    assert ratios - compared <= NO_RATIOS.get(page, set())


def test_two_boots_differ_by_what_was_measured() -> None:
    measured = (ROOT / "docs" / "dev" / "how-it-was-measured.md").read_text()
    boots = measured.split("## Two boots agree", 1)[1].split("\n## ", 1)[0]
    (percent,) = re.findall(r"median difference ([\d.]+)%", boots)
    assert f"is [{percent} %]" in prose("docs/explanation/instruction-clock.md")
    assert f"differ by {float(percent):.2f} % (median)" in prose("CHANGELOG.md")
