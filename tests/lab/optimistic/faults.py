# SPDX-License-Identifier: Apache-2.0
"""Faults while files are read: connections that break, nfsd and file systems that go."""

import errno
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

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
    repeated,
    seeded,
)
from testbed.node.programs import call, until
from testbed.remote import on


@contextmanager
def steady(name: str, data: bytes, size: int = BLOCK) -> Iterator[Counter[str]]:
    """A thread reads blocks of a file all the time; each read has the data.

    Counts results so far: "right", "wrong", and errors.
    """
    chance, results = seeded(17), Counter[str]()
    with Reader(name) as reader:

        def read() -> None:
            at = chance.randrange(len(data) // size) * size
            try:
                same = reader.read(at, size) == data[at : at + size]
                results["right" if same else "wrong"] += 1
            except OSError as error:
                results[errno.errorcode[error.errno or 0]] += 1

        with repeated(read):
            yield results
    assert results.keys() == {"right"}


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
    with mounted_export(), steady("restart", data):
        for _ in range(times):
            more_optimistic_reads()
            restart_nfsd()
        more_optimistic_reads()


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
            assert {reader.answer(n * BLOCK) for n in range(4)} == {"ESTALE"}
    finally:
        make_disk()


def unload() -> None:
    """Unload our module, which a connection or a file system may use for a while."""
    argv = ["rmmod", "nfsrdma"]
    until("unloading", lambda: not subprocess.run(argv, check=False).returncode)
