# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to devices, links, servers and tasks: no error, no wrong byte, nothing hangs."""

from collections.abc import Callable, Iterator
from itertools import cycle

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.faults import FAULTS
from testbed.labs import ModulePair
from testbed.module_faults import killed, reason, removed, soft
from testbed.stress import storm

Record = Callable[[str, object], None]
V3, V4 = "vers=3", "vers=4.2,nconnect=4"
SHORT = ((V4, ("client's device removed", "server's link down", "client moved"), 10),)
# a server that restarts forgets which Calls of NFSv3 it has answered
FORGETFUL = tuple(name for name, one in FAULTS.items() if one.forgets)
LONG = tuple(
    (V4 if i % 2 or name in FORGETFUL else V3, (name,), 120) for i, name in enumerate(FAULTS)
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "names" in metafunc.fixturenames:
        rows = LONG if metafunc.config.getoption("--long") else SHORT
        ids = [f"{options.split(',')[0]}-{' and '.join(names)}" for options, names, _ in rows]
        metafunc.parametrize(("options", "names", "seconds"), rows, ids=ids)


@pytest.fixture(autouse=True, scope="module")
def soft_roce(pytestconfig: pytest.Config) -> None:
    """How devices go and packets are dropped is known of no other."""
    if pytestconfig.getoption("--nic") != "rxe":
        pytest.skip(f"faults are those of rxe; missed: {', '.join(FAULTS)}")


@pytest.fixture
def at_home(
    pytestconfig: pytest.Config, ours: Lab, pair_file: ModulePair, names: tuple[str, ...]
) -> Iterator[Lab]:
    """The client has its own address again afterwards, wherever a fault had moved it.

    Once the kernel's server was restarted under load its RDMA device may never go again (6.12:
    cma_remove_one() waits for a connection that nobody has any more); so it is another machine.
    """
    yield ours
    if set(names) & set(FORGETFUL) and pytestconfig.getoption("--server") == "kernel":
        pair_file.restart()
    else:
        ours.run("client", "ip", "-4", "addr", "flush", "dev", "eth1")
        ours.run("client", "lab-node", "client", "1")


@pytest.fixture
def bearable(pytestconfig: pytest.Config, names: tuple[str, ...]) -> None:
    """Faults that the kernel's own module gets over too."""
    removing = any(FAULTS[name].removes for name in names)
    if pytestconfig.getoption("--kernel") == "6.1" and removing:
        why = "removed under load, RDMA devices of 6.1 lose bytes of the kernel's own client too"
        pytest.skip(f"{why}; missed: {', '.join(names)}")


@pytest.mark.nightly
@pytest.mark.usefixtures("bearable")
def test_an_application_notices_no_disconnect(
    at_home: Lab, options: str, names: tuple[str, ...], seconds: int, record_property: Record
) -> None:
    faults = cycle(FAULTS[name] for name in names)
    forgets = bool(set(names) & set(FORGETFUL))
    found = storm(at_home, options, faults, seconds, "tests", least=len(names), forgets=forgets)
    assert len(found["faults"]) >= len(names)
    assert all(int(one["disconnects"]) > 0 for one in found["connections"])
    record_property("faults", len(found["faults"]))
    record_property("disconnects", sum(int(one["disconnects"]) for one in found["connections"]))
    record_property("operations", sum(one["operations"] for one in found["done"]))
    record_property("slowest operation [s]", max(one["slowest"] for one in found["done"]))


def test_the_reason_of_the_last_disconnect_can_be_read(ours: Lab) -> None:
    assert reason(ours, V3, "client's device removed") == "RDMA device removed"
    assert reason(ours, "vers=4.2", "server restarted") == "disconnected by the peer"


def test_tasks_die_when_killed_and_soft_mounts_give_up(ours: Lab, long: bool) -> None:
    killed(ours, V3, silent=False, seed="tests", rounds=20 if long else 1)
    killed(ours, "vers=4.2", silent=True, seed="tests", rounds=5 if long else 1)
    soft(ours, "4.2")


def test_a_device_that_does_not_come_back(ours: Lab, long: bool) -> None:
    # NFSv4 says goodbye, and waits so long for an answer
    brief = "vers=4.2,timeo=20,retrans=1"
    for _ in range(5 if long else 1):
        removed(ours, V3, busy=True)
        removed(ours, brief, busy=False)
