#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Install packages for roles, and remove exactly these again."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: nfsrdma_packages
short_description: Install packages for a role, and remove them with the last role
description:
  - Installs missing packages from the host's repositories, by apt-get or dnf, without recommended packages. Records the installed
    packages and the dependencies that came with them, as the log of apt or the history of dnf has them for this installation alone.
  - When the last role no longer needs packages, removes all recorded packages and their configuration. Keeps those that other packages
    depend on by then, and those that somebody has installed by name since.
  - M(ansible.builtin.package) and M(ansible.builtin.apt) cannot do the second part. They also remove packages that depend on the
    named ones, leave dependencies behind or remove unrelated ones with autoremove, and install python3-apt.
extends_documentation_fragment: nfsrdma.tools.nfsrdma
options:
  role:
    description: The role that needs the packages.
    type: str
    required: true
  names:
    description: Packages to install. If empty, the module does nothing.
    type: list
    elements: str
    default: []
  state:
    description: V(absent) if the role no longer needs packages.
    type: str
    choices: [present, absent]
    default: present
attributes:
  diff_mode:
    description: The installed ones of O(names), before and after; with O(state=absent), the packages to remove.
"""

EXAMPLES = r"""
- name: Install the packages of an NFS client
  nfsrdma.tools.nfsrdma_packages:
    role: client
    names: [nfs-common]
"""

RETURN = r"""
kept:
  description: Packages that a role brought and that stay, because other packages depend on them or somebody installed them by name.
  returned: always
  type: list
  elements: str
"""

import glob
import gzip
import os
import re
import shlex
import uuid

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible_collections.nfsrdma.tools.plugins.module_utils import records
from ansible_collections.nfsrdma.tools.plugins.module_utils.toolkit import run

RECORD = "packages"
# confold alone makes ucf regard configuration that never existed as deleted
_FORCE = [word for choice in ("confdef", "confold")
          for word in ("-o", "Dpkg::Options::=--force-" + choice)]  # fmt: skip
_ALWAYS = ("-y", "-q", "-o", "DPkg::Lock::Timeout=300", *_FORCE)
# not a template unit: only its instances can be stopped
_UNIT = r"/systemd/system/[^/@]+\.(service|socket|mount|target|timer|path)\Z"
QUIET = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}


def main():
    """Bring the packages into their state."""
    spec = {
        "role": {"type": "str", "required": True},
        "names": {"type": "list", "elements": "str", "default": []},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    module.run_command_environ_update = QUIET
    invalid = [n for n in module.params["names"] if not re.match(r"[A-Za-z0-9][\w.+:-]*\Z", n)]
    if invalid:
        module.fail_json(msg="names: %r is not a package name" % invalid[0])
    record = records.one(RECORD) or {"wanted": {}, "added": []}
    bring = _present if module.params["state"] == "present" else _absent
    module.exit_json(**bring(module, record))


def _present(module, record):
    role, names = module.params["role"], sorted(module.params["names"])
    if not names:
        return {"changed": False, "kept": []}
    manager = _manager(module, names)
    installed = manager.installed()
    missing = [name for name in names if name not in installed]
    # "attempt" remains after an interrupted installation
    changed = bool(missing) or record["wanted"].get(role) != names or "attempt" in record
    if changed and not module.check_mode:
        record["wanted"][role] = names
        _settle(manager, record)
        _install(module, manager, record, missing)
    diff = {"before": _lines(set(names) & installed), "after": _lines(names)}
    return {"changed": changed, "kept": [], "diff": diff}


def _install(module, manager, record, missing):
    """Record the attempt first: the package manager's own log names what it installs by it."""
    if not missing:
        records.keep(module, RECORD, record)
        return
    record["attempt"] = uuid.uuid4().hex
    records.keep(module, RECORD, record)
    error = manager.install(missing, _mark(record["attempt"]))
    brought = _settle(manager, record)
    records.keep(module, RECORD, record)
    if error:
        module.fail_json(msg="cannot install %s: %s" % (", ".join(missing), error))
    if not brought:
        module.warn("%s has no entry of this installation: removal will keep %s"
                    % (manager.LOG, ", ".join(missing)))  # fmt: skip


def _mark(attempt):
    return "nfsrdma-attempt-" + attempt


def _settle(manager, record):
    """Record the packages of the last attempt, whether it succeeded, failed or was killed.

    Return them. Packages that others installed since have other entries in the log.
    """
    attempt = record.pop("attempt", None)
    if attempt is None:
        return set()
    packages = {}
    for marks, names in manager.transactions():
        if _mark(attempt) in marks:
            packages.update(names)
    record["added"] = sorted(set(record["added"]) | set(packages))
    by_name = [name for name, automatic in packages.items() if not automatic]
    record["by_name"] = sorted({*record.get("by_name", []), *by_name})
    return set(packages)


def _absent(module, record):
    changed = record["wanted"].pop(module.params["role"], None) is not None
    if not changed or record["wanted"]:
        if changed and not module.check_mode:
            records.keep(module, RECORD, record)
        elif not module.check_mode:
            records.remove_empty()
        return {"changed": changed, "kept": []}
    manager = _manager(module, [])
    _settle(manager, record)
    ours = set(record["added"]) & manager.installed()
    theirs = _taken_over(manager, record, ours)
    added = ours - theirs
    kept = sorted(theirs) if module.check_mode else _remove(module, manager, added, theirs)
    diff = {"before": _lines(ours), "after": _lines(kept)}
    return {"changed": True, "kept": kept, "diff": diff}


def _taken_over(manager, record, ours):
    """Those of our packages that somebody else installed again, or wants by name since."""
    latest: dict[str, bool] = {}
    for marks, names in manager.transactions() if ours else ():
        for name in names:
            latest.setdefault(name, "nfsrdma-attempt-" in marks)
    again = {name for name in ours if not latest.get(name, True)}
    # records of earlier versions have no "by_name"
    dependencies = ours - set(record.get("by_name", ours))
    return again | (dependencies & manager.wanted_by_name())


def _remove(module, manager, added, theirs):
    kept, error = manager.remove(added) if added else ([], "")
    if error:
        module.fail_json(msg="cannot remove %s: %s" % (", ".join(sorted(added)), error))
    if kept:
        module.warn("kept packages that others depend on: " + ", ".join(kept))
    if theirs:
        module.warn("kept packages that others installed by name: " + ", ".join(sorted(theirs)))
    records.forget(RECORD)
    return sorted({*kept, *theirs})


class Apt:
    """apt-get and dpkg. Keeps configuration files that somebody has changed, without a question."""

    LOG = "the log of apt"

    def __init__(self, module):
        self._module = module

    def installed(self):
        """The names of all installed packages."""
        argv = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\\n"]
        lines = run(self._module, argv)[1].splitlines()
        return {line.split()[1] for line in lines if line.startswith("installed ")}

    def wanted_by_name(self):
        """The packages that somebody installed by name, or has marked as such since."""
        return set(run(self._module, ["apt-mark", "showmanual"], check_rc=True)[1].split())

    def transactions(self):
        """The log of apt, newest entry first: the command line, and the packages it installed.

        For each package, whether it came as a dependency.
        """
        text = "\n\n".join(map(_content, self._logs()))
        for entry in reversed(text.split("\n\n")):
            fields = dict(line.partition(": ")[::2] for line in entry.splitlines())
            names = re.findall(r"([^\s,(:]+)(?::[^\s(]+)? \(([^)]*)\)", fields.get("Install", ""))
            rows = {name: "automatic" in detail.split(", ") for name, detail in names}
            yield fields.get("Commandline", ""), rows

    def _logs(self):
        """The files of the log, oldest first; logrotate adds .1.gz, .2.gz and so on."""
        argv = ["apt-config", "shell", "LOG", "Dir::Log::History/f"]
        path = shlex.split(run(self._module, argv, check_rc=True)[1])[0].partition("=")[2]
        old = glob.glob(glob.escape(path) + ".[0-9]*")
        numbers = {f: f[len(path) + 1 :].partition(".")[0] for f in old}
        rotated = sorted((f for f in old if numbers[f].isdigit()), key=lambda f: -int(numbers[f]))
        return [*rotated, path]

    def install(self, names, mark):
        """Install packages, with a mark in the log; return the error message, or ""."""
        tag = ["-o", "nfsrdma::mark=" + mark]
        argv = ["apt-get", "install", *tag, "--no-install-recommends", *_ALWAYS, "--", *names]
        if run(self._module, argv)[0] == 0:
            return ""
        # a new host has no lists of packages
        run(self._module, ["apt-get", "update", "-q"])
        status, _, err = run(self._module, argv)
        return _last_line(err) if status else ""

    def remove(self, names):
        """Purge the packages that no other package depends on.

        Return the kept packages, and the error message or "".
        """
        gone = sorted(names)
        if self._dependents(gone) - names:
            gone = [name for name in gone if not self._dependents([name]) - names]
        if not gone:
            return sorted(names), ""
        units = self._units(gone)
        run(self._module, ["systemctl", "stop", "--", *units])
        status, _, err = run(self._module, ["apt-get", "purge", *_ALWAYS, "--", *gone])
        run(self._module, ["systemctl", "reset-failed", "--", *units])
        return sorted(names - set(gone)), _last_line(err) if status else ""

    def _units(self, names):
        """The units of the packages; some packages leave theirs running or failed."""
        files = run(self._module, ["dpkg-query", "-L", "--", *names])[1].splitlines()
        return sorted({os.path.basename(file) for file in files if re.search(_UNIT, file)})

    def _dependents(self, names):
        """All packages that apt-get would remove with these, these included."""
        argv = ["apt-get", "purge", "--simulate", "-q", "--", *names]
        lines = run(self._module, argv, check_rc=True)[1].splitlines()
        return {line.split()[1].partition(":")[0]
                for line in lines if line.startswith(("Purg ", "Remv "))}  # fmt: skip


class Rpm:
    """Dnf and rpm."""

    LOG = "the history of dnf"

    def __init__(self, module):
        self._module = module

    def installed(self):
        """The names of all installed packages."""
        return set(run(self._module, ["rpm", "-qa", "--qf", "%{NAME}\\n"])[1].split())

    def wanted_by_name(self):
        """The packages that somebody installed by name, or has marked as such since."""
        argv = ["dnf", "-q", "repoquery", "--userinstalled", "--qf", "%{name}\\n"]
        return set(run(self._module, argv, check_rc=True)[1].split())

    def transactions(self):
        """The history of dnf, newest entry first: its text, and the packages it installed.

        For each package, whether it came as a dependency.
        """
        listed = run(self._module, ["dnf", "-q", "history", "list"], check_rc=True)[1]
        numbers = {int(n) for n in re.findall(r"^\s*(\d+)\s", listed, re.MULTILINE)}
        for number in sorted(numbers, reverse=True):
            argv = ["dnf", "-q", "history", "info", str(number)]
            text = run(self._module, argv, check_rc=True)[1]
            rows = re.findall(r"^\s+(Install|Dep-Install)\s+(\S+)(.*)$", text, re.MULTILINE)
            yield text, {_name_of(nevra): kind == "Dep-Install" or "Dependency" in rest
                         for kind, nevra, rest in rows}  # fmt: skip

    def install(self, names, mark):
        """Install packages, with a mark in the history; return the error message, or ""."""
        argv = ["dnf", "-y", "-q", "install", "--comment=" + mark, "--", *names]
        status, out, err = run(self._module, argv)
        return _last_line(err or out) if status else ""

    def remove(self, names):
        """Remove the packages, or none if others depend on one.

        Return the kept packages, and the error message or "".
        """
        status, _, err = run(self._module, ["rpm", "--erase", "--", *sorted(names)])
        needed = "is needed by" in err
        return sorted(names) if needed else [], _last_line(err) if status and not needed else ""


def _manager(module, names):
    kinds = (("apt-get", Apt), ("dnf", Rpm))
    managers = [kind for program, kind in kinds if module.get_bin_path(program)]
    if not managers:
        rest = ", ".join(names) or "the packages of the roles"
        module.fail_json(msg="found neither apt-get nor dnf: install or remove %s by other means and"
                             " set the list of packages to []" % rest)  # fmt: skip
    return managers[0](module)


def _name_of(nevra):
    """The name in name-epoch:version-release.arch."""
    return nevra.rpartition(".")[0].rsplit("-", 2)[0]


def _content(path):
    """The text of a log; "" if there is none."""
    opened = gzip.open if path.endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8", errors="replace") as file:
            return file.read()
    except (OSError, EOFError):
        return ""


def _last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def _lines(names):
    return "".join(name + "\n" for name in sorted(names))


if __name__ == "__main__":
    main()
