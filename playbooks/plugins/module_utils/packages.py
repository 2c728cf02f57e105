# SPDX-License-Identifier: Apache-2.0
"""Packages of a target that roles install, and what goes again with the last role that wanted any.

Ansible's own modules leave behind what a package brought along and its configuration, and the one
for apt installs python3-apt; a rollback could not give the host back as it was.
"""

from __future__ import annotations

import os
import re

from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import run

# confold alone has ucf take configuration that was never there for deleted
_FORCE = [word for what in ("confdef", "confold")
          for word in ("-o", "Dpkg::Options::=--force-" + what)]  # fmt: skip
_ALWAYS = ("-y", "-q", "-o", "DPkg::Lock::Timeout=300", *_FORCE)
# not a template, which only its instances can be stopped of
_UNIT = r"/systemd/system/[^/@]+\.(service|socket|mount|target|timer|path)\Z"
QUIET = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}


class Apt:
    """Debian's archive.  Configuration that somebody has changed is not asked about, and kept."""

    def __init__(self, module):
        self._module = module

    def installed(self):
        """Names of all packages that are there."""
        argv = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\\n"]
        lines = run(self._module, argv)[1].splitlines()
        return {line.split()[1] for line in lines if line.startswith("installed ")}

    def install(self, names):
        """Install; returns a complaint, or ""."""
        argv = ["apt-get", "install", "--no-install-recommends", *_ALWAYS, "--", *names]
        if run(self._module, argv)[0] == 0:
            return ""
        # a host that never asked its archive knows no package
        run(self._module, ["apt-get", "update", "-q"])
        status, _, said = run(self._module, argv)
        return _last_line(said) if status else ""

    def remove(self, names):
        """Remove all of these that nothing else needs, with their configuration.

        Returns those that stay, and a complaint, or "".
        """
        gone = sorted(names)
        if self._along(gone) - names:
            gone = [name for name in gone if not self._along([name]) - names]
        if not gone:
            return sorted(names), ""
        units = self._units(gone)
        run(self._module, ["systemctl", "stop", "--", *units])
        status, _, said = run(self._module, ["apt-get", "purge", *_ALWAYS, "--", *gone])
        run(self._module, ["systemctl", "reset-failed", "--", *units])
        return sorted(names - set(gone)), _last_line(said) if status else ""

    def _units(self, names):
        """Those of their daemons: packages forget to stop some, which then run on or fail."""
        files = run(self._module, ["dpkg-query", "-L", "--", *names])[1].splitlines()
        return sorted({os.path.basename(file) for file in files if re.search(_UNIT, file)})

    def _along(self, names):
        """What would go with these, themselves included."""
        argv = ["apt-get", "purge", "--simulate", "-q", "--", *names]
        lines = run(self._module, argv, check_rc=True)[1].splitlines()
        return {line.split()[1].partition(":")[0]
                for line in lines if line.startswith(("Purg ", "Remv "))}  # fmt: skip


class Rpm:
    """An archive of RPMs, by dnf."""

    def __init__(self, module):
        self._module = module

    def installed(self):
        """Names of all packages that are there."""
        return set(run(self._module, ["rpm", "-qa", "--qf", "%{NAME}\\n"])[1].split())

    def install(self, names):
        """Install; returns a complaint, or ""."""
        status, out, said = run(self._module, ["dnf", "-y", "-q", "install", "--", *names])
        return _last_line(said or out) if status else ""

    def remove(self, names):
        """Remove them unless something else needs one; returns those that stay, and a complaint."""
        status, _, said = run(self._module, ["rpm", "--erase", "--", *sorted(names)])
        needed = "is needed by" in said
        return sorted(names) if needed else [], _last_line(said) if status and not needed else ""


def archive(module):
    """That of this host; None where there is neither apt-get nor dnf."""
    for program, kind in (("apt-get", Apt), ("dnf", Rpm)):
        if module.get_bin_path(program):
            return kind(module)
    return None


def _last_line(said):
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"
