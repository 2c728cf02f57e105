# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of ``nfsrdma explain`` by kind of log.

Logs of each kind of logs.py go through a pipe to the reader, and CPU time is that of the reader
alone.  If Valgrind is installed, it counts the instructions of shorter logs of the same kinds.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import callgrind, markdown
from nfsrdma_tools.command import run
from testbed.kernel_logs import KINDS, block

TURNS = 2
COUNTED = 1 << 18
"""Bytes of a log whose instructions are counted, less a quarter of them."""


LONG = 500
"""Megabytes of a log that shows how memory grows."""


class Cost(NamedTuple):
    """Of a log of one kind."""

    seconds: float
    """Of CPU time, for 100 MB."""
    memory: int
    """The peak, in bytes."""
    instructions: float = 0
    """Of a byte; 0 without Valgrind."""


def cost(kind: str, size: int) -> Cost:
    """The cost of one reading; the log comes through a pipe."""
    argv = (sys.executable, "-m", "bench.explain.load")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin
        assert reader.stdout
        for piece in block(kind, size):
            reader.stdin.write(piece)
        reader.stdin.close()
        usage = json.loads(reader.stdout.read())
    return Cost(usage["seconds"] * 1e8 / size, usage["bytes"])


def instructions(kinds: Sequence[str], folder: Path) -> dict[str, float]:
    """Instructions of a byte of each kind: of a long log less those of a short one."""
    # the first reading of a kind also imports what its meanings need
    sizes = (COUNTED // 4, COUNTED // 4, COUNTED)
    files = [folder / f"{number}" for number in range(len(kinds) * len(sizes))]
    for file, (kind, size) in zip(
        files, ((kind, size) for kind in kinds for size in sizes), strict=True
    ):
        file.write_bytes(b"".join(block(kind, size)))
    argv = ("-m", "bench.explain.load", *map(str, files))
    counts = iter(callgrind.parts(len(files), argv))
    of_kinds = zip(counts, counts, counts, strict=True)
    return {
        kind: (long - short) / (sizes[2] - sizes[1])
        for kind, (_, short, long) in zip(kinds, of_kinds, strict=True)
    }


def measure(kinds: Sequence[str], size: int, *, counted: bool) -> dict[str, Cost]:
    """The costs by kind: the least CPU time, the highest peak of memory."""
    costs = {}
    for kind in kinds:
        turns = [cost(kind, size) for _ in range(TURNS)]
        costs[kind] = Cost(min(turn.seconds for turn in turns), max(turn.memory for turn in turns))
        print(kind, costs[kind], flush=True)
    if counted:
        with tempfile.TemporaryDirectory() as folder:
            by_kind = instructions(kinds, Path(folder))
        costs = {kind: costs[kind]._replace(instructions=by_kind[kind]) for kind in kinds}
    return costs


def table(costs: Mapping[str, Cost]) -> list[str]:
    rows: list[list[str]] = [["log", "s per 100 MB", "instructions per byte", "peak, MiB"]]
    rows += [
        [kind, f"{cost.seconds:.1f}", f"{cost.instructions:,.0f}" if cost.instructions else "",
         f"{cost.memory / 2**20:.0f}"]
        for kind, cost in costs.items()
    ]  # fmt: skip
    return markdown.table(rows)


def main(megabytes: int = 4, only: str = "") -> None:
    """Explain logs of some megabytes each; ``only``: kinds, with commas between them.

    500 megabytes show the memory of a long log.  Needs no lab.
    """
    kinds = only.split(",") if only else list(KINDS)
    if unknown := set(kinds) - set(KINDS):
        raise SystemExit(f"no such log: {', '.join(sorted(unknown))}; logs: {', '.join(KINDS)}")
    counted = bool(shutil.which("valgrind"))
    load = os.getloadavg()[0]
    costs = measure(kinds, megabytes * 1_000_000, counted=counted)
    how = f", {run('valgrind', '--version').stdout.strip()}" if counted else ""
    about = (
        f"`make bench NAME=explain`, {megabytes} MB of each log, least of {TURNS} turns{how}, "
        f"Python {platform.python_version()}, {platform.machine()}, load average {load:.1f} on "
        f"{os.cpu_count()} processors, {datetime.datetime.now(datetime.UTC).date()}."
    )
    lines = table(costs)
    print(about, *lines, sep="\n")
    if not only:
        markdown.write("explain", [about, "", *lines])
    elif megabytes >= LONG:
        markdown.write("explain-long", [about, "", *lines])
