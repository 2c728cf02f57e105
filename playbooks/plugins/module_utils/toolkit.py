# SPDX-License-Identifier: Apache-2.0
"""The nfsrdma program on a target, and files that change in one step.

The program is the boundary on purpose: Ansible runs modules with the target's own Python, and the
toolkit lives in a tree of its own.  Words go to it as a list, never through a shell.
"""

from __future__ import annotations

import json
import os
import tempfile

OPTION = {"type": "str", "default": "/usr/local/bin/nfsrdma"}
"""The module parameter ``command``: where the program is."""


def run(module, argv, check_rc=False):
    """Run a program; returns its status and what it said.

    Unless told so, Ansible replaces $NAMES and a leading ~ in the words of a command.
    """
    return module.run_command(argv, check_rc=check_rc, expand_user_and_vars=False)


class Toolkit:
    """The nfsrdma program; whatever it refuses ends the module with its own words."""

    def __init__(self, module):
        self._module = module
        self._command = module.params["command"]

    @property
    def there(self):
        """Whether it is installed."""
        return os.access(self._command, os.X_OK)

    def attempt(self, *words):
        """Run it; returns its status, what it printed, and its complaint without its own name."""
        status, out, err = run(self._module, [self._command, *words])
        lines = [line for line in err.splitlines() if line.strip()]
        return status, out, (lines[-1] if lines else out.strip()).replace("nfsrdma: ", "", 1)

    def run(self, *words):
        """Run it and return what it printed; a failure ends the module."""
        status, out, said = self.attempt(*words)
        if status:
            self._module.fail_json(msg=said, cmd=[self._command, *words], rc=status)
        return out

    def facts(self, *words):
        """Its JSON without the schema version; a table is the list of its rows."""
        out = self.run(*words, "--json")
        try:
            return rows(json.loads(out))
        except ValueError:
            self._module.fail_json(msg="this is no JSON: " + out[:200], cmd=[self._command, *words])


def rows(document):
    """What a JSON document of nfsrdma has; a table is the list of its rows."""
    facts = {key: value for key, value in document.items() if key != "schema_version"}
    (first, *others) = facts.values()
    return first if not others and isinstance(first, list) else facts


def read(path):
    """A file's text, "" when there is none; bytes that are not UTF-8 as surrogates."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def write(module, path, text):
    """Replace a file in one step, keeping its owner and mode; 0644 for a new one."""
    handle, draft = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    new = not os.path.exists(path)
    module.atomic_move(draft, path)
    if new:
        os.chmod(path, 0o644)


def missing(path):
    """The topmost folder on the way to ``path`` that is not there; "" when all are."""
    found = ""
    while path not in ("", "/") and not os.path.lexists(path):
        found, path = path, os.path.dirname(path)
    return found


def remove_empty(path, top):
    """Remove the folder and those above it up to ``top``, as far as they are empty."""
    while (path + "/").startswith(top.rstrip("/") + "/") and not os.listdir(path):
        os.rmdir(path)
        path = os.path.dirname(path)
