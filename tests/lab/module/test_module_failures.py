# SPDX-License-Identifier: Apache-2.0
"""Allocations of our module fail, while it is loaded, listens, mounts, works, reconnects, ends."""

import errno
from collections.abc import Callable, Iterator
from itertools import chain, cycle

import pytest
from lab.module.held_memory import totals

from nfsrdma_tools.lab.lab import Lab
from testbed.allocation_failures import LOST, Failed, arm, failing, swept
from testbed.faults import FAULTS
from testbed.module import taken_out
from testbed.mounts import HERE, mounted, nothing_lost, set_to
from testbed.stress import storm

pytestmark = pytest.mark.checking

Record = Callable[[str, object], None]
# all of them are one more than what goes on in a row may take, up to all of a connection
EVERY = (1, 3, 7, 11, 17, 23, 31, 43, 61)
MOUNT = f"""
mkdir -p {HERE}
mount -t nfs -o $0,proto=rdma,port=20049,retry=0 server:/export {HERE}
"""
WORK = f"""
head -c 300000 /dev/urandom > {HERE}/failing
md5sum < {HERE}/failing
echo 3 > /proc/sys/vm/drop_caches
md5sum < {HERE}/failing
rm {HERE}/failing
umount {HERE}
"""
# more READs at a time than before: the server needs more requests
READ = f"""
head -c 65536 {HERE}/threadless | md5sum
for n in $(seq 24); do
	for m in $(seq 5); do
		dd if={HERE}/threadless bs=4k iflag=direct status=none | md5sum
	done &
done
wait
"""
# which allocations fail, how many, and under which function: all of the completion handler, which
# leaves the Call to a worker then; elsewhere few, because a connection is accepted if some tens of
# allocations succeed in a row, and the client waits longer before each attempt
ROUNDS = (
    (1, 1_000_000, "nfr_svc_receive"), (2, 1_000_000, "nfr_svc_receive"),
    (1, 4, ""), (3, 12, ""), (7, 12, ""), (17, 12, ""),
)  # fmt: skip
RESTART = "systemctl reset-failed nfs-server; systemctl restart nfs-server"


@pytest.fixture
def both(ours: Lab, pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A server and a client, with our module each; nothing of what failed stays."""
    if pytestconfig.getoption("--server") != "ours":
        pytest.skip("it is for --server ours")
    with nothing_lost(ours, "server", "client"):
        yield ours


def record(record_property: Record, failed: Failed) -> None:
    print(failed)
    assert sum(failed.counts.values()) > 0, "no allocation failed"
    for node, count in failed.counts.items():
        record_property(f"allocations that failed in {node}", count)
    record_property("under functions of ours", len(failed.places))


def test_it_is_loaded_as_a_whole_or_not_at_all(ours: Lab, record_property: Record) -> None:
    with taken_out(ours) as file:
        found = swept(ours, "client", file)
    print(found)
    # some of it can do without, such as its files in debugfs
    assert set(found["loads"]) == {0, errno.ENOMEM}
    assert found["loads"][-1] == 0
    assert set(found["unloads"]) == {0}
    assert found["left"] == []
    record_property("loads", len(found["loads"]))


@pytest.mark.parametrize("node", ("client", "server"))
def test_a_mount_is_made_or_refused(both: Lab, node: str, record_property: Record) -> None:
    failed, made = Failed(), []
    for number, every in enumerate(EVERY):
        with failing(both, failed, arm(node, every, times=4)):
            made.append(mounts(both, "vers=4.2" if number % 2 else "vers=3"))
            if made[-1]:
                first, second = both.run("client", "sh", "-ec", WORK).stdout.splitlines()
                assert first == second
    assert any(made)
    record_property("mounts made", sum(made))
    record(record_property, failed)


def mounts(lab: Lab, options: str) -> bool:
    """Whether a mount was made; if not, mount prints an error."""
    said = lab.run("client", "sh", "-c", MOUNT, options, check=False, timeout=300)
    assert not said.returncode or "mount" in said.stderr, said
    return said.returncode == 0


def test_nfsd_listens_or_says_that_it_does_not(both: Lab, record_property: Record) -> None:
    failed = Failed()
    for every in EVERY[:4]:
        with failing(both, failed, arm("server", every)):
            both.run("server", "sh", "-c", RESTART, check=False, timeout=300)
    both.run("server", "sh", "-c", RESTART, timeout=300)
    both.run("server", "grep", "-q", "rdma 20049", "/proc/fs/nfsd/portlist")
    record(record_property, failed)


@pytest.mark.parametrize("options", ("vers=3", "vers=4.2,nconnect=4"))
def test_work_goes_on(both: Lab, options: str, long: bool, record_property: Record) -> None:
    rxe = both.config.nic == "rxe"
    # how a device goes is known of soft-RoCE
    gone = (FAULTS["client's device removed"],) if rxe else ()
    # fewer, and no connection would ever be made: some twenty of its allocations have to succeed,
    # and hundreds on a server whose device wants memory regions for RDMA Reads
    arms = (arm("client", 79), arm("server", 61 if rxe else 997))
    often = (*LOST, *gone)
    failed = Failed()
    with failing(both, failed):
        faults, least = chain(arms, cycle(often)), len(arms) + len(often)
        found = storm(both, options, faults, 300 if long else 30, "failures", least=least)
    assert min(failed.counts.values()) > 0, failed.counts
    assert sum(int(one["disconnects"]) for one in found["connections"]) > 0
    record_property("operations", sum(one["operations"] for one in found["done"]))
    record(record_property, failed)


@pytest.mark.parametrize("name", ("read-write", "optimistic"))
def test_reads_that_bypass_nfsd_go_on(
    both: Lab, name: str, long: bool, record_property: Record
) -> None:
    """The allocations of the receive path fail. Nothing may sleep there for memory."""
    both.run("server", "sh", "-c", "head -c 65536 /dev/urandom > /export/threadless; sleep 2")
    set_to(both, "server", "server_threadless", "65536")
    set_to(both, "server", "server_personalities", name)
    set_to(both, "client", "personality", name)
    failed, before = Failed(), totals(both)
    try:
        for every, times, under in ROUNDS * (10 if long else 1):
            fault = arm("server", every, times, under)
            # a connection with few requests
            with mounted(both, "vers=3,noac"), failing(both, failed, fault):
                sums = both.run("client", "sh", "-ec", READ, timeout=1800).stdout.splitlines()
            print(every, times, under, failed, flush=True)
            assert (len(sums), len(set(sums))) == (1 + 24 * 5, 1), set(sums)
    finally:
        set_to(both, "server", "server_threadless", "0")
        set_to(both, "server", "server_personalities", "")
        set_to(both, "client", "personality", "read-write")
    after = totals(both)
    hits, short = (after[name][0] - before[name][0] for name in ("threadless_hits", "memory_short"))
    assert name == "optimistic" or hits > 0
    assert short > 0, "every Call found memory when it was received"
    record_property("Calls received without memory", short)
    record_property("READs without a thread", hits)
    record(record_property, failed)
