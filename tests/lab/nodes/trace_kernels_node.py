# SPDX-License-Identifier: Apache-2.0
"""Part of test_trace_kernels.py that runs in a machine that is client and server."""

import json
import mmap
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from nfsrdma_tools.probes import probe_sets
from nfsrdma_tools.probes.maps import lost
from nfsrdma_tools.probes.rpc_clients import clients

MOUNT, SIZE = Path("/mnt"), 65536
COUNTED = {"chunks": "rpcs", "latency": "count", "server": "calls"}
NAMES = tuple(name for name in probe_sets.NAMES if name != "cpu")


def work() -> None:
    room = mmap.mmap(-1, SIZE)
    file = os.open(MOUNT / "counted", os.O_RDWR | os.O_DIRECT)
    for turn in range(23):
        assert os.preadv(file, [room], turn * SIZE) == SIZE
    for turn in range(17):
        assert os.pwritev(file, [room], turn * SIZE) == SIZE
    os.close(file)


def moved(rows: list[dict[str, Any]], count: str) -> dict[str, int]:
    found = {row["procedure"]: row[count] for row in rows if not row.get("slowest")}
    return {name: found[name] for name in ("READ", "WRITE") if name in found}


def settled(counting: Any, known: Any) -> dict[str, Any]:
    """The stable rows of probe sets: an RPC's end is counted after its caller runs."""
    rows: dict[str, Any] = {}
    for _ in range(60):
        time.sleep(2)
        before, each = rows, {n: probe_sets.probe_set(n) for n in NAMES}
        rows = {n: one.records(one.read(counting), known) for n, one in each.items()}
        if all(moved(before.get(n, []), c) == moved(rows[n], c) for n, c in COUNTED.items()):
            break
    return rows


def main() -> None:
    options = f"vers=3,proto=rdma,port=20049,rsize={SIZE},wsize={SIZE}"
    subprocess.run(("mount", "-t", "nfs", "-o", options, "10.9.1.1:/export", MOUNT), check=True)
    with (MOUNT / "counted").open("wb") as file:
        file.truncate(23 * SIZE)
    known = clients()
    with probe_sets.attached(NAMES) as counting:
        work()
        rows = settled(counting, known)
        missing, gone = sorted(each.event for each in counting.missing), lost(counting)
    chunks, latency = moved(rows["chunks"], "rpcs"), moved(rows["latency"], "count")
    print(
        json.dumps(
            {
                "missing": missing,
                "lost": gone._asdict(),
                "clients": [name for names in known.values() for name in names],
                "chunks": chunks,
                "latency": latency,
                "registrations": sum(row["mapped"] for row in rows["registrations"]),
                "server": moved(rows["server"], "calls"),
            }
        )
    )


main()
