# SPDX-License-Identifier: Apache-2.0
"""Accounts come, go and are killed under load, and nothing of them stays; mounts never notice."""

import json

import pytest

from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.probes import probe_sets
from testbed.mounts import HERE
from testbed.scripts import node_script
from testbed.tracing import tracing

NODE = node_script("trace_life")
# probe sets that count
COUNTED = tuple(name for name in probe_sets.NAMES if name != "cpu")
MOUNT = f"mkdir -p {HERE} && mount -t nfs -o vers=4.2,proto=rdma,port=20049 server:/export {HERE}"


@pytest.mark.nightly
@pytest.mark.usefixtures("pair_lab")
@pytest.mark.parametrize("client", ("pair", "module_pair"), ids=("rpcrdma", "nfsrdma"))
def test_they_come_and_go_under_load(
    client: str, request: pytest.FixtureRequest, long: bool
) -> None:
    lab: Lab = request.getfixturevalue(client)
    # a session of all probe sets takes minutes to compile
    sets = COUNTED if long else ("chunks", "connections")
    sessions, cycles, kills = (10, 10, 10) if long else (1, 2, 1)
    lab.run("client", "sh", "-c", MOUNT)
    try:
        argv = ("python3", "-", str(sessions), str(cycles), str(kills), *sets)
        said = json.loads(lab.run("client", *argv, stdin=NODE, timeout=7200).stdout)
    finally:
        lab.run("client", "umount", HERE)
    assert said["stayed"] == []
    assert set(said["codes"]) == {0}
    assert min(said["rounds"]) > 0
    assert min(said["seen"]) > 0


def test_a_module_that_is_looked_at_says_so_when_it_is_to_go(module_pair: Lab) -> None:
    """A probe holds the module; it is not waited for, and goes on when the probe is gone."""
    lab = module_pair
    with tracing(lab, "client", "chunks"):
        refused = lab.run("client", "nfsrdma", "module", "unload", check=False)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "nfsrdma" in refused.stderr
    lab.run("client", "nfsrdma", "module", "unload")
    lab.run("client", "nfsrdma", "module", "load")
