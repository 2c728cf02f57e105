#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The transport module of this project, installed and loaded, or not."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_module
short_description: Installs, loads and removes the transport module
description:
  - V(installed) has DKMS build the module for each kernel and leads mounts and nfsd to it from the next load on; V(loaded) is that,
    and loaded now; V(absent) has the kernel's own back. All of it by C(nfsrdma module).
  - A host where somebody uses the module that has to go is left alone, and RV(skipped_because) says who.
extends_documentation_fragment: [nfsrdma.tools.nfsrdma, nfsrdma.tools.nfsrdma.program]
options:
  state:
    description: How far it goes.
    type: str
    choices: [installed, loaded, absent]
    default: loaded
attributes:
  check_mode:
    description: Compares with what is installed and loaded.
"""

EXAMPLES = r"""
- name: Have this project's module carry NFS over RDMA
  nfsrdma.tools.nfsrdma_module:
    state: loaded
"""

RETURN = r"""
skipped_because:
  description: Who uses the module that has to go; empty when nothing was skipped.
  returned: always
  type: str
module:
  description: What is in effect, as C(nfsrdma module status --json) says.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import (
    OPTION,
    Toolkit,
)

OURS = "nfsrdma"


def main():
    """Bring the module into its state."""
    states = {"type": "str", "choices": ["installed", "loaded", "absent"], "default": "loaded"}
    spec = {"state": states, "command": OPTION}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    p, toolkit = module.params, Toolkit(module)
    if not toolkit.there:
        if p["state"] != "absent" and not module.check_mode:
            module.fail_json(msg="%(command)s is not installed: role nfsrdma.tools.toolkit" % p)
        module.exit_json(changed=p["state"] != "absent", module={}, skipped_because="")
    before = toolkit.facts("module", "status")
    steps, because = planned(p["state"], before)
    after = before
    if steps and not module.check_mode:
        for step in steps:
            toolkit.run("module", step)
        after = toolkit.facts("module", "status")
    then = p["state"] + "\n" if module.check_mode and steps else shown(after)
    module.exit_json(changed=bool(steps), module=after, skipped_because=because, steps=steps,
                     diff={"before": shown(before), "after": then})  # fmt: skip


def planned(state, status):
    """The commands that lead to a state, and who is in the way of the rest of them."""
    installed, loaded = bool(status["installed"]), bool(status["ours"])
    users = "; ".join(status["users"])
    if state == "absent":
        swap = ["unload"] if loaded else []
        steps = ["uninstall"] if installed else []
    else:
        steps = [] if installed else ["install"]
        swap = ["load"] if state == "loaded" and status["owner"] != OURS else []
    if swap and users:
        # what is installed under a user's feet would be loaded by the next one who asks
        return [], users
    return [*swap, *steps] if state == "absent" else [*steps, *swap], ""


def shown(status):
    """What is in effect, a line each."""
    return "carrier: %s\ninstalled: %s\n" % (
        status["owner"] or "none",
        status["installed"] or "no",
    )


if __name__ == "__main__":
    main()
