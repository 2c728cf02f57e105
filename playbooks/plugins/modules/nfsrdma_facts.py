#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Return the state of NFS over RDMA on a host as facts."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_facts
short_description: Gather facts about NFS over RDMA
description:
  - Returns kernel modules, RDMA devices, NFS mounts, exports, tuned mounts and findings as C(ansible_facts.nfsrdma). Changes nothing.
  - The facts of O(gather_subset) need the toolkit on the host. The others are read from the kernel, without the toolkit.
extends_documentation_fragment: [nfsrdma.tools.nfsrdma, nfsrdma.tools.nfsrdma.program]
options:
  gather_subset:
    description: Facts to gather with the toolkit. Each takes one run of C(nfsrdma).
    type: list
    elements: str
    choices: [links, mounts, server, module, tuned]
    default: [links, mounts, server, module, tuned]
  doctor:
    description: Also run C(nfsrdma doctor), which takes a few seconds.
    type: bool
    default: false
  server:
    description: With O(doctor), also check the path to this server.
    type: str
    default: ""
  paths:
    description: Paths to look for. The fact C(missing) has the topmost missing directory of each.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: The module changes nothing.
  diff_mode:
    description: The module changes nothing.
    support: none
"""

EXAMPLES = r"""
- name: Gather facts and findings
  nfsrdma.tools.nfsrdma_facts:
    doctor: true
"""

RETURN = r"""
ansible_facts:
  description: C(nfsrdma), with toolkit (whether it is installed), modules, devices, filesystems (the mounts of nfsd and rpc_pipefs, and
    whether nfsd threads use them), mtu (by network device), units (of this collection), records (by role) and missing. On request also
    links, mounts, server, module, tuned and findings.
  returned: always
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils import records
from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import (
    OPTION,
    Toolkit,
    missing,
    read,
    rows,
)

UNITS = "/etc/systemd/system"
PROC = "/proc"
KERNEL_TYPES = ("nfsd", "rpc_pipefs")
SUBSETS = {
    "links": ("link", "show"),
    "mounts": ("mounts",),
    "server": ("server", "status"),
    "module": ("module", "status"),
    "tuned": ("tune", "show"),
}


def main():
    """Gather the facts."""
    names = [*SUBSETS]
    spec = {
        "gather_subset": {"type": "list", "elements": "str", "choices": names, "default": names},
        "command": OPTION,
        "doctor": {"type": "bool", "default": False},
        "server": {"type": "str", "default": ""},
        "paths": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    toolkit = Toolkit(module)
    facts = {"toolkit": toolkit.installed, **_from_kernel()}
    facts["missing"] = {path: missing(path) for path in module.params["paths"]}
    if toolkit.installed:
        subset = module.params["gather_subset"]
        facts.update({name: toolkit.facts(*SUBSETS[name]) for name in subset})
    if toolkit.installed and module.params["doctor"]:
        facts["findings"] = _findings(module, toolkit)
    module.exit_json(changed=False, ansible_facts={"nfsrdma": facts})


def _from_kernel():
    units = [unit for unit in _names(UNITS) if unit.startswith("nfsrdma-")]
    return {
        "modules": [line.split()[0] for line in read(PROC + "/modules").splitlines()],
        "devices": _names("/sys/class/infiniband"),
        "filesystems": _filesystems(read(PROC + "/mounts")),
        "mtu": {name: int(_mtu(name)) for name in _names("/sys/class/net") if _mtu(name)},
        "units": units,
        "records": records.kept(),
    }


def _filesystems(mounts):
    """The mount points of nfsd and rpc_pipefs, and whether nfsd threads use them."""
    serves = read(PROC + "/fs/nfsd/threads").strip() not in ("", "0")
    rows = [line.split()[1:3] for line in mounts.splitlines()]
    return {place: serves and kind == "nfsd" for place, kind in rows if kind in KERNEL_TYPES}


def _names(folder):
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def _mtu(device):
    return read("/sys/class/net/%s/mtu" % device).strip()


def _findings(module, toolkit):
    server = module.params["server"]
    arguments = ("doctor", "--json", *(("--", server) if server else ()))
    _, out, error = toolkit.attempt(*arguments)
    try:
        # status 1: some findings are errors
        return rows(module.from_json(out))
    except ValueError:
        module.fail_json(msg=error)


if __name__ == "__main__":
    main()
