# SPDX-License-Identifier: Apache-2.0
"""Work over mounts that knows what it has to find, while faults are injected."""

from __future__ import annotations

import hashlib
import mmap
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import Process, Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.lab.nodes import Nodes
from testbed.faults import AGAIN, Fault
from testbed.mounts import HERE, LIMIT, connections, mounted
from testbed.node import channel, mounts
from testbed.node.files import opened
from testbed.node.programs import hung, until
from testbed.remote import Running, on

__all__ = ["storm"]

WORKERS = ("buffered", "direct", "names", "buffered", "direct")
# seconds of faults after which the storm waits until the server answers again
UNSERVED = 40.0
# statfs always asks the server; eight of them use each connection.  Soft-RoCE that could not send
# one datagram sends no other (see faults.LINK_DOWN), which an address that goes may cause, too.
_ASK = f"""
for n in 1 2 3 4 5 6 7 8; do stat -f {HERE} >/dev/null; done &
while kill -0 $! 2>/dev/null; do
	if rdma resource show qp | grep -q "type GSI state ERR"; then {AGAIN} fi
	sleep 1
done
wait $!
"""
SIZE, PAGE = 4 << 20, 4096
# an inline message, a page, one memory region, several, the largest request
SIZES = (1, 100, 3000, PAGE, 65536, 262144, 1 << 20)
# after the storm: what is hung then hangs for good
ENDED = 400.0


class Done(NamedTuple):
    """The work of a process: its error, the SHA-256 of its file, operations, slowest in seconds.

    ``repeated`` are Calls that a restarted server had executed before.
    """

    worker: str
    error: str
    sha256: str
    repeated: int
    operations: int
    slowest: float


class Storm(NamedTuple):
    """The faults in order, the work of each process, and debugfs of the connections."""

    faults: list[str]
    done: list[Done]
    connections: list[dict[str, str]]

    @property
    def operations(self) -> int:
        """The sum over all processes."""
        return sum(outcome.operations for outcome in self.done)

    @property
    def disconnects(self) -> list[int]:
        """The count of each connection."""
        return [int(connection["disconnects"]) for connection in self.connections]


def storm(
    lab: Nodes,
    options: str,
    faults: Iterable[Fault],
    seconds: float,
    seed: str,
    clients: Sequence[str] = ("client",),
    least: int = 1,
    *,
    forgets: bool = False,
) -> Storm:
    """Work over mounts of some clients while ``faults`` happen in turn, a second between them.

    ``forgets``: the server may lose its record of executed Calls; see faults.py.
    ``least`` faults happen even where the machines are so slow that the time is over before.
    AssertionError names a failure, a byte that differs on either side, or a process that hangs.
    """
    with ExitStack() as mounted_clients:
        for client in clients:
            mounted_clients.enter_context(mounted(lab, options, node=client))
        with ExitStack() as programs:
            works = {
                client: programs.enter_context(
                    work.at(client).started(lab, f"storm-{client}", seed, forgets)
                )
                for client in clients
            }
            happened = inject(lab, faults, seconds, works, least)
            print(f"seed {seed}, after {', '.join(happened)}")
        facts = [connection for client in clients for connection in connections(lab, client)]
    # not before the unmount: it gives back what was delegated
    for client, running in works.items():
        same_on_the_server(lab, f"/export/storm-{client}", running.result())
    done = [outcome for running in works.values() for outcome in running.result()]
    return Storm(happened, done, facts)


def inject(
    lab: Nodes,
    faults: Iterable[Fault],
    seconds: float,
    works: dict[str, Running[list[Done]]],
    least: int,
) -> list[str]:
    """One fault after the other until the time is over or some work ends by itself.

    Afterwards the server answers again.
    """
    end, served = time.monotonic() + seconds, time.monotonic()
    happened: list[str] = []
    for fault in faults:
        over = time.monotonic() > end and len(happened) >= least
        if over or any(running.done() for running in works.values()):
            break
        happened.append(f"{fault.name} ({fault.node})")
        fault.happen(lab)
        time.sleep(1)
        # chance may keep a server silent for longer than a task may wait (hung_task_timeout_secs)
        if time.monotonic() - served > UNSERVED:
            ask(lab, works)
            served = time.monotonic()
    ask(lab, works)
    return happened


def ask(lab: Nodes, clients: Iterable[str]) -> None:
    """Wait until the server answers each client, whose soft-RoCE may have to be made again."""
    for client in clients:
        lab.run(client, "sh", "-ec", _ASK, timeout=LIMIT)


def same_on_the_server(lab: Nodes, folder: str, done: list[Done]) -> None:
    lines = [f"{outcome.sha256}  {outcome.worker}\n" for outcome in done if outcome.sha256]
    script = f"cd {folder} && sha256sum --check --quiet && rm -r {folder}"
    lab.run("server", "sh", "-c", script, stdin="".join(lines).encode())


# --- in a client ---


@on("client", timeout=900)
def work(folder: str, seed: str, forgets: bool) -> list[Done]:
    """Work in a folder of the mount until the storm is over, then read all of it once more."""
    path, stop = mounts.HERE / folder, multiprocessing.Event()
    path.mkdir()
    results: Queue[Done] = Queue()
    workers = [
        Process(target=worker, args=(results, stop, path / f"{kind}-{number}", seed, forgets))
        for number, kind in enumerate(WORKERS)
    ]
    for process in workers:
        process.start()
    channel.wait()
    stop.set()
    assert hung(workers, ENDED) == []
    done = [results.get(timeout=1) for _ in workers]
    assert [outcome for outcome in done if outcome.error] == []
    return done


def worker(results: Queue[Done], stop: Event, path: Path, seed: str, forgets: bool) -> None:
    rng = random.Random(f"{seed} {path.name}")  # noqa: S311 - no secret
    operations, slowest, began = 0, 0.0, time.monotonic()

    def again() -> bool:
        nonlocal operations, slowest, began
        now = time.monotonic()
        operations, slowest, began = operations + 1, max(slowest, now - began), now
        # each has done something, however short the storm was
        return operations < 5 or not stop.is_set()

    error, sha256, repeated = "", "", 0
    try:
        if path.name.startswith("names"):
            repeated = change_names(Names(path, rng, forgets), again)
        else:
            sha256 = move_data(path, rng, again, path.name.startswith("direct"))
    except (OSError, AssertionError) as failure:
        error = repr(failure)
    results.put(Done(path.name, error, sha256, repeated, operations, round(slowest, 1)))


def move_data(path: Path, rng: random.Random, again: Callable[[], bool], direct: bool) -> str:
    """Random pieces of a file written and read; what it has to contain is kept in memory."""
    image, memory = bytearray(SIZE), memoryview(mmap.mmap(-1, 1 << 20))
    with opened(path, os.O_RDWR | os.O_CREAT | (os.O_DIRECT if direct else 0)) as file:
        os.ftruncate(file, SIZE)
        while again():
            size = rng.choice(SIZES)
            offset = rng.randrange(SIZE - size + 1)
            part = memory[:size]
            if rng.random() < 0.5:
                image[offset : offset + size] = part[:] = rng.randbytes(size)
                done = os.pwritev(file, [part], offset)
            else:
                if not direct:
                    os.fsync(file)
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                done = os.preadv(file, [part], offset)
                assert part == image[offset : offset + size], f"{size} bytes at {offset}"
            assert done == size, f"{done} of {size} bytes at {offset}"
        os.fsync(file)
    assert path.read_bytes() == image, "the whole file at the end"
    return hashlib.sha256(image).hexdigest()


class Names:
    """A folder and what has to be in it.

    With ``forgets``, a server that executed a Call, and was restarted before its reply arrived,
    may say of the Call that is sent again that the name is gone.  That counts as done if the
    folder shows it.
    """

    def __init__(self, folder: Path, rng: random.Random, forgets: bool) -> None:
        self.folder, self.rng, self.forgets = folder, rng, forgets
        self.there: list[str] = []
        self.repeated = 0
        folder.mkdir()

    def make(self, name: str) -> None:
        (self.folder / name).write_bytes(self.rng.randbytes(self.rng.randrange(6000)))
        self.there.append(name)

    def rename(self, name: str) -> None:
        old = self.any()
        self.there.append(name)
        with self.executed_before():
            (self.folder / old).rename(self.folder / name)

    def remove(self, _: str) -> None:
        old = self.any()
        with self.executed_before():
            (self.folder / old).unlink()

    @contextmanager
    def executed_before(self) -> Iterator[None]:
        """Accept that a name is gone, if the folder is what it has to be afterwards."""
        try:
            yield
        except FileNotFoundError:
            if not self.forgets:
                raise
            self.repeated += 1
            # the client lists what it knows until it asks for the folder's attributes again
            until("the list of names", self.is_sound, ENDED, 1)

    def is_sound(self) -> bool:
        return {path.name for path in self.folder.iterdir()} == set(self.there)

    def list(self, _: str) -> None:
        assert self.is_sound(), "the list of names"

    def any(self) -> str:
        """One that will not be there any more."""
        return self.there.pop(self.rng.randrange(len(self.there)))


def change_names(folder: Names, again: Callable[[], bool]) -> int:
    """Files that come, are renamed and go; none of it may happen twice, or not at all."""
    number = 0
    while again():
        number += 1
        ways = (folder.make, folder.make, folder.rename, folder.remove, folder.list)
        folder.rng.choice(ways if folder.there else ways[:1])(f"a-rather-long-name-{number}")
    folder.list("")
    while folder.there:
        folder.remove("")
    folder.folder.rmdir()
    return folder.repeated
