#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Run a sweep on a host; the next play ends or resumes the sweep of an interrupted one."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_sweep
short_description: Run a sweep, or resume an interrupted one
description:
  - Runs C(nfsrdma sweep) in the transient systemd unit nfsrdma-sweep. Stops a sweep that an interrupted play left running, and resumes
    the sweep of the store.
  - Does nothing after the sweep has completed. A file beside the store marks that.
extends_documentation_fragment: [nfsrdma.tools.nfsrdma, nfsrdma.tools.nfsrdma.program]
options:
  store:
    description: The SQLite file for the trials. The module creates its directory with mode 0700, and fails if another user can read or replace it.
    type: str
  target:
    description: The export to measure, as SERVER:/PATH. Required unless O(state=absent).
    type: str
  options:
    description: Options of C(nfsrdma sweep).
    type: list
    elements: str
    default: []
  in_step:
    description: When runs start, as START/SECONDS (C(nfsrdma sweep --start-at --interval)). If empty, each run starts when the previous one ends.
    type: str
    default: ""
  state:
    description: V(absent) stops a running sweep and the sampling of the server's CPU time, and removes the directory of stores.
    type: str
    choices: [present, absent]
    default: present
attributes:
  diff_mode:
    support: none
    description: There is no text to compare.
"""

EXAMPLES = r"""
- name: Measure
  nfsrdma.tools.nfsrdma_sweep:
    store: /var/lib/nfsrdma-sweeps/first/step-1.db
    target: server:/srv/data
    options: [--transport, rdma, --runs, "3"]
"""

RETURN = r"""
store:
  description: The path of the store.
  returned: always
  type: str
"""

import contextlib
import itertools
import os
import shutil
import sqlite3

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import (
    OPTION,
    create_private,
    run,
)

FOLDER = "/var/lib/nfsrdma-sweeps"
SWEEP = "nfsrdma-sweep.service"
LOAD = "nfsrdma-load.service"


def _planned(store):
    """Whether an interrupted sweep had already stored its plan."""
    if not os.path.exists(store):
        return False
    try:
        with contextlib.closing(sqlite3.connect(store)) as base:
            return base.execute("SELECT 1 FROM plans").fetchone() is not None
    except sqlite3.Error:
        return False


# mixed: SIGTERM goes to the sweep only, which ends fio and unmounts
UNIT = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--unit=" + SWEEP,
        "--property=KillMode=mixed"]  # fmt: skip
# options that a store does not contain, and whether each takes a value
_NOT_STORED = {"--probes": False, "--no-probes": False, "--server-ssh": True}


def main():
    """Run the sweep, or remove everything it left."""
    module = AnsibleModule(argument_spec=_spec(), supports_check_mode=True,
                           required_if=[("state", "present", ["store", "target"])])  # fmt: skip
    p = module.params
    if p["state"] == "absent":
        _end(module)
    if not module.check_mode:
        create_private(module, os.path.dirname(p["store"]))
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
    begun = _planned(p["store"])
    if os.path.exists(p["store"]) and not begun:
        os.unlink(p["store"])
    status, out, err = run(module, [*UNIT, p["command"], *arguments(p, begun)])
    if status:
        lines = (err or out).strip().splitlines()
        module.fail_json(msg=lines[-1] if lines else "the sweep was interrupted", rc=status)
    open(_done(p["store"]), "w").close()


def arguments(p, begun):
    """The arguments of nfsrdma, which resume a sweep that has begun."""
    start, _, seconds = p["in_step"].partition("/")
    always = ["sweep", "--keep-file"]
    always += ["--start-at", start, "--interval", seconds] if p["in_step"] else []
    if begun:
        return [*always, "--resume=" + p["store"], *_not_stored(p["options"])]
    return [*always, *p["options"], "--output", p["store"], "--", p["target"]]


def _not_stored(options):
    words = iter(options)
    for word in words:
        name, is_one_word, _ = word.partition("=")
        if name in _NOT_STORED:
            yield word
            if _NOT_STORED[name] and not is_one_word:
                yield from itertools.islice(words, 1)


def _done(store):
    return store + ".done"


if __name__ == "__main__":
    main()
