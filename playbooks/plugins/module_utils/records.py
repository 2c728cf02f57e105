# SPDX-License-Identifier: Apache-2.0
"""The state of a target before roles changed it: a JSON file per role, in one directory."""

from __future__ import annotations

import json
import os

from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import read, write

FOLDER = "/var/lib/nfsrdma-fleet"
_END = ".json"


def kept():
    """All records, by role."""
    files = sorted(os.listdir(FOLDER)) if os.path.isdir(FOLDER) else []
    return {file[: -len(_END)]: one(file[: -len(_END)]) for file in files if file.endswith(_END)}


def one(name):
    """The record of a role, or None."""
    content = read(_path(name))
    return json.loads(content) if content else None


def keep(module, name, record):
    """Write a record atomically."""
    os.makedirs(FOLDER, 0o700, exist_ok=True)
    write(module, _path(name), text(record))
    os.chmod(_path(name), 0o600)


def forget(name):
    """Remove a record, and the directory with the last record."""
    os.unlink(_path(name))
    remove_empty()


def remove_empty():
    """Remove the directory if it has no record, as after a kill."""
    if os.path.isdir(FOLDER) and not os.listdir(FOLDER):
        os.rmdir(FOLDER)


def joined(here, more):
    """A record with keys added: existing values stay, they were read before the first change."""
    if not isinstance(here, dict) or not isinstance(more, dict):
        return here
    both = {key: joined(here[key], more[key]) if key in more else here[key] for key in here}
    return {**both, **{key: more[key] for key in more if key not in here}}


def text(record):
    """A record as text."""
    return "" if record is None else json.dumps(record, indent=2, sort_keys=True) + "\n"


def _path(name):
    return os.path.join(FOLDER, name + _END)
