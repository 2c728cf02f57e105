# SPDX-License-Identifier: Apache-2.0
"""The part of test_trace_rows.py in a node: ``python3 - CLIENTS``.

CLIENTS superblocks have a client of sunrpc each, and each does an RPC of many procedures: first
with room for all rows, then with room for 64. Prints the counts of the kernel and of the probes,
and the number of clients with credits: with one mount over RDMA, and without it.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.probes import maps, probe_sets, program
from nfsrdma_tools.probes.maps import lost
from nfsrdma_tools.probes.session import Session
from nfsrdma_tools.probes.sets.latency import Latency

CLIENTS = int(sys.argv[1])
MOUNTS = [Path(f"/mnt/r{number}") for number in range(CLIENTS)]


def mount(where: Path, transport: str = "proto=tcp") -> None:
    where.mkdir(exist_ok=True)
    options = f"vers=3,{transport},nosharecache,nolock"
    subprocess.run(("mount.nfs", "10.9.1.1:/export", where, "-o", options), check=True)


def unmount(where: Path) -> None:
    subprocess.run(("umount.nfs", where), check=True)
    where.rmdir()


def work(where: Path, number: int) -> None:
    """One RPC at least of most of NFSv3's procedures."""
    own = where / f"rows-{number}"
    own.mkdir()
    (own / "a").write_bytes(b"x" * 5000)
    os.sync()
    (own / "a").chmod(0o600)
    (own / "a").rename(own / "b")
    (own / "l").symlink_to("b")
    (own / "l").readlink()
    (own / "h").hardlink_to(own / "b")
    os.mkfifo(own / "f")
    with (own / "b").open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.read()
    for path in own.iterdir():
        path.unlink()
    own.rmdir()
    os.statvfs(where)


def settled(session: Session) -> Latency:
    """The probe set, once its counts are stable."""
    probe_set = probe_sets.probe_set("latency")
    last: Latency = probe_set.read(session)
    for _ in range(300):
        time.sleep(0.2)
        now: Latency = probe_set.read(session)
        if now.sums == last.sums:
            return now
        last = now
    raise SystemExit("it never settles")


def counts() -> dict[str, dict[str, int]]:
    return {
        str(stats.directory): {name: each.operations for name, each in stats.operations.items()}
        for stats in mountstats.read_all()
        if stats.directory in MOUNTS
    }


def traced() -> dict[str, object]:
    """The counts of the kernel and of the probe set for the work of all mounts."""
    with probe_sets.attached(["latency"], sums_only=True) as session:
        before, first, then = counts(), settled(session), lost(session)
        for number, where in enumerate(MOUNTS):
            work(where, number)
        now = settled(session)
        added, after = probe_sets.probe_set("latency").difference(now, first), counts()
        gone = lost(session) - then
        # as if it were long ago
        probe_set = probe_sets.probe_set("latency")
        probe_set.forget(session, now, 0.0)
        probe_set.forget(session, now, maps.IDLE + 1)
        freed = len(probe_set.read(session).sums)
    done = [n - before[where][name] for where, each in after.items() for name, n in each.items()]
    return {
        "done": sum(done),
        "rows": sum(bool(n) for n in done),
        "counted": sum(sums[0] for sums in added.sums.values()),
        "counted_rows": len(added.sums),
        "lost": gone._asdict(),
        "left_after_freeing": freed,
    }


def credits() -> list[int]:
    probe_set, where = probe_sets.probe_set("connections"), Path("/mnt/credits")
    with probe_sets.attached(["connections"]) as session:
        mount(where, "proto=rdma,port=20049")
        os.statvfs(where)
        there = probe_set.read(session)
        found = [len(there.credits)]
        unmount(where)
        # sunrpc ends a client some time later
        for _ in range(300):
            probe_set.forget(session, there, 0.0)
            if not there.credits:
                break
            time.sleep(0.2)
        return [*found, len(probe_set.read(session).credits)]


def main() -> None:
    for where in MOUNTS:
        mount(where)
    try:
        whole = traced()
        program._FEWEST = program._MOST = 64
        print(json.dumps({"whole": whole, "small": traced(), "credits": credits()}))
    finally:
        for where in MOUNTS:
            unmount(where)


main()
