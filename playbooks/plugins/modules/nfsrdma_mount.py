#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Mount NFS now and at boot, and verify the mount."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_mount
short_description: Mount NFS over RDMA or TCP, and verify the mount
description:
  - Mounts an export and reads transport, version, sizes and connections back from the kernel. If one differs from the request, the
    module unmounts it again and fails with both values.
  - C(mount -o remount) never changes the transfer size of NFS. Therefore the module unmounts and mounts again to change a mount. If the
    mount is in use, the module keeps it and its definition, and fails with the processes that use it.
  - Before it changes a mount, the module records it. If the module is killed and the next run fails, that run restores the recorded one.
  - Sizes that C(nfsrdma tune) set for this mount take precedence over O(rsize) and O(wsize).
extends_documentation_fragment: [nfsrdma.tools.nfsrdma, nfsrdma.tools.nfsrdma.program, nfsrdma.tools.nfsrdma.sizes]
options:
  src:
    description: The export, as SERVER:/PATH. Required unless O(state=absent) or O(state=unmounted).
    type: str
  path:
    description: The mount point. Created if it does not exist.
    type: str
    required: true
  transport:
    description:
      - V(rdma) is the kernel's transport module, V(nfsrdma) is the one of this project. With a 6 at the end, over IPv6 only.
    type: str
    choices: [rdma, nfsrdma, tcp, rdma6, nfsrdma6, tcp6]
    default: rdma
  vers:
    description: The NFS version.
    type: str
    choices: ["3", "4.0", "4.1", "4.2"]
    default: "4.2"
  nconnect:
    description: The number of connections.
    type: int
  port:
    description: The server's port. 20049 for RDMA and 2049 for TCP by default.
    type: int
  opts:
    description: More mount options, one per item.
    type: list
    elements: str
    default: []
  boot:
    description: Where to define the mount for the next boot. V(none) does not define it.
    type: str
    choices: [fstab, unit, none]
    default: fstab
  state:
    description:
      - V(mounted) mounts now and at boot. V(unmounted) unmounts now and keeps the definition. V(absent) unmounts and removes the
        definition.
    type: str
    choices: [mounted, unmounted, absent]
    default: mounted
  remove_directory:
    description: With O(state=absent), the mount point or a directory above it. The module removes it and those in between if they are
      empty.
    type: str
    default: ""
  timeout:
    description: Seconds to wait for a server that does not answer.
    type: int
    default: 60
attributes:
  check_mode:
    description: Reports what would change. Does not try whether the server accepts it.
  diff_mode:
    description: The definition and the mount in effect, before and after.
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
  description: The mount in the output of C(nfsrdma mounts --json). Empty if nothing is mounted.
  returned: always
  type: dict
actions:
  description: What the module did, or would do in check mode.
  returned: always
  type: list
  elements: str
pending:
  description: Whether the module changed something, or would change it in check mode.
  returned: always
  type: bool
made_directory:
  description: Whether the module created the mount point.
  returned: always
  type: bool
"""

import os

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils import definition, records
from ansible_collections.nfsrdma.tools.plugins.module_utils.place import Place
from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import (
    NOT_INSTALLED,
    OPTION,
    Toolkit,
    missing,
    remove_empty,
    run,
)

BDI = "/sys/class/bdi"
RECORD = "mounts"


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
    if not toolkit.installed and not module.check_mode:
        module.fail_json(msg=NOT_INSTALLED % p)
    # in check mode, role toolkit has not installed it yet
    facts = toolkit.facts if toolkit.installed else lambda *_: []
    tuned = _of(facts("tune", "show"), p["path"])
    place = Place(module, definition.options(p))
    place.tuned(tuned)
    here = _of(facts("mounts"), p["path"])
    differences = _differences(p, here, tuned) if here and wanted else []
    if here and wanted and place.now is not None and place.differs:
        differences.append("definition")
    actions = _actions(place, here, differences, wanted, p)
    created = wanted and not os.path.isdir(p["path"])
    if not module.check_mode:
        _carry_out(module, toolkit, place, here, actions)
    after = (
        here
        if not actions
        else None
        if module.check_mode
        else _of(toolkit.facts("mounts"), p["path"])
    )
    module.exit_json(changed=bool(actions), pending=bool(actions), actions=actions, mount=after or {}, made_directory=created,
                     differences=differences, diff=_diff(place, here, p, wanted))  # fmt: skip


def _spec():
    text = {"type": "str"}
    return {
        "src": text,
        "path": {"type": "str", "required": True},
        "transport": {"type": "str", "choices": definition.TRANSPORTS, "default": "rdma"},
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
    requested = {
        "target": p["src"].rstrip("/") if not p["src"].endswith(":/") else p["src"],
        **{name: p[name] for name in ("vers", "rsize", "wsize", "nconnect")},
    }
    for name in ("rsize", "wsize"):
        if tuned and tuned.get(name):
            requested[name] = tuned[name]
    differing = [n for n, value in requested.items() if value is not None and here[n] != value]
    # without a 6, either family will do
    same = p["transport"] in (here["transport"], _with_family(here))
    return [*differing, *([] if same else ["transport"])]


def _with_family(here):
    return here["transport"] + ("6" if here.get("proto", "").endswith("6") else "")


def _actions(place, here, differences, wanted, p):
    actions = []
    if here and (differences or not wanted):
        actions.append("unmount")
    if place.differs:
        actions.append("remove the definition" if place.wanted is None else "define")
    if wanted and (not here or differences):
        actions.append("mount")
    if p["state"] == "absent" and p["remove_directory"] and _empty(p["path"], here):
        actions.append("remove the directory")
    return actions


def _empty(path, here):
    # a mount hides the content of the directory itself
    return os.path.isdir(path) and bool(here or not os.listdir(path))


def _carry_out(module, toolkit, place, here, actions):
    """Act, and on a failure restore the state before the first of the runs that did not end."""
    was = _before(place, here)
    if actions:
        _keep(module, was)
    status, error = _act(module.params, toolkit, place, actions)
    restored = _restore(module, toolkit, place, was) if status else ""
    _keep(module, None)
    if status:
        module.fail_json(msg=error, restored=restored, rc=status)


def _act(p, toolkit, place, actions):
    """Return the status and the message of the program that failed; 0 without one."""
    if "unmount" in actions:
        # first: if the mount is in use, the module fails before it changes anything
        words = ["umount", "--timeout", str(p["timeout"]), "--", p["path"]]
        status, _, error = toolkit.attempt(*words)
        if status:
            return status, error
    if place.differs:
        place.put(place.wanted)
    if "mount" in actions:
        os.makedirs(p["path"], 0o755, exist_ok=True)
        status, _, error = toolkit.attempt(*arguments(p))
        if status:
            return status, error
    if "remove the directory" in actions:
        remove_empty(p["path"], p["remove_directory"])
    return 0, ""


def _before(place, here):
    """The mount, its definition and the missing directory, of this run or of a killed one."""
    was = (records.one(RECORD) or {}).get(place.path)
    if was is None or here:
        # the mount of a killed run, or of somebody else, is the one to restore
        was = {"mount": here, "definition": place.now, "wrote": [], "created": missing(place.path)}
    elif place.now not in was["wrote"]:
        # somebody has changed it since
        was["definition"] = place.now
    if place.differs:
        was["wrote"].append(place.wanted)
    return {place.path: was}


def _keep(module, was):
    """Record the state before the change; without it (None), forget that of this mount."""
    rows = records.one(RECORD) or {}
    if was:
        records.keep(module, RECORD, {**rows, **was})
    elif rows.pop(module.params["path"], None):
        if rows:
            records.keep(module, RECORD, rows)
        else:
            records.forget(RECORD)
    else:
        records.remove_empty()


def arguments(p):
    """The arguments of nfsrdma that mount and verify."""
    named = [(n, p[n]) for n in ("rsize", "wsize", "nconnect", "port") if p[n]]
    flags = [w for name, value in named for w in ("--" + name, str(value))]
    flags += ["--options=" + option for option in p["opts"]]
    flags += ["--timeout", str(p["timeout"]), "--transport", p["transport"], "--vers", p["vers"]]
    return ["mount", *flags, "--", p["src"], p["path"]]


def _restore(module, toolkit, place, rows):
    """Restore the definition, the mount and the directory; return a message."""
    was = rows[place.path]
    if place.read() in was["wrote"]:
        place.put(was["definition"])
    if _of(toolkit.facts("mounts"), place.path):
        return "kept the mount"
    if was["created"] and os.path.isdir(place.path):
        remove_empty(place.path, was["created"])
    here = was["mount"]
    if not here:
        return "restored the previous state: not mounted"
    status, _, error = run(module, _as_mounted(here))
    if status:
        return "cannot restore the previous mount: " + error.strip()
    path = "%s/%d:%d/read_ahead_kb" % (BDI, *_device(here["directory"]))
    if here["read_ahead_kb"] is not None and os.path.exists(path):
        with open(path, "w", encoding="ascii") as file:
            file.write("%d\n" % here["read_ahead_kb"])
    return "restored the previous mount"


def _as_mounted(here):
    """The command that makes a mount again as it was: its definition may have other options."""
    # mount.nfs resolves the name again
    pairs = sorted((n, value) for n, value in here["options"].items() if n != "addr")
    words = [*here["flags"], *(n + "=" + value if value else n for n, value in pairs)]
    target = [here["target"], here["directory"]]
    return ["mount", "-t", here["fstype"], "-o", ",".join(words), "--", *target]


def _device(path):
    number = os.stat(path).st_dev
    return os.major(number), os.minor(number)


def _diff(place, here, p, wanted):
    names = ("target", "transport", "vers", "rsize", "wsize", "nconnect")
    now = ["%s: %s" % (name, here[name]) for name in names] if here else ["not mounted"]
    requested = {**p, "target": p["src"]}
    then = ["%s: %s" % (n, requested[n] or (here or {}).get(n, "default")) for n in names]
    after = then if wanted else ["not mounted"]
    return {
        "before_header": p["path"], "after_header": p["path"],
        "before": "\n".join([place.now or "(no definition)", *now, ""]),
        "after": "\n".join([place.wanted or "(no definition)", *after, ""]),
    }  # fmt: skip


if __name__ == "__main__":
    main()
