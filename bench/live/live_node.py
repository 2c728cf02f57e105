# SPDX-License-Identifier: Apache-2.0
"""Part of bench/live.py that runs in a node; prints a line of JSON for each way of watching."""

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

MOUNTS, SECONDS, ONLY = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
PORT = 8949
# a read now and then, so that something is counted
LOAD = """
while :; do dd if=/mnt/m0/data of=/dev/null bs=64k count=16 iflag=direct status=none
	sleep 0.5; done
"""


def prepare() -> None:
    subprocess.run(("fallocate", "-l", "4M", "/export/data"), check=True)
    for number in range(MOUNTS):
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


def watch(pid: int, listeners: int, probes: str) -> None:
    browsers = Listeners(listeners)
    browsers.read(5)
    taken, before = len(past()), sampled()
    begun, spent, sizes = time.monotonic(), cpu_ns(pid), [memory(pid)]
    while time.monotonic() < begun + SECONDS:
        browsers.read(min(60.0, SECONDS / 4))
        sizes.append(memory(pid))
    wall, used = time.monotonic() - begun, cpu_ns(pid) - spent
    periods = [frame["seconds"] for frame in past()[taken:] if frame["seconds"] < 5]
    snapshots, seconds = (now - then for now, then in zip(sampled(), before, strict=True))
    row = {
        "probes": probes,
        "listeners": listeners,
        "share": used / 1e9 / wall,
        "snapshot_ms": seconds / snapshots * 1e3,
        "period": sum(periods) / len(periods),
        "worst": max(periods),
        "memory": sizes,
    }
    print(json.dumps(row), flush=True)


def main() -> None:
    prepare()
    load = subprocess.Popen(("sh", "-c", LOAD))
    try:
        for options, name in (((), "all"), (("--no-probes",), "none")):
            counts = [count for count in (1, 200) if not ONLY or f"{name}:{count}" in ONLY]
            if counts:
                with dashboard(*options) as pid:
                    for listeners in counts:
                        watch(pid, listeners, name)
    finally:
        load.terminate()
        os.sync()


main()
