# SPDX-License-Identifier: Apache-2.0
"""Has allocations of our module fail (Documentation/fault-injection); runs in the node.

``begin EVERY TIMES [FUNCTION]``: each EVERY-th allocation under FUNCTION fails, until TIMES have
failed.  The default is any function of the module.
``end``: none does; prints how many did, and under which of its functions.  ``sweep FILE``: loads
and unloads the module with the first allocation failing, with the second, and so on.
Never imported by the tests.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

KINDS = {name: Path("/sys/kernel/debug") / name for name in ("failslab", "fail_page_alloc")}
SUNRPC = Path("/sys/kernel/debug/fail_sunrpc/probability")
LOG, STATE = Path("/run/failures.log"), Path("/run/failures.json")
MODULE = Path("/sys/module/nfsrdma")
# where modules are, on x86-64: the beginning of one that is being loaded is in no table yet
MODULES = (0xFFFFFFFFA0000000, 0xFFFFFFFFFF000000)
NR_FINIT_MODULE, NR_DELETE_MODULE = 313, 176
PLACE = re.compile(r"\]  (nfr_\w+)(?:\.\w+)*\+0x\w+/0x\w+ \[nfsrdma\]")
libc = ctypes.CDLL(None, use_errno=True)


def text(function: str = "") -> tuple[int, int]:
    """Where the module's functions are, or one of them."""
    with Path("/proc/kallsyms").open() as file:
        rows = [line.split() for line in file if "[nfsrdma]" in line]
    found = sorted((int(row[0], 16), row[2]) for row in rows if row[1] in "tT")
    start, end = found[0][0], found[-1][0] + 4096
    assert 0 < start <= int((MODULE / "sections/.text").read_text(), 16) <= found[-1][0]
    if function:
        start = next(address for address, name in found if name == function)
        end = min((address for address, _ in found if address > start), default=end)
    return start, end


def leak_finder() -> tuple[int, int]:
    """First and last address of kmemleak, whose own allocations must not fail.

    kmemleak allocates a record during each allocation of our module.
    """
    with Path("/proc/kallsyms").open() as file:
        found = {row[2]: int(row[0], 16) for row in map(str.split, file) if "kmemleak" in row[2]}
    return found.get("kmemleak_free", 0), found.get("kmemleak_ignore_phys", 0)


def put(kind: str, **values: object) -> None:
    for name, value in values.items():
        (KINDS[kind] / name.replace("_", "-")).write_text(str(value))


def prepare(where: tuple[int, int]) -> None:
    """All but the probability. Allocations that may sleep fail too, of any size."""
    start, end = where
    no_start, no_end = leak_finder()
    for kind in KINDS:
        put(kind, probability=0, task_filter="N", times=-1, verbose=2, ignore_gfp_wait="N")
        put(kind, require_start=start, require_end=end, stacktrace_depth=32)
        put(kind, reject_start=no_start, reject_end=no_end)
    put("fail_page_alloc", min_order=0, ignore_gfp_highmem="N")


def begin(every: str, times: str, function: str = "") -> None:
    """It goes on as it was where it had been begun before."""
    if STATE.exists():
        return
    prepare(text(function))
    STATE.write_text(json.dumps({"reader": watch(), "times": int(times)}))
    for kind in KINDS:
        put(kind, interval=every, times=times, probability=100)


def watch() -> int:
    """A process copies the kernel's log as it grows, because the kernel keeps little of it."""
    argv, no = ("dmesg", "--follow-new"), subprocess.DEVNULL
    with LOG.open("wb") as log:
        # the caller does not wait for it
        reader = subprocess.Popen(argv, stdin=no, stdout=log, stderr=no)
    return reader.pid


def places() -> Counter[str]:
    """The innermost function of ours of each allocation that failed."""
    reports = LOG.read_text(errors="replace").split("FAULT_INJECTION: forcing a failure")[1:]
    found = [PLACE.search(report) for report in reports]
    return Counter(match[1] for match in found if match)


def end() -> dict[str, Any]:
    SUNRPC.write_text("0")
    for kind in KINDS:
        put(kind, probability=0, require_start=0, require_end=(1 << 64) - 1)
    if not STATE.exists():
        return {"failed": 0, "places": {}}
    state = json.loads(STATE.read_text())
    STATE.unlink()
    left = [int((folder / "times").read_text()) for folder in KINDS.values()]
    # the last lines of the log arrive within a second
    time.sleep(1)
    os.kill(state["reader"], signal.SIGTERM)
    return {"failed": sum(state["times"] - one for one in left), "places": places()}


# --- loading ---


def fail_nth(number: int | None = None) -> int:
    """Has this thread's so-many-th allocation fail; returns how many are still to come."""
    path = Path("/proc/thread-self/fail-nth")
    if number is not None:
        path.write_text(str(number))
    return int(path.read_text())


def call(number: int, *words: object) -> int:
    """Returns 0 or an errno."""
    return ctypes.get_errno() if libc.syscall(number, *words) else 0


def load(file: str, number: int) -> int:
    descriptor = os.open(file, os.O_RDONLY)
    fail_nth(number)
    error = call(NR_FINIT_MODULE, descriptor, b"", 0)
    os.close(descriptor)
    return error


def unload(number: int) -> int:
    fail_nth(number)
    return call(NR_DELETE_MODULE, b"nfsrdma", os.O_NONBLOCK)


def left() -> list[str]:
    return [str(path) for path in (MODULE, Path("/sys/kernel/debug/nfsrdma")) if path.exists()]


def sweep(file: str) -> dict[str, Any]:
    """Until nothing is left to fail. Each time the module is there as a whole, or not at all."""
    answers: dict[str, Any] = {"loads": [], "unloads": [], "left": []}
    prepare(MODULES)
    number = 0
    more = True
    while more:
        number += 1
        error, more = load(file, number), fail_nth() == 0
        answers["loads"].append(error)
        if not error:
            answers["unloads"].append(unload(number))
        fail_nth(0)
        answers["left"] += left()
    end()
    return answers


def main() -> None:
    _, name, *words = sys.argv
    print(json.dumps(globals()[name](*words)))


main()
