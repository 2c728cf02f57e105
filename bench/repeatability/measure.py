# SPDX-License-Identifier: Apache-2.0
"""Whether two boots and a race agree; see docs/dev/how-it-was-measured.md."""

from __future__ import annotations

import subprocess
import sys

from bench.cells import OUT

PROGRAM = (sys.executable, "-m", "nfsrdma_tools")


def main(nic: str = "card") -> None:
    """Sweep all cells in two boots, race in a third, and compare (20 minutes)."""
    OUT.mkdir(exist_ok=True)
    stores = {OUT / "boot1.db": ["--exhaustive"], OUT / "boot2.db": ["--exhaustive"],
              OUT / "race.db": []}  # fmt: skip
    for store, options in stores.items():
        argv = (*PROGRAM, "sweep", "--lab", "--lab-nic", nic, *options, "--output", str(store))
        subprocess.run(argv, check=True)
    first, *others = stores
    for store in others:
        subprocess.run((*PROGRAM, "results", "compare", first, store), check=True)
