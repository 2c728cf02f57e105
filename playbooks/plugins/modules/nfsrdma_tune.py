#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Set transfer sizes and read-ahead of a mount persistently."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_tune
short_description: Set transfer sizes and read-ahead of a mount persistently
description:
  - Runs C(nfsrdma tune apply --remount). It writes the sizes to the definition of the mount, makes udev set the read-ahead at each
    mount, and verifies the values in effect. It does not change other mounts.
  - If the mount is in use, the module keeps it and fails with the processes that use it.
extends_documentation_fragment: [nfsrdma.tools.nfsrdma, nfsrdma.tools.nfsrdma.program, nfsrdma.tools.nfsrdma.sizes]
options:
  path:
    description: The mount point.
    type: str
    required: true
  read_ahead:
    description: Read-ahead in blocks of rsize.
    type: int
  remount:
    description: Unmount and mount again now if a size changes.
    type: bool
    default: true
  state:
    description: V(absent) reverts the tuning. Without O(remount), the sizes stay in effect until the next mount.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Compares with the tuned values and those in effect.
"""

EXAMPLES = r"""
- name: Apply the best cell of a sweep
  nfsrdma.tools.nfsrdma_tune:
    path: /mnt/data
    rsize: 262144
    read_ahead: 4
"""

RETURN = r"""
pending:
  description: Whether the module changed something, or would change it in check mode.
  returned: always
  type: bool
tuned:
  description: The mount in the output of C(nfsrdma tune show --json). Empty if it is not tuned.
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
    run,
)


def main():
    """Bring the mount's tuning into its state."""
    module = AnsibleModule(argument_spec=_spec(), supports_check_mode=True)
    p, toolkit = module.params, Toolkit(module)
    # nfsrdma and the kernel name /srv/data/ without the last slash
    p["path"] = os.path.normpath(p["path"])
    wanted = p["state"] == "present"
    if wanted and (p["rsize"], p["wsize"], p["read_ahead"]) == (None, None, None):
        module.fail_json(msg="nothing to tune: give rsize, wsize or read_ahead")
    if not toolkit.installed:
        if wanted and not module.check_mode:
            module.fail_json(msg=NOT_INSTALLED % p)
        module.exit_json(changed=wanted, pending=wanted, tuned={})
    before = _of(toolkit.facts("tune", "show"), p["path"])
    changed = differs(p, before, _rsize(toolkit, p)) if wanted else before is not None
    after = before
    if changed and not module.check_mode:
        _change(module, toolkit, before)
        after = _of(toolkit.facts("tune", "show"), p["path"])
    then = _expected(p) if module.check_mode and changed else values(after)
    module.exit_json(changed=changed, pending=changed, tuned=after or {},
                     diff={"before": values(before), "after": then})  # fmt: skip


def _spec():
    return {
        "path": {"type": "str", "required": True},
        **{name: {"type": "int"} for name in ("rsize", "wsize", "read_ahead")},
        "remount": {"type": "bool", "default": True},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "command": OPTION,
    }


def _of(rows, path):
    return next((row for row in rows if row["directory"] == path), None)


def _rsize(toolkit, p):
    mount = _of(toolkit.facts("mounts"), p["path"])
    return p["rsize"] or (mount["rsize"] if mount else 0)


def differs(p, tuned, rsize):
    """Whether a requested value is not the tuned one, or is not in effect on the mount."""
    if tuned is None:
        return True
    blocks = p["read_ahead"]
    # nfsrdma rounds up to whole pages, which are 4, 16 or 64 KiB
    page = os.sysconf("SC_PAGE_SIZE")
    kb = None if blocks is None else -(-blocks * rsize // page) * page // 1024
    if (tuned["rsize"], tuned["wsize"], tuned["read_ahead_kb"]) != (p["rsize"], p["wsize"], kb):
        return True
    mounted = tuned["in_effect"]["rsize"] is not None
    return bool(mounted and p["remount"] and tuned["pending"])


def _change(module, toolkit, before):
    p = module.params
    if p["state"] == "absent":
        _undo(module, toolkit, before)
        return
    named = [("rsize", p["rsize"]), ("wsize", p["wsize"]), ("read-ahead", p["read_ahead"])]
    flags = [w for name, value in named if value is not None for w in ("--" + name, str(value))]
    sizes = p["rsize"] is not None or p["wsize"] is not None
    flags += ["--remount"] * (p["remount"] and sizes)
    toolkit.run("tune", "apply", "--mount", p["path"], *flags)


def _undo(module, toolkit, before):
    path, sizes = before["directory"], before["rsize"] or before["wsize"]
    again = bool(module.params["remount"] and sizes and before["in_effect"]["rsize"])
    if again:
        # first: if the mount is in use, the module fails before it changes anything
        toolkit.run("umount", "--", path)
    toolkit.run("tune", "undo", "--", path)
    if again:
        run(module, ["mount", "--target", path], check_rc=True)


def values(tuned):
    """The tuned values, a line each."""
    names = ("rsize", "wsize", "read_ahead_kb")
    lines = ["%s: %s" % (n, tuned[n]) for n in names if tuned and tuned[n] is not None]
    return "\n".join([*(lines or ["not tuned"]), ""])


def _expected(p):
    names = ("rsize", "wsize", "read_ahead") if p["state"] == "present" else ()
    lines = ["%s: %s" % (name, p[name]) for name in names if p[name] is not None]
    return "\n".join([*(lines or ["not tuned"]), ""])


if __name__ == "__main__":
    main()
