# SPDX-License-Identifier: Apache-2.0
"""All probe sets on each kernel, with its headers and without: they count alike."""

import json
import os
from statistics import median

import pytest
from node_files import node_script
from tracing import DONE, by_procedure

from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.lab import Lab

NODE = node_script("trace_kernels")
# events that came later than Linux 6.1
LATER = {"6.1": {"filemap:mm_filemap_get_pages"}}
TURNS, LONG_TURNS = 1, 7


@pytest.mark.nightly
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_count_alike_with_headers_and_without(kernel: str, long: bool) -> None:
    name = f"test-trace-{kernel.replace('.', '-')}-{os.getpid()}"
    with Lab(LabConfig(name, kernel=kernel, extras=True)) as lab:
        argv = ("python3", "-", str(LONG_TURNS if long else TURNS))
        said = json.loads(lab.run("client", *argv, stdin=NODE, timeout=1800).stdout)
        lab.run("client", "umount", "/mnt")
    print(kernel, "seconds to start:", {way: sorted(s) for way, s in said["starts"].items()})
    print("medians:", {way: round(median(s), 2) for way, s in said["starts"].items()})
    assert said["clients"] == ["/mnt"]
    assert LATER.get(kernel, set()) <= set(said["missing"]["without"])
    assert said["missing"]["with"] == said["missing"]["without"]
    assert not any(count for lost in said["lost"].values() for count in lost.values()), said["lost"]
    for part in ("direct", "buffered"):
        assert said[part]["rows"]["with"] == said[part]["rows"]["without"]
        assert min(said[part]["samples"].values()) > 0
    rows = said["direct"]["rows"]["without"]
    for account, count in (("chunks", "rpcs"), ("latency", "count")):
        assert by_procedure(rows[account], count) == said["operations"]
    assert DONE.items() <= said["operations"].items()
    assert sum(row["mapped"] for row in rows["registrations"]) == sum(DONE.values())
    # client and server are one machine
    assert DONE.items() <= by_procedure(rows["server"], "calls").items()
    if kernel not in LATER:
        (ahead,) = said["buffered"]["rows"]["without"]["readahead"]
        assert 0 < ahead["used"] <= ahead["ahead"]
