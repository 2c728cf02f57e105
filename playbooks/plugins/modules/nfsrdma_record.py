#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Record the state of a host before a role changes it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_record
short_description: Record the state of a host before a role changes it
description:
  - Writes the record of a role. M(nfsrdma.tools.nfsrdma_facts) returns the records as C(records).
  - Keeps values that are already in the record, and adds new keys, also in nested dictionaries.
extends_documentation_fragment: nfsrdma.tools.nfsrdma
options:
  role:
    description: The role that the record belongs to.
    type: str
    required: true
  content:
    description: The values to record.
    type: dict
    default: {}
  replace:
    description: Replace the record instead of adding to it.
    type: bool
    default: false
  state:
    description: V(absent) removes the record, and the directory of records with the last one.
    type: str
    choices: [present, absent]
    default: present
attributes:
  diff_mode:
    description: The record, before and after.
"""

EXAMPLES = r"""
- name: Record the state of the host before the first change
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
        module.fail_json(msg="role: %r is not a role name" % p["role"])
    before = records.one(p["role"])
    after = wanted(p, before)
    changed = before != after
    if changed and not module.check_mode:
        _carry_out(module, after)
    module.exit_json(changed=changed,
                     diff={"before": records.text(before), "after": records.text(after)})  # fmt: skip


def wanted(p, before):
    """The record after the change."""
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
