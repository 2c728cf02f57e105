# SPDX-License-Identifier: Apache-2.0
"""The files that a boot reads: units, rc.local, udev rules, modules-load.d, modprobe.d, sysctl.d.

Of these, a bundle has the lines that concern NFS over RDMA, and the fact that they were read: an
older bundle, or one made by hand, does not tell what it lacks.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
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
    "SYSCTLS",
    "BootCommand",
    "ModprobeLine",
    "SoftLink",
    "Value",
    "command_lines",
    "commands",
    "is_run",
    "kept_lines",
    "modprobe_lines",
    "module_lists",
    "read",
    "scripts",
    "services",
    "soft_link",
    "started",
    "sysctls",
]

FACT, READ = "boot files", "read"
"""The fact that a bundle has these files if they exist, and its value."""
COMMAND = re.compile(
    r"\b(?:nfs)?rdma\b.{0,40}?\blink\s+add\b|\brxe_cfg\b|/nfsd/(?:portlist|threads)|\bnfsdctl\b"
    r"|\brpc\.nfsd\b|\bmount\b.{0,200}?\brdma6?\b|\b(?:rpcrdma|xprtrdma|svcrdma|nfsrdma|rdma_rxe|siw|nfsrdma_card)\b"
)
"""The commands of interest: a soft link, a listener, threads of nfsd, a mount, a module."""
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
_VARIABLE = re.compile(r"\$\{?\w{1,64}\}?|%\w|\$\([^()]{0,200}\)|`[^`]{0,200}`")
# what a command may have, and what the kernel allows for a name of a device
SYSCTLS = {
    # net/sunrpc/xprtsock.c
    "sunrpc.tcp_slot_table_entries": ("2",),
    "sunrpc.tcp_max_slot_table_entries": ("65536",),
    # net/sunrpc/xprtrdma/transport.c: before and since 4.19, before and since 4.9
    "sunrpc.rdma_slot_table_entries": ("32", "128"),
    "sunrpc.rdma_max_inline_read": ("1024", "4096"),
    "sunrpc.rdma_max_inline_write": ("1024", "4096"),
    # net/sunrpc/xprtrdma/svc_rdma.c
    "sunrpc.svc_rdma.max_requests": ("32", "64", "128"),
    "sunrpc.svc_rdma.max_req_size": ("4096",),
    "sunrpc.svc_rdma.max_bc_requests": ("2",),
}
"""The sysctls of NFS over RDMA, and their defaults in the kernels of some years."""
_MOST_VARIABLES, _MOST_NAME = 3, 64
_MOST_LINE = 16 << 10
_MOST_SCRIPT = 64 << 10


class BootCommand(NamedTuple):
    """A command that a boot may run."""

    text: str
    source: str
    """The file, as on its host."""
    starts: bool | None = True
    """Whether a boot runs it; False: no unit starts its unit; None: that was not recorded."""
    unit: str = ""


class _Service(NamedTuple):
    """The file of a service, as on its host, and its text with those of its drop-ins."""

    file: str
    text: str


class SoftLink(NamedTuple):
    """A soft link that a command adds; variables of a shell or of systemd are in its words."""

    name: str
    kind: str
    netdev: str

    def makes(self, name: str, kind: str, netdev: str) -> bool | None:
        """Whether it is this link; None if only a run of the command can tell."""
        if _fits(self.kind, kind) is False:
            return False
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
    """The commands of interest, in units and the scripts that they run, rc.local and udev rules."""
    boot_commands = list(_of_units(machine))
    for name in RC_LOCAL:
        text = files.read(machine.path(name)) if is_run(machine, name) else ""
        boot_commands += [BootCommand(line, f"/{name}") for line in command_lines(text)]
    for path in units.by_name(machine, "*.rules", udev_rules.FOLDERS):
        text = files.readable(path).replace("\\\n", " ")
        boot_commands += [
            BootCommand(line, _name(machine, path)) for line in command_lines(text) if "RUN" in line
        ]
    return boot_commands


def command_lines(text: str) -> list[str]:
    """The lines of a script with a command of interest, without comments."""
    lines = (line.strip()[:_MOST_LINE] for line in text.splitlines())
    return [line for line in lines if not line.startswith("#") and COMMAND.search(line)]


def _of_units(machine: Machine) -> Iterator[BootCommand]:
    known = _services(machine)
    running = _started(machine, known)
    for name, service in known.items():
        lines = _of_service(machine, service)
        for unit in _instances(name, running) if lines else ():
            starts = True if unit in running else False if read(machine) else None
            instance = unit.removesuffix(".service").partition("@")[2]
            for line, source in lines:
                shown = line.replace("%i", instance).replace("%I", instance) if instance else line
                yield BootCommand(shown, source, starts, unit)


def _of_service(machine: Machine, service: _Service) -> list[tuple[str, str]]:
    """The commands of interest that a service runs, and the file that has each."""
    commands_and_files: list[tuple[str, str]] = []
    for line in _exec_lines(service.text):
        if COMMAND.search(line):
            commands_and_files.append((line, service.file))
        for script in _scripts_of(line):
            text = _script(machine, script)
            commands_and_files += [(command, f"/{script}") for command in command_lines(text)]
    return commands_and_files


def _scripts_of(line: str) -> list[str]:
    """The files that may be a script among the first words of a command: it, or its shell's."""
    words = line.lstrip("-@:+!").split(maxsplit=2)[:2]
    named = [word for word in words if re.fullmatch(r"(?:/[\w.+@-]+)+", word)]
    return [word[1:] for word in named if ".." not in word]


def _script(machine: Machine, name: str) -> str:
    """The text of a script; "" for a program or a long file.  PermissionError."""
    path = machine.path(name)
    if not path.is_file() or path.stat().st_size > _MOST_SCRIPT:
        return ""
    # most of them are programs: reading 200 of these takes seconds
    is_script = files.beginning(path, 2) == b"#!"
    return files.read(path) if is_script else ""


def scripts(machine: Machine) -> set[str]:
    """The scripts with a command of interest that services run, without the leading slash."""
    return {
        script
        for service in _services(machine).values()
        for line in _exec_lines(service.text)
        for script in _scripts_of(line)
        if command_lines(_script(machine, script))
    }


def _instances(name: str, running: set[str]) -> list[str]:
    """The units of a template that a boot starts, or its own name."""
    if not name.endswith("@.service"):
        return [name]
    stem = name.removesuffix(".service")
    return sorted(unit for unit in running if unit.startswith(stem)) or [name]


def _services(machine: Machine) -> dict[str, _Service]:
    """The services, each with its drop-ins, by name."""
    return machine.keep("services", lambda: _read_services(machine))


def _read_services(machine: Machine) -> dict[str, _Service]:
    added = units.drop_ins(machine, "service")
    return {
        path.name: _Service(
            _name(machine, path),
            "\n".join(map(files.readable, [path, *added.get(path.name, ())])),
        )
        for path in units.by_name(machine, "*.service")
    }


def services(machine: Machine, scripts: Container[str]) -> set[str]:
    """The names of the services with a command of interest, or that run one of these scripts."""
    return {
        name
        for name, service in _services(machine).items()
        if any(_runs(line, scripts) for line in _exec_lines(service.text))
    }


def _runs(line: str, scripts: Container[str]) -> bool:
    return bool(COMMAND.search(line)) or any(script in scripts for script in _scripts_of(line))


def _exec_lines(text: str) -> list[str]:
    """The commands that start a service; an empty assignment resets those before."""
    by_key: dict[str, list[str]] = {key: [] for key in _STARTS}
    for key, value in _assignments(text):
        if key in by_key and value:
            by_key[key].append(value)
        elif key in by_key:
            by_key[key] = []
    return [value for values in by_key.values() for value in values]


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    for line in text.replace("\\\n", " ").splitlines():
        if match := _ASSIGNMENT.fullmatch(line.strip()[:_MOST_LINE]):
            yield match[1], match[2].strip()


def started(machine: Machine) -> set[str]:
    """The names of the units that a boot starts, of those that are recorded."""
    return _started(machine, _services(machine))


def _started(machine: Machine, known: Mapping[str, _Service]) -> set[str]:
    boot_units = set(units.wanted(machine))
    boot_units |= {
        f"{unit.removesuffix('.timer')}.service" for unit in boot_units if unit.endswith(".timer")
    }
    pending = sorted(boot_units)
    while pending:
        service = known.get(pending.pop())
        pulled = (
            [value for key, value in _assignments(service.text) if key in _PULLS] if service else []
        )
        new = {word for value in pulled for word in value.split()} - boot_units
        boot_units |= new
        pending += sorted(new)
    return boot_units


def kept_lines(text: str, scripts: Container[str] = ()) -> str | None:
    """The lines of a service or a drop-in that a bundle keeps; None if it has no such command.

    Other lines may have what a stranger must not see.  ``scripts`` are those of ``scripts``.
    """
    if not text:
        return text
    rows = [row.strip() for row in text.replace("\\\n", " ").splitlines()]
    matched = [(row, _ASSIGNMENT.fullmatch(row)) for row in rows]
    running = {row for row, match in matched if match and _runs(match[2].strip(), scripts)}
    if not any(match and match[1] in _STARTS for row, match in matched if row in running):
        return None
    kept = (
        row
        for row, match in matched
        if row.startswith("[")
        or row in running
        # an empty assignment resets the commands before
        or (match and (match[1] not in _STARTS or not match[2].strip()))
    )
    return "".join(f"{row}\n" for row in kept)


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
    values = {key.lstrip("-"): value for key, value in zip(words, words[1:])}
    return SoftLink(names[0], values.get("type", "rxe"), values.get("netdev", ""))


def _fits(word: str, value: str) -> bool | None:
    """Whether a word of a command is this value; None if its variables may stand for anything."""
    if not _VARIABLE.search(word) and not word.startswith("withheld"):
        return word == value
    literal = _VARIABLE.split(word[:_MOST_LINE])
    is_long = len(value) > _MOST_NAME or len(literal) > _MOST_VARIABLES + 1
    if is_long or not "".join(literal) or word.startswith("withheld"):
        return None
    return bool(re.fullmatch(".+".join(map(re.escape, literal)), value))


def module_lists(machine: Machine) -> dict[str, str]:
    """The file that lists each module to load at boot, by module; - and _ are one."""
    file_by_module: dict[str, str] = {}
    lists = units.by_name(machine, "*.conf", MODULES_LOAD)
    lists += sorted(machine.path(DEVICE_MODULES).glob("*.conf"))
    for path in lists:
        for line in files.readable(path).splitlines():
            if (word := line.strip()) and word[0] not in "#;":
                file_by_module.setdefault(word.replace("-", "_"), _name(machine, path))
    return file_by_module


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
    values: dict[str, Value] = {}
    last = machine.path("etc/sysctl.conf")
    for path in (*units.by_name(machine, "*.conf", SYSCTL), *([last] if last.exists() else ())):
        for line in files.readable(path).splitlines():
            key, equals, value = line.partition("=")
            name = key.strip().removeprefix("-").replace("/", ".")
            if equals and name and name[0] not in "#;":
                values[name] = Value(" ".join(value.split()), _name(machine, path))
    return values
