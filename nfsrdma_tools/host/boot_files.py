# SPDX-License-Identifier: Apache-2.0
"""The files that a boot reads: units, rc.local, udev rules, modules-load.d, modprobe.d, sysctl.d.

Of these, a bundle has the lines that concern NFS over RDMA, and the fact that they were read: an
older bundle, or one made by hand, does not tell what it lacks.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import udev_rules, units

__all__ = [
    "COMMAND",
    "DEVICE_MODULES",
    "FACT",
    "MODPROBE",
    "MODULES_LOAD",
    "RC_LOCAL",
    "READ",
    "SERVERS",
    "SYSCTL",
    "BootCommand",
    "ModprobeLine",
    "SoftLink",
    "Value",
    "commands",
    "is_run",
    "kept_lines",
    "modprobe_lines",
    "module_lists",
    "read",
    "services",
    "soft_link",
    "started",
    "sysctls",
]

FACT, READ = "boot files", "read"
"""The fact that a bundle has these files if they exist, and its value."""
COMMAND = re.compile(
    r"\b(?:nfs)?rdma\b.{0,40}?\blink\s+add\b|\brxe_cfg\b|/nfsd/(?:portlist|threads)|\bnfsdctl\b"
    r"|\brpc\.nfsd\b|\b(?:rpcrdma|xprtrdma|svcrdma|nfsrdma|rdma_rxe|siw|nfsrdma_card)\b"
)
"""The commands of interest: a soft link, a listener, threads of nfsd, a transport module."""
RC_LOCAL = ("etc/rc.local", "etc/rc.d/rc.local", "etc/init.d/boot.local")
"""Scripts that systemd-rc-local-generator starts, if they are executable."""
SERVERS = frozenset(
    {"nfs-server.service", "nfs-kernel-server.service", "nfsserver.service", "nfs.service"}
)
"""The unit of the kernel's NFS server, and its aliases."""
_LAYERS = ("etc", "run", "usr/local/lib", "usr/lib", "lib")
MODULES_LOAD, MODPROBE, SYSCTL = (
    tuple(f"{layer}/{name}.d" for layer in _LAYERS)
    for name in ("modules-load", "modprobe", "sysctl")
)
"""Folders; the first that has a name decides (modules-load.d(5), modprobe.d(5), sysctl.d(5))."""
DEVICE_MODULES = "etc/rdma/modules"
"""Lists of rdma-core, which udev has loaded when an RDMA device appears."""
_STARTS = ("ExecStart", "ExecStartPre", "ExecStartPost")
_PULLS = ("Wants", "Requires", "BindsTo", "Upholds")
_ASSIGNMENT = re.compile(
    rf"({'|'.join((*_STARTS, *_PULLS, 'EnvironmentFile', 'WantedBy'))})\s*=(.*)"
)
_VARIABLE = re.compile(r"\$\{?\w+\}?|%\w|\$\(.*?\)|`.*?`")
_MOST_LINE = 16 << 10


class BootCommand(NamedTuple):
    """A command that a boot may run."""

    text: str
    source: str
    """The file, as on its host."""
    starts: bool | None = True
    """Whether a boot runs it; False: no unit starts its unit; None: that was not recorded."""
    unit: str = ""


class SoftLink(NamedTuple):
    """A soft link that a command adds; variables of a shell or of systemd are in its words."""

    name: str
    kind: str
    netdev: str

    def makes(self, name: str, netdev: str) -> bool | None:
        """Whether it is this link; None if only a run of the command can tell."""
        pairs = ((self.name, name), (self.netdev, netdev))
        known = [_fits(word, value) for word, value in pairs if word]
        if False in known:
            return False
        return True if True in known else None


class ModprobeLine(NamedTuple):
    """A line of modprobe.d, - and _ as one: its command, the module or alias, and the rest."""

    command: str
    name: str
    rest: str
    source: str


class Value(NamedTuple):
    """A value, and the file that has it."""

    value: str
    source: str


def read(machine: Machine) -> bool:
    """Whether a missing file of these does not exist; False if nobody recorded that.

    A container does not have the files of its host.
    """
    known = machine.recording is None or machine.recording.facts.get(FACT) == READ
    return known and not machine.in_container


def commands(machine: Machine) -> list[BootCommand]:
    """The commands of interest, in units, rc.local and rules of udev."""
    found = list(_of_units(machine))
    for name in RC_LOCAL:
        text = files.read(machine.path(name)) if is_run(machine, name) else ""
        for line in text.splitlines():
            if COMMAND.search(line) and line.lstrip()[:1] != "#":
                found.append(BootCommand(line.strip(), f"/{name}"))
    for path in units.by_name(machine, "*.rules", udev_rules.FOLDERS):
        for line in files.readable(path).replace("\\\n", " ").splitlines():
            if COMMAND.search(line) and line.lstrip()[:1] != "#" and "RUN" in line:
                found.append(BootCommand(line.strip(), _name(machine, path)))
    return found


def _of_units(machine: Machine) -> Iterator[BootCommand]:
    texts = dict(_services(machine))
    running = _started(machine, {name: text for name, (_, text) in texts.items()})
    for name, (source, text) in texts.items():
        lines = [line for line in _exec_lines(text) if COMMAND.search(line)]
        stem, at, _ = name.removesuffix(".service").partition("@")
        for unit in _instances(name, running) if lines else ():
            starts = True if unit in running else False if read(machine) else None
            instance = unit.removesuffix(".service").partition("@")[2] if at else stem
            for line in lines:
                shown = line.replace("%i", instance).replace("%I", instance) if at else line
                yield BootCommand(shown, source, starts, unit)


def _instances(name: str, running: set[str]) -> list[str]:
    """The units of a template that a boot starts, or its own name."""
    if not name.endswith("@.service"):
        return [name]
    stem = name.removesuffix(".service")
    return sorted(one for one in running if one.startswith(stem)) or [name]


def _services(machine: Machine) -> Iterator[tuple[str, tuple[str, str]]]:
    """The file and the text of each service with its drop-ins, by name."""
    added = units.drop_ins(machine, "service")
    for path in units.by_name(machine, "*.service"):
        text = "\n".join(map(files.readable, [path, *added.get(path.name, ())]))
        yield path.name, (_name(machine, path), text)


def services(machine: Machine) -> set[str]:
    """The names of the services with a command of interest."""
    found = _services(machine)
    return {name for name, (_, text) in found if any(map(COMMAND.search, _exec_lines(text)))}


def _exec_lines(text: str) -> list[str]:
    """The commands that start a service; an empty assignment resets those before."""
    found: list[tuple[str, str]] = []
    for key, value in _assignments(text):
        if key in _STARTS and value:
            found.append((key, value))
        elif key in _STARTS:
            found = [one for one in found if one[0] != key]
    return [value for _, value in found]


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    for line in text.replace("\\\n", " ").splitlines():
        if match := _ASSIGNMENT.fullmatch(line.strip()[:_MOST_LINE]):
            yield match[1], match[2].strip()


def started(machine: Machine) -> set[str]:
    """The names of the units that a boot starts, of those that are recorded."""
    return _started(machine, {name: text for name, (_, text) in _services(machine)})


def _started(machine: Machine, texts: dict[str, str]) -> set[str]:
    found = set(units.wanted(machine))
    found |= {f"{one.removesuffix('.timer')}.service" for one in found if one.endswith(".timer")}
    pending = sorted(found)
    while pending:
        text = texts.get(pending.pop(), "")
        values = (value for key, value in _assignments(text) if key in _PULLS)
        new = {word for value in values for word in value.split()} - found
        found |= new
        pending += sorted(new)
    return found


def kept_lines(text: str) -> str | None:
    """The lines of a service or a drop-in that a bundle keeps; None if it names no such command.

    Other lines may have what a stranger must not see.
    """
    if not text:
        return text
    rows = [row.strip() for row in text.replace("\\\n", " ").splitlines()]
    if not any(COMMAND.search(row) and _ASSIGNMENT.fullmatch(row) for row in rows):
        return None
    kept = (
        row
        for row in rows
        if row.startswith("[")
        or ((match := _ASSIGNMENT.fullmatch(row)) and _is_kept(match[1], match[2]))
    )
    return "".join(f"{row}\n" for row in kept)


def _is_kept(key: str, value: str) -> bool:
    return key not in _STARTS or not value.strip() or bool(COMMAND.search(value))


def is_run(machine: Machine, name: str) -> bool:
    """Whether a boot runs a script of RC_LOCAL: a recording has it only if it is executable."""
    path = machine.path(name)
    return path.is_file() and (machine.recording is not None or bool(path.stat().st_mode & 0o111))


def _name(machine: Machine, path: Path) -> str:
    return f"/{path.relative_to(machine.root)}"


def soft_link(text: str) -> SoftLink | None:
    """The soft link that a command adds: of rdma(8), of ``nfsrdma link`` or of rxe_cfg."""
    plain = re.sub(r"[\"';&|]", " ", text)
    if match := re.search(r"\brxe_cfg\s+add\s+(\S+)", plain):
        return SoftLink("", "rxe", match[1])
    match = re.search(r"\b(?:nfs)?rdma\b.{0,40}?\blink\s+add\s+(.*)", plain)
    words = match[1].replace("=", " ").split() if match else []
    names = [word for word in words if word not in ("dev",)]
    if not names:
        return None
    values = {key.lstrip("-"): value for key, value in itertools.pairwise(words)}
    return SoftLink(names[0], values.get("type", "rxe"), values.get("netdev", ""))


def _fits(word: str, value: str) -> bool | None:
    """Whether a word of a command is this value; None if its variables may stand for anything."""
    if not _VARIABLE.search(word) and not word.startswith("withheld"):
        return word == value
    literal = _VARIABLE.split(word)
    if not "".join(literal) or word.startswith("withheld"):
        return None
    return bool(re.fullmatch(".+".join(map(re.escape, literal)), value))


def module_lists(machine: Machine) -> dict[str, str]:
    """The file that lists each module to load at boot, by module; - and _ are one."""
    found: dict[str, str] = {}
    lists = units.by_name(machine, "*.conf", MODULES_LOAD)
    lists += sorted(machine.path(DEVICE_MODULES).glob("*.conf"))
    for path in lists:
        for line in files.readable(path).splitlines():
            if (word := line.strip()) and word[0] not in "#;":
                found.setdefault(word.replace("-", "_"), _name(machine, path))
    return found


def modprobe_lines(machine: Machine) -> Iterator[ModprobeLine]:
    """The lines of modprobe.d."""
    for path in units.by_name(machine, "*.conf", MODPROBE):
        for line in files.readable(path).replace("\\\n", " ").splitlines():
            words = line.split(maxsplit=2)
            if len(words) > 1 and words[0][0] != "#":
                name, rest = words[1].replace("-", "_"), words[2] if len(words) > 2 else ""
                yield ModprobeLine(words[0], name, rest, _name(machine, path))


def sysctls(machine: Machine) -> dict[str, Value]:
    """What sysctl.d and sysctl.conf set, by name with dots; the last file counts."""
    found: dict[str, Value] = {}
    last = machine.path("etc/sysctl.conf")
    for path in (*units.by_name(machine, "*.conf", SYSCTL), *([last] if last.exists() else ())):
        for line in files.readable(path).splitlines():
            key, equals, value = line.partition("=")
            name = key.strip().removeprefix("-").replace("/", ".")
            if equals and name and name[0] not in "#;":
                found[name] = Value(" ".join(value.split()), _name(machine, path))
    return found
