# SPDX-License-Identifier: Apache-2.0
"""All probe sets on each kernel, with its headers and without, and in a sweep."""

import json
import os
import re
from statistics import median

import pytest

from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.probes.program import NAMES
from nfsrdma_tools.sweep.store import Trial
from nfsrdma_tools.sweep.trial import NAMES as SWEPT
from testbed.probe_counts import DONE, by_procedure, count_alike

# probe sets whose events identify less than they need
LACKS = {"5.10": {"registrations", "server", "readahead"}}
# events that came later, and those sets
LATER = {
    "6.1": {"filemap:mm_filemap_get_pages"},
    "5.10": {
        "rpcrdma:xprtrdma_chunk_wp",
        "sunrpc:xprt_retransmit",
        *(f"probe set {name}" for name in LACKS["5.10"]),
    },
}
# the headers of 5.10 have no layout of an address in its records, and bpf/headers does
WAYS = {"5.10": ("without",)}
REFUSED = """
nfsrdma trace "$1" --count 1 2>/run/refused
echo $?
cat /run/refused
"""
TURNS, LONG_TURNS = 1, 7
STORE = "/root/sweep.db"
SWEEP = (
    *("nfsrdma", "sweep", "server:/export", "--output", STORE, "--vers", "3", "--file-size", "4M"),
    *("--transport", "rdma", "--rsize", "8k,64k", "--read-ahead", "4", "--runs", "1"),
    *("--exhaustive", "--probes"),
)


@pytest.mark.nightly
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_count_alike_with_headers_and_without(kernel: str, long: bool) -> None:
    name = f"test-trace-{kernel.replace('.', '-')}-{os.getpid()}"
    with Lab(LabConfig(name, kernel=kernel, extras=True)) as lab:
        turns, ways = LONG_TURNS if long else TURNS, WAYS.get(kernel, ("with", "without"))
        counted = count_alike(lab, turns, *ways)
        for name in LACKS.get(kernel, set()):
            is_refused(lab, name)
        is_swept(lab, LACKS.get(kernel, set()))
    print(kernel, "seconds to start:", {way: sorted(s) for way, s in counted.starts.items()})
    print("medians:", {way: round(median(s), 2) for way, s in counted.starts.items()})
    assert LATER.get(kernel, set()) <= set(counted.missing)
    rows = counted.direct
    assert by_procedure(rows["latency"], "count") == counted.operations
    assert rows.keys() | {"cpu"} == set(NAMES) - LACKS.get(kernel, set())
    if "registrations" in rows:
        assert sum(row["mapped"] for row in rows["registrations"]) == sum(DONE.values())
    if "server" in rows:
        # client and server are one machine
        assert DONE.items() <= by_procedure(rows["server"], "calls").items()
    if kernel not in LATER:
        (ahead,) = counted.buffered["readahead"]
        assert 0 < ahead["used"] <= ahead["ahead"]


def is_swept(lab: Lab, lacks: set[str]) -> None:
    """Each trial has the rows of the sets that attach, with its READs; the store lists the sets."""
    lab.run("client", *SWEEP, timeout=1800)
    text = lab.run("client", "nfsrdma", "results", "export", STORE, "--format", "json").stdout
    contents = json.loads(text)
    trials = [Trial.from_json(trial) for trial in contents["trials"]]
    assert [trial.status for trial in trials] == ["ok"] * 2
    for trial in trials:
        assert trial.probe_rows.keys() == set(SWEPT) - lacks
        rpcs = {row["procedure"]: row["rpcs"] for row in trial.probe_rows["chunks"]}
        assert rpcs["READ"] == trial.rpc.operations
        assert trial.probe_rows["cpu"]
    (facts,) = contents["environments"].values()
    listed, *missing = facts["probe sets"].split("; not ")
    assert listed.split(", ") == [name for name in SWEPT if name not in lacks]
    assert {reason.partition(": ")[0] for reason in missing} == lacks & set(SWEPT)


def is_refused(lab: Lab, name: str) -> None:
    """Its one line names a member, the kernels that have it, and the sets that attach here."""
    status, *lines = lab.run("client", "sh", "-c", REFUSED, "sh", name).stdout.splitlines()
    (line,) = lines
    assert status == "1"
    assert re.fullmatch(
        rf"nfsrdma: cannot attach probe set {name}: the record of \w+:\w+ has no [\w, ]+ here"
        r" \(Linux 6\.1 to 7\.2 have it; this kernel has probe sets"
        r" chunks, latency, connections, cpu\)",
        line,
    )
