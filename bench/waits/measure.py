# SPDX-License-Identifier: Apache-2.0
"""How long a change waits for clients that may read the file.

On the instruction clock, over the modelled card: opens for writing of files that have grants, with
clients whose card is late by various times.  The table goes to
docs/explanation/optimistic-reads.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import markdown
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.labs import OURS, serve

SCRIPT = (
    Path(__file__).parents[2].joinpath("tests", "lab", "nodes", "optimistic_node.py").read_bytes()
)
CASES = (
    "answers at once",
    "answers 1 ms late",
    "answers 90 ms late",
    "answers 90 ms late, while all its grants expire",
    "answers 90 ms late on four connections",
    "does not answer",
)
OPENS = 64
PAGE = markdown.PAGE.parents[1] / "explanation" / "optimistic-reads.md"
HEAD = ("the client's card", "its grants", "opens", "longest, ms", "all, ms", "longer than 5 ms",
        "pages granted afterwards")  # fmt: skip


def on(lab: Lab, *words: str) -> Any:
    output = lab.run("solo", "python3", "-", *words, stdin=SCRIPT, timeout=7200).stdout
    print(words, output, flush=True)
    return json.loads(output)


def rows(clients: dict[str, dict[str, float]]) -> list[tuple[object, ...]]:
    return [
        (name, each["grants"], each["opens"], f"{each['max']:.1f}", f"{each['sum']:.0f}",
         each["waited"], each["left"])
        for name, each in clients.items()
    ]  # fmt: skip


def main(kernel: str = KERNELS[0], files: int = 4096) -> None:
    """Measure the waits of changes of a number of files."""
    config = LabConfig(
        "bench-waits", clock="instructions", link="none", kernel=kernel, memory=4608, nic="card"
    )
    clients: dict[str, dict[str, float]] = {}
    with Lab(config) as lab:
        serve(lab, "solo", OURS)
        for name in ("personality", "server_personalities"):
            path = f"/sys/module/nfsrdma/parameters/{name}"
            lab.run("solo", "sh", "-c", f"echo optimistic > {path}")
        about = markdown.conditions(
            lab, "card", f'make bench NAME=waits ARGS="--files {files}"', link=False
        )
        for case in CASES:
            clients |= on(lab, "waits", str(files), str(OPENS), case)["clients"]
        lab.check()
    markdown.write("optimistic waits", [*markdown.table([HEAD, *rows(clients)]), "", about], PAGE)
