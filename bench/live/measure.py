# SPDX-License-Identifier: Apache-2.0
"""Cost of the dashboard, and whether its memory grows.

On the instruction clock: one machine with many mounts, one of which is read from, a dashboard, and
its clients.  CPU time of the dashboard's process and all its threads is instructions.
"""

from __future__ import annotations

import json
from pathlib import Path

from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab

# from this many seconds on, main() also prints the memory of each minute
_LONG = 600


def main(mounts: int = 64, seconds: int = 60, kernel: str = KERNELS[0], only: str = "") -> None:
    """Run the dashboard; ``only``: PROBES:LISTENERS, for example all:1."""
    script = Path(__file__).with_name("live_node.py").read_bytes()
    with Lab(LabConfig("bench-live", clock="instructions", link="none", kernel=kernel)) as lab:
        argv = ("solo", "python3", "-", str(mounts), str(seconds), *([only] if only else []))
        output = lab.run(*argv, stdin=script, timeout=14400).stdout
        lab.check()
    print(
        f"{'probes':8}{'listen':>8}{'of a CPU':>10}{'snapshot':>12}{'period':>20}{'memory at':>22}"
    )
    for line in output.splitlines():
        row = json.loads(line)
        period = f"{row['period']:.3f} s, {row['worst']:.3f}"
        memory = f"{row['memory'][0]:.1f}, {row['memory'][-1]:.1f} MiB"
        print(
            f"{row['probes']:8}{row['listeners']:8}{row['share']:10.2%}"
            f"{row['snapshot_ms']:9.2f} ms{period:>20}{memory:>22}"
        )
        if seconds >= _LONG:
            print("MiB by the minute:", *(f"{size:.1f}" for size in row["memory"]))
