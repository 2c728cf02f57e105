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
  - Without the toolkit on the host only modules and RDMA devices are known.
version_added: 0.1.0
author: The nfsrdma-tools maintainers (@nfsrdma)
options:
  command:
    description: The nfsrdma program on the host.
    type: str
    default: /usr/local/bin/nfsrdma
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
    support: full
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
  description: C(nfsrdma), with toolkit (whether it is there), packages, modules, devices, links, mounts, server, module, tuned, findings, missing.
  returned: always
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import (
    OPTION,
    Toolkit,
    missing,
    read,
    run,
)


def main():
    """Read all there is."""
    spec = {
        "command": OPTION,
        "doctor": {"type": "bool", "default": False},
        "server": {"type": "str", "default": ""},
        "paths": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    toolkit = Toolkit(module)
    facts = {"toolkit": toolkit.there, "packages": _packages(module), **_bare()}
    facts["missing"] = {path: missing(path) for path in module.params["paths"]}
    if toolkit.there:
        facts.update(_told(toolkit))
    if toolkit.there and module.params["doctor"]:
        facts["findings"] = _findings(module, toolkit)
    module.exit_json(changed=False, ansible_facts={"nfsrdma": facts})


def _packages(module):
    # package_facts needs python3-apt, which a lean Debian has not
    for argv in (
        ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\\n"],
        ["rpm", "-qa", "--qf", "installed %{NAME}\\n"],
    ):
        if module.get_bin_path(argv[0]):
            lines = run(module, argv)[1].splitlines()
            return sorted({line.split()[1] for line in lines if line.startswith("installed ")})
    return []


def _bare():
    folder = "/sys/class/infiniband"
    return {
        "modules": [line.split()[0] for line in read("/proc/modules").splitlines()],
        "devices": sorted(os.listdir(folder)) if os.path.isdir(folder) else [],
    }


def _told(toolkit):
    return {
        "links": toolkit.facts("link", "list"),
        "mounts": toolkit.facts("mounts"),
        "server": toolkit.facts("server", "status"),
        "module": toolkit.facts("module", "status"),
        "tuned": toolkit.facts("tune", "show"),
    }


def _findings(module, toolkit):
    server = module.params["server"]
    words = ("doctor", "--json", *(("--", server) if server else ()))
    _, out, said = toolkit.attempt(*words)
    try:
        # status 1 means that there are errors among the findings
        return module.from_json(out)
    except ValueError:
        module.fail_json(msg=said)


if __name__ == "__main__":
    main()
