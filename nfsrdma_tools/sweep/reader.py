# SPDX-License-Identifier: Apache-2.0
"""A separate program: read the start of a file in requests of one size, and print the cost.

It runs without site-packages and imports almost nothing, so that its start is cheap compared with
a read of a third of a second.  It imports nothing of nfsrdma_tools.
"""

import mmap
import os
import resource
import sys
import time


def main(path: str, size: int, request: int, direct: bool, seconds: float = 0.0) -> str:
    """Return bytes, ns from the first request to the end of the last, user and system CPU ns.

    ``size`` is a multiple of ``request``; the file may be shorter.  With ``seconds``, it ends after
    that time; a ``direct`` read begins with the file again at its end.  Raises OSError.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | (os.O_DIRECT if direct else 0))
    # page-aligned, as O_DIRECT requires, and allocated before the clock starts
    room = mmap.mmap(-1, request, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    read = os.fdopen(file, "rb", buffering=0).readinto
    left, passes = size, 0
    clock, limit = time.monotonic_ns, round(seconds * 1e9)
    user, system = _spent()
    began = clock()
    if not limit:
        while left > 0 and (done := read(room)):
            left -= done
    while limit and clock() - began < limit:
        done = read(room) if left > 0 else 0
        left -= done
        if not done:
            # the client's cache has what a buffered read would repeat; an empty file has nothing
            if not direct or left == size:
                break
            os.lseek(file, 0, os.SEEK_SET)
            passes += size - left
            left = size
    took = clock() - began
    now = _spent()
    return f"{passes + size - left} {took} {now[0] - user} {now[1] - system}"


def _spent() -> tuple[int, int]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return round(used.ru_utime * 1e9), round(used.ru_stime * 1e9)


if __name__ == "__main__":
    try:
        path, size, request, mode, seconds = sys.argv[1:]
        print(main(path, int(size), int(request), mode == "direct", float(seconds)))
    except OSError as error:
        sys.exit(f"errno {error.errno}")
