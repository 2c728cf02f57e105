#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""What is in effect on a host, as facts."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_facts
short_description: What NFS over RDMA is on a host
description:
  - Reads kernel modules, RDMA devices, NFS mounts, exports, tuned mounts and findings, and returns them
    as C(ansible_facts.nfsrdma). Changes nothing.
  - What the toolkit says is there when it is on the host and O(ask) names it; the rest is read without it, in no time.
extends_documentation_fragment: [nfsrdma.tools.nfsrdma, nfsrdma.tools.nfsrdma.program]
options:
  ask:
    description: What the toolkit is asked for. Each is a run of it.
    type: list
    elements: str
    choices: [links, mounts, server, module, tuned]
    default: [links, mounts, server, module, tuned]
  doctor:
    description: Also examine the host, which takes a few seconds.
    type: bool
    default: false
  server:
    description: With O(doctor), also examine the way to this server.
    type: str
    default: ""
  paths:
    description: For each of these, which folder would have to be made first so that it can be.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Reads only.
  diff_mode:
    description: Changes nothing.
    support: none
"""

EXAMPLES = r"""
- name: Look at NFS over RDMA
  nfsrdma.tools.nfsrdma_facts:
    doctor: true
"""

RETURN = r"""
ansible_facts:
  description: C(nfsrdma), with toolkit (whether it is there), modules, devices,
    filesystems (those of nfsd and sunrpc, and whether nfsd serves by it), mtu (by network device), units (of ours), records (by role),
    missing; and as asked for, links, mounts, server, module, tuned, findings.
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
KERNELS = ("nfsd", "rpc_pipefs")
ASK = {
    "links": ("link", "show"),
    "mounts": ("mounts",),
    "server": ("server", "status"),
    "module": ("module", "status"),
    "tuned": ("tune", "show"),
}


def main():
    """Read all there is."""
    spec = {
        "ask": {"type": "list", "elements": "str", "choices": [*ASK], "default": [*ASK]},
        "command": OPTION,
        "doctor": {"type": "bool", "default": False},
        "server": {"type": "str", "default": ""},
        "paths": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    toolkit = Toolkit(module)
    facts = {"toolkit": toolkit.there, **_bare()}
    facts["missing"] = {path: missing(path) for path in module.params["paths"]}
    if toolkit.there:
        facts.update({name: toolkit.facts(*ASK[name]) for name in module.params["ask"]})
    if toolkit.there and module.params["doctor"]:
        facts["findings"] = _findings(module, toolkit)
    module.exit_json(changed=False, ansible_facts={"nfsrdma": facts})


def _bare():
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
    """Where those of nfsd and of sunrpc are, and whether nfsd serves."""
    serves = read(PROC + "/fs/nfsd/threads").strip() not in ("", "0")
    rows = [line.split()[1:3] for line in mounts.splitlines()]
    return {place: serves and kind == "nfsd" for place, kind in rows if kind in KERNELS}


def _names(folder):
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def _mtu(device):
    return read("/sys/class/net/%s/mtu" % device).strip()


def _findings(module, toolkit):
    server = module.params["server"]
    words = ("doctor", "--json", *(("--", server) if server else ()))
    _, out, said = toolkit.attempt(*words)
    try:
        # status 1 means that there are errors among the findings
        return rows(module.from_json(out))
    except ValueError:
        module.fail_json(msg=said)


if __name__ == "__main__":
    main()
