# SPDX-License-Identifier: Apache-2.0
"""The one door for what is read from a host: this one, or a recording of another one.

Files are read below a root, programs and RDMA netlink through methods.  A recording has the same
tree of files in a folder, and the results of programs and of netlink in a ``Recording``: so each
judgement about this host can be made about the files of any other host.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nfsrdma_tools import files
from nfsrdma_tools.command import Result, is_installed, run
from nfsrdma_tools.errors import ProgramMissingError, UserError

if TYPE_CHECKING:
    from nfsrdma_tools.host.nfsd_status import NfsdStatus
    from nfsrdma_tools.host.rdma.ports import Link

__all__ = ["LIVE", "SBIN", "Machine", "NotRecordedError", "Recording", "host_of_container"]


_OF_PROGRAM = (
    "run/.containerenv",
    ".dockerenv",
    "run/secrets/kubernetes.io",
    "var/run/secrets/kubernetes.io",
)
_CONTAINER = (*_OF_PROGRAM, "run/systemd/container")
"""What podman, CRI-O, Docker, Kubernetes and systemd leave in a container."""


SBIN = ("sbin", "usr/sbin", "usr/local/sbin")
"""Where has_program() looks for a program, below the root."""
_MOST_IN_RELEASE = 64
"""__NEW_UTS_LEN in include/uapi/linux/utsname.h."""
_Read = TypeVar("_Read")


class NotRecordedError(UserError):
    """A recording lacks what a reader asks for: the answer is unknown."""


@dataclass
class Recording:
    """What programs, netlink and the resolver said on a host."""

    programs: dict[tuple[str, ...], Result | None] = field(default_factory=dict)
    """By argv; None for a program that is not installed."""
    links: list[Link] | UserError | None = None
    """The RDMA links, the error in their place, or None if nobody asked."""
    nfsd: NfsdStatus | None = None
    """What nfsd reported by netlink; None if nobody asked."""
    addresses: dict[str, list[str]] = field(default_factory=dict)
    """By host name; an empty list for a name without an address."""
    complete: bool = True
    """Whether a missing file is missing on that host, too; False for a folder of pasted files."""
    collected: bool = True
    """Whether ``nfsrdma collect`` made it, which looks for all files that readers want."""
    facts: dict[str, str] = field(default_factory=dict)
    """Facts that only this program, on that host, can find out, by name."""
    root_user: bool | None = None
    """Whether root made it; None if that is unknown."""
    cut: frozenset[str] = frozenset()
    """The files of which only the beginning was recorded: what they lack proves nothing."""
    unread: dict[str, str] = field(default_factory=dict)
    """Why a given file cannot be read, by the file or the program of the host that it is of."""


@dataclass(frozen=True)
class Machine:
    """A host to read."""

    root: Path = Path("/")
    server: str = ""
    """The server to connect to, if any."""
    recording: Recording | None = None
    """The answers of another host; None reads this one."""
    notes: Recording | None = None
    """On this host: where the answers are noted; a noted one is not requested again."""
    kept: dict[str, Any] | None = None
    """The contents of kernel files by name, each read once; None reads a file each time."""
    process: str = "self"
    """The process whose mount namespace is read: its number, or "self"."""
    procfs: Path | None = None
    """Where its /proc is mounted, if not below the root."""
    sysfs: Path | None = None
    """Where its /sys is mounted, if not below the root."""
    contained: bool = False
    """Whether the process runs in a container of this host, which has the host's files."""

    lists: Callable[[str], str] | None = None
    """Reads a list of the kernel by name, for less than the whole text of a very long one."""

    read_names: set[str] | None = None
    """Where the names of the files that a reader wants are noted."""

    def path(self, name: str) -> Path:
        """A path below the root; ``name`` has no leading slash."""
        if self.read_names is not None:
            self.read_names.add(name)
        first, _, rest = name.partition("/")
        mounted = {"proc": self.procfs, "sys": self.sysfs}.get(first)
        return mounted / rest if mounted else self.root / name

    def of_process(self, name: str) -> Path:
        """A file of the process whose mount namespace is read, such as "mountinfo"."""
        return self.path(f"proc/{self.process}/{name}")

    def read(self, name: str) -> str:
        """The text of a file below the root, invalid UTF-8 replaced."""
        return files.text(self.path(name), "replace")

    def once(self) -> Machine:
        """The same host, that runs each program once and reads each list of the kernel once."""
        if self.kept is not None:
            return self
        return replace(self, notes=self.notes or Recording(), kept={})

    def kernel_text(self, name: str) -> str:
        """The text of a list of the kernel below the root, with surrogates for invalid UTF-8."""
        return self.keep(name, lambda: self.list_now(name))

    def list_now(self, name: str) -> str:
        """The same, read again."""
        path = self.path(name)
        # the newlines as they are: names may have carriage returns
        return self.lists(name) if self.lists else os.fsdecode(files.raw(path))

    def keep(self, name: str, read: Callable[[], _Read]) -> _Read:
        """What ``read`` returns, or returned before of the same file if each is read once."""
        if self.read_names is not None:
            self.read_names.add(name)
        if self.kept is None:
            return read()
        if name not in self.kept:
            self.kept[name] = read()
        kept: _Read = self.kept[name]
        return kept

    def text(self, name: str) -> str:
        """The same, and "" if the file is missing or cannot be read."""
        try:
            return self.read(name)
        except ValueError:
            return ""
        except OSError as error:
            files.note_unread(error)
            return ""

    def has(self, name: str) -> bool:
        """Whether a file or a folder exists; NotRecordedError if nobody recorded that."""
        self.require(name)
        return self.path(name).exists()

    def require(self, name: str) -> None:
        """Raise NotRecordedError if nobody recorded whether a file or a folder exists."""
        incomplete = self.recording is not None and not self.recording.complete
        if incomplete and not self.path(name).exists():
            raise NotRecordedError(self.unrecorded(f"/{name}"))

    def unrecorded(self, name: str, otherwise: str = "") -> str:
        """Why a recording lacks a file or an output: nobody gave it, or it cannot be read."""
        reason = self.recording.unread.get(name) if self.recording else None
        return reason or otherwise or f"{name} was not recorded"

    def require_readable(self, name: str) -> None:
        """Raise OSError if a file exists and this user may not read it."""
        files.read(self.path(name))

    def has_optional(self, name: str) -> bool:
        """The same for a file that proves nothing if a recording made by hand lacks it.

        Only ``nfsrdma collect`` looks for the files of installed packages.
        """
        if self.recording and not self.recording.collected and not self.path(name).exists():
            raise NotRecordedError(self.unrecorded(f"/{name}"))
        return self.has(name)

    def missing(self, error: FileNotFoundError) -> str:
        """The text of an error about a file below the root, with the file's name on that host."""
        name = self._name_of(error)
        return f"{name} does not exist" if self.local else self.unrecorded(str(name))

    def unreadable(self, error: OSError) -> str:
        """The text of another error about a file below the root, with that name."""
        prefix = f"cannot read {self._name_of(error)}: " if error.filename else ""
        return f"{prefix}{error.strerror or error}"

    def _name_of(self, error: OSError) -> Path:
        return self.name_of(Path(str(error.filename)))

    def name_of(self, path: Path) -> Path:
        """The name that a file below the root, or of its /proc or /sys, has on that host."""
        for folder, name in ((self.procfs, "/proc"), (self.sysfs, "/sys"), (self.root, "/")):
            if folder and path.is_relative_to(folder):
                return name / path.relative_to(folder)
        return path

    @property
    def release(self) -> str:
        """The running kernel's release, a part of paths.  UserError if it cannot be one."""
        text = self.kernel_text("proc/sys/kernel/osrelease").strip()
        if "/" in text or "\0" in text or len(text) > _MOST_IN_RELEASE:
            raise UserError(f"{text[:80]!r} is no release of a kernel")
        return text

    @property
    def in_container(self) -> bool:
        """Whether these are the files of a container, which may lack what the host has."""
        return any(self.path(name).exists() for name in _CONTAINER)

    @property
    def hides_mounts(self) -> bool:
        """Whether these are the files of a container whose host has the mounts.

        A whole system in a container of systemd or LXC may have mounts of its own.
        """
        return self.process == "self" and any(self.path(name).exists() for name in _OF_PROGRAM)

    @property
    def live(self) -> bool:
        """Whether this is the host that the process runs on."""
        return self.recording is None and self.root == Path("/")

    @property
    def local(self) -> bool:
        """Whether the process runs on this host, perhaps in a container of it."""
        return self.live or self.contained

    @property
    def root_user(self) -> bool:
        """Whether files were read, and programs run, by root; a doubt counts as root."""
        if self.local:
            return os.geteuid() == 0
        return not self.recording or self.recording.root_user is not False

    def run(self, *argv: str, timeout: float = 60) -> Result:
        """The result of a program, whatever its status.

        Raises ProgramMissingError, and NotRecordedError for a program that no bundle has.
        """
        known = self._answers.programs
        key = _portable(argv)
        if key not in known:
            if self.contained:
                reason = f"{key[0]} was not run: it would describe this container, not its host"
                raise NotRecordedError(reason)
            if not self.live:
                program = " ".join(key)
                text = self.unrecorded(program, f"no output of {program} was recorded")
                raise NotRecordedError(text)
            try:
                known[key] = run(*argv, check=False, timeout=timeout)
            except ProgramMissingError:
                known[key] = None
        result = known[key]
        if result is None:
            raise ProgramMissingError(argv[0])
        return result

    def has_program(self, name: str) -> bool:
        """Whether a program is installed: in PATH, recorded with its output, or in a usual folder.

        Distributions have programs elsewhere, too: NixOS in /nix/store.  Raises NotRecordedError.
        """
        results = [result for argv, result in self._answers.programs.items() if argv[0] == name]
        if any(results) or (self.live and is_installed(name)):
            return True
        paths = [f"{folder}/{name}" for folder in SBIN]
        if any(self.path(path).exists() for path in paths):
            return True
        # None: somebody looked for it, in vain
        return not results and self.has_optional(paths[0])

    @property
    def _answers(self) -> Recording:
        """The answers that are known."""
        return self.recording or self.notes or Recording()

    def fact(self, name: str, value: Callable[[], str]) -> str:
        """The recorded fact, "" if there is none; on this host, what ``value`` returns."""
        known = self._answers.facts
        if not self.live:
            return known.get(name, "")
        return known[name] if name in known else known.setdefault(name, value())

    def links(self) -> list[Link]:
        """The ports of all RDMA devices, sorted by name.

        Raises NoRdmaError (a UserError) if ib_core is not loaded, NotRecordedError if unknown.
        """
        known = self._answers
        if known.links is None:
            if not self.local:
                text = self.unrecorded("rdma link", "no list of RDMA links was recorded")
                raise NotRecordedError(text)
            from nfsrdma_tools.host.rdma.ports import NoRdmaError, require_netlink

            try:
                require_netlink()
                # importing pyroute2 takes as long as all checks of a host without RDMA
                from nfsrdma_tools.host.rdma import nldev

                known.links = nldev.links()
            except NoRdmaError as error:
                known.links = error
        if isinstance(known.links, UserError):
            raise known.links
        return known.links

    def nfsd_status(self) -> NfsdStatus:
        """What nfsd reports by netlink.  Raises NotRecordedError."""
        known = self._answers
        if known.nfsd is None:
            if not self.local:
                raise NotRecordedError("not recorded")
            known.nfsd = self._nfsd_status()
        return known.nfsd

    def _nfsd_status(self) -> NfsdStatus:
        from nfsrdma_tools.host.nfsd_status import NfsdStatus, PendingList

        # a request for a family may load its module; this file is there as long as
        # nfsd is loaded (svc_proc_register)
        if not self.path("proc/net/rpc/nfsd").exists():
            return NfsdStatus(pending=PendingList())
        # importing pyroute2 takes longer than the rest
        from nfsrdma_tools.host import nfsd_netlink

        return nfsd_netlink.read()

    def addresses(self, host: str) -> list[str]:
        """The addresses of a host, in the resolver's order; [] if it has none.

        Raises NotRecordedError.
        """
        import ipaddress

        try:
            return [str(ipaddress.ip_address(host.partition("%")[0]))]
        except ValueError:
            pass
        known = self._answers.addresses
        if host in known:
            return known[host]
        if self.live:
            return known.setdefault(host, _resolved(host))
        if recorded := _in_hosts(self.text("etc/hosts"), host):
            return recorded
        if not self.local:
            raise NotRecordedError(f"no address of {host!r} was recorded")
        return known.setdefault(host, _resolved(host))


def _portable(argv: tuple[str, ...]) -> tuple[str, ...]:
    # the interpreter has another path on each host
    return ("python3", *argv[1:]) if argv[0] == sys.executable else argv


def _in_hosts(text: str, host: str) -> list[str]:
    """The addresses of a host in the text of hosts(5), without zones; case does not count."""
    lines = (line.partition("#")[0].lower().split() for line in text.splitlines())
    return [words[0].partition("%")[0] for words in lines if host.lower() in words[1:]]


def _resolved(host: str) -> list[str]:
    import socket

    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(address[0]) for *_, address in infos))


LIVE = Machine()
"""This host."""


def host_of_container(procfs: Path | None, sysfs: Path | None, rootfs: Path | None) -> Machine:
    """The host, for a program in a container that has its filesystems mounted there.

    Netlink and names are those of the container's network namespace: it should be the host's.
    With its /proc or its root, the mounts are those of process 1: /proc/self has the container's.
    """
    process = "1" if procfs or rootfs else "self"
    # the root of process 1 needs CAP_SYS_PTRACE
    root = rootfs or (procfs / "1/root" if procfs else Path("/"))
    contained = process != "self"
    return Machine(root, process=process, procfs=procfs, sysfs=sysfs, contained=contained)
