# SPDX-License-Identifier: Apache-2.0
"""Files of safetensors in a node: written, and loaded through mounts and by a store of blocks.

The loader of a store makes the calls of nfsrdma_tools/client/adapters/fastsafetensors.py; nodes
have no PyTorch.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import random
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.blocks.workload import (
    SERVED,
    TARGET,
    Division,
    Measured,
    Worker,
    of_mount,
    of_sessions,
    sampler,
    spent,
    worker_of,
)
from nfsrdma_tools.client.adapters.background import Background
from nfsrdma_tools.client.session import connect
from testbed.node.files import drop_from_cache
from testbed.node.mounts import mounted
from testbed.remote import on

__all__ = ["FILES", "Loader", "checksums", "loaded", "tensors_of", "write_model"]

FILES = 30
# bytes of an element
KINDS = {"BF16": 2, "F16": 2, "F32": 4, "I8": 1, "I64": 8}
PATTERN = 1 << 20
PAGE = 4096
# the first tensor begins at a multiple of it
ALIGNMENT = 8
LENGTH_BYTES = 8
# those of fastsafetensors
THREADS = 16
TIMEOUT = 3600.0
# a tensor by name
Tensors = dict[str, memoryview]


# --- the files ---


def write_model(folder: Path, size: int) -> None:
    """Write files with tensors of random kinds and shapes, ``size`` bytes together."""
    chance = random.Random(30)  # noqa: S311 - no secret
    pattern = chance.randbytes(PATTERN)
    for number in range(FILES):
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        while left := size // FILES - end:
            kind = chance.choice(sorted(KINDS))
            shape = [chance.randrange(1, 2048) for _ in range(chance.randrange(1, 3))]
            if KINDS[kind] * math.prod(shape) > left:
                shape = [left // KINDS[kind]]
            start, end = end, end + KINDS[kind] * math.prod(shape)
            name = f"model.layers.{number}.{len(header)}"
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        with (folder / f"model-{number:05}.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
            for name, each in header.items():
                if name != "__metadata__":
                    first, last = each["data_offsets"]
                    file.writelines(data_of(pattern, chance.randrange(PATTERN), last - first))


def data_of(pattern: bytes, at: int, size: int) -> Iterator[bytes]:
    """Bytes of a pattern, which begins at a place of its own for each tensor."""
    while size:
        part = pattern[at : at + size]
        yield part
        size -= len(part)
        at = 0


def tensors_of(data: memoryview) -> Tensors:
    """The tensors of a file."""
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    start = LENGTH_BYTES + length
    header = json.loads(bytes(data[LENGTH_BYTES:start]))
    return {
        name: data[start + each["data_offsets"][0] : start + each["data_offsets"][1]]
        for name, each in header.items()
        if name != "__metadata__"
    }


def checksums(folder: Path) -> dict[str, int]:
    """Those of all tensors in files of this machine."""
    sums = {}
    for path in sorted(folder.iterdir()):
        found = tensors_of(memoryview(path.read_bytes()))
        sums.update({name: zlib.crc32(data) for name, data in found.items()})
    return sums


# --- loaders ---


@dataclass(frozen=True)
class Loader:
    """How files get to memory: mapped, read, or as blocks; a mount's options, or sessions."""

    kind: str
    options: str = ""
    sessions: int = 0

    @property
    def folder(self) -> Path:
        """Where the mount is."""
        return Path(f"/mnt/{self.kind}-{'tcp' if 'proto=tcp' in self.options else 'rdma'}")


def new_memory(size: int) -> memoryview:
    """Memory as malloc(3) and PyTorch get it."""
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class Model:
    """Loads all files; each page is used once, as a program that copies tensors to a GPU does."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.tensors: Tensors = {}

    def work(self) -> None:
        for data in self.files():
            self.tensors.update(tensors_of(data))
        for each in self.tensors.values():
            each[::PAGE].tobytes()

    def files(self) -> Iterator[memoryview]:
        """The data of each file."""
        raise NotImplementedError

    def sums(self) -> dict[str, int]:
        """The checksums of what was loaded."""
        return {name: zlib.crc32(data) for name, data in self.tensors.items()}

    def forget(self) -> None:
        """Free the memory of the tensors, and the page cache of the client."""
        self.tensors.clear()

    def counts(self) -> Counter[str]:
        raise NotImplementedError


class Mapped(Model):
    """mmap(2) of files of a mount, one after the other: what the package safetensors does."""

    def __init__(self, names: list[str], folder: Path) -> None:
        super().__init__(names)
        self.folder = folder

    def files(self) -> Iterator[memoryview]:
        for name in self.names:
            file = os.open(self.folder / name, os.O_RDONLY)
            yield memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
            os.close(file)

    def forget(self) -> None:
        super().forget()
        for name in self.names:
            drop_from_cache(self.folder / name)

    def counts(self) -> Counter[str]:
        return of_mount(self.folder)


class Reads(Mapped):
    """read(2) of whole files of a mount, by threads."""

    def files(self) -> Iterator[memoryview]:
        with ThreadPoolExecutor(THREADS) as pool:
            yield from pool.map(self.read, self.names)

    def read(self, name: str) -> memoryview:
        file = os.open(self.folder / name, os.O_RDONLY)
        memory = new_memory(os.fstat(file).st_size)
        at = 0
        while at < len(memory):
            at += os.readv(file, [memory[at:]])
        os.close(file)
        return memory


class Stored(Model):
    """Whole files as blocks: all of them start together."""

    def __init__(self, names: list[str], sessions: int) -> None:
        super().__init__(names)
        self.headers = connect(TARGET)
        self.store = Background(TARGET, TIMEOUT, sessions=sessions)

    def files(self) -> Iterator[memoryview]:
        memories = [new_memory(self.size(name)) for name in self.names]
        started = [
            self.store.start(self.get(name, memory))
            for name, memory in zip(self.names, memories, strict=True)
        ]
        if any(each.result() != [True] for each in started):
            raise SystemExit("a file did not arrive whole")
        yield from memories

    def size(self, name: str) -> int:
        """That of a file, whose header the adapter reads first."""
        with self.headers.open(name) as file:
            size = file.size()
            length = int.from_bytes(file.pread(LENGTH_BYTES, 0), "little")
            json.loads(file.pread(length, LENGTH_BYTES))
        return size

    async def get(self, name: str, memory: memoryview) -> list[bool]:
        with self.store.registered(memory):
            return await self.store.get([(name, memory)])

    def counts(self) -> Counter[str]:
        return of_sessions([self.headers, *self.store._store._sessions])

    def close(self) -> None:
        self.store.close()
        self.headers.close()


@contextlib.contextmanager
def opened(loader: Loader) -> Iterator[Model]:
    names = sorted(path.name for path in SERVED.iterdir())
    if loader.kind == "blocks":
        with contextlib.closing(Stored(names, loader.sessions)) as stored:
            yield stored
        return
    with mounted(loader.options, loader.folder, TARGET):
        kinds = {"mapped": Mapped, "read": Reads}
        yield kinds[loader.kind](names, loader.folder)


@on("solo", timeout=7200)
def loaded(loaders: list[Loader], size: int) -> list[Measured]:
    """Load a model of ``size`` bytes into a client that has no data of it in memory.

    The counts are those of a whole load: of the first one, and of one that follows.  Samples of one
    more divide its time between the ends.  Checksums of all tensors must be right.
    """
    shutil.rmtree(SERVED, ignore_errors=True)
    SERVED.mkdir(mode=0o777)
    try:
        write_model(SERVED, size)
        expected = checksums(SERVED)
        counts = [measure(loader, expected) for loader in loaders]
        divisions = divide(loaders)
    finally:
        shutil.rmtree(SERVED)
    return [Measured(*each, division) for each, division in zip(counts, divisions, strict=True)]


def measure(loader: Loader, expected: dict[str, int]) -> tuple[dict[str, float], dict[str, float]]:
    """The counts of two loads."""
    with worker_of(opened(loader)) as worker:
        first, later = (checked(loader, worker, expected) for _ in range(2))
    return first, later


def checked(loader: Loader, worker: Worker, expected: dict[str, int]) -> dict[str, float]:
    counts = spent(worker)
    if worker.ask("sums") != expected:
        raise SystemExit(f"{loader}: a tensor has another checksum")
    worker.ask("forget")
    return dict(counts)


def divide(loaders: list[Loader]) -> list[Division]:
    """Sample stacks in a further load of each."""
    divisions = []
    with sampler() as samples:
        for loader in loaders:
            with worker_of(opened(loader)) as worker:
                # it is mounted, or connected
                worker.ask("forget")
                samples.start()
                worker.ask("work")
                divisions.append(samples.division())
                # a file that is mapped keeps its mount
                worker.ask("forget")
    return divisions
