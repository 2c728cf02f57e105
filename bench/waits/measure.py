# SPDX-License-Identifier: Apache-2.0
"""How long a change waits for clients that may read the file.

On the instruction clock, over the modelled card: opens for writing of files that have grants, with
clients whose card is late by various times.  The table goes to
docs/explanation/optimistic-reads.md.
"""

from __future__ import annotations

from bench import markdown
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.labs import OURS, choose, serve
from testbed.node.grants import WAITS, Waits, waits_of
from testbed.remote import on

OPENS = 64
PAGE = markdown.PAGE.parents[1] / "explanation" / "optimistic-reads.md"
HEAD = ("the client's card", "its grants", "opens", "longest, ms", "all, ms", "longer than 5 ms",
        "pages granted afterwards")  # fmt: skip


@on("client", timeout=7200)
def measure(kind: str, files: int) -> Waits:
    return waits_of(kind, files, OPENS)


def row(kind: str, waits: Waits) -> tuple[object, ...]:
    opens = waits.opens
    late = sum(each > 5 for each in opens)
    times = (f"{max(opens):.1f}", f"{sum(opens):.0f}", late)
    return (kind, waits.grants, len(opens), *times, waits.left)


def main(kernel: str = KERNELS[0], files: int = 4096) -> None:
    """Measure the waits of changes of a number of files."""
    config = LabConfig(
        "bench-waits", clock="instructions", link="none", kernel=kernel, memory=4608, nic="card"
    )
    rows: list[tuple[object, ...]] = []
    with Lab(config) as lab:
        serve(lab, "solo", OURS)
        choose(lab, "optimistic")
        about = markdown.conditions(
            lab, "card", f'make bench NAME=waits ARGS="--files {files}"', link=False
        )
        for kind in WAITS:
            rows.append(row(kind, measure(lab, kind, files)))
            print(rows[-1], flush=True)
        lab.check()
    markdown.write("optimistic waits", [*markdown.table([HEAD, *rows]), "", about], PAGE)
