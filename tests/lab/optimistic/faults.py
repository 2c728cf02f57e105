# SPDX-License-Identifier: Apache-2.0
"""Faults while files are read: connections that break, nfsd and file systems that go."""

import errno
import json
import subprocess
import threading

from lab.optimistic.exports import drop_disk, make_disk, restart_nfsd, unexport, unmount

from testbed.node.grants import (
    BLOCK,
    CARDS,
    DISK,
    EXPORT,
    MIB,
    Reader,
    answered_without_nfsd,
    granted,
    made,
    mounted_export,
    seeded,
)
from testbed.node.programs import call, until
from testbed.remote import on


class Steady:
    """A thread that reads a file all the time and counts blocks that are wrong."""

    def __init__(self, name: str, data: bytes, size: int = BLOCK) -> None:
        self.name, self.data, self.size = name, data, size
        self.over, self.reads, self.wrong = threading.Event(), 0, 0
        self.errors: list[str] = []
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        chance = seeded(17)
        with Reader(self.name) as reader:
            while not self.over.is_set():
                at = chance.randrange(len(self.data) // self.size) * self.size
                try:
                    self.wrong += reader.read(at, self.size) != self.data[at : at + self.size]
                    self.reads += 1
                except OSError as error:
                    self.errors.append(errno.errorcode[error.errno or 0])

    def __enter__(self) -> "Steady":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def check(self) -> None:
        """All reads had the data, once the thread has ended."""
        assert (self.wrong, self.errors) == (0, [])
        assert self.reads > 0


def more_optimistic_reads() -> None:
    before = answered_without_nfsd()
    # the server's counters end with their connection
    until("reads without nfsd", lambda: answered_without_nfsd() != before)


def queue_pairs() -> list[str]:
    """The numbers of the client's connected queue pairs; the first one of a mount is the oldest."""
    rows = json.loads(call("rdma", "-j", "-d", "resource", "show", "qp"))
    numbers = [
        row["lqpn"] for row in rows
        if row.get("ifname") == "card0" and row["type"] == "RC" and row["state"] == "RTS"
    ]  # fmt: skip
    return [str(number) for number in sorted(numbers)]


def break_pairs(numbers: list[str]) -> None:
    for number in numbers:
        (CARDS / "card0" / "break").write_text(number)


@on("client", timeout=3600)
def check_restarts(times: int) -> None:
    """Restart nfsd while a file is read."""
    data = made(EXPORT / "restart", 18)
    with mounted_export(), Steady("restart", data) as steady:
        for _ in range(times):
            more_optimistic_reads()
            restart_nfsd()
        more_optimistic_reads()
    steady.check()


@on("client", timeout=900)
def check_unmounts() -> None:
    """Unmount an exported file system whose pages are granted; it is there again afterwards."""
    drop_disk()
    try:
        make_disk()
        data = made(DISK / "unmounts", 14)
        with mounted_export(folder=DISK), Reader("unmounts") as reader:
            reader.granted()
            assert reader.read(0, MIB) == data[:MIB]
            assert granted() > 0
            unexport(DISK)
            # the client has the file open, and grants
            unmount(DISK)
            assert granted() == 0
            # one extent may be known to the client, none may be readable
            assert {reader.said(n * BLOCK) for n in range(4)} == {"ESTALE"}
    finally:
        make_disk()


def unload() -> None:
    """Unload our module, which a connection or a file system may use for a while."""
    argv = ["rmmod", "nfsrdma"]
    until("unloading", lambda: not subprocess.run(argv, check=False).returncode)
