# SPDX-License-Identifier: Apache-2.0
"""How our client gets over a server that falls silent: at once when it gives the connection up."""

from __future__ import annotations

import hashlib
import mmap
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing import Process, Queue
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path
from queue import Empty
from typing import TypeVar

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.faults import FAULTS, silence
from testbed.kernel_events import recorded, stacks
from testbed.mounts import HERE, LIMIT, connections, mounted
from testbed.node import mounts
from testbed.node.files import opened, read_from_server
from testbed.node.programs import hung, until
from testbed.remote import on

T = TypeVar("T")

# seconds until its Calls time out, which is before soft-RoCE gives a silent peer up
TIMEOUT = 2
# Calls that have to time out.  The first timeout ends a connection, and none is made in the
# silence: a slow machine sends fewer Calls before it
MANY = 100
IMPATIENT = "vers=3,actimeo=600"
FILES = """
mkdir /export/silent && cd /export/silent
for i in $(seq 100); do : > $(printf 'a-name-%050d' $i); done
head -c 4096 /dev/urandom > data
for name in one two; do head -c 4M /dev/urandom > $name; done
sha256sum data one two
"""
BRIEF_LEASE = """
mkdir -p /etc/nfs.conf.d
printf '[nfsd]\\nlease-time=10\\ngrace-time=10\\n' > /etc/nfs.conf.d/lease.conf
systemctl restart nfs-server
"""
# seconds for one event, which a sound client needs a fraction of
SOON = 120.0
# inline, both ways
BLOCK = 4096
# connections of the mount, of which each has Calls that time out
CONNECTS = 16
READERS = ("one", "two")
NO_LEASE = "rm /etc/nfs.conf.d/lease.conf; systemctl restart nfs-server"


@pytest.fixture
def sums(both_ours: Lab) -> Iterator[dict[str, str]]:
    """Files on the server, and their SHA-256 by name."""
    listing = both_ours.run("server", "sh", "-ec", FILES).stdout
    yield {line.split()[1]: line.split()[0] for line in listing.splitlines()}
    both_ours.run("server", "rm", "-r", "/export/silent")


def total(name: str) -> int:
    """A number of all connections together."""
    return sum(int(row[name]) for row in mounts.connections())


def given_up() -> int:
    """How often soft-RoCE has given a silent peer up."""
    files = Path("/sys/class/infiniband").glob("*/ports/1/hw_counters/retry_exceeded_err")
    return sum(int(path.read_text()) for path in files)


def result_of(results: Queue[T], *processes: Process) -> T:
    """Their next result; TimeoutError has their stacks in the kernel."""
    try:
        return results.get(timeout=SOON)
    except Empty:
        raise TimeoutError("\n".join(hung(processes, 0))) from None


def start(ready: Semaphore, function: Callable[..., None], *words: object) -> tuple[Process, Event]:
    """A process that has opened its file, and the event upon which it goes on."""
    begin = multiprocessing.Event()
    process = Process(target=function, args=(ready, begin, *words))
    process.start()
    ready.acquire()
    return process, begin


def list_names(ready: Semaphore, begin: Event) -> None:
    with opened(mounts.HERE / "silent") as folder:
        ready.release()
        begin.wait()
        list(os.scandir(folder))


def read_block(ready: Semaphore, begin: Event, sums: Queue[str]) -> None:
    memory = memoryview(mmap.mmap(-1, BLOCK))
    with opened(mounts.HERE / "silent/data", os.O_RDONLY | os.O_DIRECT) as file:
        ready.release()
        begin.wait()
        os.preadv(file, [memory], 0)
    sums.put(hashlib.sha256(memory).hexdigest())


def write_little(ready: Semaphore, begin: Event) -> None:
    with opened(mounts.HERE / "silent/little", os.O_WRONLY | os.O_CREAT | os.O_SYNC) as file:
        ready.release()
        begin.wait()
        os.pwrite(file, b"little" * 10, 0)


@on("client")
def break_connection() -> str:
    """The server does not answer; a signal kills the listing, whose Call the transport keeps.

    The READ, whose answer would come inline, times out before the device gives up. Only the first
    Call registers memory: soft-RoCE registers again what it sends again, which ends its queue pair.
    Returns the SHA-256 of what the READ brought in the end.
    """
    sums: Queue[str] = Queue()
    ready = multiprocessing.Semaphore(0)
    # a process with an open file here would have to write it out before it runs another program
    reader, read = start(ready, read_block, sums)
    lister, list_now = start(ready, list_names)
    writer, write = start(ready, write_little)
    before = given_up()
    with silence():
        list_now.set()
        # read the figures now: a later reader may wait for the process that hangs
        until("the listing's Call", lambda: total("credits_used") >= 1, SOON)
        read.set()
        until("the READ", lambda: total("credits_used") >= 2, SOON)
        lister.kill()
        assert hung([lister], SOON) == []
        assert total("calls_abandoned") == 1, "the listing was not abandoned"
        write.set()
        until("a disconnect", lambda: total("disconnects") >= 1, SOON)
        assert given_up() == before, "it waited until the device had given up"
    assert hung([reader, writer], SOON) == []
    return result_of(sums)


def test_a_broken_connection_does_not_wait_for_its_device(
    both_ours: Lab, sums: dict[str, str]
) -> None:
    """A listing is killed, whose memory the transport keeps; a READ times out beside a WRITE."""
    if both_ours.config.nic == "siw":
        # RFC 5040, section 5.5: a Send is done before the peer has it, so nothing waits behind it
        pytest.skip("soft-iWARP keeps no requests of a silent peer; missed: what waits for them")
    events = {"nfsrdma/nfsrdma_disconnect/enable": "1"}
    options = f"{IMPATIENT},timeo={10 * TIMEOUT},retrans=10"
    with mounted(both_ours, options), recorded(both_ours, "client", events) as lines:
        assert break_connection(both_ours) == sums["data"]
    reasons = [line.split("reason=")[1] for line in lines if "nfsrdma_disconnect:" in line]
    assert reasons[0] == "a reply did not come in time"


def read_twice(path: Path, begin: Event, sums: Queue[tuple[str, str]]) -> None:
    """After the first time each connection has the credits that its server grants."""
    memory = memoryview(mmap.mmap(-1, 4 << 20))
    with opened(path, os.O_RDONLY | os.O_DIRECT) as file:
        os.preadv(file, [memory], 0)
        sums.put((path.name, ""))
        begin.wait()
        size = os.preadv(file, [memory], 0)
    sums.put((path.name, hashlib.sha256(memory[:size]).hexdigest()))


def work_over_tcp(folder: Path, stop: Event, rounds: Queue[int]) -> None:
    """Independent work over TCP: write a file, to the server's memory, and read it."""
    path, done = folder / "beside", 0
    while not stop.is_set():
        path.write_bytes(str(done).encode())
        assert read_from_server(path) == str(done).encode()
        done += 1
    path.unlink()
    rounds.put(done)


@on("client")
def time_out(seconds: float) -> dict[str, str]:
    """The server sends nothing over RDMA until MANY Calls of all connections have timed out.

    Work over TCP goes on for ``seconds`` and longer after the connections have ended.  Returns
    the SHA-256 of the files that were read meanwhile, by name.
    """
    begin, stop = multiprocessing.Event(), multiprocessing.Event()
    sums: Queue[tuple[str, str]] = Queue()
    rounds: Queue[int] = Queue()
    trace = Path("/sys/kernel/tracing/trace")
    paths = [mounts.HERE / "silent" / name for name in READERS]
    readers = [Process(target=read_twice, args=(path, begin, sums)) for path in paths]
    with mounts.mounted("vers=3,proto=tcp,port=2049", Path("/mnt/tcp")) as folder:
        for process in readers:
            process.start()
        for _ in readers:
            result_of(sums, *readers)
        with silence():
            begin.set()
            beside = Process(target=work_over_tcp, args=(folder, stop, rounds))
            beside.start()
            until("all disconnects", lambda: total("disconnects") >= CONNECTS, SOON)
            # twice the major timeout of each Call
            time.sleep(seconds)
            # a busy machine takes longer to send as many
            until("timeouts", lambda: trace.read_text().count("xprt_timer:") >= MANY, SOON)
            stop.set()
            assert result_of(rounds, beside) > 0, "nothing went on over TCP"
            beside.join()
        return dict(result_of(sums, *readers) for _ in readers)


def test_tasks_that_time_out_leave_the_workers_to_others(
    both_ours: Lab, sums: dict[str, str]
) -> None:
    """rpciod's workers carry all mounts: a hundred Calls that time out sleep elsewhere.

    The silence outlasts their major timeout. Nevertheless each Call has its time for a reply on the
    connection that follows, or Calls would break connections one after the other.
    """
    asleep = 'stacktrace if prev_state == 2 && prev_comm ~ "kworker*"'
    events = {"sched/sched_switch/trigger": asleep, "sunrpc/xprt_timer/enable": "1"}
    # soft-iWARP does not give up; with a kernel's checks its Calls take longer to be sent, and none
    # is after the first timeout: nothing connects
    timeout = TIMEOUT * (3 * both_ours.config.patience if both_ours.config.nic == "siw" else 1)
    options = f"{IMPATIENT},timeo={10 * timeout},retrans=1,nconnect={CONNECTS},rsize=4096"
    with mounted(both_ours, options), recorded(both_ours, "client", events) as lines:
        assert time_out(both_ours, 4 * timeout) == {name: sums[name] for name in READERS}
        reasons = {connection["last_disconnect"] for connection in connections(both_ours)}
    expired = sum("xprt_timer:" in line for line in lines)
    print(f"{expired} timeouts")
    assert expired >= MANY
    assert reasons == {"a reply did not come in time"}
    slept = stacks(lines)
    assert slept, "no worker was seen asleep: the trigger records nothing"
    ours = ("nfr_client_timer", "nfr_client_wait_closed")
    assert [stack for stack in slept if any(name in stack for name in ours)] == []


def test_connecting_takes_no_longer_than_sunrpc_allows(both_ours: Lab) -> None:
    """NFSv4 sets a mount's connect timeout to the lease, which is less than our bound here."""
    if both_ours.config.nic != "rxe":
        pytest.skip("how a device goes is known of soft-RoCE; missed: the connect timeout")
    both_ours.run("server", "sh", "-ec", BRIEF_LEASE)
    try:
        with mounted(both_ours, "vers=4.2"):
            FAULTS["client's device removed"].happen(both_ours)
            both_ours.run("client", "ls", HERE, timeout=LIMIT)
            (connection,) = connections(both_ours)
        assert (connection["connects"], connection["connect_timeout_ms"]) == ("2", "10000")
    finally:
        both_ours.run("server", "sh", "-ec", NO_LEASE)
