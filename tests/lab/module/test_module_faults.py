# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to devices, links, servers and tasks: no error, no wrong byte, nothing hangs."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import pytest
from lab.module.stress import storm

from nfsrdma_tools.lab.lab import Lab
from testbed.faults import FAULTS, silence
from testbed.killed_tasks import READING, kill_tasks, killed, start_tasks
from testbed.labs import ModulePair
from testbed.mounts import HERE, LIMIT, connections, mounted
from testbed.node import mounts
from testbed.node.programs import call, until
from testbed.remote import on

Record = Callable[[str, object], None]
V3, V4 = "vers=3", "vers=4.2,nconnect=4"
SHORT = ((V4, ("client's device removed", "server's link down", "client moved"), 10),)
# a server that restarts forgets which Calls of NFSv3 it has answered
FORGETFUL = tuple(name for name, fault in FAULTS.items() if fault.forgets)
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
    result = storm(at_home, options, faults, seconds, "tests", least=len(names), forgets=forgets)
    assert len(result.faults) >= len(names)
    assert min(result.disconnects) > 0
    record_property("faults", len(result.faults))
    record_property("disconnects", sum(result.disconnects))
    record_property("operations", result.operations)
    record_property("slowest operation [s]", max(outcome.slowest for outcome in result.done))


def reason(lab: Lab, options: str, name: str) -> str:
    """The reason of a fault of an idle connection; the mount reconnects when it needs to."""
    fault = FAULTS[name]
    with mounted(lab, options):
        fault.happen(lab)
        if fault.forgets:
            # no client has state to reclaim; an open would wait for the end of the grace period
            lab.run(fault.node, "tee", "/proc/fs/nfsd/v4_end_grace", stdin=b"Y")
        lab.run("client", "sh", "-c", f"touch {HERE}/alive && rm {HERE}/alive", timeout=LIMIT)
        (connection,) = connections(lab)
    counts = (connection["connects"], connection["disconnects"])
    assert (connection["connected"], *counts) == ("yes", "2", "1")
    return connection["last_disconnect"]


def test_the_reason_of_the_last_disconnect_can_be_read(ours: Lab) -> None:
    assert reason(ours, V3, "client's device removed") == "RDMA device removed"
    assert reason(ours, "vers=4.2", "server restarted") == "disconnected by the peer"


@on("client")
def soft(options: str) -> None:
    """A soft mount fails while the server does not answer, and goes on when it does."""
    noise = os.urandom(200_000)
    with mounts.mounted(f"{options},soft,timeo=20,retrans=1") as folder:
        path = folder / "soft"
        path.write_bytes(noise)
        mounts.drop_caches()
        error = 0
        with silence():
            try:
                path.read_bytes()
            except OSError as failure:
                error = failure.errno or 0
        assert error in (errno.EIO, errno.ETIMEDOUT)
        reasons = [row["last_disconnect"] for row in mounts.connections()]
        assert "a reply did not come in time" in reasons
        assert path.read_bytes() == noise
        path.unlink()


def test_tasks_die_when_killed_and_soft_mounts_give_up(ours: Lab, long: bool) -> None:
    killed(ours, V3, silent=False, seed="tests", rounds=20 if long else 1)
    killed(ours, "vers=4.2", silent=True, seed="tests", rounds=5 if long else 1)
    soft(ours, "vers=4.2")


@on("client", timeout=LIMIT * 2)
def removed(options: str, busy: bool) -> None:
    """The device goes for good, idle or while files are read: the mount goes, and then the module.

    What a hard mount has under way outlives the tasks that wanted it, and holds the module, until
    there is a server again or ``umount -f`` gives it up.  What writers have under way ends in a
    COMMIT that is made too late to be given up.
    """
    (device,) = Path("/sys/class/infiniband").iterdir()
    try:
        with mounts.mounted(options, off=("umount", "-f") if busy else ("umount",)) as folder:
            assert mounts.connections(), "the mount is not carried by our module"
            readers = start_tasks(folder / "killed", READING, os.urandom(2 << 20)) if busy else []
            time.sleep(0.5 * busy)
            call("rdma", "link", "delete", device.name)
            time.sleep(1.0 * busy)
            assert kill_tasks(readers) == []
        users = Path("/sys/module/nfsrdma/refcnt")
        # a connection that is to be tried again later ends then
        until("an unused module", lambda: users.read_text() == "0\n", LIMIT)
        call("nfsrdma", "module", "unload")
        assert not users.parent.exists()
        assert not mounts.CLIENTS.exists()
    finally:
        kind = device.name.removesuffix("0")
        call("rdma", "link", "add", device.name, "type", kind, "netdev", "eth1")
        call("nfsrdma", "module", "load")


def test_a_device_that_does_not_come_back(ours: Lab, long: bool) -> None:
    # NFSv4 says goodbye, and waits so long for an answer
    brief = "vers=4.2,timeo=20,retrans=1"
    for _ in range(5 if long else 1):
        removed(ours, V3, busy=True)
        removed(ours, brief, busy=False)
    ours.run("server", "rm", "-r", "/export/killed")
