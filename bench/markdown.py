# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of benchmarks into docs/dev/benchmarks.md, or into another page."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Sequence
from pathlib import Path

from nfsrdma_tools.lab import kernels
from nfsrdma_tools.lab.config import KERNELS, clock_name
from nfsrdma_tools.lab.lab import Lab

__all__ = ["conditions", "head", "ratio", "row", "table", "update", "write"]

PAGE = Path(__file__).parents[1] / "docs" / "dev" / "benchmarks.md"


def row(cells: Sequence[object]) -> str:
    """A row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def head(cells: Sequence[object]) -> list[str]:
    """The first row of a table, and the line below it."""
    return [row(cells), row(["---"] * len(cells))]


def table(rows: Sequence[Sequence[object]]) -> list[str]:
    """A table; the first row has the names of the columns."""
    return [*head(rows[0]), *map(row, rows[1:])]


def ratio(values: Sequence[float]) -> str:
    """The median of the rounds' ratios, with their range if there are several."""
    spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return f"{statistics.median(values):.3f}{spread}"


def conditions(lab: Lab, nic: str, command: str, *, link: bool = True) -> str:
    """The conditions of a table: command, device, kernel, clock, link, QEMU, day.

    ``link=False`` omits the link, for cells with links of their own.
    """
    facts = lab.facts
    wire = f"link {facts['link']}, " if link else ""
    device = {"card": "modelled card", "rxe": "soft-RoCE"}[nic]
    return (
        f"`{command}`, {device}, Linux {kernels.find(lab.config.kernel).release}, "
        f"{clock_name(facts['clock'])}, {wire}QEMU {facts['qemu'].split()[0]}, "
        f"{datetime.datetime.now(datetime.UTC).date()}."
    )


def update(kernel: str, name: str, lines: Sequence[str]) -> None:
    """Write a section of the page: that of this kernel, or print that there is none."""
    section = name if kernel == KERNELS[0] else f"{name}, Linux {kernel}"
    if _start(section) in PAGE.read_text():
        write(section, lines, PAGE)
    else:
        print(f"not written, because the page has no such section: {section}. {lines[0]}")


def _start(name: str) -> str:
    return f"<!-- begin: {name} -->\n"


def write(name: str, lines: Sequence[str], path: Path = PAGE) -> None:
    """Replace the lines between the marks of a section of a page."""
    text = path.read_text()
    start, end = _start(name), f"<!-- end: {name} -->"
    if start not in text or end not in text:
        raise SystemExit(f"{path}: no section {name}: add the lines {start.strip()} and {end}")
    before, rest = text.split(start, 1)
    after = rest.split(end, 1)[1]
    path.write_text(
        "".join((before, start, "\n", *(f"{each}\n" for each in lines), "\n", end, after))
    )
