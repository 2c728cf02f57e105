# SPDX-License-Identifier: Apache-2.0
"""Part of bench/explain.py: explains logs with the package of one tree.

``python -m bench.explain_load`` explains standard input, and prints the CPU time in seconds, the
peak of its memory in bytes, and digests of what it explained, as JSON.  With files as arguments,
calls of getppid() mark the reading of each for Valgrind.  It imports only what the trees of both
commits have.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import time
from pathlib import Path

from nfsrdma_tools.host.kernel_log.explain import Log, read_log
from nfsrdma_tools.host.kernel_log.lines import lines_of


def digests(log: Log) -> dict[str, str]:
    """By field of the entries: a text that is the same for the same values."""
    entries = [dataclasses.asdict(entry) for entry in log.entries]
    values = {name: [entry[name] for entry in entries] for name in (entries[0] if entries else ())}
    values["log"] = [log.lines, log.has_known_form, log.withheld]
    return {name: hashlib.sha256(repr(of).encode()).hexdigest()[:16] for name, of in values.items()}


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
    log = read_log(lines_of(sys.stdin.buffer))
    spent = time.process_time() - begun
    # ru_maxrss counts the memory of the parent before exec(), too
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    print(json.dumps({"seconds": spent, "bytes": peak, "digests": digests(log)}))


if __name__ == "__main__":
    main()
