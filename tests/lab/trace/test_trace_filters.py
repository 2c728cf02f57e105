# SPDX-License-Identifier: Apache-2.0
"""`nfsrdma trace` with filters counts what passes them; `trace nfsiostat` agrees with nfsiostat."""

import json
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from testbed.scripts import node_script

NODE = node_script("trace_filters")
MINE, OTHERS = 5, 7


@pytest.mark.nightly
def test_filters_and_nfsiostat(pair: Lab) -> None:
    """Two processes read MINE and OTHERS blocks; a trace with the pid of the first counts MINE."""
    pair.run("server", "sh", "-ec", "truncate -s 4M /export/filtered; chmod a+rw /export/filtered")
    argv = ("python3", "-", str(MINE), str(OTHERS))
    try:
        said = json.loads(pair.run("client", *argv, stdin=NODE, timeout=1800).stdout)
    finally:
        pair.run("server", "rm", "/export/filtered")
    only_mine(said["chunks"], "rpcs")
    only_mine([row for row in said["latency"] if not row.get("slowest")], "count")
    everybody = said["everybody"]
    assert sum(row["rpcs"] for row in everybody) == MINE + OTHERS, everybody
    same_columns(*said["nfsiostat"])


def only_mine(rows: list[dict[str, Any]], count: str) -> None:
    assert {row["procedure"] for row in rows} == {"READ"}
    assert sum(row[count] for row in rows) == MINE


def same_columns(ours: list[str], theirs: list[str]) -> None:
    """Over TCP with one connection both are right; the mount's age may differ by a second."""
    assert [line.split()[:1] for line in ours if ":" in line] == [
        line.split()[:1] for line in theirs if ":" in line
    ]
    heads = [n for n, line in enumerate(theirs) if line.startswith(("read:", "write:"))]
    assert len(heads) == 2
    for head in heads:
        assert ours[head] == theirs[head]
        # kB/op, retrans, RTT, exe, queue and errors do not depend on the age
        assert ours[head + 1].split()[2:] == theirs[head + 1].split()[2:]
