# SPDX-License-Identifier: Apache-2.0
"""Probe set cpu beside /proc/stat and bpftrace, and figures of CPU time during CPU hotplug."""

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.scripts import node_script

pytestmark = pytest.mark.lab
NODE = node_script("trace_cpu")
MOUNT = "vers=4.2,proto=rdma,port=20049"
PREPARE = f"""
fallocate -l 16M /export/cpu-data; mkdir -p /mnt/cpu
mount -t nfs -o {MOUNT} server:/export /mnt/cpu
"""
CLEAN = "umount /mnt/cpu; rmdir /mnt/cpu; rm /export/cpu-data"


def slope(readings: list[list[int]]) -> float:
    """How fast a sum of nanoseconds grew: readings are the clock and the sum."""
    first, last = readings[0], readings[-1]
    return (last[1] - first[1]) / (last[0] - first[0])


def traced(solo: Lab) -> dict[str, Any]:
    solo.run("solo", "sh", "-ec", PREPARE)
    try:
        said = solo.run("solo", "python3", "-", "layers", stdin=NODE, timeout=600).stdout
    finally:
        solo.run("solo", "sh", "-c", CLEAN)
    return dict(json.loads(said))


@pytest.mark.nightly
def test_layers_sum_up_to_what_other_clocks_say(solo: Lab) -> None:
    found = traced(solo)
    missing, *intervals = found["lines"]
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
    assert spent["busy"] / spent["wall"] == pytest.approx(slope(found["stat"]), rel=0.05)
    # bpftrace adds up each switch to and from a thread of nfsd
    assert spent["nfsd"] / spent["wall"] == pytest.approx(slope(found["nfsd"]), rel=0.15)

    # the emulated NIC is where most of the lab's time goes, and every layer of a read was there
    assert named["emulated NIC"] > 0.2 * spent["busy"]
    for name in ("nfs", "sunrpc", "transport", "RDMA core", "nfsd", "copies", "scheduling"):
        assert named[name] > 0, name
    assert served["nfsd"] == named["nfsd"]
    assert served["nfs"] == 0

    stacks = [line.rpartition(" ") for line in found["stacks"].splitlines()]
    assert all(count.isdecimal() for _, _, count in stacks)
    assert any("[rdma_rxe]" in stack for stack, _, _ in stacks)
    assert any(stack.startswith("nfsd;") and "nfsd [nfsd]" in stack for stack, _, _ in stacks)


@pytest.mark.nightly
def test_figures_stay_in_bounds_while_a_cpu_goes_and_comes(solo: Lab) -> None:
    """Only CPUs that are online at both ends of an interval count in it.

    The time since boot of a CPU that comes online would count as minutes of work.
    """
    said = solo.run("solo", "python3", "-", "hotplug", stdin=NODE, timeout=600).stdout
    found = json.loads(said)
    if not found["can"]:
        pytest.skip("the kernel takes no CPU offline; missed: CPU hotplug")
    assert found["flipped"]

    _, *intervals = found["trace"]
    for rows in (interval["rows"] for interval in intervals):
        *layers, busy, idle = rows
        assert 0 <= busy["share"] <= 1, busy
        assert 0 <= idle["share"] <= 1, idle
        assert sum(row["ns"] for row in layers) == pytest.approx(busy["ns"], abs=1000), rows
        # /proc/stat counts the idle time of each CPU in ticks
        wall, tick = busy["wall_ns"] * busy["cpus"], 2 * 10**7
        assert -tick <= busy["stat_ns"] <= wall + tick, busy
    assert {interval["rows"][-2]["cpus"] for interval in intervals} == {1, 2}

    frames = [frame["processors"] for frame in found["top"]]
    for frame in frames:
        assert 0 <= frame.get("busy_ns", 0) <= frame.get("wall_ns", 0) * frame.get("cpus", 1), frame
        assert all(0 <= cpu["busy"] <= 1 for cpu in frame.get("busiest", ())), frame
    assert {frame.get("cpus", 1) for frame in frames} == {1, 2}

    first, *_, last = found["server"]
    spent = [after["busy_s"] - before["busy_s"] for before, after in pairwise(found["server"])]
    assert min(spent) >= 0
    # the load alone keeps one CPU busy
    assert 0 < sum(spent) <= 2 * (last["time"] - first["time"])
