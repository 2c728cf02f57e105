# SPDX-License-Identifier: Apache-2.0
"""Instructions of parts of a Python program, counted by Valgrind on this host."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["parts"]


def parts(number: int, argv: tuple[str, ...]) -> list[int]:
    """The instructions of ``number`` parts of the main thread of ``python *argv``.

    The program calls os.getppid() at the begin and at the end of each part.
    CalledProcessError if it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "count"
        command = (
            "valgrind", "-q", "--tool=callgrind", "--separate-threads=yes", "--fair-sched=yes",
            "--dump-before=getppid", f"--callgrind-out-file={out}", sys.executable, *argv,
        )  # fmt: skip
        # the order of sets, too, is that of each run
        known = {**os.environ, "PYTHONHASHSEED": "0"}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=known)
        # each second part is between two of the parts
        return [_total(Path(f"{out}.{2 * part}-01")) for part in range(1, number + 1)]


def _total(file: Path) -> int:
    return next(int(line.split()[1]) for line in file.open() if line.startswith("totals:"))
