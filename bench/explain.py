# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of ``nfsrdma explain`` by kind of log beside that of a commit.

``make bench-explain COMMIT=...`` feeds logs of each kind of bench/explain_logs.py through a pipe to
both trees, in turns, and compares what they explain.  CPU time is that of the reader alone.  If
Valgrind is installed, it counts the instructions of shorter logs of the same kinds.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import callgrind, page
from bench.commits import ROOT, program, unpack
from bench.explain_logs import KINDS, block

TURNS = 2
"""Turns of each tree, by turns with the other: a drift of the host's speed adds to both."""
COUNTED = 1 << 18
"""Bytes of a log whose instructions are counted, less a quarter of them."""


LONG = 500
"""Megabytes of a log that shows how memory grows."""


class Cost(NamedTuple):
    """Of a log of one kind, read by one tree."""

    seconds: float
    """Of CPU time, for 100 MB."""
    memory: int
    """The peak, in bytes."""
    digests: dict[str, str]
    """Of what it explains, by field."""
    instructions: float = 0
    """Of a byte; 0 without Valgrind."""


def environment(tree: Path) -> dict[str, str]:
    # the package of the tree, and today's bench
    return {"PYTHONPATH": f"{tree}{os.pathsep}{ROOT}"}


def cost(tree: Path, kind: str, size: int) -> Cost:
    """The cost of one reading; the log comes through a pipe."""
    argv = (sys.executable, "-P", "-m", "bench.explain_load")
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment(tree)}
    ) as reader:
        assert reader.stdin
        assert reader.stdout
        for piece in block(kind, size):
            reader.stdin.write(piece)
        reader.stdin.close()
        found = json.loads(reader.stdout.read())
    return Cost(found["seconds"] * 1e8 / size, found["bytes"], found["digests"])


def instructions(tree: Path, kinds: Sequence[str], folder: Path) -> dict[str, float]:
    """Instructions of a byte of each kind: of a long log less those of a short one."""
    # the first reading of a kind also imports what its meanings need
    sizes = (COUNTED // 4, COUNTED // 4, COUNTED)
    files = [folder / f"{number}" for number in range(len(kinds) * len(sizes))]
    for file, (kind, size) in zip(
        files, ((kind, size) for kind in kinds for size in sizes), strict=True
    ):
        file.write_bytes(b"".join(block(kind, size)))
    argv = ("-P", "-m", "bench.explain_load", *map(str, files))
    counts = iter(callgrind.parts(len(files), argv, environment(tree)))
    of_kinds = zip(counts, counts, counts, strict=True)
    return {
        kind: (long - short) / (sizes[2] - sizes[1])
        for kind, (_, short, long) in zip(kinds, of_kinds, strict=True)
    }


def measure(
    trees: Mapping[str, Path], kinds: Sequence[str], size: int, *, counted: bool
) -> dict[str, dict[str, Cost]]:
    """The costs by kind and tree: the least CPU time, the highest peak of memory."""
    found: dict[str, dict[str, Cost]] = {}
    for kind in kinds:
        turns = [{name: cost(tree, kind, size) for name, tree in trees.items()}
                 for _ in range(TURNS)]  # fmt: skip
        found[kind] = {
            name: Cost(
                min(turn[name].seconds for turn in turns),
                max(turn[name].memory for turn in turns),
                turns[0][name].digests,
            )
            for name in trees
        }
        print(table({kind: found[kind]})[-1], flush=True)
    if counted:
        for name, tree in trees.items():
            with tempfile.TemporaryDirectory() as folder:
                by_kind = instructions(tree, kinds, Path(folder))
            for kind in kinds:
                found[kind][name] = found[kind][name]._replace(instructions=by_kind[kind])
    return found


def table(found: Mapping[str, Mapping[str, Cost]]) -> list[str]:
    """The rows of all kinds, the tree of the commit before today's."""
    then, now = next(iter(found.values()))
    counted = any(cost.instructions for costs in found.values() for cost in costs.values())
    counts = [f"instructions per byte, {then}", now, "ratio"] if counted else []
    rows: list[list[str]] = [
        ["log", f"s per 100 MB, {then}", now, "ratio", *counts, f"peak, MiB, {then}", now,
         "explanation"]
    ]  # fmt: skip
    for kind, costs in found.items():
        old, new = costs[then], costs[now]
        if counted:
            counts = [f"{old.instructions:,.0f}", f"{new.instructions:,.0f}",
                      f"{new.instructions / old.instructions:.2f}"]  # fmt: skip
        rows.append(
            [kind, f"{old.seconds:.1f}", f"{new.seconds:.1f}", f"{new.seconds / old.seconds:.2f}",
             *counts, f"{old.memory / 2**20:.0f}", f"{new.memory / 2**20:.0f}",
             _compared(old.digests, new.digests)]
        )  # fmt: skip
    return page.table(rows)


def _compared(old: dict[str, str], new: dict[str, str]) -> str:
    """Whether two explanations say the same in all fields that both have, and where they differ."""
    differ = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    if "name" in differ:
        return "other entries"
    return f"differs: {', '.join(differ)}" if differ else "same"


def main() -> None:
    commit, megabytes, *only = sys.argv[1:]
    if not commit:
        raise SystemExit("name the commit to compare with: make bench-explain COMMIT=b4889e47")
    if unknown := set(only) - set(KINDS):
        raise SystemExit(f"no such log: {', '.join(sorted(unknown))}; logs: {', '.join(KINDS)}")
    counted = bool(shutil.which("valgrind"))
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        unpack(commit, tree, "nfsrdma_tools")
        load = os.getloadavg()[0]
        trees = {commit: tree, "today": ROOT}
        found = measure(trees, only or list(KINDS), int(megabytes) * 1_000_000, counted=counted)
    how = f", {program('valgrind', '--version').strip()}" if counted else ""
    named = f" ONLY={shlex.quote(shlex.join(only))}" if only else ""
    about = (
        f"`make bench-explain COMMIT={commit} MEGABYTES={megabytes}{named}`, least of {TURNS}"
        f" turns{how}, Python {platform.python_version()}, {platform.machine()}, load average"
        f" {load:.1f} on {os.cpu_count()} processors, {datetime.datetime.now(datetime.UTC).date()}."
    )
    lines = table(found)
    print(about, *lines, sep="\n")
    if not only:
        page.write("explain", [about, "", *lines])
    elif int(megabytes) >= LONG:
        page.write("explain-long", [about, "", *lines])


if __name__ == "__main__":
    main()
