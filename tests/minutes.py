# SPDX-License-Identifier: Apache-2.0
"""Write the minutes of each test file into docs/dev/testing.md: ``TARGET=LOG``, one or more.

A log is what ``make TARGET DURATIONS=0`` printed. Logs of one target add up, a later log of the
same test replaces an earlier one.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

__all__ = ["main", "minutes", "table"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "dev" / "testing.md"
START, END = "<!-- table: python -m minutes -->", "<!-- end of the table -->"
TIERS = ("test", "test-lab", "test-nightly")
# one phase of one test; xdist adds the group to the name
PHASE = re.compile(r"^(\d+\.\d+)s (setup|call|teardown) +((tests/\S+?\.py)::.*?)(?:@\w+)?$")
MACHINE = re.compile(r"^machine: .*")
Phases = dict[tuple[str, str, str], float]


def phases(log: str) -> Iterator[tuple[tuple[str, str, str], float]]:
    """File, test and phase, and its seconds, of each line of a ``--durations=0`` list."""
    for line in log.splitlines():
        if match := PHASE.match(line):
            seconds, phase, test, file = match.groups()
            yield (file, test, phase), float(seconds)


def minutes(found: Phases) -> dict[str, float]:
    """Minutes by file."""
    sums: dict[str, float] = defaultdict(float)
    for (file, _, _), seconds in found.items():
        sums[file] += seconds / 60
    return dict(sums)


def table(tiers: dict[str, dict[str, float]], files: list[str]) -> list[str]:
    """The lines of a table in Markdown: each file, and its minutes in each tier."""
    rows = [
        [file, *(f"{tiers[t][file]:.2f}" if file in tiers[t] else "" for t in TIERS)]
        for file in sorted(files)
    ]
    total = ["in all", *(f"{sum(tiers[t].values()):.1f}" for t in TIERS)]
    head = ["file", *(f"`make {tier}`" for tier in TIERS)]
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows, total)]


def read(words: list[str]) -> tuple[dict[str, Phases], list[str]]:
    """The phases of each tier, and the commands with the state of the machine."""
    tiers: dict[str, Phases] = {tier: {} for tier in TIERS}
    commands = []
    for word in words:
        target, _, path = word.partition("=")
        log = Path(path).read_text()
        tier = target if target in TIERS else "test-nightly"
        tiers[tier].update(phases(log))
        machines = [line for line in log.splitlines() if MACHINE.match(line)]
        commands += [f"* `make {target} DURATIONS=0`, {line}" for line in machines]
    return tiers, commands


def main(words: list[str]) -> None:
    """Replace what stands between the marks of the page."""
    tiers, commands = read(words)
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    lines = table({tier: minutes(found) for tier, found in tiers.items()}, files)
    before, rest = PAGE.read_text().split(START)
    after = rest.partition(END)[2]
    PAGE.write_text("\n".join((before + START, *commands, "", *lines, END)) + after)


if __name__ == "__main__":
    main(sys.argv[1:])
