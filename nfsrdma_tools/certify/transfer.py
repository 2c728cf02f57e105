# SPDX-License-Identifier: Apache-2.0
"""A separate program: write files of odd sizes to a folder of a mount, or read and compare them.

It computes what each file must have from the file's name, so a reader needs nothing of the writer.
It imports nothing of nfsrdma_tools: a parent kills it when the server does not answer.

It prints a line of JSON for each file with other data, and one with the numbers at the end.  For
an error of a file it prints the errno, and ends with status 1.
"""

import json
import mmap
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

# around the limits of inline messages, pages and segments; the last ones need several RPCs
SIZES = (
    *(1, 13, 511, 512, 513, 1023, 1024, 1025, 4095, 4096, 4097, 8193, 65535, 65536, 65537),
    *(262_143, 1_048_575, 1_048_576, 1_048_577, 4_194_317),
)
WAYS = {"buffered": 0, "direct": os.O_DIRECT}
# bytes from the start of a page to the data in memory
SHIFT = 13
MOST_PRINTED = 20
BLOCK = 4096


def files(writer: str) -> Iterator[tuple[str, int, str]]:
    """The name, size and way of each file of a writer, in order."""
    for way in WAYS:
        for size in SIZES:
            yield f"{writer}-{way}-{size}", size, way


def content(seed: str, name: str, size: int) -> bytes:
    """The bytes that a file of this name must have."""
    return random.Random(f"{seed} {name}").randbytes(size)  # noqa: S311 -- the same each time


def write(folder: int, name: str, data: bytes, way: str) -> None:
    """Write a file, and have it on the server.  Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | WAYS[way]
    room = mmap.mmap(-1, SHIFT + len(data))
    room[SHIFT:] = data
    file = os.open(name, flags, 0o600, dir_fd=folder)
    done = 0
    while done < len(data):
        done += os.write(file, memoryview(room)[SHIFT + done :])
    os.fsync(file)
    os.close(file)


def read(folder: int, name: str, size: int, way: str) -> bytes:
    """The data of a file, at most a byte more than ``size``.  Raises OSError."""
    room = mmap.mmap(-1, SHIFT + size + 1)
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | WAYS[way], dir_fd=folder)
    done = 0
    while done <= size and (more := os.readv(file, [memoryview(room)[SHIFT + done :]])):
        done += more
    os.close(file)
    return room[SHIFT : SHIFT + done]


def difference(found: bytes, expected: bytes) -> tuple[int, int] | None:
    """The first byte that differs, and how many do; None if all are equal."""
    if found == expected:
        return None
    length = min(len(found), len(expected))
    # block by block: few differ, and bytes take Python a second for each 10 MiB
    blocks = (slice(at, min(at + BLOCK, length)) for at in range(0, length, BLOCK))
    wrong = [
        at
        for block in blocks
        if found[block] != expected[block]
        for at in range(block.start, block.stop)
        if found[at] != expected[at]
    ]
    rest = abs(len(found) - len(expected))
    return (wrong or [length])[0], len(wrong) + rest


def main(verb: str, where: str, seed: str, *writers: str) -> dict[str, int]:
    """Write the files of a writer, or read those of several in each way; returns the numbers."""
    if verb == "write":
        Path(where).mkdir(0o700, exist_ok=True)
    folder = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    numbers = {"files": 0, "bytes": 0, "wrong_files": 0, "wrong_bytes": 0}
    for writer in writers:
        for name, size, way in files(writer):
            data = content(seed, name, size)
            for by in (way,) if verb == "write" else WAYS:
                numbers["files"] += 1
                numbers["bytes"] += size
                if verb == "write":
                    write(folder, name, data, way)
                    continue
                found = read(folder, name, size, by)
                if differs := difference(found, data):
                    numbers["wrong_files"] += 1
                    numbers["wrong_bytes"] += differs[1]
                    if numbers["wrong_files"] <= MOST_PRINTED:
                        told = {"file": name, "read": by, "size": size, "found": len(found)}
                        print(json.dumps({**told, "first": differs[0], "wrong": differs[1]}))
    return numbers


if __name__ == "__main__":
    try:
        print(json.dumps(main(*sys.argv[1:])))
    except OSError as error:
        sys.exit(f"errno {error.errno}")
