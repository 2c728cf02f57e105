# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to devices, links, servers and tasks: no error, no wrong byte, nothing hangs."""

from collections.abc import Iterator

import pytest
from faults import FAULTS
from module_faults import killed, reason, removed, soft
from storm import storm

from nfsrdma_tools.lab.lab import Lab

pytestmark = pytest.mark.lab

SECONDS = 15
REMOVED = ("client's device removed", "server's device removed")
OTHERS = ("client's link down", "server's link down", "server restarted", "client moved")


@pytest.fixture
def at_home(module_pair: Lab) -> Iterator[Lab]:
    """The client has its own address again afterwards, wherever a fault had moved it."""
    yield module_pair
    module_pair.run("client", "lab-node", "client", "1")


def test_an_application_notices_no_disconnect(at_home: Lab) -> None:
    for options, names in (("vers=3", REMOVED), ("vers=4.2,nconnect=4", OTHERS)):
        found = storm(at_home, options, [FAULTS[name] for name in names], SECONDS, "tests")
        assert found["faults"] >= len(names)
        assert all(int(one["disconnects"]) > 0 for one in found["connections"])


def test_the_reason_of_the_last_disconnect_can_be_read(module_pair: Lab) -> None:
    assert reason(module_pair, "vers=3", REMOVED[0]) == "RDMA device removed"
    assert reason(module_pair, "vers=4.2", "server restarted") == "disconnected by the peer"


def test_tasks_die_when_killed_and_soft_mounts_give_up(module_pair: Lab) -> None:
    killed(module_pair, "vers=3", silent=False, seed="tests", rounds=2)
    killed(module_pair, "vers=4.2", silent=True, seed="tests", rounds=1)
    soft(module_pair, "4.2")


def test_a_device_that_does_not_come_back(module_pair: Lab) -> None:
    removed(module_pair, "vers=3", busy=True)
    removed(module_pair, "vers=4.2", busy=False)
