# SPDX-License-Identifier: Apache-2.0
"""Two clients, work that knows what it has to find, and faults at random; and a client that loses
power again and again beside one that acknowledges nothing.

Our module on all three machines.  ``make campaign NAME=soak`` goes on for 15 minutes with each; the
seed that is printed makes the same faults again (``--seed``).
"""

import hashlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import Process
from pathlib import Path

import pytest
from lab.module.held_memory import kept_for, unreceived_beside
from lab.module.stress import storm

from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.faults import CUT_OFF, FAULTS, SILENT, SOUND, Fault
from testbed.labs import OURS, carry, serve
from testbed.mounts import LIMIT, mounted, nothing_lost
from testbed.node import channel, mounts
from testbed.node.files import opened
from testbed.node.programs import hung, until
from testbed.remote import on

pytestmark = pytest.mark.nightly
SECONDS = os.environ.get("SECONDS_OF_SOAK")
SEED = os.environ.get("SEED") or str(random.SystemRandom().randrange(10**6))
# else a server that is restarted again and again has nobody write for longer than a task may wait
BRIEF_GRACE = (
    "mkdir -p /etc/nfs.conf.d; printf '[nfsd]\\ngrace-time=10\\n' > /etc/nfs.conf.d/soak.conf"
)
CLIENTS = ("client1", "client2")


@pytest.fixture
def crowd(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """A server and two clients with our module."""
    if pytestconfig.getoption("--nic") != "rxe":
        pytest.skip(f"faults are those of rxe; missed: {', '.join(FAULTS)}")
    kernel = pytestconfig.getoption("--kernel")
    config = LabConfig(
        f"test-soak-{os.getpid()}", shape="pair", clients=2, kernel=kernel, extras=True
    )
    with Lab(config) as lab:
        lab.run("server", "sh", "-ec", BRIEF_GRACE)
        serve(lab, "server", OURS)
        for client in CLIENTS:
            carry(lab, client, OURS)
        yield lab


def at_random(seed: str) -> Iterator[Fault]:
    """Faults of all kinds without end; what happens to a client happens to one of them."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    while True:
        fault = rng.choice(tuple(FAULTS.values()))
        client = rng.choice(CLIENTS)
        fault = fault if fault.node == "server" else replace(fault, node=client)
        print(f"{time.strftime('%X')} {fault.name} ({fault.node})", flush=True)
        yield fault


def test_faults_at_random_change_nothing(
    crowd: Lab, long: bool, record_property: Callable[[str, object], None]
) -> None:
    print(f"seed {SEED}")
    seconds = float(SECONDS or (900 if long else 20))
    # goodbyes take time where packets were lost
    with nothing_lost(crowd, *crowd.config.nodes, limit=LIMIT):
        result = storm(
            crowd, "vers=4.2,nconnect=4", at_random(SEED), seconds, SEED, CLIENTS, forgets=True
        )
    assert len(result.connections) == 8
    nothing_is_left(crowd)
    record_property("seed", SEED)
    record_property("faults", dict(Counter(result.faults)))
    record_property("disconnects", sum(result.disconnects))
    met = [f"{node}: {line}" for node, console in crowd.consoles.items() for line in console.met]
    record_property("warnings of rdma_rxe", met)
    record_property("operations", result.operations)
    repeated = sum(done.repeated for done in result.done)
    record_property("Calls that a restarted server had executed before", repeated)


def nothing_is_left(lab: Lab) -> None:
    """Nobody holds the module: it unloads everywhere, the server's too."""
    lab.run("server", "systemctl", "stop", "nfs-server")
    for node in lab.config.nodes:
        lab.run(node, "nfsrdma", "module", "unload")
        lab.run(node, "test", "!", "-e", "/sys/module/nfsrdma")


# by turns: NFSv4's client is remembered by its server until its lease ends
OPTIONS = ("vers=3", "vers=4.2,nconnect=4")
# the client whose power is lost, as the server knows it
VICTIM, ADDRESS = "client1", "10.9.1.11"
# the records that fsync(2) has promised to keep, a line each
PROMISED = Path("/run/synced")
# an inline message, a Read chunk of some pages, several WRITEs
SIZES = (1000, 70000, 3 << 20)
FORGOTTEN = f"""
cd /sys/kernel/debug/nfsrdma-server
while grep -qs '^peer {ADDRESS}$' */connection; do sleep 1; done
"""


def test_what_was_synced_outlives_a_client_that_loses_power(
    crowd: Lab, long: bool, record_property: Callable[[str, object], None]
) -> None:
    """Beside one that acknowledges nothing, and an application that goes on."""
    print(f"seed {SEED}")
    rng = random.Random(SEED)  # noqa: S311 - no secret
    end = time.monotonic() + float(SECONDS or (900 if long else 20))
    rounds = promised = 0
    charged = 0.0
    with nothing_lost(crowd, *crowd.config.nodes, limit=LIMIT):
        while not rounds or time.monotonic() < end:
            with mounted(crowd, "vers=3", node="client2"), unreceived_beside(crowd, "client2"):
                promised += power_lost(crowd, OPTIONS[rounds % 2], rng)
                charged = max(charged, kept_for(crowd)[0])
            rounds += 1
    assert promised > 0
    nothing_is_left(crowd)
    record_property("seed", SEED)
    record_property("power losses", rounds)
    record_property("records promised and found", promised)
    record_property("MiB charged for replies, at most", charged)


def power_lost(lab: Lab, options: str, rng: random.Random) -> int:
    """A client writes and loses power; returns how many records it had been promised."""
    with (
        mounted(lab, options, node=VICTIM),
        write_records.at(VICTIM).started(lab, str(rng.random())) as writing,
    ):
        try:
            writing.receive(LIMIT)
            time.sleep(rng.uniform(1, 10))
            assert not writing.done()
            lab.run("server", "sh", "-ec", CUT_OFF, "sh", ADDRESS)
            lab.run(VICTIM, "sh", "-ec", SILENT)
            promised = lab.run(VICTIM, "cat", str(PROMISED)).stdout.splitlines()
            verify(lab, promised)
            lab.run("server", "sh", "-c", FORGOTTEN, timeout=LIMIT)
        finally:
            # for the next round it is another machine
            for node in ("server", VICTIM):
                lab.ssh(node).run("sh", "-c", SOUND, check=False)
    lab.run("server", "rm", "-r", "/export/synced")
    return len(promised)


@on("client")
def write_records(seed: str) -> None:
    """Write files until the block of the test ends; processes then die when they are killed."""
    folder = mounts.HERE / "synced"
    folder.mkdir()
    PROMISED.write_text("")
    writers = [Process(target=write_file, args=(folder / str(size), size, seed)) for size in SIZES]
    for process in writers:
        process.start()
    until("the first record", lambda: PROMISED.stat().st_size, pause=0.1)
    channel.send("written")
    channel.wait()
    for process in writers:
        process.kill()
    assert hung(writers, 300) == []
    assert {process.exitcode for process in writers} <= {0, -9}


def write_file(path: Path, size: int, seed: str) -> None:
    """Write a file's records one by one, until killed; list each when it is safe."""
    rng = random.Random(f"{seed} {size}")  # noqa: S311 - no secret
    with opened(path, os.O_WRONLY | os.O_CREAT) as file, PROMISED.open("a") as promised:
        # one file may not take all of the server's memory
        for number in range(max(8, (32 << 20) // size)):
            record = rng.randbytes(size)
            os.pwrite(file, record, number * size)
            os.fsync(file)
            promised.write(f"{size} {number} {hashlib.sha256(record).hexdigest()}\n")
            promised.flush()


@on("server")
def verify(promised: list[str]) -> None:
    """Every record that the victim was promised is there."""
    assert [line for line in promised if not is_there(*line.split())] == []


def is_there(size: str, number: str, digest: str) -> bool:
    with Path("/export/synced", size).open("rb") as file:
        file.seek(int(number) * int(size))
        return hashlib.sha256(file.read(int(size))).hexdigest() == digest
