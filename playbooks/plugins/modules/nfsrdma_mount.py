#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""An NFS mount, now and at boot, proven by the kernel's words."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_mount
short_description: Mounts NFS over RDMA or TCP, lastingly, and proves it
description:
  - Mounts an export and reads back from the kernel that transport, version, sizes and connections are as asked;
    a mount that is not is taken off again and the task fails with both values.
  - C(mount -o remount) never changes the transfer size of NFS, so a mount that is different is unmounted and made anew.
    One that is busy is left as it is, with its definition, and the task fails with the names of who uses it.
  - Sizes that C(nfsrdma tune) made to last for this mount go before O(rsize) and O(wsize).
extends_documentation_fragment: [nfsrdma.tools.nfsrdma, nfsrdma.tools.nfsrdma.program]
options:
  src:
    description: What to mount, SERVER:/PATH. Needed unless O(state=absent) or O(state=unmounted).
    type: str
  path:
    description: The mount point. It is made if it is not there.
    type: str
    required: true
  transport:
    description: V(rdma) is the kernel's module, V(nfsrdma) is this project's.
    type: str
    choices: [rdma, nfsrdma, tcp]
    default: rdma
  vers:
    description: NFS version.
    type: str
    choices: ["3", "4.0", "4.1", "4.2"]
    default: "4.2"
  rsize:
    description: Bytes of one READ.
    type: int
  wsize:
    description: Bytes of one WRITE.
    type: int
  nconnect:
    description: Connections.
    type: int
  port:
    description: The server's port, if it is not 20049 for RDMA and 2049 for TCP.
    type: int
  opts:
    description: Further mount options, each an item.
    type: list
    elements: str
    default: []
  boot:
    description: Where it is defined for the next boot. V(none) defines nothing.
    type: str
    choices: [fstab, unit, none]
    default: fstab
  state:
    description:
      - V(mounted) now and at boot; V(unmounted) now, the definition stays; V(absent) neither mounted nor defined.
    type: str
    choices: [mounted, unmounted, absent]
    default: mounted
  remove_directory:
    description: With O(state=absent), the mount point or a folder above it, which is removed with those between if they are empty.
    type: str
    default: ""
  timeout:
    description: Seconds after which a server that does not answer is given up.
    type: int
    default: 60
attributes:
  check_mode:
    description: Says what would be done; whether the server offers it is not tried.
  diff_mode:
    description: The definition and what is in effect, before and after.
"""

EXAMPLES = r"""
- name: Mount the data over RDMA
  nfsrdma.tools.nfsrdma_mount:
    src: server:/export
    path: /mnt/data
    rsize: 262144
"""

RETURN = r"""
mount:
  description: What is in effect, as C(nfsrdma mounts --json) says; empty when nothing is mounted.
  returned: always
  type: dict
actions:
  description: What was done, or would be.
  returned: always
  type: list
  elements: str
pending:
  description: Whether something was, or in check mode would be, done.
  returned: always
  type: bool
made_directory:
  description: Whether the mount point was made.
  returned: always
  type: bool
"""

import os

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils import definition
from ansible_collections.nfsrdma.tools.plugins.module_utils.place import Place
from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import (
    OPTION,
    Toolkit,
    missing,
    remove_empty,
    run,
)


def main():
    """Bring the mount into its state."""
    module = AnsibleModule(argument_spec=_spec(), supports_check_mode=True,
                           required_if=[("state", "mounted", ["src"])])  # fmt: skip
    p = module.params
    wanted = p["state"] == "mounted"
    problem = definition.refusal(p["src"] if wanted else "-", p["path"], p["opts"])
    if problem:
        module.fail_json(msg=problem)
    toolkit = Toolkit(module)
    if not toolkit.there and not module.check_mode:
        module.fail_json(msg="%(command)s is not installed: role nfsrdma.tools.toolkit" % p)
    # in check mode the role that installs it has not done so
    facts = toolkit.facts if toolkit.there else lambda *_: []
    tuned = _of(facts("tune", "show"), p["path"])
    place = Place(module, definition.options(p))
    place.tuned(tuned)
    here = _of(facts("mounts"), p["path"])
    differences = _differences(p, here, tuned) if here and wanted else []
    if here and wanted and place.now is not None and place.differs:
        differences.append("definition")
    actions = _actions(place, here, differences, wanted, p)
    made = wanted and not os.path.isdir(p["path"])
    if not module.check_mode:
        _carry_out(module, toolkit, place, here, actions)
    after = (
        here
        if not actions
        else None
        if module.check_mode
        else _of(toolkit.facts("mounts"), p["path"])
    )
    module.exit_json(changed=bool(actions), pending=bool(actions), actions=actions, mount=after or {}, made_directory=made,
                     differences=differences, diff=_diff(place, here, p, wanted))  # fmt: skip


def _spec():
    text = {"type": "str"}
    return {
        "src": text,
        "path": {"type": "str", "required": True},
        "transport": {"type": "str", "choices": ["rdma", "nfsrdma", "tcp"], "default": "rdma"},
        "vers": {"type": "str", "choices": ["3", "4.0", "4.1", "4.2"], "default": "4.2"},
        **{name: {"type": "int"} for name in ("rsize", "wsize", "nconnect", "port")},
        "opts": {"type": "list", "elements": "str", "default": []},
        "boot": {"type": "str", "choices": ["fstab", "unit", "none"], "default": "fstab"},
        "state": {
            "type": "str", "choices": ["mounted", "unmounted", "absent"], "default": "mounted",
        },
        "remove_directory": {"type": "str", "default": ""},
        "timeout": {"type": "int", "default": 60},
        "command": OPTION,
    }  # fmt: skip


def _of(rows, path):
    return next((row for row in rows if row["directory"] == path), None)


def _differences(p, here, tuned):
    asked = {
        "target": p["src"].rstrip("/") if not p["src"].endswith(":/") else p["src"],
        **{name: p[name] for name in ("transport", "vers", "rsize", "wsize", "nconnect")},
    }
    for name in ("rsize", "wsize"):
        if tuned and tuned.get(name):
            asked[name] = tuned[name]
    return [n for n, value in asked.items() if value is not None and here[n] != value]


def _actions(place, here, differences, wanted, p):
    actions = []
    if here and (differences or not wanted):
        actions.append("unmount")
    if place.differs:
        actions.append("remove the definition" if place.wanted is None else "define")
    if wanted and (not here or differences):
        actions.append("mount")
    if p["state"] == "absent" and p["remove_directory"] and _empty(p["path"], here):
        actions.append("remove the folder")
    return actions


def _empty(path, here):
    # what is below a mount is not the folder's
    return os.path.isdir(path) and bool(here or not os.listdir(path))


def _carry_out(module, toolkit, place, here, actions):
    p = module.params
    if "unmount" in actions:
        # first of all: one that is busy ends it before anything was changed
        toolkit.run("umount", "--timeout", str(p["timeout"]), "--", p["path"])
    if place.differs:
        place.put(place.wanted)
    if "mount" in actions:
        _mount(module, toolkit, place, here)
    if "remove the folder" in actions:
        remove_empty(p["path"], p["remove_directory"])


def _mount(module, toolkit, place, here):
    p = module.params
    made = missing(p["path"])
    os.makedirs(p["path"], 0o755, exist_ok=True)
    status, _, said = toolkit.attempt(*words(p))
    if status:
        back = _back(module, toolkit, place, here, made)
        module.fail_json(msg=said, back=back, rc=status)


def words(p):
    """The command line that makes the mount and proves it."""
    named = [(n, p[n]) for n in ("rsize", "wsize", "nconnect", "port") if p[n]]
    flags = [w for name, value in named for w in ("--" + name, str(value))]
    flags += ["--options=" + option for option in p["opts"]]
    flags += ["--timeout", str(p["timeout"]), "--transport", p["transport"], "--vers", p["vers"]]
    return ["mount", *flags, "--", p["src"], p["path"]]


def _back(module, toolkit, place, here, made):
    """After a mount that failed: the definition, the mount and the folder as they were."""
    if place.differs:
        place.put(place.now)
    if made:
        remove_empty(module.params["path"], made)
    if not here:
        return "all is as before"
    if place.now:
        argv = ["mount", "--target", module.params["path"]]
        argv = argv if place.kind == "fstab" else ["systemctl", "start", "--", place.unit]
        status, _, said = run(module, argv)
    else:
        same = ("transport", "vers", "rsize", "wsize")
        old = {**module.params, "src": here["target"], **{name: here[name] for name in same}}
        status, _, said = toolkit.attempt(*words(old))
    if status:
        return "what was mounted before could not be mounted again: " + said.strip()
    return "what was there before is mounted again"


def _diff(place, here, p, wanted):
    names = ("target", "transport", "vers", "rsize", "wsize", "nconnect")
    now = ["%s: %s" % (name, here[name]) for name in names] if here else ["not mounted"]
    asked = {**p, "target": p["src"]}
    then = ["%s: %s" % (n, asked[n] or (here or {}).get(n, "by default")) for n in names]
    after = then if wanted else ["not mounted"]
    return {
        "before_header": p["path"], "after_header": p["path"],
        "before": "\n".join([place.now or "(no definition)", *now, ""]),
        "after": "\n".join([place.wanted or "(no definition)", *after, ""]),
    }  # fmt: skip


if __name__ == "__main__":
    main()
