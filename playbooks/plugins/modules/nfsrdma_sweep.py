#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""One measurement on a host, which a play that is killed does not leave running unseen."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_sweep
short_description: Measures a mount once, and goes on where it was cut short
description:
  - Runs C(nfsrdma sweep) in a transient unit of systemd, nfsrdma-sweep, into a store. A sweep that a play before has left running is
    ended first, and the store's sweep goes on. A file beside the store says that all of it is measured, then nothing is done.
extends_documentation_fragment: [nfsrdma.tools.nfsrdma, nfsrdma.tools.nfsrdma.program]
options:
  store:
    description: Where trials are kept. Its folder is made.
    type: str
  target:
    description: What is measured, SERVER:/PATH. Needed unless O(state=absent).
    type: str
  options:
    description: Words for C(nfsrdma sweep).
    type: list
    elements: str
    default: []
  in_step:
    description: START/SECONDS, when runs begin (C(nfsrdma sweep --start-at --interval)); nothing for as soon as they can.
    type: str
    default: ""
  state:
    description: V(absent) ends what is running, samples of the server's processors too, and removes the folder of stores.
    type: str
    choices: [present, absent]
    default: present
attributes:
  diff_mode:
    support: none
    description: A measurement is no text.
"""

EXAMPLES = r"""
- name: Measure
  nfsrdma.tools.nfsrdma_sweep:
    store: /var/tmp/nfsrdma-fleet/first/step-1.db
    target: server:/srv/data
    options: [--transport, rdma, --runs, "3"]
"""

RETURN = r"""
store:
  description: Where it is.
  returned: always
  type: str
"""

import contextlib
import os
import shutil
import sqlite3

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import OPTION, run

FOLDER = "/var/tmp/nfsrdma-fleet"  # noqa: S108
SWEEP = "nfsrdma-sweep.service"
LOAD = "nfsrdma-load.service"


def _planned(store):
    """Whether a sweep that was cut short had come to know what it is to measure."""
    if not os.path.exists(store):
        return False
    try:
        with contextlib.closing(sqlite3.connect(store)) as base:
            return base.execute("SELECT 1 FROM plans").fetchone() is not None
    except sqlite3.Error:
        return False


# the sweep itself unmounts when it is told to end, fio has to be there until then
UNIT = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--unit=" + SWEEP,
        "--property=KillMode=mixed"]  # fmt: skip
# what a store does not know of itself
_NOT_KEPT = ["--no-probes", "--no-accounts"]


def main():
    """Measure, or have nothing left of it."""
    module = AnsibleModule(argument_spec=_spec(), supports_check_mode=True,
                           required_if=[("state", "present", ["store", "target"])])  # fmt: skip
    p = module.params
    if p["state"] == "absent":
        _end(module)
    done = os.path.exists(_done(p["store"]))
    if not done and not module.check_mode:
        _stop(module, SWEEP)
        _measure(module)
    module.exit_json(changed=not done, store=p["store"])


def _spec():
    return {
        "store": {"type": "str"},
        "target": {"type": "str"},
        "options": {"type": "list", "elements": "str", "default": []},
        "in_step": {"type": "str", "default": ""},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "command": OPTION,
    }


def _end(module):
    running = [unit for unit in (SWEEP, LOAD) if _active(module, unit)]
    left = os.path.isdir(FOLDER)
    if not module.check_mode:
        for unit in running:
            _stop(module, unit)
        shutil.rmtree(FOLDER, ignore_errors=not left)
    module.exit_json(changed=bool(running or left), store="")


def _active(module, unit):
    return run(module, ["systemctl", "is-active", "--quiet", unit])[0] == 0


def _stop(module, unit):
    if _active(module, unit):
        run(module, ["systemctl", "stop", unit], check_rc=True)


def _measure(module):
    p = module.params
    os.makedirs(os.path.dirname(p["store"]), 0o700, exist_ok=True)
    begun = _planned(p["store"])
    if os.path.exists(p["store"]) and not begun:
        os.unlink(p["store"])
    status, out, err = run(module, [*UNIT, p["command"], *words(p, begun)])
    if status:
        said = (err or out).strip().splitlines()
        module.fail_json(msg=said[-1] if said else "it was ended", rc=status)
    open(_done(p["store"]), "w").close()


def words(p, begun):
    """The command line; one that was begun goes on."""
    start, _, seconds = p["in_step"].partition("/")
    always = ["sweep", "--keep-file"]
    always += ["--start-at", start, "--interval", seconds] if p["in_step"] else []
    if begun:
        kept = [word for word in p["options"] if word in _NOT_KEPT]
        return [*always, "--resume=" + p["store"], *kept]
    return [*always, *p["options"], "--store", p["store"], "--", p["target"]]


def _done(store):
    return store + ".done"


if __name__ == "__main__":
    main()
