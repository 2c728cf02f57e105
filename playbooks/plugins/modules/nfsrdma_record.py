#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""What a host was like before a role changed it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_record
short_description: Keeps how a host was before a role changed it
description:
  - Writes a record for a role, which M(nfsrdma.tools.nfsrdma_facts) returns as C(records). What is on record already stays as it was
    written the first time; keys that are not there yet are added, in objects inside of it too.
extends_documentation_fragment: nfsrdma.tools.nfsrdma
options:
  role:
    description: Whose record it is.
    type: str
    required: true
  content:
    description: What is kept.
    type: dict
    default: {}
  replace:
    description: What was written before does not count.
    type: bool
    default: false
  state:
    description: V(absent) forgets it, and removes the folder of records with the last one.
    type: str
    choices: [present, absent]
    default: present
attributes:
  diff_mode:
    description: The record, before and after.
"""

EXAMPLES = r"""
- name: Record how the host was, before anything is changed
  nfsrdma.tools.nfsrdma_record:
    role: client
    content:
      packages: [nfs-common]
"""

RETURN = r"""
"""

import re

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils import records


def main():
    """Bring the record into its state."""
    spec = {
        "role": {"type": "str", "required": True},
        "content": {"type": "dict", "default": {}},
        "replace": {"type": "bool", "default": False},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    p = module.params
    if not re.match(r"[a-z_]+\Z", p["role"]):
        module.fail_json(msg="role: %r is not the name of a role" % p["role"])
    before = records.one(p["role"])
    after = wanted(p, before)
    changed = before != after
    if changed and not module.check_mode:
        _carry_out(module, after)
    module.exit_json(changed=changed,
                     diff={"before": records.shown(before), "after": records.shown(after)})  # fmt: skip


def wanted(p, before):
    """What the record is to be."""
    if p["state"] == "absent":
        return None
    if before is None or p["replace"]:
        return p["content"]
    return records.joined(before, p["content"])


def _carry_out(module, after):
    if after is None:
        records.forget(module.params["role"])
    else:
        records.keep(module, module.params["role"], after)


if __name__ == "__main__":
    main()
