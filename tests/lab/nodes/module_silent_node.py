# SPDX-License-Identifier: Apache-2.0
"""Calls under way when nothing comes from the server any more; runs in the node.

``python3 - recall``: one is killed, one times out, one is sent meanwhile, over the mount at
/mnt/here.  ``python3 - timeouts SECONDS COUNT``: COUNT time out there, beside work over TCP at
/mnt/tcp, which goes on for SECONDS and longer after the connections have ended.  The caller records
sunrpc's event xprt_timer.
Prints what it found as JSON.  Never imported by the tests.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Event, Process, Queue, Semaphore
from pathlib import Path
from queue import Empty
from typing import Any, TypeVar

T = TypeVar("T")

HERE, TCP = Path("/mnt/here/silent"), Path("/mnt/tcp")
CONNECTIONS = Path("/sys/kernel/debug/nfsrdma")
DROP = "udp dport 4791 drop; tcp dport 20049 drop; tcp sport 20049 drop;"
IN = f"chain in {{ type filter hook input priority 0; {DROP} }}"
TRACE = Path("/sys/kernel/tracing/trace")
GIVEN_UP = "*/ports/1/hw_counters/retry_exceeded_err"
LIMIT = 120.0
# inline, both ways
BLOCK = 4096
# connections of the mount
CONNECTS = 16
READERS = ("one", "two")


@contextmanager
def silence() -> Iterator[None]:
    subprocess.run(("nft", f"table inet silent {{ {IN}; }}"), check=True)
    try:
        yield
    finally:
        subprocess.run(("nft", "delete", "table", "inet", "silent"), check=True)


def until(condition: Callable[[], bool]) -> bool:
    """Returns whether the condition became true within the limit."""
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def got(answers: Queue[T], *processes: Process) -> T:
    """Their next answer; TimeoutError has their stacks in the kernel."""
    try:
        return answers.get(timeout=LIMIT)
    except Empty:
        where = "\n".join(hung(*processes))
        raise TimeoutError(f"no answer in {LIMIT:.0f} s; in the kernel:\n{where}") from None


def total(name: str) -> int:
    """A figure of all connections together."""
    lines = [line.split() for one in CONNECTIONS.glob("*/connection") for line in one.open()]
    return sum(int(words[1]) for words in lines if words[0] == name)


# --- three Calls ---


def list_names(ready: Any, begin: Any) -> None:
    folder = os.open(HERE, os.O_RDONLY)
    ready.release()
    begin.wait()
    list(os.scandir(folder))


def read_block(ready: Any, begin: Any, answers: Queue[str]) -> None:
    memory = memoryview(mmap.mmap(-1, BLOCK))
    file = os.open(HERE / "data", os.O_RDONLY | os.O_DIRECT)
    ready.release()
    begin.wait()
    os.preadv(file, [memory], 0)
    answers.put(hashlib.sha256(memory).hexdigest())


def write_little(ready: Any, begin: Any) -> None:
    file = os.open(HERE / "little", os.O_WRONLY | os.O_CREAT | os.O_SYNC)
    ready.release()
    begin.wait()
    os.pwrite(file, b"little" * 10, 0)


def recall() -> dict[str, Any]:
    """The server does not answer; a signal kills the listing, whose Call the transport keeps.

    The READ, whose answer would come inline, times out before the device gives up. Only the first
    Call registers memory: soft-RoCE registers again what it sends again, which ends its queue pair.
    """
    answers: Queue[str] = Queue()
    ready, begin = Semaphore(0), [Event() for _ in range(3)]
    reader = Process(target=read_block, args=(ready, begin[0], answers))
    lister = Process(target=list_names, args=(ready, begin[1]))
    writer = Process(target=write_little, args=(ready, begin[2]))
    # a process with an open file here would have to write it out before it runs another program
    for process in (reader, lister, writer):
        process.start()
        ready.acquire()
    before = given_up()
    with silence():
        begin[1].set()
        # read the figures now: a later reader may wait for the process that hangs
        sent = until(lambda: total("credits_used") >= 1)
        begin[0].set()
        sent &= until(lambda: total("credits_used") >= 2)
        lister.kill()
        lister.join(LIMIT)
        killed, kept = not lister.is_alive(), total("calls_abandoned")
        begin[2].set()
        broken, by_device = until(lambda: total("disconnects") >= 1), given_up() - before
    for process in (reader, writer):
        process.join(LIMIT)
    found = {
        "sent": sent, "killed": killed, "kept": kept, "broken": broken, "by_device": by_device,
        "hung": hung(reader, writer),
    }  # fmt: skip
    if not found["hung"]:
        found["sha256"] = got(answers)
    return found


def stack(process: Process) -> str:
    return Path(f"/proc/{process.pid}/stack").read_text()


def hung(*processes: Process) -> list[str]:
    """The stacks of those that have not ended."""
    return [stack(process) for process in processes if process.is_alive()]


def given_up() -> int:
    """How often soft-RoCE has given a silent peer up."""
    return sum(int(path.read_text()) for path in Path("/sys/class/infiniband").glob(GIVEN_UP))


# --- a hundred Calls and more ---


def read_all(path: Path, begin: Any, answers: Queue[str]) -> None:
    """Twice: after the first time each connection has the credits that its server grants."""
    memory = memoryview(mmap.mmap(-1, 4 << 20))
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    os.preadv(file, [memory], 0)
    answers.put("")
    begin.wait()
    done = os.preadv(file, [memory], 0)
    answers.put(f"{hashlib.sha256(memory[:done]).hexdigest()}  {path.name}")


def work_over_tcp(counts: Queue[int], stop: Any) -> None:
    """Independent work over TCP: write a file, to the server's memory, and read it."""
    path, rounds = TCP / "beside", 0
    while not stop.is_set():
        path.write_bytes(str(rounds).encode())
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert file.read() == str(rounds).encode()
        rounds += 1
    path.unlink()
    counts.put(rounds)


def timeouts() -> dict[str, Any]:
    """The server sends nothing over RDMA until the Calls of all connections have timed out."""
    begin, stop = Event(), Event()
    answers: Queue[str] = Queue()
    counts: Queue[int] = Queue()
    readers = [Process(target=read_all, args=(HERE / n, begin, answers)) for n in READERS]
    for process in readers:
        process.start()
    for _ in readers:
        got(answers, *readers)
    with silence():
        begin.set()
        beside = Process(target=work_over_tcp, args=(counts, stop))
        beside.start()
        broken = until(lambda: total("disconnects") >= CONNECTS)
        # twice the major timeout of each Call
        time.sleep(float(sys.argv[2]))
        # a busy machine takes longer to send as many
        until(lambda: TRACE.read_text().count("xprt_timer:") >= int(sys.argv[3]))
        stop.set()
        rounds = got(counts, beside)
        beside.join()
    sums = sorted(got(answers, *readers) for _ in readers)
    return {"broken": broken, "rounds": rounds, "sums": sums}


def main() -> Any:
    return globals()[sys.argv[1]]()
