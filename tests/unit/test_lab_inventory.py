# SPDX-License-Identifier: Apache-2.0
"""A lab as an inventory: the groups that the playbooks know, and a way to each node."""

import json
from pathlib import Path

from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.nodes import Nodes, inventory


def nodes(**more: object) -> Nodes:
    return Nodes(LabConfig("demo", **more), "tcg", Path("/keys"))  # type: ignore[arg-type]


def test_a_server_and_its_clients_over_the_labs_own_connections() -> None:
    lab = nodes(shape="pair", clients=2)
    found = inventory(lab)
    assert list(found["nfsrdma_servers"]["hosts"]) == ["server"]
    assert list(found["nfsrdma_clients"]["hosts"]) == ["client1", "client2"]
    assert set(found["all"]["hosts"]) == {"server", "client1", "client2"}
    for node, way in found["all"]["hosts"].items():
        assert way["ansible_ssh_args"].endswith(f"-o ControlPath={lab.ssh(node).control}")
        assert "StrictHostKeyChecking=yes" in way["ansible_ssh_args"]
    assert json.loads(json.dumps(found)) == found


def test_one_machine_is_both_in_a_solo_lab() -> None:
    found = inventory(nodes())
    groups = [list(found[name]["hosts"]) for name in ("nfsrdma_servers", "nfsrdma_clients")]
    assert groups == [["solo"], ["solo"]]
