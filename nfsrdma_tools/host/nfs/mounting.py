# SPDX-License-Identifier: Apache-2.0
"""Make an NFS mount, verify that the values in effect are the requested ones, and unmount it.

This runs mount.nfs and umount.nfs directly, without mount(8) and umount(8): one process that a
timeout, ctrl-C or our own death terminates, and an undo that can only unmount NFS.  With
``retry=0`` a refused connection is an error at once, not after two minutes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nfsrdma_tools import files
from nfsrdma_tools.command import END_WITH_US, Result, run
from nfsrdma_tools.errors import (
    CommandError,
    MismatchError,
    ProgramMissingError,
    UsageError,
    UserError,
)
from nfsrdma_tools.host import packages
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs import mountinfo, mountstats, personality, readahead
from nfsrdma_tools.host.nfs.mount_state import SPREAD, MountState, state
from nfsrdma_tools.host.nfs.mountinfo import Entry
from nfsrdma_tools.host.nfs.mounts import Mount, nfs_mounts
from nfsrdma_tools.host.nfs.sharing import client_transports, transport_numbers
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.transports import check_transport_module, family
from nfsrdma_tools.identity import mounts_on
from nfsrdma_tools.lock import host_lock
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.nfs_ports import NFS_PORT, RDMA_PORT
from nfsrdma_tools.personalities import OPTIMISTIC, PERSONALITIES
from nfsrdma_tools.undo import Journal, Unmount

__all__ = [
    "TRANSPORTS",
    "VERSIONS",
    "MountError",
    "MountRequest",
    "RejectedOptionError",
    "User",
    "as_mounted",
    "drop_undo",
    "identified",
    "inner_mounts",
    "mount",
    "mount_nfs",
    "mounting",
    "unmount",
    "users",
    "verify_personality",
]

TRANSPORTS = ("tcp", "rdma", "nfsrdma")
VERSIONS = ("3", "4.0", "4.1", "4.2")
_KERNELS_CONNECTIONS = 16  # NFS_MAX_CONNECTIONS in fs/nfs/fs_context.c; vendors' clients have more
_MOST_CONNECTIONS = (1 << 32) - 1
_MIN_SIZE = 1024  # NFS_MIN_FILE_IO_SIZE in include/linux/nfs_xdr.h
# mount.nfs and the kernel do not split at commas between quotes: a security label with categories
# is context="user:role:type:s0:c1,c2"
_ONE_OPTION = re.compile(r'[^ ,"\\]+(="[^ "\\]+")?')
_VERSION_OPTIONS = ("vers", "nfsvers", "minorversion", "v3", "v4", "v4.0", "v4.1", "v4.2")
_OWN_OPTIONS = {
    **dict.fromkeys(("proto", "tcp", "udp", "rdma"), "--transport"),
    **dict.fromkeys(_VERSION_OPTIONS, "--vers"),
    **{name: f"--{name}" for name in ("rsize", "wsize", "nconnect", "port")},
}
# they do not mount, or mount.nfs exits before the mount exists
_NOT_A_MOUNT = {"remount", "bind", "rbind", "move", "bg", "fake"}
_TRANSPORTS = Path("/proc/sys/sunrpc/transports")
# messages of mount.nfs (mount_error in nfs-utils' utils/mount/error.c), our message, our hint
_MESSAGES = (
    (
        r"rpc\.statd is not running",
        "NFSv3 locks need rpc.statd, which is not running",
        "start rpc-statd.service, or use local locks: -o nolock",
    ),
    (
        r"Connection refused|Unable to receive|RPC Error: Program not registered|Program unavail",
        "{host} refuses {transport} connections on port {port}",
        "check that the NFS server runs and listens (/proc/fs/nfsd/portlist)",
    ),
    (
        r"access denied by server",
        "{host} does not export {path} to this host",
        "check `exportfs -v` on the server; ports above 1023 need the export option insecure",
    ),
    (
        r"reason given by server: No such file",
        "{host} has no export {path}",
        "check `exportfs -v` on the server",
    ),
    (
        r"No route to host|Network is unreachable|Name or service",
        "{host} is unreachable",
        "check the address, and the route with `ip route get`",
    ),
    (
        r"No such device",
        "no {transport} device has a route to {host}",
        "list RDMA devices with `rdma link`, find the interface with `ip route get`",
    ),
    (
        r"Protocol error",
        "the {transport} connection to {host} failed",
        "check the RDMA device with `nfsrdma doctor` and `rdma link`",
    ),
    (
        r"Connection timed out",
        "{host} does not answer on {transport} port {port}",
        "check the route and the firewall",
    ),
)
# mount.nfs prints the same if nfsd is stopped
_START_OR_VERS = "check that nfsd runs on the server, or try another --vers"
_TCP_UNSUPPORTED = "{host} does not offer NFS {vers} over tcp", _START_OR_VERS
_RDMA_UNSUPPORTED = "{host} does not offer NFS {vers} over rdma", _START_OR_VERS
_REJECTED = r"incorrect mount option"
_RDMA_MISSING = (
    "this kernel has no RDMA transport: module rpcrdma is missing or fails to load",
    "run `nfsrdma doctor` for the cause",
)
_TIMEOUT_S = 60.0
_SHOWN_USERS = 8
_HINT = "the server or the kernel chose another value: run nfsrdma doctor"
_LIMITED = "the server, the kernel or the RDMA device limits it: request {}"


class MountError(UserError):
    """The mount failed."""


class RejectedOptionError(MountError):
    """mount.nfs or the kernel does not know an option, or its value."""


@dataclass(frozen=True)
class MountRequest:
    """A mount to make.  Sizes in bytes; None: the default of the kernel and the server.

    ``read_ahead`` is in blocks of the rsize in effect, ``read_ahead_kb`` the same window in KiB;
    ``personality`` None is the default of our module.  ``ipv6`` requires IPv6, as the netids tcp6
    and rdma6 of nfs(5) do; without it, IPv4 is preferred.
    Raises UsageError for values that Linux would silently change.
    """

    target: Target
    directory: Path
    transport: str = "rdma"
    vers: str = personality.default_vers()
    rsize: int | None = None
    wsize: int | None = None
    nconnect: int | None = None
    read_ahead: int | None = None
    read_ahead_kb: int | None = None
    port: int | None = None
    options: tuple[str, ...] = ()
    personality: str | None = None
    ipv6: bool = False

    def __post_init__(self) -> None:
        _among("transport", self.transport, TRANSPORTS)
        _among("vers", self.vers, VERSIONS)
        _between("nconnect", self.nconnect, 1, _MOST_CONNECTIONS)
        _between("read-ahead", self.read_ahead, 0, 1 << 20)
        _check_window(self.read_ahead, self.read_ahead_kb)
        _between("port", self.port, 1, 65535)
        _check_personality(self.personality, self.transport, self.vers)
        for name, size in (("rsize", self.rsize), ("wsize", self.wsize)):
            _check_size(name, size)
        for option in self.options:
            _check_option(option)

    @property
    def family(self) -> str:
        """The kernel's name of the transport: ``rdma`` for our module, too."""
        return family(self.transport)

    @property
    def sets_read_ahead(self) -> bool:
        """Whether the request sets a read-ahead."""
        return (self.read_ahead, self.read_ahead_kb) != (None, None)

    def mount_options(self, netid: str) -> str:
        """The argument of ``-o``; ``netid`` is the transport with its address family."""
        asked = {"rsize": self.rsize, "wsize": self.wsize, "nconnect": self.nconnect}
        port = self.port or (RDMA_PORT if self.family == "rdma" else None)
        words = [f"vers={self.vers}", f"proto={netid}"]
        words += [f"{name}={value}" for name, value in {"port": port, **asked}.items() if value]
        names = {option.partition("=")[0] for option in self.options}
        if "retry" not in names:
            words.append("retry=0")
        # mounts with equal options share one superblock, and with it one read-ahead
        if self.sets_read_ahead and not names & {"sharecache", "nosharecache"}:
            words.append("nosharecache")
        return ",".join([*words, *self.options])


def _among(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise UsageError(f"{name} is {value!r}", f"it can be {', '.join(known)}")


def _between(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise UsageError(f"{name} is {value}", f"it can be {least} to {most}")


def _check_personality(name: str | None, transport: str, vers: str) -> None:
    if name is None:
        return
    _among("personality", name, PERSONALITIES)
    if transport != OURS:
        message = f"personality {name} needs transport {OURS}, found {transport}"
        raise UsageError(message, f"use --transport {OURS}")
    if name == OPTIMISTIC and vers != "3":
        # the server grants references after READs of NFSv3 only (kmod/wire/nfs3.c)
        message = f"personality {name} needs vers 3, found {vers}"
        raise UsageError(message, "use --vers 3: NFSv4 servers check the open state at each READ")


def _check_window(blocks: int | None, kb: int | None) -> None:
    page = os.sysconf("SC_PAGE_SIZE") >> 10
    _between("read-ahead", kb, 0, 1 << 30)
    if blocks is not None and kb is not None:
        raise UsageError("read-ahead is given in blocks and in KiB", "give one of the two")
    # read_ahead_kb_store in mm/backing-dev.c rounds down to whole pages
    if kb is not None and kb % page:
        raise UsageError(f"read-ahead is {kb} KiB", f"it can be a multiple of {page} KiB, a page")


def _check_size(name: str, size: int | None) -> None:
    # nfs_io_size and nfs_block_bits in fs/nfs/internal.h round all other values
    if size is None:
        return
    page = os.sysconf("SC_PAGE_SIZE")
    fits = size % page == 0 if size >= page else size & (size - 1) == 0
    if size < _MIN_SIZE or not fits:
        raise UsageError(
            f"{name} is {size} bytes, and Linux would round it",
            f"from {_MIN_SIZE} on, use a power of two below {page} or a multiple of {page}",
        )


def _check_option(option: str) -> None:
    name = option.partition("=")[0]
    if not option.isprintable() or not _ONE_OPTION.fullmatch(option):
        raise UsageError(f"mount option {option!r} is not one option", "use -o once per option")
    if name in _OWN_OPTIONS:
        raise UsageError(f"mount option {option!r} is not supported", f"use {_OWN_OPTIONS[name]}")
    if name in _NOT_A_MOUNT:
        raise UsageError(f"mount option {option!r} is not supported", "it makes no mount")


def mount(request: MountRequest, journal: Journal, timeout: float = _TIMEOUT_S) -> MountState:
    """Make a mount and verify it; ``journal`` gets its undo, which stays there until it is kept.

    All requested values are read back from mountinfo, mountstats and debugfs; a difference raises
    MismatchError with both values, and the mount is undone.  ``timeout`` is in seconds, for
    mount.nfs.  Raises MountError if the server or the kernel refuses, UserError if the mount
    point cannot be used.
    """
    _require_root("mount")
    directory = mountinfo.canonical(request.directory, mountinfo.read())
    busy = UserError(f"another nfsrdma is mounting on {directory}", "use another directory")
    with host_lock("mount", directory, busy):
        _check_mount_point(directory)
        check_transport_module(request.transport)
        addresses = request.target.addresses(request.ipv6) if request.personality else []
        with personality.requested(request.personality, addresses, journal) as earlier:
            undo = Unmount(str(directory), str(request.target))
            journal.add(undo)
            try:
                mount_nfs(request, directory, timeout)
                undo = identified(undo, journal)
                return _verified(request, directory, earlier)
            except BaseException:
                # if it fails, it stays in the journal, which tries again and reports it
                with contextlib.suppress(UserError, OSError):
                    undo.undo()
                    journal.drop(undo)
                raise


def identified(undo: Unmount, journal: Journal) -> Unmount:
    """Record in ``journal`` which mount was made; return its undo.

    It is the mount of the source, as somebody else may have mounted over it since.  A server may
    refer to another one; then it is the topmost mount.
    """
    candidates = mounts_on(undo.directory)
    # the kernel prints no slash at the end (nfs_path in fs/nfs/namespace.c)
    source = undo.source.rstrip("/")
    made = [mount for mount in candidates if mount.source.rstrip("/") == source] or candidates
    if not made:
        return undo
    last = made[-1]
    known = replace(undo, source=last.source, line=last.line, unique=last.unique)
    journal.replace(undo, known)
    return known


def mounting(request: MountRequest) -> list[str]:
    """The steps of ``mount``, without root; UserError if the mount point cannot be used."""
    directory = mountinfo.canonical(request.directory, mountinfo.read())
    _check_mount_point(directory)
    kb = request.read_ahead_kb
    if request.read_ahead is not None:
        ahead = [f"set the read-ahead to {request.read_ahead} blocks of rsize"]
    else:
        ahead = [f"set the read-ahead to {kb} KiB"] if kb is not None else []
    asked = f" with personality {request.personality}" if request.personality else ""
    return [f"run {shlex.join(_mount_argv(request, directory))}{asked}", *ahead]


def _require_root(action: str) -> None:
    if os.geteuid() != 0:
        raise UserError(f"only root may {action}", "run this as root")


def _check_mount_point(directory: Path) -> None:
    # compare with mountinfo first: a look at the mount point of a dead server hangs
    taken = mountinfo.at(directory, mountinfo.read())
    if taken:
        message = f"mount point {directory} is in use: {taken.source} ({taken.fstype})"
        raise UserError(message, "unmount it, or use another directory")
    if not directory.is_dir():
        why = os.strerror(errno.ENOTDIR if directory.exists() else errno.ENOENT)
        raise UserError(f"mount point {directory}: {why}", "create the directory")


def _mount_argv(request: MountRequest, directory: Path) -> tuple[str, ...]:
    """The command of mount.nfs; UnknownHostError if the server has no address."""
    netid = request.target.netid(request.family, request.ipv6)
    options = request.mount_options(netid)
    return ("mount.nfs", str(request.target), str(directory), "-o", options)


def mount_nfs(request: MountRequest, directory: Path, timeout: float) -> None:
    """Run mount.nfs, and kill it after ``timeout`` seconds.

    Raises UnknownHostError, ProgramMissingError, MountError for a known message, CommandError for
    others.
    """
    argv = _mount_argv(request, directory)
    # a mount.nfs that waits must not outlive a killed nfsrdma, which could not undo it
    try:
        result = run(*END_WITH_US, *argv, check=False, timeout=timeout)
    except ProgramMissingError as error:
        if error.program != "mount.nfs":
            raise
        raise ProgramMissingError("mount.nfs", packages.install("nfs-utils")) from error
    if result.returncode:
        raise _explain(request, result, timeout)


def _explain(request: MountRequest, result: Result, timeout: float) -> UserError:
    if result.returncode == 124:
        return MountError(
            f"{request.target.host} did not answer within {timeout:g} s, so the mount was aborted",
            "check that the server runs and is reachable",
            "or raise --timeout",
        )
    if request.family == "rdma" and not _has_rdma():
        return _error(request, *_RDMA_MISSING)
    if re.search(_REJECTED, result.stderr):
        return _rejected(request)
    for pattern, message, hint in _MESSAGES:
        if re.search(pattern, result.stderr):
            return _error(request, message, hint)
    if re.search(r"[Pp]rotocol.* not supported", result.stderr):
        unsupported = _RDMA_UNSUPPORTED if request.family == "rdma" else _TCP_UNSUPPORTED
        return _error(request, *unsupported)
    return CommandError(
        result.argv[len(END_WITH_US) :], result.returncode, result.stderr or result.stdout
    )


def _rejected(request: MountRequest) -> RejectedOptionError:
    many = request.nconnect or 0
    words = [*request.options, *([f"nconnect={many}"] if many > 1 else [])]
    message = f"mount.nfs or the kernel rejects {' '.join(words) or 'these options'}"
    hint = "see nfs(5) for valid options"
    if many > _KERNELS_CONNECTIONS:
        hint = f"the kernel's own client takes nconnect up to {_KERNELS_CONNECTIONS}"
    return RejectedOptionError(message, hint)


def _has_rdma() -> bool:
    # the kernel has tried to load the module by now; the file exists once sunrpc is loaded
    with contextlib.suppress(OSError):
        return "rdma " in files.text(_TRANSPORTS)
    return True


def _error(request: MountRequest, message: str, hint: str) -> MountError:
    default = RDMA_PORT if request.family == "rdma" else NFS_PORT
    known = {
        "host": request.target.host,
        "path": repr(request.target.path),
        "transport": request.transport,
        "port": request.port or default,
        "vers": request.vers,
    }
    return MountError(message.format(**known), hint)


def _verified(request: MountRequest, directory: Path, earlier: Collection[int]) -> MountState:
    """The new mount with all values in effect; sets its read-ahead, which is no mount option."""
    entries = mountinfo.read()
    everything = nfs_mounts(entries)
    made = next((m for m in reversed(everything) if m.directory == directory), None)
    if not made:
        raise MountError(f"mount.nfs succeeded, but {directory} is not an NFS mount point")
    counters = mountstats.read_at(directory)
    others = [other for other in everything if other.directory != directory]
    current = state(made, counters, others)
    _verify_connections(request, current)
    for name in ("vers", "rsize", "wsize", "nconnect"):
        value = getattr(made, name)
        _verify(name, getattr(request, name), value, _LIMITED.format(value))
    _verify_max_connect(request, made)
    if request.sets_read_ahead:
        current = current._replace(read_ahead_kb=_set_read_ahead(request, made, others))
    if request.personality:
        verify_personality(request.personality, made.device, earlier, current.shares_with)
    return current


def _verify(name: str, requested: object, value: object, hint: str) -> None:
    if requested is not None and requested != value:
        raise MismatchError(name, requested, value, hint)


def _verify_max_connect(request: MountRequest, made: Mount) -> None:
    values = dict(option.split("=", 1) for option in request.options if "=" in option)
    wanted = values.get("max_connect")
    # since "NFSv4 introduce max_connect mount options" (in v5.15); 1 is not shown.  The value of
    # remoteports may be shown as addresses, for example that of remoteports=dns
    if wanted and made.vers.startswith("4"):
        hint = "mounts of one server share a client, and with it this value: unmount the others"
        _verify("max_connect", wanted, made.options.get("max_connect", "1"), hint)


def _verify_connections(request: MountRequest, current: MountState) -> None:
    hint = _HINT
    if current.shares_with:
        hint = (
            f"it shares the connections of {', '.join(map(str, current.shares_with))}, as NFSv4 "
            "mounts of one server do: unmount that first, or use --vers 3"
        )
    _verify("transport", request.transport, current.mount.transport, hint)
    if request.ipv6:
        _verify("proto", f"{request.family}6", current.mount.options.get("proto"), hint)
    for xprt in current.xprts:
        _verify("transport of a connection", request.family, xprt.proto, hint)
    # a client that distributes connections may make some of them later
    if not SPREAD & {*current.mount.options, *(o.partition("=")[0] for o in request.options)}:
        _verify("nconnect", request.nconnect, len(current.xprts), hint)


def _set_read_ahead(request: MountRequest, made: Mount, others: Sequence[Mount]) -> int:
    twins = ", ".join(str(other.directory) for other in others if other.device == made.device)
    if twins:
        message = f"{made.directory} has one cache and one read-ahead with {twins}"
        raise UserError(message, "mount it with -o nosharecache")
    kb = request.read_ahead_kb
    if kb is None:
        kb = readahead.kb_for(request.read_ahead or 0, made.rsize)
    return readahead.set_kb(made.device, kb)


def verify_personality(
    name: str,
    device: str,
    earlier: Collection[int] | None = None,
    sharing: Sequence[Path] = (),
) -> None:
    """MismatchError unless the mount ``device`` has this personality in effect.

    ``earlier`` are the numbers of the transports that existed before the mount, ``sharing`` the
    mount points that share its connections.  Without ``earlier``, as for a mount that may have
    reconnected since, it does nothing if the kernel does not provide the transports of a mount.
    """
    exact = transport_numbers(device) is not None
    if earlier is None and not exact:
        return
    mine = client_transports(device, personality.client_transports())
    new = tuple(transport for transport in mine if transport.number not in (earlier or ()))
    if not exact:
        # those of other mounts are among them
        mine = new or mine
    # a transport connects when it is first used, which may be after the mount for one of several
    in_effect = personality.in_effect(mine)
    if in_effect == (name,) and {transport.requested for transport in mine} == {name}:
        return
    got = ", ".join(in_effect) or "no connection"
    if len(new) < len(mine):
        whose = ", ".join(map(str, sharing)) or "another mount"
        hint = f"it uses the transport of {whose}: unmount that first, or use another --vers"
        raise MismatchError("personality of a shared transport", name, got, hint)
    hint = f"the server does not accept it; nfsrdma does with server_personalities={name}"
    raise MismatchError("personality", name, got, hint)


def _nfs_entry(directory: Path) -> Entry | None:
    entry = mountinfo.at(directory, mountinfo.read())
    return entry if entry and entry.is_nfs else None


def _umount_nfs(directory: Path, timeout: float) -> Result:
    return run("umount.nfs", directory, check=False, timeout=timeout)


def as_mounted(mount: Mount) -> str:
    """The argument of ``-o`` that makes the same mount again, from the options in effect."""
    # mount.nfs resolves the name again
    pairs = [(name, value) for name, value in mount.options.items() if name != "addr"]
    words = [f"{name}={value}" if value else name for name, value in pairs]
    return ",".join([*mount.flags, *words])


def drop_undo(directory: Path, journal: Journal) -> None:
    """Drop the undo of a mount on ``directory``, which is unmounted, from ``journal``."""
    for action in tuple(journal.actions):
        if isinstance(action, Unmount) and action.directory == str(directory):
            journal.drop(action)


def unmount(directory: Path, journal: Journal | None = None, timeout: float = _TIMEOUT_S) -> None:
    """Unmount an NFS mount and verify that it is gone; never forces.

    Drops its undo from ``journal``.  Raises UserError that names the processes that use it.
    """
    entry = _nfs_entry(directory)
    if not entry:
        raise UserError(f"{directory} is not an NFS mount point", "see `nfsrdma mounts`")
    _require_root("unmount")
    result = _umount_nfs(entry.directory, timeout)
    entries = mountinfo.read()
    if entry.id in {other.id for other in entries}:
        raise _still_mounted(entry, entries, result, timeout)
    if journal:
        drop_undo(entry.directory, journal)


def _still_mounted(
    entry: Entry, entries: Sequence[Entry], result: Result, timeout: float
) -> UserError:
    directory = entry.directory
    if result.returncode == 124:
        message = (
            f"{directory} could not be unmounted within {timeout:g} s: its server does not answer"
        )
        return UserError(message, "bring the server back, or give its data up with `umount -f -l`")
    holders = [str(user) for user in users(directory, entry.device)]
    holders += [f"mount {path}" for path in inner_mounts(directory, entries)]
    more = f" and {len(holders) - _SHOWN_USERS} more" if len(holders) > _SHOWN_USERS else ""
    if holders:
        message = f"{directory} is in use by {', '.join(holders[:_SHOWN_USERS])}{more}"
        return UserError(message, "end them, then unmount again")
    if "busy" in result.stderr:
        hint = "it may be swap, a loop device, an export, or a process that waits for its server"
        return UserError(f"{directory} is in use, by no process that has it open", hint)
    return CommandError(result.argv, result.returncode, result.stderr or result.stdout)


@dataclass(frozen=True)
class User:
    """A process that uses a mount point, and how."""

    pid: int
    name: str
    holds: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name}, {self.holds})"


def users(directory: Path, device: str, machine: Machine = LIVE) -> list[User]:
    """The processes with a working folder, root, program, open file or mapping on the mount.

    Reads links and mappings in /proc only, never the mount, because its server may be gone.
    Leaves out processes that end meanwhile, and this process.
    """
    proc = machine.path("proc")
    pids = sorted(int(path.name) for path in proc.iterdir() if path.name.isdigit())
    pids.remove(os.getpid())
    processes = []
    for pid in pids:
        holds = next(_holdings(proc / str(pid), directory, device), None)
        if holds:
            processes.append(User(pid, _name(proc / str(pid)), holds))
    return processes


def inner_mounts(directory: Path, entries: Sequence[Entry]) -> list[Path]:
    """The mount points below ``directory``: they also keep it busy."""
    return [e.directory for e in entries if directory in e.directory.parents]


def _holdings(process: Path, directory: Path, device: str) -> Iterator[str]:
    links = {"working folder": "cwd", "root folder": "root", "program": "exe"}
    for kind, link in links.items():
        if _is_below(process / link, directory):
            yield kind
    with contextlib.suppress(OSError):
        for number in os.listdir(process / "fd"):  # noqa: PTH208 -- names only, no objects
            if _is_below(process / "fd" / number, directory):
                yield f"open file {number}"
    if _maps(process, device):
        yield "mapped file"


def _is_below(link: Path, directory: Path) -> bool:
    try:
        target = Path(os.readlink(link))  # noqa: PTH115 -- as the kernel spells it
    except OSError:
        return False
    return target == directory or directory in target.parents


def _maps(process: Path, device: str) -> bool:
    major, _, minor = device.partition(":")
    with contextlib.suppress(OSError, ValueError):
        mark = f" {int(major):02x}:{int(minor):02x} "
        return any(mark in line for line in mountinfo.read_text(process / "maps").split("\n"))
    return False


def _name(process: Path) -> str:
    with contextlib.suppress(OSError):
        return mountinfo.read_text(process / "comm").strip()
    return "?"
