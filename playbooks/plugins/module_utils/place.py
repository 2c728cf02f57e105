# SPDX-License-Identifier: Apache-2.0
"""The definition of a mount on a target: its text now and the wanted text."""

from __future__ import annotations

import os

from ansible_collections.nfsrdma.tools.plugins.module_utils import definition
from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import read, run, write

FSTAB = "/etc/fstab"
UNITS = "/etc/systemd/system"


class Place:
    """The definition of a mount: its file, its text now and the wanted text."""

    def __init__(self, module, options):
        p = module.params
        self._module = module
        self.path = p["path"]
        self.kind = p["boot"]
        wanted = p["state"] == "mounted"
        if self.kind == "unit":
            self.unit = _unit_name(module)
            self.file = os.path.join(UNITS, self.unit)
            self.wanted = definition.unit_text(p["src"], p["path"], options) if wanted else None
        elif self.kind == "fstab":
            self.file = FSTAB
            _, count = definition.fstab_entry(read(FSTAB), p["path"])
            if count > 1:
                module.fail_json(msg="%s: %d lines of fstab mount here, remove all but one"
                                 % (p["path"], count))  # fmt: skip
            self.wanted = definition.fstab_line(p["src"], p["path"], options) if wanted else None
        else:
            self.file, self.wanted = "", None
        self.now = self.read()
        if p["state"] == "unmounted":
            self.wanted = self.now

    def tuned(self, row):
        """Keep the line if `nfsrdma tune` made it from the wanted line."""
        if row and row.get("before") == self.wanted and row.get("after") == self.now:
            self.wanted = self.now

    @property
    def differs(self):
        """Whether the definition has to change."""
        return self.now != self.wanted

    def read(self):
        """The text of the definition now; None without one."""
        if self.kind == "fstab":
            return definition.fstab_entry(read(FSTAB), self.path)[0]
        return (read(self.file) or None) if self.kind == "unit" else None

    def put(self, text):
        """Write ``text`` as the definition; None removes the definition."""
        if self.kind == "fstab":
            here = self.read()
            if here != text:
                write(self._module, FSTAB, definition.fstab_with(read(FSTAB), here, text))
        elif self.kind == "unit":
            self._put_unit(text)
        if self.kind != "none" and os.path.isdir("/run/systemd/system"):
            run(self._module, ["systemctl", "daemon-reload"], check_rc=True)
        if self.kind == "unit" and text is not None:
            run(self._module, ["systemctl", "enable", "--", self.unit], check_rc=True)

    def _put_unit(self, text):
        if text is not None:
            write(self._module, self.file, text)
        elif os.path.exists(self.file):
            run(self._module, ["systemctl", "disable", "--", self.unit], check_rc=True)
            os.unlink(self.file)


def _unit_name(module):
    argv = ["systemd-escape", "--path", "--suffix=mount", "--", module.params["path"]]
    return run(module, argv, check_rc=True)[1].strip()
