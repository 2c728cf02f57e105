# SPDX-License-Identifier: Apache-2.0
"""Memory of our server: bounded whatever clients do, and right where there is too little of it."""

from collections.abc import Callable
from itertools import cycle

import pytest
from lab.module.held_memory import (
    ACKNOWLEDGMENTS,
    ADDRESSES,
    DATA_OF_READS,
    Held,
    hold,
    leave_unreceived,
    share_a_floor,
    totals,
)
from lab.module.stress import storm

from nfsrdma_tools.lab.config import CHECKING
from nfsrdma_tools.lab.lab import Lab
from testbed.faults import Fault
from testbed.kernel_events import recorded, stacks

Record = Callable[[str, object], None]
# beside replies, in MiB: requests with their buffers, and what else the machine does meanwhile
BESIDE = 32
# longest wait of an application beside clients that hold memory, in seconds
GOAL = 1.0
# Calls for 1 MiB, as nfsd of these machines moves 512 KiB at a time
CALLS = 2
# All caches are clean, and the kernel is to have more memory free than there is: an allocation that
# may not wait fails until that has been reclaimed, others wait for it.
_SHORT = """
test -e /var/tmp/sparse || truncate -s 2G /var/tmp/sparse
cat /var/tmp/sparse > /dev/null
before=$(cat /proc/sys/vm/min_free_kbytes)
trap 'echo $before > /proc/sys/vm/min_free_kbytes' EXIT
echo 1000000 > /proc/sys/vm/min_free_kbytes
sleep 1
"""
SHORT = tuple(Fault(f"{node} short of memory", node, _SHORT) for node in ("server", "client"))
# who handles completions reclaims memory
RECLAIM = {"vmscan/mm_vmscan_direct_reclaim_begin/trigger": 'stacktrace if comm ~ "kworker*"'}


def test_clients_that_acknowledge_nothing_cost_no_more_than_server_memory(
    both_ours: Lab, long: bool, record_property: Record
) -> None:
    if both_ours.config.nic == "siw":
        # RFC 5041, section 7: a message that finds no receive ends the connection
        pytest.skip("soft-iWARP has no clients without receives; missed: what they cost")
    connections = 64 if long else 12
    kept = leave_unreceived(both_ours, connections, calls=8, to_the_end=long)
    print(kept)
    assert kept.charged <= kept.limit, kept
    # all of them together want much more
    assert kept.charged > kept.limit / 2, kept
    assert connections * 8 > kept.limit + BESIDE
    # the reader has a floor; before there were floors it waited until connections ended, 20 to 40 s
    work = kept.work
    assert work.reads, kept
    assert work.longest <= GOAL * both_ours.config.patience + CALLS * work.beside, kept
    record_property("longest wait of a reader", round(work.longest, 2))
    # they acknowledge nothing, and wait for each other's memory
    assert kept.fenced, kept
    record_property("connections", connections)
    record_property("MiB charged", kept.charged)
    if kept.held is None:
        print("this kernel keeps freed memory for a while; missed: how much less is available")
        return
    assert kept.charged / 2 < kept.held <= kept.limit + BESIDE, kept
    record_property("MiB less available", round(kept.held, 1))


@pytest.fixture
def roce(both_ours: Lab) -> Lab:
    if both_ours.config.nic == "siw":
        pytest.skip("soft-iWARP has no RoCE packets to drop; missed: clients that hold memory")
    return both_ours


def nobody_waits(lab: Lab, held: Held, record_property: Record) -> None:
    """The application waited no longer than GOAL, on top of what Calls take here."""
    print(held)
    waits = held.waits
    record_property("longest wait", round(waits.longest, 2))
    record_property("longest Call without chunks meanwhile", round(waits.beside, 2))
    # the memory was wanted: the clients hold all that they can get
    assert held.charged > held.least, held
    assert waits.rounds > 3, held
    assert waits.longest <= GOAL * lab.config.patience + CALLS * waits.beside, held
    assert held.fenced is None or held.fenced > 0, held


@pytest.mark.nightly
def test_a_reader_does_not_wait_for_clients_that_receive_nothing(
    roce: Lab, long: bool, record_property: Record
) -> None:
    # the server checks each connection every 20 s: one completion each time was enough for ever
    pause, seconds = (15, 90.0) if long else (2, 8.0)
    held = hold(roce, "reads", pause=pause, seconds=seconds)
    nobody_waits(roce, held, record_property)
    # a receipt from time to time is not enough
    assert held.waits.received > 0, held


@pytest.mark.nightly
def test_a_reader_does_not_wait_for_a_client_that_was_cut_off(
    roce: Lab, record_property: Record
) -> None:
    """Its eight connections have one address, as with nconnect=8."""
    held = hold(roce, "reads", sources=ADDRESSES[:1], missing=ACKNOWLEDGMENTS)
    nobody_waits(roce, held, record_property)


@pytest.mark.nightly
def test_a_writer_does_not_wait_for_clients_that_deliver_nothing(
    roce: Lab, record_property: Record
) -> None:
    held = hold(roce, "writes", missing=DATA_OF_READS)
    nobody_waits(roce, held, record_property)


@pytest.mark.nightly
def test_clients_without_a_floor_of_their_own_share_one(roce: Lab, record_property: Record) -> None:
    workers = [f"10.9.1.{number}" for number in range(105, 109)]
    longest, sharing = share_a_floor(roce, workers, rounds=3)
    record_property("longest wait", round(longest, 2))
    # those that hold all else, but perhaps the first of them, and the workers
    assert sharing in (len(ADDRESSES) - 1 + len(workers), len(ADDRESSES) + len(workers))


# each fault has a machine reclaim half of its memory, which takes minutes
@pytest.mark.nightly
def test_work_goes_on_where_memory_is_short(
    both_ours: Lab, long: bool, record_property: Record
) -> None:
    before, options = totals(both_ours)["memory_short"][0], "vers=4.2,nconnect=4"
    with recorded(both_ours, "server", RECLAIM) as lines:
        result = storm(both_ours, options, cycle(SHORT), 300 if long else 30, "short", least=4)
        short = totals(both_ours)["memory_short"][0] - before
    assert [stack for stack in stacks(lines) if "nfr_conn_poll" in stack] == []
    if not short:
        assert both_ours.config.kernel in CHECKING, "no allocation failed"
        print("work was too slow to find memory short; missed: allocations that fail")
    record_property("allocations that failed", short)
    record_property("operations", result.operations)
