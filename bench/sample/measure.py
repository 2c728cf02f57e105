# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of a sample of many mounts.

A sample is what top, dashboard and exporter do once an interval without probes: read the host, make
a snapshot, add it to the metrics.  The host is a folder: mountstats of Linux 6.12, repeated for
each mount.  So the kernel's part, which prints mountstats, is not in the figures.  Valgrind counts
instructions; without it, CPU time is measured.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from pathlib import Path

from bench import callgrind, markdown
from bench.sample.load import RUNS, WARM
from nfsrdma_tools.command import run

MOUNTS, SERVERS = 1000, 10
DATA = Path(__file__).parents[2] / "tests" / "unit" / "data"
LOADS = {
    "idle": "unchanged: no mount has an operation",
    "busy": "all busy: READ, GETATTR and ACCESS of each mount grow",
}
# without Valgrind
TURNS = 5
GROWING = re.compile(r"\s+(?:READ|GETATTR|ACCESS): |\tbytes:\t|\txprt:\trdma(?: \d+){5} ")
# instructions, or ns of CPU time, of a sample, by load
Costs = dict[str, float]


def record() -> tuple[str, str]:
    """The lines of a mount over RDMA in mountinfo and mountstats."""
    info = (DATA / "mountinfo-6.12.txt").read_text()
    stats = (DATA / "mountstats-6.12.txt").read_text()
    line = next(line for line in info.splitlines(keepends=True) if " /mnt/a " in line)
    start = stats.index("device server:/export mounted on /mnt/a ")
    return line, stats[start : stats.index("\ndevice ", start) + 1]


def later(text: str, seconds: int, *, busy: bool) -> str:
    """A record of mountstats some seconds later."""
    lines = []
    for line in text.splitlines(keepends=True):
        head = GROWING.match(line)
        if line.startswith("\tage:"):
            line = f"\tage:\t{9 + seconds}\n"  # noqa: PLW2901 -- the same line later
        elif busy and head:
            rest = re.sub(r"\d+", lambda each: str(int(each[0]) + 7 * seconds), line[head.end() :])
            line = head[0] + rest  # noqa: PLW2901
        lines.append(line)
    return "".join(lines)


def make_host(root: Path) -> None:
    """A host with many mounts, some of each server, and its mountstats once a second."""
    info, stats = record()

    def write(name: str, text: str) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    lines = []
    for number in range(MOUNTS):
        device, server = f"0:{100 + number}", number % SERVERS
        line = info.replace("57 29 0:46 ", f"{200 + number} 29 {device} ", 1)
        lines.append(line.replace(" /mnt/a ", f" /mnt/m{number} ", 1))
        write(f"sys/class/bdi/{device}/read_ahead_kb", "1024\n")
        client = root / "sys/fs/nfs" / device / "nfs_client"
        client.parent.mkdir(parents=True)
        client.symlink_to(f"../../../kernel/sunrpc/rpc-clients/clnt-{server}")
    write("proc/self/mountinfo", "".join(lines))
    write("proc/stat", Path("/proc/stat").read_text())
    for server in range(SERVERS):
        sunrpc = root / "sys/kernel/sunrpc"
        xprt = f"sys/kernel/sunrpc/xprt-switches/switch-{server}/xprt-{server}-rdma"
        write(f"{xprt}/xprt_state", "state=CONNECTED BOUND\n")
        write(f"{xprt}/xprt_info", "cong_win=16384\nnum_reqs=2\n")
        write(f"{xprt}/dstaddr", f"10.9.1.{server + 1}\n")
        client = sunrpc / f"rpc-clients/clnt-{server}"
        client.mkdir(parents=True)
        (client / "switch").symlink_to(f"../../xprt-switches/switch-{server}")
    for load in LOADS:
        for second in range(WARM + sum(RUNS)):
            text = later(stats, second, busy=load == "busy")
            whole = (text.replace(" /mnt/a ", f" /mnt/m{number} ", 1) for number in range(MOUNTS))
            write(f"{load}/{second:02}", "".join(whole))


def instructions(host: Path) -> Costs:
    """Instructions of a sample: the difference of the two parts of each load."""
    argv = ("-m", "bench.sample.load", "--counted", str(host), *LOADS)
    counts = iter(callgrind.parts(len(RUNS) * len(LOADS), argv))
    return {load: (-next(counts) + next(counts)) / (RUNS[1] - RUNS[0]) for load in LOADS}


def cpu_time(host: Path) -> Costs:
    """The least CPU time of a sample, in ns."""
    argv = (sys.executable, "-m", "bench.sample.load", str(host), *LOADS)
    turns = [json.loads(run(*argv, timeout=3600).stdout) for _ in range(TURNS)]
    return {load: min(turn[load] for turn in turns) for load in LOADS}


def table(costs: Costs, unit: str) -> list[str]:
    rows: list[list[str]] = [["", f"a sample of {MOUNTS:,} mounts, {unit}"]]
    rows += [[text, f"{costs[load] / 1e6:,.1f}"] for load, text in LOADS.items()]
    return markdown.table(rows)


def main() -> None:
    """Count instructions if Valgrind is installed, else measure CPU time; needs no lab."""
    counted = bool(shutil.which("valgrind"))
    with tempfile.TemporaryDirectory() as folder:
        host = Path(folder)
        make_host(host)
        load = os.getloadavg()[0]
        costs = instructions(host) if counted else cpu_time(host)
    how = run("valgrind", "--version").stdout.strip() if counted else f"least of {TURNS} turns"
    about = (
        f"`make bench NAME=sample`, {how}, Python {platform.python_version()}, "
        f"{platform.machine()}, load average {load:.1f} on {os.cpu_count()} processors, "
        f"{datetime.datetime.now(datetime.UTC).date()}."
    )
    lines = table(costs, "million instructions" if counted else "ms of CPU time")
    print(about, *lines, sep="\n")
    markdown.write("sample", [about, "", *lines])
