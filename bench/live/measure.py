# SPDX-License-Identifier: Apache-2.0
"""Cost of the dashboard, and whether its memory grows.

On the instruction clock: one machine with many mounts, one of which is read from, a dashboard, and
its clients.  CPU time of the dashboard's process and all its threads is instructions.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.remote import on

# from this many seconds on, main() also prints the memory of each minute
_LONG = 600


PORT = 8949
# a read now and then, so that something is counted
LOAD = """
while :; do dd if=/mnt/m0/data of=/dev/null bs=64k count=16 iflag=direct status=none
	sleep 0.5; done
"""


class Cost(NamedTuple):
    """The cost of a dashboard."""

    share: float
    """of a CPU"""
    snapshot: float
    """of a snapshot, in milliseconds"""
    period: float
    worst: float
    """between two snapshots, in seconds: the mean, and the longest"""
    memory: list[float]
    """in MiB, by the minute"""


@on("solo", timeout=14400)
def costs(mounts: int, seconds: int, only: str) -> dict[tuple[str, int], Cost]:
    """The costs by the probes and the number of listeners."""
    prepare(mounts)
    load, by_way = subprocess.Popen(("sh", "-c", LOAD)), dict[tuple[str, int], Cost]()
    try:
        for options, name in (((), "all"), (("--no-probes",), "none")):
            counts = [count for count in (1, 200) if not only or f"{name}:{count}" == only]
            if counts:
                with dashboard(*options) as pid:
                    for listeners in counts:
                        by_way[name, listeners] = watch(pid, listeners, seconds)
    finally:
        load.terminate()
        os.sync()
    return by_way


def prepare(mounts: int) -> None:
    subprocess.run(("fallocate", "-l", "4M", "/export/data"), check=True)
    for number in range(mounts):
        where = Path(f"/mnt/m{number}")
        where.mkdir(exist_ok=True)
        options = "vers=3,proto=rdma,port=20049,nosharecache"
        argv = ("mount", "-t", "nfs", "-o", options, "10.9.1.1:/export", where)
        subprocess.run(argv, check=True)


@contextlib.contextmanager
def dashboard(*options: str) -> Iterator[int]:
    """Its process, once it sees all that it will."""
    argv = ("nfsrdma", "dashboard", *options)
    with Path("/run/live").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        while not ready(bool(options)):
            assert process.poll() is None, Path("/run/live").read_text()
            time.sleep(1)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def ready(without_probes: bool) -> bool:
    try:
        text = metrics()
        # before the first snapshot nothing is missing
        begun = "nfsrdma_sampler_snapshots_total" in text
        return begun and (without_probes or 'what="probes"' not in text)
    except OSError:
        return False


def metrics() -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics") as answer:
        text: str = answer.read().decode()
    return text


def sampled() -> tuple[float, float]:
    """How many snapshots were taken, and what that cost in seconds."""
    values = dict(line.split() for line in metrics().splitlines() if "_sampler_" in line[:20])
    names = ("snapshots", "cpu_seconds")
    snapshots, spent = (float(values[f"nfsrdma_sampler_{name}_total"]) for name in names)
    return snapshots, spent


class Listeners:
    """Browsers that read all they are sent."""

    def __init__(self, count: int) -> None:
        self.selector = selectors.DefaultSelector()
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", PORT))
            client.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            client.setblocking(False)
            self.selector.register(client, selectors.EVENT_READ)

    def read(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for key, _ in self.selector.select(left):
                assert isinstance(key.fileobj, socket.socket)
                assert key.fileobj.recv(1 << 20), "sent away"


def cpu_ns(pid: int) -> int:
    return sum(
        int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )


def memory(pid: int) -> float:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in x)
    return int(line.split()[1]) / 1024


def past() -> list[dict[str, float]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/past") as answer:
        frames: list[dict[str, float]] = json.load(answer)["frames"]
    return frames


def watch(pid: int, listeners: int, duration: int) -> Cost:
    browsers = Listeners(listeners)
    browsers.read(5)
    taken, before = len(past()), sampled()
    begun, spent, sizes = time.monotonic(), cpu_ns(pid), [memory(pid)]
    while time.monotonic() < begun + duration:
        browsers.read(min(60.0, duration / 4))
        sizes.append(memory(pid))
    wall, used = time.monotonic() - begun, cpu_ns(pid) - spent
    periods = [frame["seconds"] for frame in past()[taken:] if frame["seconds"] < 5]
    snapshots, seconds = (now - then for now, then in zip(sampled(), before, strict=True))
    share, snapshot = used / 1e9 / wall, seconds / snapshots * 1e3
    return Cost(share, snapshot, sum(periods) / len(periods), max(periods), sizes)


def main(mounts: int = 64, seconds: int = 60, kernel: str = KERNELS[0], only: str = "") -> None:
    """Run the dashboard; ``only``: PROBES:LISTENERS, for example all:1."""
    with Lab(LabConfig("bench-live", clock="instructions", link="none", kernel=kernel)) as lab:
        by_way = costs(lab, mounts, seconds, only)
        lab.check()
    print(
        f"{'probes':8}{'listen':>8}{'of a CPU':>10}{'snapshot':>12}{'period':>20}{'memory at':>22}"
    )
    for (probes, listeners), cost in by_way.items():
        period = f"{cost.period:.3f} s, {cost.worst:.3f}"
        memory = f"{cost.memory[0]:.1f}, {cost.memory[-1]:.1f} MiB"
        print(
            f"{probes:8}{listeners:8}{cost.share:10.2%}"
            f"{cost.snapshot:9.2f} ms{period:>20}{memory:>22}"
        )
        if seconds >= _LONG:
            print("MiB by the minute:", *(f"{size:.1f}" for size in cost.memory))
