# SPDX-License-Identifier: Apache-2.0
"""Probe set cpu beside /proc/stat and bpftrace, and figures of CPU time during CPU hotplug."""

import json
import multiprocessing
import os
import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.node.mounts import HERE, mounted
from testbed.node.programs import call
from testbed.node.transfers import read_blocks
from testbed.remote import on

pytestmark = pytest.mark.lab
FOLDED = Path("/run/cpu.folded")
# nanoseconds that threads of nfsd ran, and the monotonic clock, each second
SWITCHES = """
tracepoint:sched:sched_switch {
    if (@on[cpu]) { @ns += nsecs - @on[cpu]; }
    @on[cpu] = args.next_comm == "nfsd" ? nsecs : 0;
}
interval:s:1 { printf("%lld %lld\\n", nsecs, @ns); }
"""
TRACE = ("nfsrdma", "trace", "cpu", "--interval", "3", "--count", "4", "--json", "--folded", FOLDED)
Lines = list[dict[str, Any]]


class Layers(NamedTuple):
    """Lines of the probe set; the clock and busy time beside them; those of nfsd; stacks."""

    lines: Lines
    stat: list[tuple[int, int]]
    nfsd: list[tuple[int, int]]
    stacks: list[str]


def not_idle() -> tuple[int, int]:
    """The monotonic clock, and /proc/stat's busy time, ns."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    now = time.monotonic_ns()
    idle = (ticks[3] + ticks[4]) * 10**9 // os.sysconf("SC_CLK_TCK")
    return now, now * (os.cpu_count() or 1) - idle


def slope(readings: list[tuple[int, int]]) -> float:
    """How fast a sum of nanoseconds grew: readings are the clock and the sum."""
    first, last = readings[0], readings[-1]
    return (last[1] - first[1]) / (last[0] - first[0])


def read_always() -> None:
    while True:
        read_blocks(HERE / "cpu-data", 16, 1 << 20)


@on("client")
def traced() -> Layers:
    """Trace direct reads of a mount."""
    call("fallocate", "-l", "16M", "/export/cpu-data")
    load = multiprocessing.get_context("fork").Process(target=read_always)
    with mounted("vers=4.2"):
        load.start()
        other = subprocess.Popen(("bpftrace", "-e", SWITCHES), stdout=subprocess.PIPE, text=True)
        lines, stat = [], []
        with subprocess.Popen(TRACE, stdout=subprocess.PIPE, text=True) as trace:
            assert trace.stdout
            for line in trace.stdout:
                stat.append(not_idle())
                lines.append(json.loads(line))
        load.terminate()
        load.join()
        other.terminate()
        output = other.communicate()[0].splitlines()
    Path("/export/cpu-data").unlink()
    assert trace.returncode == 0
    rows = [tuple(map(int, line.split())) for line in output if line[:1].isdigit()]
    nfsd = [(at, ns) for at, ns in rows if stat[0][0] <= at <= stat[-1][0]]
    stacks = FOLDED.read_text().splitlines()
    FOLDED.unlink()
    return Layers(lines, stat, nfsd, stacks)


@pytest.mark.nightly
def test_layers_sum_up_to_what_other_clocks_say(solo: Lab) -> None:
    lines, stat, nfsd, folded = traced(solo)
    missing, *intervals = lines
    assert missing == {"schema_version": 1, "missing": {}}
    assert len(intervals) == 4
    named: Counter[str] = Counter()
    served: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for interval in intervals:
        *layers, busy, _ = interval["rows"]
        named.update({row["layer"]: row["ns"] for row in layers})
        served.update({row["layer"]: row["server_ns"] for row in layers})
        spent.update({"busy": busy["ns"], "stat": busy["stat_ns"], "wall": busy["wall_ns"]})
        spent.update(busy["threads"])
        assert busy["lost"] == 0
        assert busy["samples"] > 0

    accounted = named.total() - named["unattributed"]
    # /proc/stat, read by the probe set, and by another program around the same intervals
    assert 0.98 <= accounted / spent["stat"] <= 1.02
    assert spent["busy"] / spent["wall"] == pytest.approx(slope(stat), rel=0.05)
    # bpftrace adds up each switch to and from a thread of nfsd
    assert spent["nfsd"] / spent["wall"] == pytest.approx(slope(nfsd), rel=0.15)

    # the emulated NIC is where most of the lab's time goes, and every layer of a read was there
    assert named["emulated NIC"] > 0.2 * spent["busy"]
    for name in ("nfs", "sunrpc", "transport", "RDMA core", "nfsd", "copies", "scheduling"):
        assert named[name] > 0, name
    assert served["nfsd"] == named["nfsd"]
    assert served["nfs"] == 0

    stacks = [line.rpartition(" ") for line in folded]
    assert all(count.isdecimal() for _, _, count in stacks)
    assert any("[rdma_rxe]" in stack for stack, _, _ in stacks)
    assert any(stack.startswith("nfsd;") and "nfsd [nfsd]" in stack for stack, _, _ in stacks)


CPU1 = Path("/sys/devices/system/cpu/cpu1/online")
# seconds of a spinning process are seconds of CPU time
SPIN = ("sh", "-c", "while :; do :; done")
# values of CPU1 in turn: a CPU that is away for whole intervals, and for a part of one
FLIPS = (("0",), (), ("1",), (), ("0", "1"), ("0",), ("1", "0"), ("1",), ())
SAMPLED: dict[str, tuple[str, ...]] = {
    "trace": ("nfsrdma", "trace", "cpu", "--interval", "1", "--json"),
    "top": ("nfsrdma", "top", "--batch", "--json", "--no-probes", "--interval", "0.5"),
    "server": ("nfsrdma", "server", "cpu", "--interval", "0.5"),
}


def flip(values: tuple[str, ...]) -> bool:
    """Set the state of CPU 1; returns false if the kernel cannot."""
    try:
        for value in values:
            CPU1.write_text(value)
    except OSError:
        return False
    return True


@on("client")
def hotplug() -> dict[str, Lines] | None:
    """What programs print while CPU 1 comes and goes; None if it cannot.

    It does so when ``trace`` has printed an interval: it begins another one then.
    """
    if not (flip(("0",)) and flip(("1",))):
        return None
    with ExitStack() as stack:
        programs = {
            name: stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
            for name, argv in SAMPLED.items()
        }
        load = stack.enter_context(subprocess.Popen(SPIN))
        stack.callback(CPU1.write_text, "1")
        stack.callback(load.terminate)
        for program in programs.values():
            stack.callback(program.terminate)
        trace = programs["trace"].stdout
        assert trace
        lines = [trace.readline(), trace.readline()]
        for values in FLIPS:
            assert flip(values)
            lines.append(trace.readline())
        for program in programs.values():
            program.terminate()
        texts = {name: program.communicate()[0] for name, program in programs.items()}
    whole = {name: text.splitlines(keepends=True) for name, text in texts.items()}
    whole["trace"] = lines
    # the end may cut a line
    return {name: [json.loads(x) for x in text if x.endswith("\n")] for name, text in whole.items()}


@pytest.mark.nightly
def test_figures_stay_in_bounds_while_a_cpu_goes_and_comes(solo: Lab) -> None:
    """Only CPUs that are online at both ends of an interval count in it.

    The time since boot of a CPU that comes online would count as minutes of work.
    """
    lines = hotplug(solo)
    if lines is None:
        pytest.skip("the kernel takes no CPU offline; missed: CPU hotplug")

    _, *intervals = lines["trace"]
    for rows in (interval["rows"] for interval in intervals):
        *layers, busy, idle = rows
        assert 0 <= busy["share"] <= 1, busy
        assert 0 <= idle["share"] <= 1, idle
        assert sum(row["ns"] for row in layers) == pytest.approx(busy["ns"], abs=1000), rows
        # /proc/stat counts the idle time of each CPU in ticks
        wall, tick = busy["wall_ns"] * busy["cpus"], 2 * 10**7
        assert -tick <= busy["stat_ns"] <= wall + tick, busy
    assert {interval["rows"][-2]["cpus"] for interval in intervals} == {1, 2}

    frames = [frame["processors"] for frame in lines["top"]]
    for frame in frames:
        assert 0 <= frame.get("busy_ns", 0) <= frame.get("wall_ns", 0) * frame.get("cpus", 1), frame
        assert all(0 <= cpu["busy"] <= 1 for cpu in frame.get("busiest", ())), frame
    assert {frame.get("cpus", 1) for frame in frames} == {1, 2}

    first, *_, last = lines["server"]
    spent = [after["busy_s"] - before["busy_s"] for before, after in pairwise(lines["server"])]
    assert min(spent) >= 0
    # the load alone keeps one CPU busy
    assert 0 < sum(spent) <= 2 * (last["time"] - first["time"])
