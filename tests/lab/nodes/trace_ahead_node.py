# SPDX-License-Identifier: Apache-2.0
"""Part of test_trace_ahead.py in a client: reads 4 MiB of 8, then drops the page cache."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.probes import probe_sets

MOUNT, SIZE, PIECE, LIMIT = Path("/mnt"), 4 << 20, 8192, 60.0
OPTIONS = "vers=4.2,proto=rdma,port=20049,rsize=65536"


def drop_caches(rows: Any) -> Any:
    """Drop the page cache until no page waits any more: one that is being read stays."""
    end = time.monotonic() + LIMIT
    while True:
        Path("/proc/sys/vm/drop_caches").write_text("3")
        found = rows()
        if not any(row["waiting"] for row in found) or time.monotonic() > end:
            return found
        time.sleep(0.2)


def main() -> None:
    subprocess.run(("mount", "-t", "nfs", "-o", OPTIONS, "10.9.1.1:/export", MOUNT), check=True)
    subprocess.run(("udevadm", "settle"), check=True)
    probe_set = probe_sets.probe_set("readahead")
    with probe_sets.attached(["readahead"]) as counting:
        before = mountstats.read(MOUNT)
        file = os.open(MOUNT / "ahead", os.O_RDONLY)
        for _ in range(SIZE // PIECE):
            assert len(os.read(file, PIECE)) == PIECE
        os.close(file)
        pages = mountstats.difference(mountstats.read(MOUNT), before).bytes.read_pages
        read = probe_set.records(probe_set.read(counting), {})
        dropped = drop_caches(lambda: probe_set.records(probe_set.read(counting), {}))
        missing = [each.event for each in counting.missing]
    print(json.dumps({"read": read, "dropped": dropped, "pages": pages, "missing": missing}))


main()
