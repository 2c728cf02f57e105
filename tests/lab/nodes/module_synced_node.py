# SPDX-License-Identifier: Apache-2.0
"""Records that fsync(2) has promised to keep; runs in nodes.

``python3 - write SEED`` writes files in /mnt/here/synced until /run/synced.stop is there, and lists
each record in /run/synced when it is safe.  ``python3 - verify FOLDER LIST``, on the server, prints
those that are not there.  Both print JSON.  Never imported by the tests.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
from multiprocessing import Process
from pathlib import Path
from typing import Any

HERE = Path("/mnt/here/synced")
LIST, STOP = Path("/run/synced"), Path("/run/synced.stop")
# an inline message, a Read chunk of some pages, several WRITEs
SIZES = (1000, 70000, 3 << 20)
LIMIT = 300.0


def keep(seed: str, size: int) -> None:
    """Write a file's records one by one, until killed."""
    rng, file = random.Random(f"{seed} {size}"), os.open(HERE / str(size), os.O_WRONLY | os.O_CREAT)  # noqa: S311 - no secret
    with LIST.open("a") as promised:
        # one file may not take all of the server's memory
        for number in range(max(8, (32 << 20) // size)):
            record = rng.randbytes(size)
            os.pwrite(file, record, number * size)
            os.fsync(file)
            promised.write(f"{size} {number} {hashlib.sha256(record).hexdigest()}\n")
            promised.flush()


def write(seed: str) -> dict[str, Any]:
    HERE.mkdir()
    STOP.unlink(missing_ok=True)
    LIST.write_text("")
    keepers = [Process(target=keep, args=(seed, size)) for size in SIZES]
    for process in keepers:
        process.start()
    while not STOP.exists():
        time.sleep(0.1)
    end = time.monotonic() + LIMIT
    for process in keepers:
        process.kill()
    for process in keepers:
        process.join(max(0.0, end - time.monotonic()))
    return {
        "failed": [p.exitcode for p in keepers if p.exitcode not in (None, 0, -9)],
        "alive": [Path(f"/proc/{p.pid}/stack").read_text() for p in keepers if p.is_alive()],
    }


def verify(folder: str, promised: str) -> dict[str, Any]:
    lines = Path(promised).read_text().splitlines()
    wrong = [line for line in lines if not _is_there(Path(folder), *line.split())]
    return {"promised": len(lines), "wrong": wrong}


def _is_there(folder: Path, size: str, number: str, digest: str) -> bool:
    with (folder / size).open("rb") as file:
        file.seek(int(number) * int(size))
        return hashlib.sha256(file.read(int(size))).hexdigest() == digest


def main() -> Any:
    _, name, *words = sys.argv
    return globals()[name](*words)
