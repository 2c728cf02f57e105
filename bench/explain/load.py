# SPDX-License-Identifier: Apache-2.0
"""Explains logs, in a process of its own.

``python -m bench.explain.load`` explains standard input, and prints the CPU time in seconds and the
peak of its memory in bytes, as JSON.  With files as arguments, calls of getppid() mark the reading
of each for Valgrind.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from nfsrdma_tools.host.kernel_log.explain import read_log
from nfsrdma_tools.host.kernel_log.lines import lines_of


def counted(names: list[str]) -> None:
    for name in names:
        with Path(name).open("rb") as file:
            os.getppid()
            read_log(lines_of(file))
            os.getppid()


def main() -> None:
    if names := sys.argv[1:]:
        counted(names)
        return
    begun = time.process_time()
    read_log(lines_of(sys.stdin.buffer))
    spent = time.process_time() - begun
    # ru_maxrss counts the memory of the parent before exec(), too
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    print(json.dumps({"seconds": spent, "bytes": peak}))


if __name__ == "__main__":
    main()
