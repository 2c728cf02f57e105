# SPDX-License-Identifier: Apache-2.0
"""The requests of a host's configuration to nfsd: RDMA, ports and threads.

rpc.nfsd reads nfs.conf(5), and its options take precedence (nfs-utils, utils/nfsd/nfsd.c).  The
options are in a unit file, or in files of variables that the unit names: /etc/sysconfig/nfs of Red
Hat and SUSE, /etc/default/nfs-kernel-server of Debian before 12.  nfsdctl autostart, which newer
units run first, reads nfs.conf only.

Where nfsconf(8) can run, or a recording has its output, it decides about nfs.conf.  Our own parser
names the files, and reads the files of other hosts.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from nfsrdma_tools.errors import ProgramMissingError
from nfsrdma_tools.files import matching, note_unread
from nfsrdma_tools.host.machine import LIVE, Machine, NotRecordedError
from nfsrdma_tools.host.nfs import units
from nfsrdma_tools.nfs_ports import NFS_PORT, RDMA_PORT

__all__ = [
    "UNIT",
    "NfsConf",
    "Requested",
    "Setting",
    "added_port",
    "is_on",
    "requested",
    "version_order",
]

_ON = frozenset({"1", "t", "true", "y", "yes", "on"})
_OFF = frozenset({"0", "f", "false", "n", "no", "off"})
_SERVICES = {"nfsrdma": RDMA_PORT, "nfs": NFS_PORT}
_MOST_FILES = 64
UNIT = "nfs-server.service"
_SYSCONFIG, _DEFAULT = "etc/sysconfig/nfs", "etc/default/nfs-kernel-server"
_GENERATED = "run/sysconfig/nfs-utils"
"""What nfs-config.service makes of the two for RPCNFSDARGS (nfs-utils_env.sh)."""
# nfsdctl listener "+rdma:ADDRESS:PORT", echo rdma PORT > /proc/fs/nfsd/portlist
_ADDED = re.compile(r"\+rdma6?:\S{0,64}:(\w{1,16})|\brdma (\d{1,5})\b.{0,40}/nfsd/portlist")
_VARIABLE = re.compile(r"\$(?:\{(\w{1,64})\}|(\w{1,64}))")


class Setting(NamedTuple):
    """A value, and where it is set."""

    value: str
    source: str
    """The file, or "VARIABLE of FILE"."""


class Requested(NamedTuple):
    """The listeners that the configuration requests; nfsd gets them at its next start."""

    rdma_port: int = 0
    """0: no RDMA."""
    rdma_source: str = ""
    """Where RDMA is turned on or off; "" if nowhere."""
    tcp: bool = True
    port: int = NFS_PORT
    threads: int | None = None
    """None: the default of the program."""
    fault: str = ""
    """Why nothing can come of the request for RDMA, as a clause; "" if nothing is known."""
    ignored: tuple[str, ...] = ()
    """Requests for RDMA that no program reads, as clauses."""
    unread_threads: Setting | None = None
    """A number of threads that no program reads."""

    def unread_number(self, *others: str) -> Setting | None:
        """The number of threads that no program reads, if it is none of these, nor requested."""
        setting = self.unread_threads
        known = (*others, str(self.threads))
        return setting if setting and setting.value not in known else None

    @property
    def rdma(self) -> bool:
        """Whether RDMA is requested, possible or not."""
        return bool(self.rdma_port or self.fault)


def requested(machine: Machine = LIVE) -> Requested:
    """Read the configuration.  NotRecordedError if a recording has none of its files."""
    conf = NfsConf(machine)
    commands = _Commands(machine)
    if not conf.files and not commands.files:
        machine.require("etc/nfs.conf")
    request = _with_options(_from_conf(conf), commands)
    if not request.rdma and (added := commands.added):
        request = _with_rdma(request, added.value, added.source)
    if conf.has_port_for_rdma() and commands.use("nfsdctl") and commands.options is None:
        # configure_listeners() of utils/nfsdctl/nfsdctl.c wants a boolean
        request = request._replace(fault="nfsdctl takes a port as the value of rdma for no")
    return request._replace(
        ignored=(*conf.ignored, *commands.ignored), unread_threads=commands.unread_threads
    )


def added_port(text: str) -> int | None:
    """The RDMA port that a command adds to a running nfsd; 0 for an invalid one, None for none."""
    match = _ADDED.search(text)
    return _port(match[1] or match[2]) if match else None


def is_on(value: str, default: bool = False) -> bool:
    """A boolean of nfs.conf; ``default`` for a text that is none, as for conf_get_bool()."""
    return value.lower() in _ON or (default and value.lower() not in _OFF)


class NfsConf:
    """nfs.conf and its drop-ins."""

    def __init__(self, machine: Machine = LIVE) -> None:
        self._machine = machine
        self._values: dict[tuple[str, str], Setting] = {}
        self._asked: dict[tuple[str, str], Setting | None] = {}
        self.files: list[str] = []
        """The files that were read, without the leading slash."""
        self.ignored: list[str] = []
        self._read_files("usr/etc/nfs.conf")
        if machine.path("etc/nfs.conf").exists():
            # conf_load_file() forgets what /usr/etc has
            self._values.clear()
        self._read_files("etc/nfs.conf")

    def get(self, key: str, section: str = "nfsd") -> Setting | None:
        """The value of a key; None if it is not set."""
        if (section, key) not in self._asked:
            self._asked[section, key] = self._ask(section, key)
        return self._asked[section, key]

    def has_port_for_rdma(self) -> bool:
        """Whether ``rdma`` has the older form, a port (nfs-utils before 2.4.2)."""
        setting = self.get("rdma")
        return setting is not None and setting.value.lower() not in (_ON | _OFF)

    def _ask(self, section: str, key: str) -> Setting | None:
        own = self._own(section, key)
        try:
            result = self._machine.run("nfsconf", "--get", section, key)
        except (ProgramMissingError, NotRecordedError):
            return own
        if result.returncode:
            return None
        value = result.stdout.strip()
        return own if own and own.value == value else Setting(value, "/etc/nfs.conf")

    def _own(self, section: str, key: str) -> Setting | None:
        setting = self._values.get((section, key.lower()))
        for _ in range(_MOST_FILES):
            if setting is None or not setting.value.startswith("$"):
                return setting
            setting = self._values.get(("environment", setting.value[1:].lower()))
        return None

    def _read_files(self, name: str) -> None:
        self._read_file(name, None)
        names = [path.name for path in matching(self._machine.path(f"{name}.d"), "*")]
        for drop_in in sorted(names, key=version_order):
            # conf_init_dir() takes names that end in .conf and do not begin with a dot
            if drop_in.endswith(".conf") and drop_in[0] != "." and drop_in != ".conf":
                self._read_file(f"{name}.d/{drop_in}", None)

    def _read_file(self, name: str, section: str | None) -> None:
        # a file may include itself
        if len(self.files) >= _MOST_FILES or not (text := _text(self._machine, name)):
            return
        self.files.append(name)
        *lines, rest = text.replace("\\\n", "  ").split("\n")
        if rest.strip() and self._pasted:
            lines.append(rest)
        elif re.match(r"\s*rdma(-port)?\s*=", rest):
            self.ignored.append(
                f"/{name} has {rest.strip()} without a newline, which no reader takes"
            )
        for line in lines:
            section = self._take(line.strip(), section, name)

    @property
    def _pasted(self) -> bool:
        """Whether the end of a file may have been lost on the way."""
        recording = self._machine.recording
        return recording is not None and not recording.complete

    def _take(self, line: str, section: str | None, file: str) -> str | None:
        """Take one line; returns the section of the next one, None for no section."""
        if line.startswith("["):
            head, bracket, _ = line[1:].partition("]")
            name, _, argument = head.partition('"')
            # [nfsd "argument"] is another section than [nfsd]
            mark = '"' if '"' in argument else ""
            return f"{name.strip().lower()}{mark}" if bracket else None
        key, equals, value = line.partition("=")
        name, text = key.strip().lower(), _value(value.strip())
        if section is None or not equals or not name or line[0] in "#;" or not text:
            return section
        if name == "include":
            place = posixpath.join(posixpath.dirname(f"/{file}"), text.removeprefix("-"))
            self._read_file(_below_root(place), section)
        elif section.endswith('"'):
            # conf_remove_now() does not compare arguments
            self._values.pop((section[:-1], name), None)
        else:
            self._values[section, name] = Setting(text, f"/{file}")
        return section


def _value(text: str) -> str:
    """A value of nfs.conf: in quotes, or up to a comment; "" if a quote is not closed."""
    if text[:1] in ('"', "'"):
        value, quote, _ = text[1:].partition(text[0])
        return value if quote else ""
    return re.split(r"[#;]", text, maxsplit=1)[0].rstrip()


def _text(machine: Machine, name: str) -> str:
    """The text of a file, "" if there is none; PermissionError: what it has may decide."""
    try:
        return machine.read(name)
    except PermissionError:
        raise
    except ValueError:
        return ""
    except OSError as error:
        note_unread(error)
        return ""


def _below_root(path: str) -> str:
    """An absolute path without its leading slash, and without ".."."""
    return posixpath.normpath(f"/{path}").lstrip("/")


def version_order(name: str) -> list[tuple[int, int, int, str]]:
    """The order of strverscmp(3), in which the drop-ins are read."""
    parts = re.findall(r"[0-9]+|.", name, re.DOTALL)
    return [_number_order(x) if x[0] in "0123456789" else (ord(x), 0, 0, "") for x in parts]


def _number_order(digits: str) -> tuple[int, int, int, str]:
    if digits[0] != "0":
        return (ord("0"), 1, int(digits), "")
    # a fraction: 000, 00, 01, 010, 09, 0
    rest = digits.lstrip("0")
    return (ord("0"), 0, len(rest) - len(digits), rest or "~")


@dataclass
class _Options:
    """The options of rpc.nfsd on one command line; None where it has none."""

    rdma: str | None = None
    rdma_word: str = ""
    """The word that has the option, as it is in a variable."""
    port: str | None = None
    tcp: bool | None = None
    threads: str | None = None


@dataclass
class _Commands:
    """The programs that start nfsd, with the variables of their options."""

    machine: Machine
    files: list[str] = field(default_factory=list)
    """The files that were read, without the leading slash."""
    lines: list[Setting] = field(default_factory=list)
    """The values of ExecStart."""
    variables: dict[str, Setting] = field(default_factory=dict)
    added: Setting | None = None
    """The RDMA port that a command adds to a running nfsd."""
    has_unit: bool = False
    """Whether the unit is known."""

    def __post_init__(self) -> None:
        unit = list(_unit_lines(self.machine, self.files))
        self.variables = self._variables_of(unit)
        for key, setting in unit:
            # nfsd can also get its listener after its start
            if key in ("ExecStart", "ExecStartPost") and (match := _ADDED.search(setting.value)):
                self.added = Setting(match[1] or match[2], setting.source)
            if key == "ExecStart":
                # an empty assignment resets the list
                self.lines = [*self.lines, setting] if setting.value else []
        self.has_unit = bool(self.lines)
        if not self.lines:
            # the unit was not recorded: its variables have these names
            self.variables = _variables(self.machine, self.files)
            line = "rpc.nfsd $RPCNFSDARGS $NFSD_OPTIONS"
            if "NFSD_PORT" in self.variables:
                line += " --port $NFSD_PORT"
            self.lines = [Setting(line, UNIT)]

    @property
    def argvs(self) -> list[list[str]]:
        """The command lines of rpc.nfsd and nfsdctl, with their variables' values."""
        lines = (_expanded(line.value, self.variables) for line in self.lines)
        return [argv for line in lines for argv in _programs(line)]

    def use(self, program: str) -> bool:
        """Whether one of the commands is this program."""
        return any(argv[0] == program for argv in self.argvs)

    @property
    def options(self) -> _Options | None:
        """The options of rpc.nfsd that concern listeners and threads; None if it has none."""
        per_command = [_options(argv[1:]) for argv in self.argvs if argv[0] == "rpc.nfsd"]
        return next((options for options in per_command if options != _Options()), None)

    def source(self, word: str) -> str:
        """Where a word of a command line is from."""
        for setting in self.variables.values():
            if word in setting.value.split():
                return setting.source
        named = (line.source for line in self.lines if word in line.value)
        return next(named, UNIT)

    @property
    def ignored(self) -> list[str]:
        """Requests for RDMA in variables that the unit does not use."""
        return [
            f"{setting.source} is {setting.value}, which {UNIT} does not use"
            for name, setting in _variables(self.machine, []).items()
            if name not in self._used and _asks_for_rdma(name, setting.value)
        ]

    @property
    def unread_threads(self) -> Setting | None:
        """RPCNFSDCOUNT, if the unit was recorded and uses neither it nor what is made of it."""
        if not self.has_unit or {"RPCNFSDARGS", "RPCNFSDCOUNT"} & self._used:
            return None
        shell_files = (_shell_file(self.machine, name, []) for name in (_DEFAULT, _SYSCONFIG))
        counts = (
            variables["RPCNFSDCOUNT"] for variables in shell_files if "RPCNFSDCOUNT" in variables
        )
        return next((count for count in counts if _number(count.value)), None)

    @property
    def _used(self) -> set[str]:
        """The names of the variables on the command lines."""
        text = " ".join(line.value for line in self.lines)
        return {match[1] or match[2] for match in _VARIABLE.finditer(text)}

    def _variables_of(self, unit: list[tuple[str, Setting]]) -> dict[str, Setting]:
        variables: dict[str, Setting] = {}
        for key, setting in unit:
            value = setting.value
            if key == "Environment":
                pairs = (word.partition("=") for word in _words(value))
                place = setting.source
                variables |= {name: Setting(text, f"{name} of {place}") for name, _, text in pairs}
            elif key == "EnvironmentFile" and not value:
                variables = {}
            elif key == "EnvironmentFile":
                name = _below_root(value.removeprefix("-"))
                if name == _GENERATED:
                    variables |= _generated(self.machine, self.files)
                else:
                    variables |= _shell_file(self.machine, name, self.files)
        return variables


def _asks_for_rdma(name: str, value: str) -> bool:
    if name == "RDMA_PORT":
        # of the init script of Red Hat 6
        return bool(value)
    return _options(_words(value)).rdma is not None


def _unit_lines(machine: Machine, files: list[str]) -> Iterator[tuple[str, Setting]]:
    """The assignments of the section [Service] of the unit and its drop-ins, in order."""
    for path in (*units.by_name(machine, UNIT), *units.by_name(machine, f"{UNIT}.d/*.conf")):
        name = str(path.relative_to(machine.root))
        files.append(name)
        section = ""
        for line in _text(machine, name).replace("\\\n", " ").splitlines():
            key, equals, value = line.strip().partition("=")
            if key.startswith("["):
                section = key
            elif equals and section == "[Service]" and key[:1] not in ("#", ";"):
                yield key.strip(), Setting(value.strip(), f"/{name}")


def _variables(machine: Machine, files: list[str]) -> dict[str, Setting]:
    """The variables of both distributions' files, those of rpc.nfsd under one name."""
    return {**_shell_file(machine, _SYSCONFIG, files), **_generated(machine, files)}


def _generated(machine: Machine, files: list[str]) -> dict[str, Setting]:
    """RPCNFSDARGS as nfs-config.service makes it, or would make it."""
    red_hat = _shell_file(machine, _SYSCONFIG, files)
    debian = _shell_file(machine, _DEFAULT, files)
    source = f"RPCNFSDOPTS of /{_DEFAULT}" if debian else f"RPCNFSDARGS of /{_SYSCONFIG}"
    if made := _shell_file(machine, _GENERATED, files).get("RPCNFSDARGS"):
        return {"RPCNFSDARGS": Setting(made.value, source)}
    words = [
        setting.value
        for setting in (
            debian.get("RPCNFSDOPTS") or red_hat.get("RPCNFSDARGS"),
            (debian or red_hat).get("RPCNFSDCOUNT"),
        )
        if setting
    ]
    return {"RPCNFSDARGS": Setting(" ".join(words), source)} if words else {}


def _shell_file(machine: Machine, name: str, files: list[str]) -> dict[str, Setting]:
    """The assignments of a file that a shell or systemd reads."""
    if text := _text(machine, name):
        files.append(name)
    assignments: dict[str, Setting] = {}
    for line in text.splitlines():
        if match := re.match(r"\s*(?:export\s+)?(\w{1,64})=(.*)", line):
            words = _words(match[2])
            value = _expanded(" ".join(words), assignments)
            assignments[match[1]] = Setting(value, f"{match[1]} of /{name}")
    return assignments


def _words(text: str) -> list[str]:
    """The words of a shell's line, without comments; [] if a quote is not closed."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return []


def _expanded(text: str, variables: dict[str, Setting]) -> str:
    def value(match: re.Match[str]) -> str:
        known = variables.get(match[1] or match[2])
        return known.value if known else ""

    return _VARIABLE.sub(value, text)


def _programs(line: str) -> list[list[str]]:
    """The command lines of rpc.nfsd and nfsdctl in a command, or in the script of its shell."""
    words = _words(line.lstrip("-@:+!"))
    if len(words) > 2 and posixpath.basename(words[0]) == "sh" and words[1] == "-c":
        words = _words(re.sub(r"(\|\||&&|;)", r" \1 ", words[2]))
    argvs: list[list[str]] = [[]]
    for word in words:
        if word in ("||", "&&", ";"):
            argvs.append([])
        else:
            argvs[-1].append(word)
    named = ([posixpath.basename(argv[0]), *argv[1:]] for argv in argvs if argv)
    return [argv for argv in named if argv[0] in ("rpc.nfsd", "nfsdctl")]


# of getopt_long() in utils/nfsd/nfsd.c; -R is in rpc.nfsd(8)
_WITH_VALUE = frozenset("HSNVpPRGL")
_LONG_WITH_VALUE = frozenset(
    {"host", "scope", "no-nfs-version", "nfs-version", "port", "grace-time", "lease-time"}
)


def _options(words: list[str]) -> _Options:
    options, queue, rest = _Options(), list(words), False
    while queue:
        word = queue.pop(0)
        if rest or not word.startswith("-") or word == "-":
            options.threads = options.threads or word
        elif word == "--":
            rest = True
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and name in _LONG_WITH_VALUE and queue:
                value = queue.pop(0)
            _note(options, name, value, word)
        else:
            _short(options, word, queue)
    return options


def _short(options: _Options, word: str, queue: list[str]) -> None:
    """A word of short options, such as -sr; an option that has a value ends it."""
    names = {"r": "rdma", "R": "rdma", "p": "port", "P": "port", "t": "tcp", "T": "no-tcp"}
    for at, letter in enumerate(word[1:], 2):
        value = ""
        if letter in _WITH_VALUE:
            value = word[at:] or (queue.pop(0) if queue else "")
        _note(options, names.get(letter, ""), value, word)
        if letter in _WITH_VALUE:
            return


def _note(options: _Options, name: str, value: str, word: str) -> None:
    if name == "rdma":
        options.rdma, options.rdma_word = value or "nfsrdma", word
    elif name == "port":
        options.port = value
    elif name in ("tcp", "no-tcp"):
        options.tcp = name == "tcp"


def _from_conf(conf: NfsConf) -> Requested:
    rdma, tcp, threads = conf.get("rdma"), conf.get("tcp"), conf.get("threads")
    port = conf.get("port")
    request = Requested(
        tcp=is_on(tcp.value if tcp else "", default=True),
        port=_port(port.value) if port else NFS_PORT,
        threads=_number(threads.value) if threads else None,
    )
    if rdma is None or rdma.value.lower() in _OFF:
        return request._replace(rdma_source=rdma.source if rdma else "")
    # backward compatibility: rdma=PORT
    wanted = rdma if conf.has_port_for_rdma() else conf.get("rdma-port")
    return _with_rdma(request, wanted.value if wanted else "nfsrdma", rdma.source)


def _with_options(request: Requested, commands: _Commands) -> Requested:
    options = commands.options
    if options is None:
        return request
    if options.rdma is not None:
        request = _with_rdma(request, options.rdma, commands.source(options.rdma_word))
    return request._replace(
        tcp=request.tcp if options.tcp is None else options.tcp,
        port=_port(options.port) if options.port else request.port,
        threads=_number(options.threads) if options.threads else request.threads,
    )


def _with_rdma(request: Requested, port: str, source: str) -> Requested:
    number = _port(port)
    fault = "" if number else f"rpc.nfsd cannot interpret port {port!r}"
    return request._replace(rdma_port=number, rdma_source=source, fault=fault)


def _port(text: str) -> int:
    """A port number or the name of a service; 0 if rpc.nfsd cannot interpret it."""
    number = _SERVICES.get(text) or _number(text) or 0
    return number if number <= 65535 else 0


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def read_ahead_values(machine: Machine) -> dict[str, int]:
    """The read-ahead in KiB that nfs.conf has by type of filesystem, "nfs", "nfs4" or "default".

    conf_get_readahead in nfs-utils' tools/nfsrahead/main.c.
    """
    conf = NfsConf(machine)
    settings = ((name, conf.get(name, "nfsrahead")) for name in ("nfs", "nfs4", "default"))
    return {
        name: int(setting.value)
        for name, setting in settings
        if setting and re.fullmatch("[0-9]{1,9}", setting.value)
    }
