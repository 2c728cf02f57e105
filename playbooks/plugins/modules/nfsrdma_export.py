#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""A directory served over TCP and RDMA, now and at boot."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_export
short_description: Serves a directory over TCP and RDMA
description:
  - Exports a directory, has nfsd listen on RDMA now and after each restart, and reads back that it is so, by C(nfsrdma server enable).
  - The export is insecure in the sense of exports(5), because RDMA clients come from ports above 1023. So O(clients) has no default.
  - O(state=absent) takes exactly that back; after the last export nfsd is as it was before.
extends_documentation_fragment: [nfsrdma.tools.nfsrdma, nfsrdma.tools.nfsrdma.program]
options:
  path:
    description: The directory. It has to be there.
    type: str
    required: true
  clients:
    description: Hosts, networks or wildcards of exports(5). Needed unless O(state=absent).
    type: list
    elements: str
    default: []
  read_only:
    description: No writing.
    type: bool
    default: false
  rdma_port:
    description: For RDMA.
    type: int
    default: 20049
  versions:
    description: NFS versions to be switched on besides those that are, which restarts nfsd if one was off.
    type: list
    elements: str
    choices: ["3", "4.0", "4.1", "4.2"]
    default: []
  state:
    description: Whether it is served.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Compares listeners, versions and the export with what is in effect.
"""

EXAMPLES = r"""
- name: Serve the data
  nfsrdma.tools.nfsrdma_export:
    path: /srv/data
    clients: [192.0.2.0/24]
"""

RETURN = r"""
pending:
  description: Whether something was, or in check mode would be, done.
  returned: always
  type: bool
server:
  description: What is in effect, as C(nfsrdma server status --json) says.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import (
    OPTION,
    Toolkit,
)


def main():
    """Bring the export into its state."""
    module = AnsibleModule(argument_spec=_spec(), supports_check_mode=True,
                           required_if=[("state", "present", ["clients"])])  # fmt: skip
    p, toolkit = module.params, Toolkit(module)
    if p["state"] == "present" and not p["clients"]:
        module.fail_json(msg="clients is empty: say who may mount it")
    if not toolkit.there:
        _without_toolkit(module)
    before = toolkit.facts("server", "status")
    changed = lacks(p, before) if p["state"] == "present" else p["path"] in before["own"]
    after = before
    if changed and not module.check_mode:
        toolkit.run(*words(p))
        after = toolkit.facts("server", "status")
    wanted = shown(p, after) if not module.check_mode else asked(p) if changed else shown(p, before)
    module.exit_json(changed=changed, pending=changed, server=after,
                     diff={"before": shown(p, before), "after": wanted})  # fmt: skip


def _spec():
    return {
        "path": {"type": "str", "required": True},
        "clients": {"type": "list", "elements": "str", "default": []},
        "read_only": {"type": "bool", "default": False},
        "rdma_port": {"type": "int", "default": 20049},
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
    module.fail_json(msg="%(command)s is not installed: role nfsrdma.tools.toolkit" % module.params)


def lacks(p, status):
    """Whether something that is asked for is not in effect, or is not ours to last."""
    listening = {"transport": "rdma", "port": p["rdma_port"]} in status["listeners"]
    versions = set(p["versions"]) <= set(status["versions"] or ())
    access = "ro" if p["read_only"] else "rw"
    rows = [e for e in status["exports"] if e["path"] == p["path"]]
    good = {e["client"] for e in rows if {access, "insecure"} <= set(e["options"])}
    return not (listening and versions and p["path"] in status["own"] and set(p["clients"]) <= good)


def words(p):
    """The command line."""
    if p["state"] == "absent":
        return ["server", "disable", "--", p["path"]]
    flags = ["--client=" + client for client in p["clients"]]
    flags += ["--vers=" + version for version in p["versions"]]
    flags += ["--read-only"] * p["read_only"]
    return ["server", "enable", "--rdma-port", str(p["rdma_port"]), *flags, "--", p["path"]]


def shown(p, status):
    """What is in effect of this export, a line each."""
    rows = [e for e in status["exports"] if e["path"] == p["path"]]
    lines = ["listens on %(transport)s %(port)s" % each for each in status["listeners"]]
    lines += ["%s to %s (%s)" % (e["path"], e["client"], ",".join(e["options"])) for e in rows]
    return "\n".join([*lines, ""])


def asked(p):
    """What would be in effect."""
    if p["state"] == "absent":
        return "not served by nfsrdma\n"
    access = "ro" if p["read_only"] else "rw"
    lines = ["listens on rdma %d" % p["rdma_port"]]
    lines += ["%s to %s (%s,insecure)" % (p["path"], client, access) for client in p["clients"]]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
