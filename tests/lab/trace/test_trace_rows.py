# SPDX-License-Identifier: Apache-2.0
"""Rows of many clients: all have room, and where there is none each RPC that is lost is counted."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.probes import maps, probe_sets, program
from nfsrdma_tools.probes.maps import lost
from testbed.node.files import read_from_server
from testbed.node.mounts import mounted
from testbed.node.programs import settled, until
from testbed.remote import on

# superblocks, which have a client of sunrpc each
MOUNTS = [Path(f"/mnt/r{number}") for number in range(100)]
OPTIONS = "vers=3,nosharecache,nolock"


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
    read_from_server(own / "b")
    for path in own.iterdir():
        path.unlink()
    own.rmdir()
    os.statvfs(where)


def operations() -> dict[tuple[str, str], int]:
    """The RPCs of the mounts by directory and procedure."""
    return {
        (str(stats.directory), name): row.operations
        for stats in mountstats.read_all()
        if stats.directory in MOUNTS
        for name, row in stats.operations.items()
    }


class Counts:
    """The RPCs of mountstats and of the probe set for the work of all mounts."""

    def __init__(self) -> None:
        probe_set = probe_sets.probe_set("latency")
        with probe_sets.attached(["latency"], sums_only=True) as session:

            def sums() -> object:
                return probe_set.read(session).sums

            before, lost_before = operations(), lost(session)
            settled(sums, 180)
            first = probe_set.read(session)
            for number, folder in enumerate(MOUNTS):
                work(folder, number)
            settled(sums, 180)
            now = probe_set.read(session)
            self.sums = probe_set.difference(now, first).sums
            done = [count - before[name] for name, count in operations().items()]
            self.lost = lost(session) - lost_before
            # as if it were long ago
            probe_set.forget(session, now, 0.0)
            probe_set.forget(session, now, maps.IDLE + 1)
            self.freed = not probe_set.read(session).sums
        self.done, self.rows = sum(done), sum(map(bool, done))
        self.counted = sum(sums[0] for sums in self.sums.values())


def check_credits() -> None:
    """A mount over RDMA has a row of credits, which goes with it."""
    probe_set = probe_sets.probe_set("connections")
    with probe_sets.attached(["connections"]) as session:
        with mounted(OPTIONS, Path("/mnt/credits"), "10.9.1.1:/export") as folder:
            os.statvfs(folder)
            rows = probe_set.read(session)
            assert rows.credits

        def gone() -> bool:
            # sunrpc ends a client some time later
            probe_set.forget(session, rows, 0.0)
            return not rows.credits

        until("no credits", gone, pause=0.2)
        assert not probe_set.read(session).credits


@on("client", timeout=3600)
def each_client() -> None:
    """Each mount has an RPC of many procedures, with room for all rows, then for 64."""
    with ExitStack() as stack:
        for folder in MOUNTS:
            # the last of equal options counts
            stack.enter_context(
                mounted(f"{OPTIONS},proto=tcp,port=2049", folder, "10.9.1.1:/export")
            )
        whole = Counts()
        # more than a map had once
        assert whole.rows > 1024
        assert not any(whole.lost)
        assert whole.counted >= whole.done > 0
        assert len(whole.sums) >= whole.rows
        assert whole.freed
        program._FEWEST = program._MOST = 64
        small = Counts()
        assert len(small.sums) <= 64
        # mountstats have no RPCs of mounting and nobody else's, so they may be a few less
        assert small.counted + small.lost.rpcs >= small.done
        assert small.lost.rpcs > 0
        check_credits()


@pytest.mark.nightly
def test_a_hundred_clients_have_room_and_what_has_none_is_counted(solo: Lab) -> None:
    each_client(solo)
