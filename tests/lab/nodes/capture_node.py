# SPDX-License-Identifier: Apache-2.0
"""Reads 4 KiB by O_DIRECT at a rate, from several processes; prints the rate that it reached.

Arguments: file, its size, reads a second, seconds, processes.
"""

import mmap
import os
import random
import sys
import time

PATH, SIZE, RATE, SECONDS, PROCESSES = sys.argv[1], *map(int, sys.argv[2:6])
BLOCK = 4096


def reads(number: int) -> None:
    file, room = os.open(PATH, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, BLOCK)
    dice = random.Random(number)  # noqa: S311
    pause = PROCESSES / RATE
    next_one = time.monotonic() + number / RATE
    for _ in range(RATE * SECONDS // PROCESSES):
        early = next_one - time.monotonic()
        if early > 0:
            time.sleep(early)
        next_one += pause
        assert os.preadv(file, [room], dice.randrange(SIZE // BLOCK) * BLOCK) == BLOCK


start = time.monotonic()
children = []
for number in range(PROCESSES):
    child = os.fork()
    if not child:
        reads(number)
        os._exit(0)
    children.append(child)
assert not any(os.waitpid(child, 0)[1] for child in children)
print(RATE * SECONDS // PROCESSES * PROCESSES / (time.monotonic() - start))
