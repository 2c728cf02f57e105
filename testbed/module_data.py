# SPDX-License-Identifier: Apache-2.0
"""Data of every size through a mount of a lab, what fio verifies, and a delegation's recall."""

from __future__ import annotations

import json
import mmap
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.lab.nodes import Nodes
from testbed.faults import FAULTS
from testbed.mounts import HERE, LIMIT, connections, mounted
from testbed.node import mounts
from testbed.node.files import opened
from testbed.node.programs import until
from testbed.remote import on

__all__ = ["WAYS", "around", "carried", "delegation", "fio"]

WAYS = ("buffered", "buffered-skewed", "direct", "direct-skewed")
PAGE, LARGEST = 4096, 8 << 20
# data may start anywhere in these many bytes of noise
SKEW = 8192
# where in a page the i-th piece starts when nothing is to be aligned
STRIDE = 1021
# nfsd of 6.1 reads wrong bytes from where a hole of a tmpfs ends, over TCP too
HOLES = not os.uname().release.startswith("6.1.")
# an offset in a file, and a size
Piece = tuple[int, int]


class Moved(NamedTuple):
    """The data that a mount carried, and in which chunks.

    ``limits`` are the largest WRITE and READ without a chunk; ``chunks`` are counts by kind, and
    of replies that the client read from the server ("fetches").  ``connects`` is the number of
    connections that the mount made, one by one.
    """

    sizes: list[int]
    limits: dict[str, int]
    chunks: dict[str, int]
    bytes: int
    connects: int


def around(*limits: int) -> list[int]:
    """Sizes at which something may change, and their neighbours."""
    return sorted({limit + d for limit in limits for d in (-1, 0, 1) if limit + d > 0})


def carried(
    lab: Nodes, options: str, sizes: list[int], seed: int, ways: tuple[str, ...] = WAYS,
    target: str = "server:/export",
) -> Moved:  # fmt: skip
    """Every size, written each of ``ways`` and read every way, is what it was on both sides.

    The sizes around which data stops travelling inline are found and added.
    """
    moved = write_and_read(lab, options, sizes, seed, ways, target)
    compare(lab, moved.sizes, seed, ways)
    return moved


@on("client", timeout=3600)
def write_and_read(
    options: str, sizes: list[int], seed: int, ways: tuple[str, ...], target: str
) -> Moved:
    """Move all sizes through one mount; the files stay, for the server to compare."""
    noise, family = noise_of(seed), "rdma6" if target.startswith("[") else "rdma"
    with mounts.mounted(f"{options},proto={family}", source=target) as folder:
        limits = inline_limits(folder / "limits")
        # XDR pads to four bytes, so what fits may end at any of them
        near = {limit + distance for limit in limits.values() for distance in range(-4, 5)}
        sizes = sorted({*sizes, *near})
        wrong = [text for way in ways for text in differences(folder / way, sizes, noise)]
        assert not wrong, f"{options}, seed {seed}: {wrong[:9]}"
        counts = {kind: chunks(folder, kind) for kind in ("read", "write", "reply")}
        counts["fetches"] = mounts.counters().get("fetches", 0)
        now = mountstats.read(folder)
        moved = now.bytes.server_read + now.bytes.server_write
        connects = sum(xprt.counters["connect_count"] for xprt in now.xprts)
        return Moved(sizes, limits, counts, moved, connects)


@on("server")
def compare(sizes: list[int], seed: int, ways: tuple[str, ...]) -> None:
    """Compare the files on the server with what they should be, and remove them."""
    noise = noise_of(seed)
    for way in ways:
        path = Path("/export", way)
        assert path.read_bytes() == image(layout(sizes, way), noise), f"{way}, seed {seed}"
        path.unlink()


def noise_of(seed: int) -> bytes:
    """The same bytes for the same seed, on every node."""
    return random.Random(seed).randbytes(LARGEST + SKEW)  # noqa: S311 - no secret


def data_of(piece: Piece, noise: bytes) -> memoryview:
    offset, size = piece
    start = (offset // PAGE * 31 + size) % SKEW
    return memoryview(noise)[start : start + size]


def layout(sizes: list[int], way: str) -> list[Piece]:
    """Pieces that do not touch each other, aligned to pages or, skewed, to nothing at all."""
    pieces, offset = [], 0
    for number, size in enumerate(sizes):
        start = offset + number * STRIDE % PAGE if way.endswith("-skewed") else offset
        pieces.append((start, size))
        offset = (start + size + 2 * PAGE - 1) // PAGE * PAGE
    return pieces


def image(pieces: list[Piece], noise: bytes) -> bytearray:
    """The whole file; what is between the pieces is a hole, or zeros."""
    whole = bytearray(sum(pieces[-1]))
    for offset, size in pieces:
        whole[offset : offset + size] = data_of((offset, size), noise)
    return whole


def memory_of(size: int, skew: int) -> memoryview:
    """Memory for direct I/O, which begins these many bytes behind the beginning of a page."""
    return memoryview(mmap.mmap(-1, size + PAGE))[skew : skew + size]


def differences(path: Path, sizes: list[int], noise: bytes) -> list[str]:
    """Write a file the way of its name, and read it every way; returns what was wrong."""
    pieces = layout(sizes, path.name)
    whole = bytes(image(pieces, noise))
    write(path, pieces, noise)
    mounts.drop_caches()
    wrong = [] if path.read_bytes() == whole else [f"{path.name} as a whole"]
    # bytes before and behind a piece that are read with it
    for flags, more in ((0, 0), (os.O_DIRECT, 0), (os.O_DIRECT, 1)):
        if not flags:
            mounts.drop_caches()
        with opened(path, os.O_RDONLY | flags) as file:
            for offset, size in pieces:
                start, end = max(0, offset - more), min(len(whole), offset + size + more)
                memory = memory_of(end - start, 3 * more)
                count = os.preadv(file, [memory], start)
                if count != end - start or memory != whole[start:end]:
                    wrong.append(f"{path.name} at {offset}, {size} bytes, flags {flags}, {more}")
    return wrong


def write(path: Path, pieces: list[Piece], noise: bytes) -> None:
    """Write pieces; each leaves the client by itself."""
    direct = path.name.startswith("direct")
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
    with opened(path, flags | os.O_DIRECT if direct else flags) as file:
        if not HOLES:
            size = sum(pieces[-1])
            assert os.pwrite(file, bytes(size), 0) == size
        for number, (offset, size) in enumerate(pieces):
            memory = memory_of(size, 3 if direct and number % 2 else 0)
            memory[:] = data_of((offset, size), noise)
            assert os.pwritev(file, [memory], offset) == size
            if not direct:
                os.fsync(file)


def chunks(folder: Path, kind: str) -> int:
    return sum(xprt.counters[f"{kind}_chunk_count"] for xprt in mountstats.read(folder).xprts)


def inline_limits(path: Path) -> dict[str, int]:
    """Where data stops travelling in the message itself, for WRITE and for READ."""
    memory = memory_of(SKEW, 0)
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT) as file:
        os.pwritev(file, [memory], 0)
        limits = {
            "write": largest(path, "read", lambda size: os.pwritev(file, [memory[:size]], 0)),
            "read": largest(path, "write", lambda size: os.preadv(file, [memory[:size]], 0)),
        }
    path.unlink()
    return limits


def largest(path: Path, kind: str, move: Callable[[int], int]) -> int:
    """The largest size, at most SKEW, that ``move`` moves without a chunk of ``kind``."""
    low, high = 1, SKEW
    while high - low > 1:
        size, before = (low + high) // 2, chunks(path.parent, kind)
        move(size)
        low, high = (size, high) if chunks(path.parent, kind) == before else (low, size)
    return low


def fio(lab: Nodes, options: str, loops: int, seed: int) -> dict[str, int]:
    """Two buffered and two direct jobs write 8 MiB, and verify what they wrote, again and again."""
    size = 8 << 20
    about = f"--output-format=json --size={size} --loops={loops} --rw=randwrite --fallocate=none"
    sizes = f"--bsrange=1k-1m --ioengine=psync --verify=crc32c --verify_fatal=1 --randseed={seed}"
    jobs = "--name=buffered --numjobs=2 --name=direct --direct=1 --numjobs=2"
    words = f"--directory={HERE}/fio {about} {sizes} {jobs}".split()
    with mounted(lab, options):
        lab.run("client", "mkdir", f"{HERE}/fio")
        output = lab.run("client", "fio", *words, timeout=loops * LIMIT).stdout
        lab.run("client", "rm", "-r", f"{HERE}/fio")
    jobs_done = json.loads(output)["jobs"]
    assert [job["error"] for job in jobs_done] == [0] * 4
    done = {way: sum(job[way]["io_bytes"] for job in jobs_done) for way in ("read", "write")}
    assert min(done.values()) >= len(jobs_done) * loops * size
    return done


def delegation(lab: Nodes, options: str, fault: str = "") -> None:
    """A delegation is recalled over the connection, also over one made anew after ``fault``."""
    name = f"recalled-{time.monotonic_ns()}"
    with mounted(lab, options):
        if fault:
            FAULTS[fault].happen(lab)
            lab.run("client", "ls", HERE)
        before = callbacks(lab)
        lab.run("server", "sh", "-c", f"echo before > /export/{name}")
        # the server delegates nothing before its grace period ends
        until(f"a delegation of {name}", lambda: is_delegated(lab, name), LIMIT, 0.5)
        # waits for the delegation to come back
        lab.run("server", "sh", "-c", f"echo after > /export/{name}", timeout=LIMIT)
        assert lab.run("client", "cat", f"{HERE}/{name}").stdout == "after\n"
        operations = operations_of(lab)
        count = callbacks(lab) - before
    lab.run("server", "rm", f"/export/{name}")
    # had the lease run out instead, the client would ask whether its state is still good
    assert operations["TEST_STATEID"] == 0
    assert operations["DELEGRETURN"] > 0
    assert count > 0


def callbacks(lab: Nodes) -> int:
    return sum(int(connection["callbacks"]) for connection in connections(lab))


def is_delegated(lab: Nodes, name: str) -> bool:
    """Open a file; returns whether the server has delegated it."""
    lab.run("client", "cat", f"{HERE}/{name}")
    held = f"grep '{name}' /proc/fs/nfsd/clients/*/states | grep -q 'type: deleg'"
    return not lab.run("server", "sh", "-c", held, check=False).returncode


@on("client")
def operations_of() -> dict[str, int]:
    """Operations of the mount by name."""
    operations = mountstats.read(mounts.HERE).operations
    return {name: operation.operations for name, operation in operations.items()}
