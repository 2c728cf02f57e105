# SPDX-License-Identifier: Apache-2.0
"""Part of test_trace_kernels.py that runs in a machine that is client and server.

Arguments: how often to start all probe sets, and the ways of WAYS. Counts the same load at the same
time in each way: with the headers of the kernel's package, and without them, as in a container.
Mounts, and leaves mounted.
"""

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.probes import probe_sets, session
from nfsrdma_tools.probes.maps import lost
from nfsrdma_tools.probes.rpc_clients import clients
from nfsrdma_tools.probes.session import Session

MOUNT, SIZE, AHEAD = Path("/mnt"), 65536, 2 << 20
# seconds, in which the ends of RPCs are counted
SETTLES = 5
# what a container does not have
HIDDEN = ("/usr/lib/modules", "/usr/src", "/usr/include")
BUILD = Path("/lib/modules") / os.uname().release / "build"
Rows = dict[str, list[dict[str, Any]]]


@contextmanager
def with_headers() -> Iterator[None]:
    """bcc finds the installed headers by itself."""
    assert (BUILD / "Makefile").exists()
    with patch.object(session, "_headers", nullcontext):
        yield


@contextmanager
def without_headers() -> Iterator[None]:
    """This process has a mount namespace of its own, without headers."""
    before = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    # Python 3.12 and later, which the machines have
    os.unshare(os.CLONE_NEWNS)  # type: ignore[attr-defined]
    try:
        subprocess.run(("mount", "--make-rprivate", "/"), check=True)
        for folder in HIDDEN:
            subprocess.run(("mount", "-t", "tmpfs", "none", folder), check=True)
        assert not BUILD.exists()
        yield
    finally:
        os.setns(before, os.CLONE_NEWNS)  # type: ignore[attr-defined]
        os.close(before)


WAYS = {"with": with_headers, "without": without_headers}
ASKED = {way: WAYS[way] for way in sys.argv[2:]}


def work() -> None:
    room = mmap.mmap(-1, SIZE)
    file = os.open(MOUNT / "counted", os.O_RDWR | os.O_DIRECT)
    for turn in range(23):
        assert os.preadv(file, [room], turn * SIZE) == SIZE
    for turn in range(17):
        assert os.pwritev(file, [room], turn * SIZE) == SIZE
    os.close(file)


def read_ahead() -> None:
    Path("/proc/sys/vm/drop_caches").write_text("3")
    assert len((MOUNT / "ahead").read_bytes()) == AHEAD


def counts(row: dict[str, Any]) -> dict[str, Any]:
    """The counts of a row and what they are of: no times, which two programs measure apart."""
    return {
        name: value
        for name, value in row.items()
        if name == "sizes"
        or (isinstance(value, int | str) and not name.endswith(("_ns", "_us")) and name != "late")
    }


class Counting:
    """A session of all probe sets."""

    def __init__(self, attached: Session) -> None:
        self.session = attached
        self.lost = lost(attached)
        self.first = {name: probe_sets.probe_set(name).read(attached) for name in attached.sets}

    def rows(self, known: dict[int, tuple[str, ...]]) -> Rows:
        """What was counted since the first reading."""
        found: Rows = {}
        for name, first in self.first.items():
            one = probe_sets.probe_set(name)
            rows = one.records(one.difference(one.read(self.session), first), known)
            found[name] = rows if name == "cpu" else list(map(counts, rows))
        # its rows are measurements of the host
        found["latency"] = [row for row in found["latency"] if not row.get("slowest")]
        return found

    def samples(self, rows: Rows) -> int:
        (busy,) = (row for row in rows.pop("cpu") if row["layer"] == "busy")
        return int(busy["samples"])


def settled(both: dict[str, Counting], known: Any) -> dict[str, Any]:
    """The stable rows, and the samples: an RPC's end is counted after its caller runs."""
    found: dict[str, Rows] = {}
    for _ in range(60):
        time.sleep(2)
        before, found = found, {way: one.rows(known) for way, one in both.items()}
        samples = {way: one.samples(found[way]) for way, one in both.items()}
        if found == before and all(rows == found["without"] for rows in found.values()):
            break
    return {"rows": found, "samples": samples}


def starts(turns: int) -> dict[str, list[float]]:
    """Seconds until all probe sets are attached, in turn."""
    seconds: dict[str, list[float]] = {way: [] for way in ASKED}
    for _ in range(turns):
        for way, surroundings in ASKED.items():
            with surroundings():
                began = time.monotonic()
                with probe_sets.attached(probe_sets.NAMES):
                    seconds[way].append(time.monotonic() - began)
    return seconds


def main() -> None:
    options = f"vers=3,proto=rdma,port=20049,rsize={SIZE},wsize={SIZE}"
    subprocess.run(("mount", "-t", "nfs", "-o", options, "10.9.1.1:/export", MOUNT), check=True)
    with (MOUNT / "counted").open("wb") as file:
        file.truncate(23 * SIZE)
    with (MOUNT / "ahead").open("wb") as file:
        file.truncate(AHEAD)
    known = clients()
    with ExitStack() as stack:
        both = {}
        for way, surroundings in ASKED.items():
            with surroundings():
                attached = stack.enter_context(probe_sets.attached(probe_sets.NAMES))
            both[way] = attached
        # the kernel allocates rows at their first use; on 6.1 the second program loses RPCs then
        work()
        read_ahead()
        time.sleep(SETTLES)
        counting = {way: Counting(attached) for way, attached in both.items()}
        began = mountstats.read(MOUNT)
        work()
        direct = settled(counting, known)
        stats = mountstats.difference(mountstats.read(MOUNT), began)
        read_ahead()
        buffered = settled(counting, known)
        ended = mountstats.difference(mountstats.read(MOUNT), began)
        said = {
            "direct": direct,
            "buffered": buffered,
            "transmissions": {n: o.transmissions for n, o in ended.operations.items()},
            "operations": {n: o.operations for n, o in stats.operations.items() if o.operations},
            "missing": {way: sorted(m.event for m in one.missing) for way, one in both.items()},
            "lost": {way: (lost(c.session) - c.lost)._asdict() for way, c in counting.items()},
            "clients": [name for names in known.values() for name in names],
        }
    print(json.dumps(said | {"starts": starts(int(sys.argv[1]))}))


main()
