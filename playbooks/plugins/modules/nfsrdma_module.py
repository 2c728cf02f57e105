#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Install, load or remove the transport module of this project."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_module
short_description: Install, load or remove the transport module
description:
  - Runs C(nfsrdma module). DKMS builds the module for each kernel, and mounts and nfsd use it from the next load on.
  - Changes nothing on a host where the module to unload is in use, and returns its users in RV(skipped_because).
extends_documentation_fragment: [nfsrdma.tools.nfsrdma, nfsrdma.tools.nfsrdma.program]
options:
  state:
    description:
      - V(installed) builds and installs the module. V(loaded) also loads it. V(absent) unloads and removes it and loads the kernel's
        module again.
    type: str
    choices: [installed, loaded, absent]
    default: loaded
attributes:
  check_mode:
    description: Compares with what is installed and loaded.
"""

EXAMPLES = r"""
- name: Use the transport module of this project
  nfsrdma.tools.nfsrdma_module:
    state: loaded
"""

RETURN = r"""
skipped_because:
  description: The users of the module to unload. Empty if nothing was skipped.
  returned: always
  type: str
module:
  description: The output of C(nfsrdma module status --json).
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import (
    NOT_INSTALLED,
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
    if not toolkit.installed:
        if p["state"] != "absent" and not module.check_mode:
            module.fail_json(msg=NOT_INSTALLED % p)
        module.exit_json(changed=p["state"] != "absent", module={}, skipped_because="")
    before = toolkit.facts("module", "status")
    steps, users = planned(p["state"], before)
    after = before
    if steps and not module.check_mode:
        for step in steps:
            toolkit.run("module", step)
        after = toolkit.facts("module", "status")
    then = p["state"] + "\n" if module.check_mode and steps else in_effect(after)
    module.exit_json(changed=bool(steps), module=after, skipped_because=users, steps=steps,
                     diff={"before": in_effect(before), "after": then})  # fmt: skip


def planned(state, status):
    """The steps to a state, and the users of the module that prevent them."""
    installed, loaded = bool(status["installed"]), bool(status["ours"])
    users = "; ".join(status["users"])
    if state == "absent":
        swap = ["unload"] if loaded else []
        steps = ["uninstall"] if installed else []
    else:
        steps = [] if installed else ["install"]
        swap = ["load"] if state == "loaded" and status["owner"] != OURS else []
    if swap and users:
        # don't install it either: the next request for the module would load it
        return [], users
    return [*swap, *steps] if state == "absent" else [*steps, *swap], ""


def in_effect(status):
    """The module that is loaded and the one that is installed, a line each."""
    return "transport module: %s\ninstalled: %s\n" % (
        status["owner"] or "none",
        status["installed"] or "no",
    )


if __name__ == "__main__":
    main()
