# SPDX-License-Identifier: Apache-2.0
"""Devices that can do less than soft-RoCE, and what they report: refused with a message, or used.

A module of the tests (``device``) has the node's device do less for as long as it is loaded.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed import kernel_modules
from testbed.mounts import HERE, LIMIT, connections, mounted, set_parameters
from testbed.personalities import agreed

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="no module is built: root mounts the image"
)

SOURCE = Path(__file__).parent / "device"
THERE = "/run/nfsrdma_device.ko"
PARAMETERS = "/sys/module/nfsrdma_device/parameters"
MOUNT = f"""
mkdir -p {HERE}
timeout 300 mount -t nfs -o vers=3,proto=rdma,port=20049,retry=0 server:/export {HERE}
"""
# numbers of enum ib_event_type
BENIGN = {"SQ_DRAINED": 5, "PATH_MIG": 6}
QP_FATAL = 1
# of the connection that was made last
SERVED = """
cd /sys/kernel/debug/nfsrdma-server
cat $(ls -d [0-9]* | sort -n | tail -n 1)/counters
"""


@pytest.fixture
def limited(both_ours: Lab) -> Lab:
    """Both halves ours; the module of the tests is in each node's memory, not loaded."""
    kernel_modules.place(both_ours, SOURCE, THERE, *both_ours.config.nodes)
    return both_ours


@contextmanager
def device(lab: Lab, node: str, *words: str) -> Iterator[None]:
    """Give the device of a node these parameters."""
    lab.run(node, "insmod", THERE, f"name={lab.config.nic}0", *words)
    try:
        yield
    finally:
        lab.run(node, "rmmod", "nfsrdma_device")


def refused(lab: Lab, node: str) -> str:
    """Message in the log of a node about a mount that failed."""
    lab.run(node, "dmesg", "--clear")
    result = lab.run("client", "sh", "-c", MOUNT, check=False, timeout=LIMIT)
    if not result.returncode:
        lab.run("client", "umount", HERE)
    assert result.returncode, "the mount was made"
    log = lab.run(node, "dmesg").stdout.splitlines()
    return next((line.split("nfsrdma: ")[1] for line in log if "nfsrdma: device" in line), "")


def test_a_device_that_is_too_small_is_refused(limited: Lab) -> None:
    name = f"device {limited.config.nic}0"
    # the largest Call of 16 pages per region takes 77 work requests
    with set_parameters(limited, mr_depth=16), device(limited, "client", "max_qp_wr=59"):
        small = f"{name}: max_qp_wr is 59, expected at least 155"
        assert refused(limited, "client") == small
    with device(limited, "client", "no_frwr=1"):
        assert "no memory management extensions" in refused(limited, "client")
    with device(limited, "server", "max_qp_wr=59"):
        assert f"{name}: max_qp_wr is 59" in refused(limited, "server")
    with mounted(limited, "vers=3"):
        carries_data(limited)


def test_a_queue_pair_that_is_refused_is_made_smaller(limited: Lab) -> None:
    most = 300
    for node in ("client", "server"):
        with device(limited, node, f"max_sends={most}"), mounted(limited, "vers=3"):
            carries_data(limited)
            (connection,) = connections(limited)
            assert (int(connection["send_queue"]) < most) == (node == "client")


def test_only_fatal_events_end_a_connection(limited: Lab) -> None:
    with device(limited, "client"), mounted(limited, "vers=3"):
        for number in BENIGN.values():
            happens(limited, number)
        carries_data(limited)
        (connection,) = connections(limited)
        assert (connection["connects"], connection["disconnects"]) == ("1", "0")
        happens(limited, QP_FATAL)
        carries_data(limited)
        (connection,) = connections(limited)
        assert (connection["connects"], connection["last_disconnect"]) == ("2", "QP fatal error")


def happens(lab: Lab, number: int) -> None:
    """The device reports an event of the connection's queue pair."""
    lab.run("client", "tee", f"{PARAMETERS}/event", stdin=str(number).encode())


def carries_data(lab: Lab) -> None:
    """The largest Calls, both ways."""
    script = f"""
    head -c 4M /dev/urandom > /run/noise
    dd if=/run/noise of={HERE}/noise bs=1M oflag=direct status=none
    dd if={HERE}/noise of=/run/back bs=1M iflag=direct status=none
    cmp /run/noise /run/back
    rm {HERE}/noise /run/noise /run/back
    """
    lab.run("client", "sh", "-ec", script, timeout=LIMIT)


def test_a_lane_that_fails_delays_no_other_call(limited: Lab) -> None:
    """The READ of the lane counts as sent: sunrpc would pause each sender for an error."""
    # a receive of soft-iWARP takes 6 scatter elements: larger READs use no lane there
    options = "vers=3,rsize=16384"
    with agreed(limited, "pre-posted"), device(limited, "client"), mounted(limited, options):
        # the first READs have lanes connect
        carries_data(limited)
        limited.run("client", "tee", f"{PARAMETERS}/fail_lists", stdin=b"3")
        for _ in range(4):
            carries_data(limited)
        left = limited.run("client", "cat", f"{PARAMETERS}/fail_lists").stdout
        (connection,) = connections(limited)
    assert int(left) == 0
    assert int(connection["lanes_ended"]) >= 3
    assert (connection["failed_marshals"], connection["disconnects"]) == ("0", "0")


# READs need more memory regions than there are; the connection ends while one is being allocated
STARVED = f"""
dd if={HERE}/starved of=/dev/null bs=64k iflag=direct status=none
echo 1 > {PARAMETERS}/hold_mrs
fio --name=starved --filename={HERE}/starved --rw=read --bs=1M --size=64M --direct=1 \\
	--ioengine=libaio --iodepth=64 --iodepth_batch_submit=64 --output=/dev/null &
until [ "$(cat {PARAMETERS}/holding)" -gt 0 ]; do sleep 0.1; done
echo {QP_FATAL} > {PARAMETERS}/event
until grep -qs nfr_client_close /proc/[0-9]*/stack; do sleep 0.1; done
cd /sys/kernel/tracing
# soft-RoCE queues work for many packets, after which the first events have to be there still
echo 16384 > buffer_size_kb
echo > trace
echo 1 > events/workqueue/workqueue_queue_work/enable
echo 0 > {PARAMETERS}/hold_mrs
wait
echo 0 > events/workqueue/workqueue_queue_work/enable
grep workqueue_queue_work: trace
echo > trace
echo 1408 > buffer_size_kb
"""


def test_a_refill_that_fails_while_the_connection_closes(limited: Lab) -> None:
    """It does not have the cache of registrations evict, whose work has ended."""
    with agreed(limited, "cached"), device(limited, "client"), mounted(limited, "vers=3"):
        # not by the client, whose WRITEs would have regions allocated
        limited.run("server", "sh", "-ec", "head -c 64M /dev/urandom > /export/starved")
        lines = limited.run("client", "sh", "-ec", STARVED, timeout=LIMIT).stdout.splitlines()
        carries_data(limited)
        (connection,) = connections(limited)
        limited.run("client", "rm", f"{HERE}/starved")
    assert int(connection["connects"]) >= 2
    queued = [line.split("function=")[1].split()[0] for line in lines]
    assert "nfr_client_connect_worker" in queued
    # until the next connection evicts
    early = queued[: queued.index("nfr_client_connect_worker")]
    assert [name for name in early if "evict" in name] == []


def test_only_the_only_key_of_a_call_is_invalidated_by_the_server(both_ours: Lab) -> None:
    """With several the client needs work requests of its own anyway."""
    with mounted(both_ours, "vers=3"):
        carries_data(both_ours)
        assert served(both_ours, "remote_invalidations") > 0
    with set_parameters(both_ours, mr_depth=16), mounted(both_ours, "vers=3"):
        carries_data(both_ours)
        (connection,) = connections(both_ours)
        assert int(connection["local_invalidations"]) > 0
        assert served(both_ours, "remote_invalidations") == 0


def served(lab: Lab, name: str) -> int:
    """A counter of the server."""
    output = lab.run("server", "sh", "-c", SERVED).stdout
    (value,) = (line.split()[1] for line in output.splitlines() if line.split()[0] == name)
    return int(value)
