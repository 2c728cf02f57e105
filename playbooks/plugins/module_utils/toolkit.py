# SPDX-License-Identifier: Apache-2.0
"""Run the nfsrdma program on a target, and replace files atomically.

Modules run the program instead of importing it: Ansible runs them with the target's own Python, and
the toolkit is installed in a directory of its own.  No command goes through a shell.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile

OPTION = {"type": "str", "default": "/usr/local/bin/nfsrdma"}
"""The module parameter ``command``: the path of the program."""
NOT_INSTALLED = "%(command)s is not installed: run the role nfsrdma.tools.toolkit first"


def run(module, argv, check_rc=False):
    """Run a program; return its status, its output and its error output.

    By default, Ansible expands $NAMES and a leading ~ in the arguments.
    """
    return module.run_command(argv, check_rc=check_rc, expand_user_and_vars=False)


class Toolkit:
    """The nfsrdma program. If it fails, the module fails with its error message."""

    def __init__(self, module):
        self._module = module
        self._command = module.params["command"]

    @property
    def installed(self):
        """Whether the program is installed."""
        return os.access(self._command, os.X_OK)

    def attempt(self, *arguments):
        """Run it; return its status, its output, and its error message without the prefix."""
        status, out, err = run(self._module, [self._command, *arguments])
        lines = [line for line in err.splitlines() if line.strip()]
        return status, out, (lines[-1] if lines else out.strip()).replace("nfsrdma: ", "", 1)

    def run(self, *arguments):
        """Run it and return its output; if it fails, so does the module."""
        status, out, error = self.attempt(*arguments)
        if status:
            self._module.fail_json(msg=error, cmd=[self._command, *arguments], rc=status)
        return out

    def facts(self, *arguments):
        """Its JSON without the schema version; a table is the list of its rows."""
        out = self.run(*arguments, "--json")
        try:
            return rows(json.loads(out))
        except ValueError:
            command = [self._command, *arguments]
            self._module.fail_json(msg="expected JSON, got: " + out[:200], cmd=command)


def rows(document):
    """What a JSON document of nfsrdma has; a table is the list of its rows."""
    facts = {key: value for key, value in document.items() if key != "schema_version"}
    (first, *others) = facts.values()
    return first if not others and isinstance(first, list) else facts


def read(path):
    """The text of a file, or "" if it does not exist; bytes that are not UTF-8 as surrogates."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def write(module, path, text):
    """Replace a file atomically and keep its owner and mode; a new file gets 0644."""
    handle, draft = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    new = not os.path.exists(path)
    module.atomic_move(draft, path)
    if new:
        os.chmod(path, 0o644)


def create_private(module, path):
    """Create a directory with mode 0700; fail if another user can read it or replace it."""
    path, folder = os.path.abspath(path), ""
    for part in path.strip("/").split("/"):
        folder += "/" + part
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode):
            module.fail_json(
                msg=folder + ": expected a directory, found a link or a file: remove it"
            )
        # users replace only what they own in a sticky directory
        allowed = 0o777 if status.st_mode & stat.S_ISVTX else 0o755
        allowed = 0o700 if folder == path else allowed
        mode = status.st_mode & 0o777
        if status.st_uid not in (0, os.geteuid()) or mode & ~allowed:
            expected = "expected owner root and at most mode %04o" % allowed
            module.fail_json(msg="%s: %s, found uid %d and mode %04o: correct or remove it"
                             % (folder, expected, status.st_uid, mode))  # fmt: skip


def missing(path):
    """The topmost missing directory of ``path``, or "" if ``path`` exists."""
    topmost = ""
    while path not in ("", "/") and not os.path.lexists(path):
        topmost, path = path, os.path.dirname(path)
    return topmost


def remove_empty(path, top):
    """Remove the directory and its parents up to ``top``, as long as they are empty."""
    while (path + "/").startswith(top.rstrip("/") + "/") and not os.listdir(path):
        os.rmdir(path)
        path = os.path.dirname(path)
