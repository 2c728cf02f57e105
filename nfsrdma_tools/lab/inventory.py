# SPDX-License-Identifier: Apache-2.0
"""A running lab as an Ansible inventory: its nodes' connections and groups."""

from __future__ import annotations

from typing import Any

from nfsrdma_tools.lab.nodes import Nodes
from nfsrdma_tools.lab.ssh import Ssh

__all__ = ["inventory"]

# the path of the toolkit in a node
_PYTHON = "/opt/nfsrdma/src/nfsrdma_tools/lab/node/python3"


def inventory(nodes: Nodes) -> dict[str, Any]:
    """Server and clients in the groups of the playbooks, as JSON for Ansible.

    It is valid while the lab is up: commands use the ssh connection that the lab keeps open.
    """
    config = nodes.config
    # in a solo lab one machine is server and client
    servers = [config.nodes[0]]
    return {
        "all": {
            "hosts": {node: _way(nodes.ssh(node)) for node in config.nodes},
            "vars": {
                "ansible_python_interpreter": _PYTHON,
                "ansible_pipelining": True,
                "nfsrdma_server": "server",
            },
        },
        "nfsrdma_servers": {"hosts": {node: {} for node in servers}},
        "nfsrdma_clients": {"hosts": {node: {} for node in config.client_nodes or servers}},
        "nfsrdma_monitors": {},
    }


def _way(ssh: Ssh) -> dict[str, str]:
    return {
        "ansible_host": "lab",
        "ansible_user": "root",
        "ansible_ssh_args": " ".join((*ssh.options, "-o", f"ControlPath={ssh.control}")),
    }
