# SPDX-License-Identifier: Apache-2.0
"""A separate program: write files of odd sizes to a folder of a mount, or read and compare them.

It computes the content of a file from the file's name, so a reader needs nothing of the writer.
It imports nothing of nfsrdma_tools: a parent kills it when the server does not answer.

It prints its numbers as JSON, with a text for each of the first files with other data.  For an
error of a file it prints the errno, and ends with status 1.
"""

import json
import mmap
import os
import random
import sys
from pathlib import Path
from typing import Any

# around the limits of inline messages, pages and segments; the last ones need several RPCs
SIZES = (
    *(1, 13, 511, 512, 513, 1023, 1024, 1025, 4095, 4096, 4097, 8193, 65535, 65536, 65537),
    *(262_143, 1_048_575, 1_048_576, 1_048_577, 4_194_317),
)
WAYS = {"buffered": 0, "direct": os.O_DIRECT}
# bytes from the start of a page to the data in memory
SHIFT = 13
MOST_PRINTED = 20


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


def difference(found: bytes, expected: bytes) -> tuple[int, str]:
    """How many bytes differ or are missing, and which; 0 if none."""
    length = min(len(found), len(expected))
    # as numbers: a loop over bytes takes Python a second for each 10 MiB
    one, other = (int.from_bytes(data[:length], "big") for data in (found, expected))
    bits = (one ^ other).to_bytes(length, "big")
    wrong, size = length - bits.count(0) + abs(len(found) - len(expected)), len(expected)
    if len(found) != size:
        return wrong, f"found {len(found)} of {size} bytes"
    first = length - len(bits.lstrip(b"\0"))
    return wrong, f"{wrong} of {size} bytes are wrong, the first at {first}"


def main(verb: str, where: str, seed: str, *writers: str) -> dict[str, Any]:
    """Write the files of a writer, or read those of several in each way; returns the numbers."""
    if verb == "write":
        Path(where).mkdir(0o700, exist_ok=True)
    folder = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    numbers = {"files": 0, "bytes": 0, "wrong_files": 0, "wrong_bytes": 0}
    texts: list[str] = []
    for writer, way, size in ((w, way, size) for w in writers for way in WAYS for size in SIZES):
        name = f"{writer}-{way}-{size}"
        data = content(seed, name, size)
        for by in (way,) if verb == "write" else WAYS:
            numbers["files"] += 1
            numbers["bytes"] += size
            if verb == "write":
                write(folder, name, data, way)
            elif (differs := difference(read(folder, name, size, by), data))[0]:
                numbers["wrong_files"] += 1
                numbers["wrong_bytes"] += differs[0]
                texts.append(f"{name} ({by}): {differs[1]}")
    return {"numbers": numbers, "wrong": texts[:MOST_PRINTED]}


if __name__ == "__main__":
    try:
        print(json.dumps(main(*sys.argv[1:])))
    except OSError as error:
        sys.exit(f"errno {error.errno}")
