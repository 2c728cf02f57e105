# SPDX-License-Identifier: Apache-2.0
"""Checks whether a host is after a reboot as it is now: what was made by hand is gone then.

Each compares what the kernel has with what the files request that a boot reads.  A file that nobody
recorded makes the answer unknown, never ok.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nfsrdma_tools.doctor.finding import Finding, Status, check
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import boot_files, kernel_modules, transports
from nfsrdma_tools.host.boot_files import SERVERS, BootCommand, ModprobeLine
from nfsrdma_tools.host.machine import Machine, NotRecordedError
from nfsrdma_tools.host.nfs import units
from nfsrdma_tools.host.nfsd import configuration, nfsctl
from nfsrdma_tools.host.nfsd.configuration import UNIT, Requested
from nfsrdma_tools.host.nfsd.nfsctl import Listener
from nfsrdma_tools.host.nfsd.other_servers import other_server
from nfsrdma_tools.host.nfsd.serving import nfsd_status
from nfsrdma_tools.host.rdma.ports import SOFT_KINDS, Link
from nfsrdma_tools.host.transports import KERNELS
from nfsrdma_tools.module_source import CARD, OURS

__all__ = [
    "Made",
    "commands",
    "links",
    "listener",
    "made_by",
    "modules",
    "server",
    "threads",
    "unread",
]

_NOT_READ = "not all files that a boot reads are known"
_COLLECT = "run this on the host, or collect a bundle with this version"
_ENABLE = "nfsrdma server enable DIRECTORY --client CLIENTS"
_DRIVERS = {"rxe": "rdma_rxe", "siw": "siw", "card": CARD}
_NAMES = {KERNELS: (KERNELS, f"{KERNELS}6", "xprtrdma", "svcrdma")}
_NO_MODULE = re.compile(r"/bin/(?:true|false)\b")
# of rpc.nfsd and of nfsdctl, by the version of nfs-utils
_DEFAULT_THREADS = (8, 16)


class Made(NamedTuple):
    """Whether a boot makes something, and what makes it: status, text and remedy of a finding."""

    status: Status
    found: str
    remedy: str = ""

    def finding(self, name: str, before: str, expected: str) -> Finding:
        """The finding about what is now ``before``."""
        text = f"{before}; {self.found}"
        if self.status == "ok":
            return Finding(name, "ok", text)
        return Finding(name, self.status, text, expected, self.remedy)


def made_by(doing: Sequence[BootCommand], verb: str) -> Made | None:
    """Judge the commands that do what is wanted; None if there are none."""
    for command in doing:
        if command.starts:
            return Made("ok", f"{command.source} {verb}")
    for command in doing:
        if command.starts is None:
            text = f"{command.source} {verb}; what starts {command.unit} was not recorded"
            return Made("unknown", text, f"see: systemctl is-enabled {command.unit}")
    for command in doing:
        text = f"gone after a reboot: {command.source} {verb}, and no unit starts {command.unit}"
        return Made("warning", text, f"systemctl enable {command.unit}")
    return None


@check(10, "reboot link", after_reboot=True)
def links(machine: Machine) -> Iterator[Finding]:
    """A command that a boot runs adds each soft link."""
    soft = _soft_links(machine)
    known = (
        [(command, boot_files.soft_link(command.text)) for command in commands(machine)]
        if soft
        else []
    )
    for link in soft:
        name, kind = f"reboot link {link.device.name}", link.device.driver
        shown = f"{kind} on {link.netdev or 'no network device'}"
        judged = [
            (command, added.makes(link.device.name, kind, link.netdev))
            for command, added in known
            if added
        ]
        made = made_by([command for command, makes in judged if makes], "adds it")
        if made is None and (doubt := [command for command, makes in judged if makes is None]):
            text = f"{doubt[0].source} may add it: its words have variables"
            made = Made("unknown", text, f"see {doubt[0].source}")
        if made is None and not boot_files.read(machine):
            made = Made("unknown", _NOT_READ, _COLLECT)
        if made is None:
            text = "gone after a reboot: no unit, rc.local or udev rule adds it"
            add = f"rdma link add {link.device.name} type {kind} netdev {link.netdev or 'DEVICE'}"
            made = Made("warning", text, f"enable a unit with ExecStart={add}")
        yield made.finding(name, shown, "a unit that adds it")


def _soft_links(machine: Machine) -> list[Link]:
    try:
        return [link for link in machine.links() if link.device.driver in SOFT_KINDS]
    except NotRecordedError:
        raise
    except UserError:
        # no RDMA device at all
        return []


def commands(machine: Machine) -> list[BootCommand]:
    """The commands of interest that a boot may run; read once."""
    return machine.keep("commands of the boot", lambda: boot_files.commands(machine))


@check(20, "reboot module", after_reboot=True)
def modules(machine: Machine) -> Iterator[Finding]:
    """A boot, a mount or a listener loads the transport modules that are loaded, and no others."""
    machine.require("proc/modules")
    loaded = kernel_modules.loaded(machine)
    boot = _Boot(machine)
    if KERNELS in loaded:
        yield boot.kernels().finding(f"reboot module {KERNELS}", "loaded", "the same module")
        yield from _other_file(machine)
    if OURS in loaded:
        yield boot.ours().finding(f"reboot module {OURS}", "loaded", "the same module")
    for kind, name in _DRIVERS.items():
        if name in loaded and any(link.device.driver == kind for link in _known_links(machine)):
            made = boot.loader(name)
            if made is None or made.status != "ok":
                made = Made("ok", "in no list: the command that adds a link loads it")
            yield made.finding(f"reboot module {name}", "loaded", "the same module")


class _Boot:
    """The modules that a boot loads."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lines = list(boot_files.modprobe_lines(machine))
        self._lists, self._commands = boot_files.module_lists(machine), commands(machine)

    def loader(self, name: str) -> Made | None:
        """The file or unit that loads a module at boot; None if none is known."""
        names = _NAMES.get(name, (name,))
        if file := next((self._lists[alias] for alias in names if alias in self._lists), ""):
            return Made("ok", f"{file} lists it")
        pattern = rf"\b(?:modprobe|insmod)\b.*\b(?:{'|'.join(names)})\b"
        if name == OURS:
            pattern += rf"|\b{OURS}\b.*\bmodule\s+load\b"
        return made_by(
            [command for command in self._commands if re.search(pattern, command.text)], "loads it"
        )

    def kernels(self) -> Made:
        """Judge the kernel's module, which mounts and nfsd request by its names."""
        if (ours := self._to_ours) and transports.owner(self._machine) == KERNELS:
            text = f"{ours.source} maps mounts and nfsd to {OURS}"
            return Made("warning", text, f"nfsrdma module uninstall, or load {OURS} now")
        for line in self._lines:
            blocks = line.command == "install" and _NO_MODULE.search(line.rest)
            if line.name in _NAMES[KERNELS] and (line.command == "blacklist" or blocks):
                text = f"{line.source} has {line.command} {line.name}: a boot may not load it"
                return Made("warning", text, f"remove that line from {line.source}")
        made = self.loader(KERNELS)
        if made and made.status == "ok":
            return made
        text = "in no list: the first mount over RDMA, or a listener of nfsd, loads it"
        return Made("ok", text)

    def ours(self) -> Made:
        """Judge our module, which `module load` loads until a reboot."""
        if ours := self._to_ours:
            return Made("ok", f"{ours.source} maps mounts and nfsd to it")
        gone = f"no file loads it, and mounts and nfsd get {KERNELS}"
        return self.loader(OURS) or _gone(self._machine, gone, "nfsrdma module install")

    @property
    def _to_ours(self) -> ModprobeLine | None:
        """The line that `module install` writes: the kernel's requests lead to our module."""
        aliases = [line for line in self._lines if line.command == "alias" and line.name == KERNELS]
        return next((line for line in aliases if line.rest.strip() == OURS), None)


def _gone(machine: Machine, reason: str, remedy: str) -> Made:
    """The finding if no known file makes a thing: gone after a boot, or unknown."""
    if not boot_files.read(machine):
        return Made("unknown", f"{reason}; {_NOT_READ}", _COLLECT)
    return Made("warning", f"gone after a reboot: {reason}", remedy)


def _known_links(machine: Machine) -> list[Link]:
    try:
        return _soft_links(machine)
    except NotRecordedError:
        return []


def _other_file(machine: Machine) -> Iterator[Finding]:
    """The file of rpcrdma may have been replaced since the module was loaded."""
    try:
        file = kernel_modules.on_disk(KERNELS, machine)
    except UserError:
        return
    running = kernel_modules.srcversion(KERNELS, machine)
    if file and file.srcversion and running and running != file.srcversion:
        text = f"{file.path} has srcversion {file.srcversion}, and the loaded module {running}"
        remedy = "compare the packages of the kernel and of the RDMA stack"
        yield Finding(f"reboot module {KERNELS}", "warning", text, "the same module", remedy)


# ---- the server


@check(30, "reboot listener", after_reboot=True)
def listener(machine: Machine) -> Iterator[Finding]:
    """The listeners on RDMA are those that a boot requests."""
    name, listeners = "reboot listener", _listeners(machine)
    if not listeners:
        return
    asked = _requested(machine)
    added = [
        (command, port)
        for command in commands(machine)
        if command.unit not in SERVERS
        and (port := configuration.added_port(command.text)) is not None
    ]
    ports = sorted({socket.port for socket in listeners if socket.over_rdma})
    shown = f"nfsd listens on {', '.join(map(str, listeners))}"
    made = _kept(machine, asked, added, ports) if ports else _new(machine, asked, added)
    yield made.finding(name, shown, "the same listeners")


def _kept(
    machine: Machine,
    asked: Requested | None,
    added: Sequence[tuple[BootCommand, int]],
    ports: Sequence[int],
) -> Made:
    """Judge listeners on these RDMA ports."""
    if asked and asked.rdma_port in ports:
        return Made("ok", f"{asked.rdma_source} requests it")
    adding = [command for command, port in added if port in ports]
    if made := made_by(adding, f"adds RDMA port {ports[0]}"):
        return made
    if asked and asked.rdma_port:
        text = f"{asked.rdma_source} requests RDMA port {asked.rdma_port} in place of {ports[0]}"
        return Made("warning", text, f"set rdma-port={ports[0]} there, if that is the right one")
    if asked is None:
        return Made("unknown", "nfs.conf was not recorded", _COLLECT)
    causes = (asked.fault, *asked.ignored, "nfsd's configuration does not request it")
    cause = next(filter(None, causes))
    return _gone(machine, f"{cause}, and no unit adds it", _ENABLE)


def _new(
    machine: Machine, asked: Requested | None, added: Sequence[tuple[BootCommand, int]]
) -> Made:
    """Judge that there is no listener on RDMA."""
    port, source = (asked.rdma_port, asked.rdma_source) if asked else (0, "")
    for command, number in added:
        if command.starts:
            port, source = number, command.source
    if port:
        text = f"{source} requests RDMA port {port} at boot"
        return Made("warning", text, "why it is not there now: nfsrdma doctor")
    if asked is None or not boot_files.read(machine):
        return Made("unknown", _NOT_READ, _COLLECT)
    return Made("ok", "nothing requests RDMA at boot")


def _listeners(machine: Machine) -> list[Listener]:
    """The listeners of nfsd; [] if nfsd does not run. NotRecordedError if that is unknown."""
    machine.require("proc/fs/nfsd/portlist")
    listeners = nfsctl.listeners(machine)
    if not listeners and nfsctl.is_hidden(machine):
        raise NotRecordedError("nfsd is loaded, and this container does not see /proc/fs/nfsd")
    return listeners


def _requested(machine: Machine) -> Requested | None:
    try:
        return configuration.requested(machine)
    except NotRecordedError:
        return None


@check(40, "reboot server", after_reboot=True)
def server(machine: Machine) -> Iterator[Finding]:
    """A unit starts nfsd at boot, if it runs now."""
    name, runs = "reboot server", bool(_listeners(machine))
    starting = sorted(SERVERS & boot_files.started(machine))
    if not runs:
        if starting and other_server(machine) is None:
            text = f"nfsd does not run now, and a boot starts {starting[0]}"
            remedy = f"systemctl start {starting[0]}, or disable it"
            yield Finding(name, "warning", text, "the same state", remedy)
    elif starting:
        yield Finding(name, "ok", f"nfsd runs; a boot starts {starting[0]}")
    elif (state := _file_state(machine)) == "enabled":
        yield Finding(name, "ok", f"nfsd runs; {UNIT} is enabled")
    elif not boot_files.read(machine) and not state:
        text = f"nfsd runs; what starts {UNIT} was not recorded"
        yield Finding(name, "unknown", text, "", f"see: systemctl is-enabled {UNIT}")
    else:
        text = f"nfsd runs; gone after a reboot: no unit starts {UNIT}; another program may"
        remedy = f"systemctl enable {UNIT}, unless another program starts it"
        yield Finding(name, "warning", text, f"{UNIT} enabled", remedy)


def _file_state(machine: Machine) -> str:
    """Whether systemd has nfs-server.service enabled, in its words; "" if that is unknown."""
    state = units.states(machine, [UNIT]).get(UNIT) if machine.recording else None
    return state.file if state else ""


@check(50, "reboot threads", after_reboot=True)
def threads(machine: Machine) -> Iterator[Finding]:
    """There are as many threads of nfsd as a boot requests."""
    name, now = "reboot threads", nfsctl.threads(machine)
    if not now:
        return
    asked = _requested(machine)
    if asked is None:
        yield Finding(name, "unknown", f"{now} threads; nfs.conf was not recorded", "", _COLLECT)
        return
    wanted, remedy = asked.threads, f"set threads={now} in [nfsd] of nfs.conf"
    if nfsd_status(machine).min_threads:
        yield Finding(name, "ok", f"{now} threads, a number that nfsd changes by itself")
    elif wanted == now:
        yield Finding(name, "ok", f"{now} threads, as its configuration requests")
    elif wanted is not None:
        text = f"{now} threads now, and its configuration requests {wanted}"
        yield Finding(name, "warning", text, f"{wanted} threads", remedy)
    elif now in _DEFAULT_THREADS:
        yield Finding(name, "ok", f"{now} threads, a default of nfs-utils")
    else:
        default = " or ".join(map(str, _DEFAULT_THREADS))
        text = f"{now} threads; its configuration requests no number, and the default is {default}"
        yield Finding(name, "warning", text, f"a request for {now}", remedy)


@check(60, "unread file", after_reboot=True)
def unread(machine: Machine) -> Iterator[Finding]:
    """No file requests of nfsd what no program reads."""
    asked = _requested(machine)
    if asked is None or not _listeners(machine):
        return
    name = "unread file"
    for clause in asked.ignored:
        remedy = "set rdma=y in [nfsd] of nfs.conf, or remove that line"
        yield Finding(name, "warning", clause, "a request that nfsd reads", remedy)
    if setting := asked.unread_number(*([] if asked.threads else map(str, _DEFAULT_THREADS))):
        text = f"{setting.source} is {setting.value}, which {UNIT} does not use"
        remedy = f"set threads={setting.value} in [nfsd] of nfs.conf"
        yield Finding(name, "warning", text, "a number that nfsd reads", remedy)
