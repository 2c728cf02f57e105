#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Packages that roles want on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_packages
short_description: Installs packages for a role, and takes them back to the last one
description:
  - Installs what is missing from the host's own archive, by apt-get or dnf, without what a package only recommends. What that brought
    along is on record.
  - When the last role that wanted packages has gone, all that came is removed, with its configuration, but for what another package needs by then.
extends_documentation_fragment: nfsrdma.tools.nfsrdma
options:
  role:
    description: Who wants them.
    type: str
    required: true
  names:
    description: What is to be there; nothing else is looked at when this is empty.
    type: list
    elements: str
    default: []
  state:
    description: V(absent), the role wants none any more.
    type: str
    choices: [present, absent]
    default: present
attributes:
  diff_mode:
    description: Packages asked for that are there, before and after; with V(absent) those that go.
"""

EXAMPLES = r"""
- name: Have what a client needs
  nfsrdma.tools.nfsrdma_packages:
    role: client
    names: [nfs-common]
"""

RETURN = r"""
kept:
  description: Packages that came with a role and stay, because another package needs them.
  returned: always
  type: list
  elements: str
"""

import re

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils import packages, records

RECORD = "packages"


def main():
    """Bring packages into their state."""
    spec = {
        "role": {"type": "str", "required": True},
        "names": {"type": "list", "elements": "str", "default": []},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    module.run_command_environ_update = packages.QUIET
    odd = [name for name in module.params["names"] if not re.match(r"[A-Za-z0-9][\w.+:-]*\Z", name)]
    if odd:
        module.fail_json(msg="%r is not the name of a package" % odd[0])
    record = records.one(RECORD) or {"wanted": {}, "added": []}
    bring = _present if module.params["state"] == "present" else _absent
    module.exit_json(**bring(module, record))


def _present(module, record):
    role, names = module.params["role"], sorted(module.params["names"])
    if not names:
        return {"changed": False, "kept": []}
    archive = _archive(module, names)
    there = archive.installed()
    lacking = [name for name in names if name not in there]
    # "before" is there when an installation was cut short
    changed = bool(lacking) or record["wanted"].get(role) != names or "before" in record
    if changed and not module.check_mode:
        record["wanted"][role] = names
        _install(module, archive, record, there, lacking)
    diff = {"before": _lines(set(names) & there), "after": _lines(names)}
    return {"changed": changed, "kept": [], "diff": diff}


def _install(module, archive, record, there, lacking):
    """On record first: what comes along is known afterwards only."""
    if lacking:
        record.setdefault("before", sorted(there))
    records.keep(module, RECORD, record)
    said = archive.install(lacking) if lacking else ""
    if said:
        module.fail_json(msg="cannot install %s: %s" % (", ".join(lacking), said))
    now = archive.installed()
    record["added"] = sorted(_came(record, now))
    record.pop("before", None)
    records.keep(module, RECORD, record)


def _absent(module, record):
    changed = record["wanted"].pop(module.params["role"], None) is not None
    if not changed or record["wanted"]:
        if changed and not module.check_mode:
            records.keep(module, RECORD, record)
        return {"changed": changed, "kept": []}
    archive = _archive(module, [])
    there = archive.installed()
    gone = _came(record, there) & there
    kept = [] if module.check_mode else _remove(module, archive, gone)
    diff = {"before": _lines(gone), "after": _lines(kept)}
    return {"changed": True, "kept": kept, "diff": diff}


def _remove(module, archive, gone):
    kept, said = archive.remove(gone) if gone else ([], "")
    if said:
        module.fail_json(msg="cannot remove %s: %s" % (", ".join(sorted(gone)), said))
    if kept:
        module.warn("packages stay, because others need them by now: " + ", ".join(kept))
    records.forget(RECORD)
    return kept


def _came(record, now):
    """What roles brought, a last installation that was cut short included."""
    return set(record["added"]) | (now - set(record.get("before", now)))


def _archive(module, names):
    found = packages.archive(module)
    if found is None:
        rest = ", ".join(names) or "what roles brought"
        module.fail_json(msg="neither apt-get nor dnf is here: see to %s by other means and give an"
                             " empty list of packages" % rest)  # fmt: skip
    return found


def _lines(names):
    return "".join(name + "\n" for name in sorted(names))


if __name__ == "__main__":
    main()
