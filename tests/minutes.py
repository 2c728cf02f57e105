# SPDX-License-Identifier: Apache-2.0
"""Write the minutes of each test file into docs/dev/testing.md: ``TARGET=LOG``, or no log.

A log is what ``make TARGET DURATIONS=0`` printed. Logs of one target add up, a later log of the
same test replaces an earlier one. Minutes on the page stay unless a log replaces them, so without
a log only the list of files changes. A file that has tests in a tier, and no minutes, is marked.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

__all__ = ["kept", "main", "minutes", "table"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "dev" / "testing.md"
START, END = "<!-- table: python -m minutes -->", "<!-- end of the table -->"
TIERS = ("test", "test-lab", "test-nightly")
# targets that run a part of a tier; all others are parts of test-nightly
PARTS = {"unit": "test", "test-main": "test"}
UNMEASURED = "not measured"
COMMAND = re.compile(r"^\* `make (\S+) DURATIONS=0`, .*", re.MULTILINE)
ROW = re.compile(r"^\| (tests/\S+) \|(.*)\|$", re.MULTILINE)
# one phase of one test; xdist adds the group to the name
PHASE = re.compile(r"^(\d+\.\d+)s (setup|call|teardown) +((tests/\S+?\.py)::.*?)(?:@[\w-]+)?$")
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


def kept(page: str) -> dict[str, dict[str, float]]:
    """Minutes by tier and file that the table of the page has."""
    found: dict[str, dict[str, float]] = {tier: {} for tier in TIERS}
    for row in ROW.finditer(page):
        for tier, cell in zip(TIERS, row[2].split("|"), strict=True):
            if re.fullmatch(r"\d+\.\d+", cell.strip()):
                found[tier][row[1]] = float(cell)
    return found


def tier_of(target: str) -> str:
    """The tier that a target of the Makefile belongs to."""
    return target if target in TIERS else PARTS.get(target, "test-nightly")


def files(*words: str) -> set[str]:
    """The test files that hold a test that pytest selects by these words."""
    argv = (sys.executable, "-m", "pytest", "--collect-only", "-q", *words)
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^(tests/\S+?\.py)::", said, re.MULTILINE))


def table(
    tiers: dict[str, dict[str, float]], held: dict[str, set[str]], rest: dict[str, float | None]
) -> list[str]:
    """The lines of a table in Markdown: each file, and its minutes in each tier that it is in.

    ``rest`` is for files that the logs of a tier do not name.
    """
    rows = [
        [file, *(_cell(tiers[t].get(file, rest[t]), file in held[t]) for t in TIERS)]
        for file in sorted(set().union(*held.values()))
    ]
    total = ["in all", *(f"{sum(tiers[t].values()):.1f}" if tiers[t] else "" for t in TIERS)]
    head = ["file", *(f"`make {tier}`" for tier in TIERS)]
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows, total)]


def _cell(minutes: float | None, has_tests: bool) -> str:
    if not has_tests:
        return ""
    return UNMEASURED if minutes is None else f"{minutes:.2f}"


def read(words: list[str]) -> tuple[dict[str, Phases], list[str]]:
    """The phases of each tier, and the commands with the state of the machine."""
    tiers: dict[str, Phases] = {tier: {} for tier in TIERS}
    commands = []
    for word in words:
        target, _, path = word.partition("=")
        log = Path(path).read_text()
        tiers[tier_of(target)].update(phases(log))
        machines = [line for line in log.splitlines() if MACHINE.match(line)]
        commands += [f"* `make {target} DURATIONS=0`, {line}" for line in machines]
    return tiers, commands


def main(words: list[str]) -> None:
    """Replace what stands between the marks of the page."""
    page = PAGE.read_text()
    tiers, commands = read(words)
    held = {
        "test": files("tests/unit") | files("-m", "main", "tests/lab"),
        "test-lab": files("-m", "not main and not nightly", "tests/lab"),
        "test-nightly": files("--long", "-m", "nightly", "tests/lab"),
    }
    # the log of a whole tier leaves out what took less than 10 ms, and replaces all of the tier
    whole = {word.partition("=")[0] for word in words}
    rest = {tier: 0.0 if tier in whole else None for tier in TIERS}
    old = {tier: {} if tier in whole else found for tier, found in kept(page).items()}
    old = {t: {f: n for f, n in found.items() if f in held[t]} for t, found in old.items()}
    lines = table({t: old[t] | minutes(found) for t, found in tiers.items()}, held, rest)
    stay = [line[0] for line in COMMAND.finditer(page) if tier_of(line[1]) not in whole]
    before, _, behind = page.partition(START)
    after = behind.partition(END)[2]
    PAGE.write_text("\n".join((before + START, *stay, *commands, "", *lines, END)) + after)


if __name__ == "__main__":
    main(sys.argv[1:])
