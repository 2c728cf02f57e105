# SPDX-License-Identifier: Apache-2.0
"""Part of test_trace_life.py that runs in a client: ``python3 - SESSIONS CYCLES KILLS SET...``.

Traces start, end and are killed, while workers read and write a file over a mount. A session is
compiled, and then attached and detached CYCLES times. Prints the programs in the kernel before and
after, and the results of the workers.
"""

import contextlib
import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from nfsrdma_tools.probes import probe_sets
from nfsrdma_tools.probes.session import Session, session

MOUNT = Path("/mnt/here")
SIZE, LIMIT, WORKERS = 1 << 18, 300.0, 2


def work(number: int, stop: Event, rounds: "SynchronizedArray[int]") -> None:
    """Write a file and read it back, until ``stop`` is set."""
    os.nice(5)  # compiling is not what is looked at
    path, turn = MOUNT / f"traced-{number}", 0
    while not stop.is_set():
        data = hashlib.sha256(b"%d" % turn).digest() * (SIZE // 32)
        path.write_bytes(data)
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        assert path.read_bytes() == data
        turn += 1
        rounds[number] = turn
    path.unlink()


def programs() -> list[str]:
    """Programs of ours in the kernel: bcc calls them after their events."""
    said = subprocess.run(("bpftool", "-j", "prog", "show"), capture_output=True, check=True)
    return sorted(p["name"] for p in json.loads(said.stdout) if "tracepoint" in p["type"])


def gone() -> list[str]:
    """Programs once they had time to go: the kernel frees them after a grace period."""
    end = time.monotonic() + LIMIT
    while (there := programs()) and time.monotonic() < end:
        time.sleep(0.5)
    return there


def detach(bpf: Any) -> None:
    for event in list(bpf.kprobe_fds):
        bpf.detach_kprobe_event(event)
    for event in list(bpf.tracepoint_fds):
        bpf.detach_tracepoint(tp=event)
    for event in list(bpf.raw_tracepoint_fds):
        bpf.detach_raw_tracepoint(tp=event)


def attached(bpf: Any) -> int:
    return len(bpf.kprobe_fds) + len(bpf.tracepoint_fds) + len(bpf.raw_tracepoint_fds)


def messages(counting: Session) -> int:
    """The RPCs that probe set chunks has counted until now."""
    rpcs: int = probe_sets.probe_set("chunks").read(counting).count("rpcs")
    return rpcs


def cycled(cycles: int, sets: Sequence[str]) -> int:
    """The messages that probe sets counted after the last attach."""
    with session(sets) as counting:
        bpf = counting.bpf
        at_first = attached(bpf)
        for _ in range(cycles - 1):
            detach(bpf)
            assert attached(bpf) == 0
            bpf._trace_autoload()
            assert attached(bpf) == at_first
        before, end = messages(counting), time.monotonic() + LIMIT
        while (seen := messages(counting) - before) == 0 and time.monotonic() < end:
            time.sleep(0.2)
        return seen


def killed() -> None:
    """A tracer dies without a chance to detach."""
    tracer = subprocess.Popen(
        ("nfsrdma", "trace", "latency", "--json", "--interval", "0.2"), stdout=subprocess.PIPE
    )
    assert tracer.stdout
    for _ in range(4):
        assert tracer.stdout.readline(), "the tracer ended by itself"
    assert programs(), "nothing was attached"
    tracer.send_signal(signal.SIGKILL)
    tracer.wait()


def main(sessions: int, cycles: int, kills: int, sets: Sequence[str]) -> None:
    # those of the test before may be on their way
    assert gone() == [], "somebody else traces here"
    stop, rounds = multiprocessing.Event(), multiprocessing.Array("i", WORKERS)
    workers = [multiprocessing.Process(target=work, args=(n, stop, rounds)) for n in range(WORKERS)]
    for worker in workers:
        worker.start()
    seen = []
    try:
        for _ in range(sessions):
            seen.append(cycled(cycles, sets))
        for _ in range(kills):
            killed()
        stayed = gone()
    finally:
        stop.set()
        for worker in workers:
            worker.join(LIMIT)
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
    codes = [worker.exitcode for worker in workers]
    print(json.dumps({"stayed": stayed, "codes": codes, "rounds": rounds[:], "seen": seen}))


main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
