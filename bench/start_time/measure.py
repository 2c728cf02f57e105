# SPDX-License-Identifier: Apache-2.0
"""How long `nfsrdma --help` takes, as a multiple of importing typer alone.

Runs both in turns, so that load on the machine affects both alike, and prints the median of the
ratios within a pair.
"""

import statistics
import subprocess
import sys
import time

HELP = (sys.executable, "-m", "nfsrdma_tools", "--help")
TYPER = (sys.executable, "-c", "import typer")


def seconds(argv: tuple[str, ...]) -> float:
    """The time that a program takes."""
    start = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main(pairs: int = 20) -> None:
    """Time nfsrdma --help beside an import of typer."""
    times = [(seconds(HELP), seconds(TYPER)) for _ in range(pairs)]
    helps, imports = (statistics.median(column) * 1000 for column in zip(*times, strict=True))
    ratio = statistics.median(whole / bare for whole, bare in times)
    print(f"nfsrdma --help: {helps:.0f} ms; import typer: {imports:.0f} ms; ratio {ratio:.2f}")
