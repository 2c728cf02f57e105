# SPDX-License-Identifier: Apache-2.0
"""The NFS mounts of this host: the values in effect, those required, and who shares connections.

Mounts of one server share connections: NFSv3 mounts with equal address, port and transport, and
*all* NFSv4 mounts of a minor version.  For NFSv4 the server tells the client that the second
connection leads to the same server, and the client uses the first one (trunking discovery,
nfs41_walk_client_list in fs/nfs/nfs4client.c).  So a second mount may use the transport of the
first one, whatever it requests.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.files import readable
from nfsrdma_tools.host import transports
from nfsrdma_tools.host.machine import LIVE, Machine, NotRecordedError
from nfsrdma_tools.host.nfs import mountinfo, mountstats, personality, readahead
from nfsrdma_tools.host.nfs.mountinfo import Entry
from nfsrdma_tools.host.nfs.mountstats import MountStats, Xprt
from nfsrdma_tools.host.nfs.personality import ClientTransport
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.sizes import parse_size

__all__ = [
    "OF_STATE",
    "SPREAD",
    "Difference",
    "Mount",
    "MountState",
    "Target",
    "UnknownHostError",
    "client_transports",
    "connection",
    "differences",
    "find",
    "mounts",
    "nfs_mounts",
    "number",
    "of_same_server",
    "required_values",
    "server",
    "sharing",
    "state",
    "states",
    "transport_numbers",
    "xprt_numbers",
]

_FORM = re.compile(r"(?:\[(?P<literal>[^\]]*)\]|(?P<name>[^:\[\]]*)):(?P<path>.*)", re.DOTALL)
# mount.nfs splits at commas ("replicated servers"); host names contain only these characters
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_NUMBER = re.compile(r"[0-9]{1,10}")
SPREAD = frozenset(
    ("localports", "max_connect", "mdconnect", "pconnect", "remoteports", "trunkdiscovery")
)
"""Options of the kernel's and vendors' clients that distribute the connections of a mount."""


class UnknownHostError(UserError):
    """The server's name has no address."""


class Target(NamedTuple):
    """A server and the path of an export or of a folder below one."""

    host: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse ``server:/path``; IPv6 addresses are in brackets.

        Raises UsageError for anything that mount.nfs would parse as something else.
        """
        hint = "write server:/path, 192.0.2.1:/path or [2001:db8::1]:/path"
        match = _FORM.fullmatch(text)
        url = text.lower().startswith("nfs://")
        if not match or url or not match["path"].startswith("/"):
            raise UsageError(f"{text!r} is not an NFS target", hint)
        host = match["name"] if match["literal"] is None else match["literal"]
        if not (_is_ipv6(host) if match["literal"] is not None else _NAME.fullmatch(host)):
            raise UsageError(f"{host!r} in {text!r} is not a host", hint)
        if "\0" in match["path"]:
            raise UsageError(f"{text!r} has a NUL character", hint)
        return cls(host, match["path"].rstrip("/") or "/")

    @classmethod
    def of(cls, source: str) -> Target:
        """Parse the source of a mount as the kernel prints it; accepts any text."""
        match = _FORM.fullmatch(source)
        if not match:
            return cls(source, "")
        return cls(match["literal"] or match["name"] or "", match["path"])

    def __str__(self) -> str:
        return f"[{self.host}]:{self.path}" if ":" in self.host else f"{self.host}:{self.path}"

    def netid(self, transport: str, ipv6: bool = False) -> str:
        """The ``proto=`` that reaches this host: "tcp" means IPv4 only, "tcp6" IPv6 only (nfs(5)).

        IPv4 is preferred if the host has both, unless ``ipv6`` is required.
        Raises UnknownHostError.
        """
        import socket

        families = {family for family, _ in self._resolve(ipv6)}
        return transport if socket.AF_INET in families else f"{transport}6"

    def addresses(self, ipv6: bool = False) -> list[str]:
        """The addresses that a mount may use: of the family of ``netid``, an IPv6 zone as %NUMBER.

        Raises UnknownHostError.
        """
        resolved = self._resolve(ipv6)
        wanted = min(family for family, _ in resolved)
        return [address for family, address in resolved if family == wanted]

    def _resolve(self, ipv6: bool) -> list[tuple[int, str]]:
        """The family and the text of each address, each once; those of IPv6 only if so required."""
        import socket  # few commands resolve a name

        try:
            infos = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            what, hint = f"unknown host {self.host!r}: {why}", "check the name, or use an address"
            raise UnknownHostError(what, hint) from error
        known = list[tuple[int, str]](
            dict.fromkeys((family, _with_zone(address)) for family, *_, address in infos)
        )
        usable = [one for one in known if not ipv6 or one[0] == socket.AF_INET6]
        if not usable:
            addresses = ", ".join(address for _, address in known)
            what = f"{self.host!r} has no IPv6 address, found {addresses}"
            raise UnknownHostError(what, "use proto=rdma or proto=tcp for IPv4")
        return usable


def _with_zone(address: tuple[str | int | bytes, ...]) -> str:
    # the last item of an IPv6 address is its zone, which is 0 if there is none
    text, _, *more = address
    return f"{text!s}%{more[-1]!s}" if more and more[-1] else f"{text!s}"


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.IPv6Address(text).version == 6
    except ValueError:
        return False


class Mount(NamedTuple):
    """One NFS mount, from mountinfo.  Sizes in bytes; ``device`` is "MAJOR:MINOR"."""

    target: Target
    directory: Path
    device: str
    fstype: str
    transport: str
    vers: str
    rsize: int
    wsize: int
    nconnect: int
    options: dict[str, str]
    flags: tuple[str, ...] = ()
    """The options of this mount alone; the others are those of its superblock."""

    @classmethod
    def of(cls, entry: Entry, owner: str) -> Mount:
        """Read a mountinfo entry; a missing number is 0, a missing nconnect 1.

        ``owner`` is the transport module that serves NFS over RDMA mounts (``transports.owner``).
        A text that is no number counts as missing: it is none of the kernel.
        """
        options = entry.options
        return cls(
            target=Target.of(entry.source),
            directory=entry.directory,
            device=entry.device,
            fstype=entry.fstype,
            transport=transports.named(options.get("proto", ""), owner),
            vers=options.get("vers", ""),
            rsize=number(options, "rsize", 0),
            wsize=number(options, "wsize", 0),
            nconnect=number(options, "nconnect", 1),
            options=options,
            flags=entry.flags,
        )


def number(options: dict[str, str], name: str, default: int) -> int:
    """The number that an option has in mountinfo; ``default`` if it is missing, or no number."""
    text = options.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else default


class MountState(NamedTuple):
    """A mount, with the values that mountinfo lacks.

    ``xprts`` are its connections, from mountstats, () if nobody recorded them; the same holds for
    a ``read_ahead_kb`` of None.  ``shares_with`` are the mount points that use the same
    connections.  ``transports`` are those of our module, for root only.  ``addresses`` is
    the number of its connections by the server's address; None if it is unknown.
    """

    mount: Mount
    xprts: tuple[Xprt, ...]
    read_ahead_kb: int | None
    shares_with: tuple[Path, ...]
    transports: tuple[ClientTransport, ...] = ()
    addresses: dict[str, int] | None = None

    @property
    def connections(self) -> int | None:
        """Their number; None if it is unknown: each mount has one."""
        return len(self.xprts) or None

    @property
    def read_ahead_blocks(self) -> float | None:
        """The read-ahead window in blocks of the rsize in effect; None if it is unknown."""
        kb = self.read_ahead_kb
        return None if kb is None else readahead.blocks_for(kb, self.mount.rsize)

    @property
    def personality(self) -> str | None:
        """The personality in effect; "" if no transport is connected, None if it is unknown."""
        return ", ".join(personality.in_effect(self.transports)) if self.transports else None

    @property
    def figures(self) -> dict[str, int]:
        """The figures of its personality, of all its transports together."""
        sums: Counter[str] = Counter()
        for transport in self.transports:
            sums.update(transport.gauges | transport.counters)
        return dict(sums)

    def facts(self) -> dict[str, object]:
        """All values as plain types, for JSON."""
        return {
            **self.mount._asdict(),
            "target": str(self.mount.target),
            "directory": str(self.mount.directory),
            "proto": self.mount.options.get("proto", ""),
            "connections": self.connections,
            "addresses": self.addresses,
            "read_ahead_kb": self.read_ahead_kb,
            "read_ahead_blocks": self.read_ahead_blocks,
            "personality": self.personality,
            "figures": self.figures,
            "shares_with": [str(path) for path in self.shares_with],
        }


def mounts(machine: Machine = LIVE) -> list[Mount]:
    """All NFS mounts of a mount namespace, in the order of mountinfo.

    Of a recording without mountinfo, those of mountstats.  NotRecordedError if it has neither.
    """
    try:
        return nfs_mounts(mountinfo.read(machine.of_process("mountinfo")), machine)
    except FileNotFoundError as error:
        if machine.recording is None:
            raise
        recorded = _counters(machine)
        if not recorded:
            raise NotRecordedError(machine.missing(error)) from error
        return nfs_mounts(map(_entry_of, recorded), machine)


def _counters(machine: Machine) -> list[MountStats]:
    """The counters of all NFS mounts; [] if a recording has none."""
    try:
        return mountstats.of(machine)
    except FileNotFoundError:
        if machine.recording is None:
            raise
        return []


def _entry_of(stats: MountStats) -> Entry:
    """An entry of mountinfo from mountstats, which lacks the device number and the address."""
    return Entry(0, 0, "", "/", stats.directory, stats.fstype, stats.device, stats.options)


def nfs_mounts(entries: Iterable[Entry], machine: Machine = LIVE) -> list[Mount]:
    """The NFS mounts among these entries of mountinfo."""
    nfs = [entry for entry in entries if entry.is_nfs]
    owner = transports.owner(machine) if any(entry.over_rdma for entry in nfs) else ""
    return [Mount.of(entry, owner) for entry in nfs]


def find(directory: Path, machine: Machine = LIVE) -> Mount | None:
    """The NFS mount on ``directory``; None if there is none."""
    if machine.recording and not machine.of_process("mountinfo").exists():
        same = [mount for mount in mounts(machine) if mount.directory == directory]
        return same[-1] if same else None
    entries = mountinfo.read(machine.of_process("mountinfo"))
    if machine.live and machine.process == "self":
        entry = mountinfo.at(directory, entries)
    else:
        # links of this host say nothing about the other one
        root = machine.of_process("root") if machine.live else machine.root
        where, _ = mountinfo.without_links(directory, mountinfo.closed(entries), root)
        entry = next((one for one in reversed(entries) if one.directory == where), None)
    return next(iter(nfs_mounts([entry] if entry else [], machine)), None)


def states(machine: Machine = LIVE) -> list[MountState]:
    """All NFS mounts with all values in effect; mounts that disappear meanwhile are left out.

    Values that a recording lacks are unknown.
    """
    machine = machine.once()
    everything = mounts(machine)
    sharing = _Sharing(everything, machine)
    counters = {stats.directory: stats for stats in _counters(machine)}
    ours = _our_transports(everything, machine)
    found = []
    for mount in everything:
        try:
            counted = counters.get(mount.directory)
            if counted is None and machine.recording:
                counted = MountStats(mount.directory, str(mount.target), mount.fstype)
            if counted:
                found.append(_state(mount, counted, sharing, ours, machine))
        except UserError:
            if mount in mounts(machine):
                raise
    return found


def state(
    mount: Mount, counters: MountStats, others: Sequence[Mount], machine: Machine = LIVE
) -> MountState:
    """A mount with all values in effect; ``others`` are mounts that may share its connections."""
    sharing = _Sharing((mount, *others), machine)
    return _state(mount, counters, sharing, _our_transports([mount], machine), machine)


def _our_transports(everything: Sequence[Mount], machine: Machine = LIVE) -> list[ClientTransport]:
    # debugfs has files for each transport: read them once, and only for mounts of our module
    used = any(mount.transport == OURS for mount in everything)
    debug = machine.path("sys/kernel/debug/nfsrdma")
    return personality.client_transports(debug) if used else []


def _state(
    mount: Mount,
    counters: MountStats,
    sharing: _Sharing,
    ours: Sequence[ClientTransport],
    machine: Machine,
) -> MountState:
    return MountState(
        mount=mount,
        xprts=counters.xprts,
        read_ahead_kb=_read_ahead_kb(mount.device, machine),
        shares_with=sharing.others(mount),
        transports=client_transports(
            mount.device, ours if mount.transport == OURS else (), machine
        ),
        addresses=_addresses(mount, len(counters.xprts), machine),
    )


def _read_ahead_kb(device: str, machine: Machine) -> int | None:
    try:
        return readahead.get_kb(device, machine.path("sys/class/bdi"))
    except UserError:
        if machine.recording is None:
            raise
        return None


def _addresses(mount: Mount, connections: int, machine: Machine) -> dict[str, int] | None:
    switch = _switch(mount.device, machine)
    if switch:
        texts = (readable(path / "dstaddr").strip() for path in sorted(switch.glob("xprt-*-*")))
        # a connection without an address is being closed
        found = Counter(text for text in texts if text and not text.startswith("<"))
        if found:
            return dict(found)
    address = mount.options.get("addr")
    if not address or not connections or SPREAD & mount.options.keys():
        return None
    return {address: connections}


def sharing(mount: Mount, others: Sequence[Mount], machine: Machine = LIVE) -> tuple[Path, ...]:
    """The mount points in ``others`` that share ``mount``'s connections."""
    return _Sharing((mount, *others), machine).others(mount)


class _Sharing:
    """Which mounts share connections."""

    def __init__(self, mounts: Iterable[Mount], machine: Machine) -> None:
        self._names: dict[str, str | None] = {}
        self._directories: dict[tuple[str, str, str], list[Path]] = {}
        machine = machine.once()
        for mount in mounts:
            if mount.device not in self._names:
                self._names[mount.device] = connection(mount.device, machine)
            if key := self._key(mount):
                self._directories.setdefault(key, []).append(mount.directory)

    def _key(self, mount: Mount) -> tuple[str, str, str] | None:
        name = self._names[mount.device]
        return (name, mount.transport, mount.vers) if name else None

    def others(self, mount: Mount) -> tuple[Path, ...]:
        """The other mount points that share the connections of one of the mounts."""
        same = self._directories.get(key, ()) if (key := self._key(mount)) else ()
        return tuple(dict.fromkeys(one for one in same if one != mount.directory))


def connection(device: str, machine: Machine = LIVE) -> str | None:
    """A name for the connections of ``device`` ("0:45"); None if the kernel does not provide it.

    Mounts with equal names, transports and versions share connections.
    """
    if switch := _switch(device, machine):
        return switch.name
    volume = _volume(device, machine)
    return " ".join(volume) if volume else None


def client_transports(
    device: str, known: Sequence[ClientTransport], machine: Machine = LIVE
) -> tuple[ClientTransport, ...]:
    """The transports of the mount ``device`` ("0:45") among ``known``.

    If the kernel does not provide their numbers, all transports to the address and port of its
    server.
    """
    numbers = transport_numbers(device, machine) if known else None
    if numbers is not None:
        return tuple(transport for transport in known if transport.number in numbers)
    address = server(device, machine) if known else None
    # a zone is no part of the address in the kernel's list
    return tuple(t for t in known if (t.server.partition("%")[0], t.port) == address)


def transport_numbers(device: str, machine: Machine = LIVE) -> list[int] | None:
    """The numbers of the transports of ``device``; None if the kernel does not provide them."""
    switch = _switch(device, machine)
    return xprt_numbers(switch) if switch else None


def xprt_numbers(switch: Path) -> list[int]:
    """The numbers of the transports of a transport switch in sysfs; [] if it is gone."""
    try:
        return sorted(int(path.name.split("-")[1]) for path in switch.glob("xprt-*-*"))
    except (OSError, ValueError):
        return []


def _switch(device: str, machine: Machine) -> Path | None:
    # since "NFS: add superblock sysfs entries" (in v6.5) a mount's folder links to its RPC client,
    # whose transport switch holds the connections; its other RPC clients are for ACLs and locks
    switch = machine.path("sys/fs/nfs") / device / "nfs_client" / "switch"
    return switch.resolve() if switch.exists() else None


def server(device: str, machine: Machine = LIVE) -> tuple[str, int] | None:
    """The address and the port that ``device`` is connected to; None if it is not in the list."""
    volume = _volume(device, machine)
    if not volume:
        return None
    _, address, port = volume
    return str(ipaddress.ip_address(bytes.fromhex(address))), int(port, 16)


def of_same_server(device: str, machine: Machine = LIVE) -> list[str]:
    """The devices of all mounts of its server and version, of other mount namespaces, too."""
    volumes = _volumes(machine)
    own = volumes.get(device)
    return [other for other, volume in volumes.items() if own and volume == own]


def _volume(device: str, machine: Machine) -> tuple[str, str, str] | None:
    """The version, the address and the port (both hexadecimal) of a mount."""
    return _volumes(machine).get(device)


def _volumes(machine: Machine) -> dict[str, tuple[str, str, str]]:
    try:
        return _parsed_volumes(machine.kernel_text("proc/fs/nfsfs/volumes"))
    except OSError:
        return {}


@lru_cache(maxsize=1)
def _parsed_volumes(text: str) -> dict[str, tuple[str, str, str]]:
    rows = (row for row in map(str.split, text.splitlines()[1:]) if len(row) > 3)
    return {device: (version, address, port) for version, address, port, device, *_ in rows}


OF_STATE = ("connections", "personality", "read_ahead_kb")
"""The names of required values that mountinfo lacks."""
_OF_MOUNT = ("fstype", "nconnect", "rsize", "target", "transport", "vers", "wsize")
_VALUE_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_SIZES = ("rsize", "wsize")


class Difference(NamedTuple):
    """A value in effect that is not the required one; "none" for an option that is not set."""

    name: str
    found: str
    required: str

    def __str__(self) -> str:
        return f"{self.name}: found {self.found}, required {self.required}"


def required_values(lists: Iterable[str]) -> dict[str, str]:
    """The required values by name, from comma lists such as ``transport=rdma,rsize=1M,hard``.

    A name is a key of ``nfsrdma mounts --json`` or a mount option; "" is the value of a flag.
    Raises UsageError.
    """
    required: dict[str, str] = {}
    for word in (word for text in lists for word in mountinfo.split_options(text)):
        name, equals, value = word.partition("=")
        if not _VALUE_NAME.fullmatch(name) or (equals and not value):
            example = "transport=rdma,vers=4.2,rsize=1M"
            raise UsageError(f"{word!r} is not a requirement", f"example: {example}")
        if name in _SIZES:
            value = str(parse_size(value))
        if required.setdefault(name, value) != value:
            raise UsageError(f"{name} is both {required[name]} and {value}", "give one value")
    if not required:
        raise UsageError("nothing is required", "example: --require transport=rdma")
    return required


def differences(of: Mount | MountState, required: Mapping[str, str]) -> list[Difference]:
    """The required values that are not in effect; names of OF_STATE need a MountState."""
    values = _values(of)
    return [
        Difference(name, values.get(name, "none"), value or "set")
        for name, value in required.items()
        if not _meets(name, values.get(name), value)
    ]


def _values(of: Mount | MountState) -> dict[str, str]:
    """The values in effect by name; a flag has the value ""."""
    mount = of if isinstance(of, Mount) else of.mount
    ipv6 = mount.options.get("proto", "").endswith("6")
    values = dict.fromkeys(mount.flags, "") | mount.options
    if "ro" in values:
        # a superblock may be writable through another mount
        values.pop("rw", None)
    values |= {name: str(getattr(mount, name)) for name in _OF_MOUNT}
    values["transport"] += "6" if ipv6 else ""
    if mount.vers.startswith("4"):
        # the kernel does not print the default port
        values.setdefault("port", "2049")
    if isinstance(of, MountState):
        values |= {"connections": str(of.connections), "read_ahead_kb": str(of.read_ahead_kb)}
        values |= {"personality": of.personality} if of.personality else {}
    return values


def _meets(name: str, found: str | None, required: str) -> bool:
    if found is None:
        return False
    if name in ("transport", "proto"):
        # without a 6, either address family will do
        return required in (found, found.removesuffix("6"))
    if name == "vers":
        return found == required or found.startswith(f"{required}.")
    if name == "sec":
        # one of several, as in nfs(5)
        return found in required.split(":")
    return found == required or not required
