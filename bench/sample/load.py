# SPDX-License-Identifier: Apache-2.0
"""Part of bench/sample.py: takes samples of a recorded host with the package of one tree.

``python -m bench.sample_load HOST LOAD...`` prints the CPU time of the main thread for a sample of
each load, in ns; with --counted, calls of getppid() mark the samples for Valgrind.  It imports only
what the trees of both commits have.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.live.collect.sampler import Sampler
from nfsrdma_tools.live.prometheus.metrics import Metrics

# samples before the count: the first one finds the mounts, and has no counts
WARM = 2
# samples of the two parts that are counted
RUNS = (1, 3)


def sampled(host: Path, load: str) -> Callable[[], None]:
    """A function that takes the next sample of this load and counts it for a scrape."""
    texts = [file.read_bytes() for file in sorted((host / load).iterdir())]
    mountstats, position = host / "proc/self/mountstats", iter(texts)
    mountstats.write_bytes(texts[0])
    sampler, metrics = Sampler(sets=(), machine=Machine(host)), Metrics()
    # before the count: a thread of its own finds the clients of the mounts
    sampler._clients.look_up(wait=True)

    def sample() -> None:
        mountstats.write_bytes(next(position))
        taken = sampler.take()
        metrics.add(taken)
        busy = sum(bool(mount.ops) for mount in taken.mounts)
        if taken.number > WARM and busy != (len(taken.mounts) if load == "busy" else 0):
            raise SystemExit(f"{load}: {busy} of {len(taken.mounts)} mounts have counts")

    for _ in range(WARM):
        sample()
    return sample


def main() -> None:
    counted = "--counted" in sys.argv
    host, *loads = [word for word in sys.argv[1:] if word != "--counted"]
    spent = {}
    for load in loads:
        sample = sampled(Path(host), load)
        times = []
        for run in RUNS:
            if counted:
                os.getppid()
            for _ in range(run):
                begun = time.thread_time_ns()
                sample()
                times.append(time.thread_time_ns() - begun)
            if counted:
                os.getppid()
        spent[load] = min(times)
    print(json.dumps(spent))


if __name__ == "__main__":
    main()
