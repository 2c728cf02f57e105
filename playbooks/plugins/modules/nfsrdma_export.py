#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Export a directory over TCP and RDMA, now and at boot."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_export
short_description: Export a directory over TCP and RDMA
description:
  - Runs C(nfsrdma server enable). It exports the directory, makes nfsd listen on RDMA now and after each restart, and reads the result
    back from the kernel.
  - The export has the option C(insecure) of exports(5), because RDMA clients connect from ports above 1023. Therefore O(clients) has
    no default.
  - O(state=absent) reverts this export only. After the last one, nfsd is configured as before.
extends_documentation_fragment: [nfsrdma.tools.nfsrdma, nfsrdma.tools.nfsrdma.program]
options:
  path:
    description: The directory. It must exist.
    type: str
    required: true
  clients:
    description: Hosts, networks or wildcards of exports(5). Required unless O(state=absent).
    type: list
    elements: str
    default: []
  read_only:
    description: Export it read-only.
    type: bool
    default: false
  rdma_port:
    description: The port of the RDMA listener. By default the one that nfsd has or that the host's configuration requests, else 20049. A
      port that differs from it is an error.
    type: int
  versions:
    description: NFS versions to enable besides the enabled ones. Restarts nfsd if one of them is disabled.
    type: list
    elements: str
    choices: ["3", "4.0", "4.1", "4.2"]
    default: []
  state:
    description: Whether the directory is exported.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Compares listeners, versions and the export with those in effect.
"""

EXAMPLES = r"""
- name: Export the data
  nfsrdma.tools.nfsrdma_export:
    path: /srv/data
    clients: [192.0.2.0/24]
"""

RETURN = r"""
pending:
  description: Whether the module changed something, or would change it in check mode.
  returned: always
  type: bool
server:
  description: The output of C(nfsrdma server status --json).
  returned: always
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import (
    NOT_INSTALLED,
    OPTION,
    Toolkit,
)


def main():
    """Bring the export into its state."""
    module = AnsibleModule(argument_spec=_spec(), supports_check_mode=True,
                           required_if=[("state", "present", ["clients"])])  # fmt: skip
    p, toolkit = module.params, Toolkit(module)
    # nfsrdma and the kernel name /srv/data/ without the last slash
    p["path"] = os.path.normpath(p["path"])
    if p["state"] == "present" and not p["clients"]:
        module.fail_json(msg="clients is empty: list the hosts that may mount the export")
    if not toolkit.installed:
        _without_toolkit(module)
    before = toolkit.facts("server", "status")
    changed = differs(p, before) if p["state"] == "present" else p["path"] in before["own"]
    after = before
    if changed and not module.check_mode:
        toolkit.run(*arguments(p))
        after = toolkit.facts("server", "status")
    then = expected(p) if module.check_mode and changed else in_effect(p, after)
    module.exit_json(changed=changed, pending=changed, server=after,
                     diff={"before": in_effect(p, before), "after": then})  # fmt: skip


def _spec():
    return {
        "path": {"type": "str", "required": True},
        "clients": {"type": "list", "elements": "str", "default": []},
        "read_only": {"type": "bool", "default": False},
        "rdma_port": {"type": "int"},
        "versions": {
            "type": "list", "elements": "str", "default": [], "choices": ["3", "4.0", "4.1", "4.2"],
        },
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "command": OPTION,
    }  # fmt: skip


def _without_toolkit(module):
    if module.params["state"] == "absent":
        module.exit_json(changed=False, pending=False, server={})
    if module.check_mode:
        module.exit_json(changed=True, pending=True, server={})
    module.fail_json(msg=NOT_INSTALLED % module.params)


def differs(p, status):
    """Whether the export, the listener or a version is not in effect, or not by nfsrdma."""
    # the listener of another transport module has another name
    ports = {x["port"] for x in status["listeners"] if x["transport"] not in ("tcp", "udp")}
    listening = p["rdma_port"] in ports if p["rdma_port"] else ports
    versions = set(p["versions"]) <= set(status["versions"] or ())
    access = "ro" if p["read_only"] else "rw"
    rows = [e for e in status["exports"] if e["path"] == p["path"]]
    good = {e["client"] for e in rows if {access, "insecure"} <= set(e["options"])}
    return not (listening and versions and p["path"] in status["own"] and set(p["clients"]) <= good)


def arguments(p):
    """The arguments of nfsrdma."""
    if p["state"] == "absent":
        return ["server", "disable", "--", p["path"]]
    flags = ["--rdma-port=%d" % p["rdma_port"]] if p["rdma_port"] else []
    flags += ["--client=" + client for client in p["clients"]]
    flags += ["--vers=" + version for version in p["versions"]]
    flags += ["--read-only"] * p["read_only"]
    return ["server", "enable", *flags, "--", p["path"]]


def in_effect(p, status):
    """The listeners and the rows of this export, a line each."""
    rows = [e for e in status["exports"] if e["path"] == p["path"]]
    lines = ["listens on %(transport)s %(port)s" % each for each in status["listeners"]]
    lines += ["%s to %s (%s)" % (e["path"], e["client"], ",".join(e["options"])) for e in rows]
    return "\n".join([*lines, ""])


def expected(p):
    """The same lines as they would be after a change."""
    if p["state"] == "absent":
        return "not exported by nfsrdma\n"
    access = "ro" if p["read_only"] else "rw"
    lines = ["listens on rdma %s" % (p["rdma_port"] or "(the configured port, else 20049)")]
    lines += ["%s to %s (%s,insecure)" % (p["path"], client, access) for client in p["clients"]]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
