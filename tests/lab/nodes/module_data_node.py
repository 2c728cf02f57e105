# SPDX-License-Identifier: Apache-2.0
"""Data of every size, written and read back through mounts of a node; runs in the node.

``python3 - NAME JSON`` calls the function NAME with the arguments in JSON and prints its
result as JSON; the tests never import it.  The plan that wrote a file determines its content, so
the server can check it without more data.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nfsrdma_tools.host.nfs import mountstats

HERE = Path("/mnt/here")
PAGE = 4096
LARGEST = 8 << 20
# data may start anywhere in these many bytes of noise
SKEW = 8192
# where in a page the i-th piece starts when nothing is to be aligned
STRIDE = 1021
Piece = tuple[int, int]
# nfsd of 6.1 reads wrong bytes from where a hole of a tmpfs ends, over TCP too
HOLES = not os.uname().release.startswith("6.1.")


class Noise:
    """The same bytes for the same seed, on every node."""

    def __init__(self, seed: int) -> None:
        self.bytes = random.Random(seed).randbytes(LARGEST + SKEW)  # noqa: S311 - no secret

    def of(self, piece: Piece) -> memoryview:
        """The data of a piece, which is an offset in the file and a size."""
        offset, size = piece
        start = (offset // PAGE * 31 + size) % SKEW
        return memoryview(self.bytes)[start : start + size]


def layout(sizes: list[int], skewed: bool) -> list[Piece]:
    """Pieces that do not touch each other, aligned to pages or to nothing at all."""
    pieces, offset = [], 0
    for number, size in enumerate(sizes):
        start = offset + number * STRIDE % PAGE if skewed else offset
        pieces.append((start, size))
        offset = (start + size + 2 * PAGE - 1) // PAGE * PAGE
    return pieces


def image(pieces: list[Piece], noise: Noise) -> bytearray:
    """The whole file; what is between the pieces is a hole, or zeros."""
    offset, size = pieces[-1]
    whole = bytearray(offset + size)
    for offset, size in pieces:
        whole[offset : offset + size] = noise.of((offset, size))
    return whole


@contextmanager
def mounted(options: str, target: str) -> Iterator[None]:
    words = f"{options},proto={'rdma6' if target[0] == '[' else 'rdma'},port=20049"
    HERE.mkdir(exist_ok=True)
    subprocess.run(("mount", "-t", "nfs", "-o", words, target, HERE), check=True)
    try:
        yield
    finally:
        subprocess.run(("umount", HERE), check=True)


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags, 0o644)
    try:
        yield file
    finally:
        os.close(file)


def buffer(size: int, skewed: bool) -> memoryview:
    """Memory for direct I/O, at the beginning of a page or 3 bytes behind it."""
    start = 3 if skewed else 0
    return memoryview(mmap.mmap(-1, size + PAGE))[start : start + size]


def forget() -> None:
    """No page of any file is cached any more."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def write_buffered(file: int, pieces: list[Piece], noise: Noise) -> None:
    """Each piece leaves the client by itself."""
    for piece in pieces:
        assert os.pwrite(file, noise.of(piece), piece[0]) == piece[1]
        os.fsync(file)


def write_direct(file: int, pieces: list[Piece], noise: Noise) -> None:
    for number, piece in enumerate(pieces):
        memory = buffer(piece[1], number % 2 == 1)
        memory[:] = noise.of(piece)
        assert os.pwritev(file, [memory], piece[0]) == piece[1]


def differing(file: int, pieces: list[Piece], whole: bytes, skew: int) -> list[Piece]:
    """Pieces not read as they should be; ``skew`` bytes before and behind belong to them."""
    wrong = []
    for offset, size in pieces:
        start, end = max(0, offset - skew), min(len(whole), offset + size + skew)
        memory = buffer(end - start, bool(skew))
        got = os.preadv(file, [memory], start)
        if got != end - start or memory != whole[start:end]:
            wrong.append((offset, size))
    return wrong


def read_direct(path: Path, pieces: list[Piece], whole: bytes, skew: int) -> list[Piece]:
    with opened(path, os.O_RDONLY | os.O_DIRECT) as file:
        return differing(file, pieces, whole, skew)


def read_buffered(path: Path, pieces: list[Piece], whole: bytes, skew: int) -> list[Piece]:
    forget()
    with opened(path, os.O_RDONLY) as file:
        return differing(file, pieces, whole, skew)


def carried(name: str, pieces: list[Piece], noise: Noise, write: Callable[..., None]) -> list[str]:
    """Write a file one way and read it every way; returns what was wrong."""
    path, whole = HERE / name, bytes(image(pieces, noise))
    direct = os.O_DIRECT if write is write_direct else 0
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | direct) as file:
        if not HOLES:
            assert os.pwrite(file, bytes(len(whole)), 0) == len(whole)
        write(file, pieces, noise)
    forget()
    wrong = [] if path.read_bytes() == whole else [f"{name} as a whole"]
    for read, skew in ((read_buffered, 0), (read_direct, 0), (read_direct, 1)):
        bad = read(path, pieces, whole, skew)
        wrong += [f"{name} at {o}, {n} bytes, {read.__name__}, {skew}" for o, n in bad]
    return wrong


WAYS = {
    "buffered": (write_buffered, False),
    "buffered-skewed": (write_buffered, True),
    "direct": (write_direct, False),
    "direct-skewed": (write_direct, True),
}


def chunks(kind: str) -> int:
    return sum(xprt.counters[f"{kind}_chunk_count"] for xprt in mountstats.read(HERE).xprts)


def fetches() -> int:
    """Replies that the client read from the server (personality read-read)."""
    files = Path("/sys/kernel/debug/nfsrdma").glob("[0-9]*/counters")
    lines = (line.split() for file in files for line in file.read_text().splitlines())
    return sum(int(value) for name, value in lines if name == "fetches")


def largest_inline(kind: str, move: Callable[[int], None], low: int, high: int) -> int:
    """The largest size that ``move`` moves without a chunk of ``kind``, between both limits."""
    while high - low > 1:
        size, before = (low + high) // 2, chunks(kind)
        move(size)
        if chunks(kind) == before:
            low = size
        else:
            high = size
    return low


def inline_limits() -> dict[str, int]:
    """Where data stops travelling in the message itself, for WRITE and for READ."""
    path, memory = HERE / "limits", buffer(SKEW, False)
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT) as file:
        os.pwritev(file, [memory], 0)

        def write(size: int) -> None:
            os.pwritev(file, [memory[:size]], 0)

        def read(size: int) -> None:
            os.preadv(file, [memory[:size]], 0)

        found = {
            "write": largest_inline("read", write, 1, SKEW),
            "read": largest_inline("write", read, 1, SKEW),
        }
    path.unlink()
    return found


def carry(plan: dict[str, Any]) -> dict[str, Any]:
    """All sizes of a plan through one mount; the files stay, for the server to check."""
    noise = Noise(plan["seed"])
    with mounted(plan["options"], plan["target"]):
        limits = inline_limits()
        # XDR pads to four bytes, so what fits may end at any of them
        near = {n + d for n in limits.values() for d in range(-4, 5)}
        sizes = sorted({*plan["sizes"], *near})
        wrong = []
        for way in plan["ways"]:
            write, skewed = WAYS[way]
            wrong += carried(way, layout(sizes, skewed), noise, write)
        counted = {kind: chunks(kind) for kind in ("read", "write", "reply")}
        counted["fetches"] = fetches()
        told = mountstats.read(HERE).bytes
        return {
            "limits": limits, "sizes": sizes, "wrong": wrong, "chunks": counted,
            "bytes": told.server_read + told.server_write,
        }  # fmt: skip


def check(plan: dict[str, Any]) -> list[str]:
    """On the server: compare the files with the plan, and remove them."""
    noise, wrong = Noise(plan["seed"]), []
    for way in plan["ways"]:
        path = Path(plan["folder"], way)
        if path.read_bytes() != image(layout(plan["sizes"], WAYS[way][1]), noise):
            wrong.append(way)
        path.unlink()
    return wrong


def main() -> Any:
    return globals()[sys.argv[1]](json.loads(sys.argv[2]))
