# SPDX-License-Identifier: Apache-2.0
"""Checks of the mounts that fstab and mount units define: what they request against what is."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

from nfsrdma_tools.doctor.checks import nfs_mounts, rdma_links
from nfsrdma_tools.doctor.finding import Finding, Status, check
from nfsrdma_tools.host.kernel_release import kernel_of
from nfsrdma_tools.host.machine import Machine, NotRecordedError
from nfsrdma_tools.host.nfs import definitions, fstab, mountinfo, mounts, sharing, units
from nfsrdma_tools.host.nfs.definitions import Definition
from nfsrdma_tools.host.nfs.fstab import RequestedOptions
from nfsrdma_tools.host.nfs.mountinfo import Entry
from nfsrdma_tools.host.nfs.servers import first_host
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.nfs.units import UnitState
from nfsrdma_tools.nfs_ports import NFS_PORT, RDMA_PORT

__all__ = ["compared", "referrals", "requested"]

_Difference = tuple[Status, str, str, str]
_LOCAL = "not mounted: programs write to the local disk"
_CHANGED = "the definition changed after the mount, or another program made it"
_SHOWN = 3
_PAGES = (4096, 16384, 65536)
# NFS_MIN_FILE_IO_SIZE: the kernel takes its default for less
_LEAST_SIZE = 1024


@check(160, "fstab")
def requested(machine: Machine) -> Iterator[Finding]:
    """Each NFS mount that fstab or a mount unit defines is there, with the options it requests.

    mount(8) and systemd print no error if another mount's connections are used: a second NFSv4
    mount of a server has the transport and the connections of the first one, whatever it requests.
    """
    defined = list(definitions.defined(machine))
    if doubt := definitions.doubt(machine):
        yield Finding("fstab", "unknown", doubt, remedy="remove what is not needed")
    if not defined:
        return
    entries = mountinfo.of(machine)
    by_directory = _by_directory(entries)
    nfs, closed = _Clients(entries), mountinfo.closed(entries)
    states: dict[str, UnitState] | None = None
    for definition in defined:
        if definition.overridden:
            text = f"systemd uses {definition.overridden} in place of this line"
            yield Finding(definition.name, "ok", text)
            continue
        directory, _ = mountinfo.without_links(definition.directory, closed, machine.root)
        here = by_directory.get(directory, [])
        top = here[-1] if here else None
        if top and top.fstype != "autofs" and any(entry.is_nfs for entry in here):
            yield from _found_there(machine, definition, here, nfs)
            continue
        if states is None:
            states = definitions.states(machine, defined)
        state = states.get(definition.unit)
        if top and top.fstype == "autofs":
            yield _waiting(machine, definition, state)
        else:
            finding = _not_mounted(machine, definition, state, states.get(definition.automount))
            yield _with_cause(machine, definition, finding, state)


@check(170, "referrals")
def referrals(machine: Machine) -> Iterator[Finding]:
    """Referrals below a mount over RDMA use RDMA, too.

    For a referral the kernel tries RDMA, then TCP, and reports neither
    (nfs4_create_referral_server in fs/nfs/nfs4client.c).
    """
    try:
        nfs = {entry.id: entry for entry in mountinfo.of(machine) if entry.is_nfs}
    except FileNotFoundError:
        return
    if definitions.doubt(machine):
        return  # requested has reported it
    below = [
        (entry, above)
        for entry in nfs.values()
        if (above := nfs.get(entry.parent))
        and above.over_rdma
        and fstab.family(entry.options.get("proto", "")) == "tcp"
    ]
    # with neither fstab nor a unit recorded it is unknown who mounted it
    defined = (
        {definition.directory for definition in definitions.defined(machine)} if below else set()
    )
    for entry, above in below:
        if entry.directory in defined:
            continue
        text = f"TCP, below {above.directory}, which uses RDMA; nothing here defines the mount"
        server = entry.options.get("addr") or Target.of(entry.source).host
        remedy = (
            f"let {server} listen on RDMA port {RDMA_PORT} (nfsrdma server enable), then umount"
            f" {_quoted(entry.directory)}; ignore this if somebody mounted it so"
        )
        yield Finding(f"referral {entry.directory}", "warning", text, "rdma", remedy)


def _by_directory(entries: list[Entry]) -> dict[Path, list[Entry]]:
    """The mounts by their mount point, the topmost one last."""
    by_directory: dict[Path, list[Entry]] = {}
    for entry in entries:
        by_directory.setdefault(entry.directory, []).append(entry)
    return by_directory


def _with_cause(
    machine: Machine, definition: Definition, finding: Finding, state: UnitState | None
) -> Finding:
    """The finding of a mount that is not there, with what is known about the cause."""
    if finding.status != "error":
        return finding
    if cause := _cause(machine, definition):
        text = f"{finding.found}; not judged, because {cause}"
        return Finding(definition.name, "unknown", text)
    if state or not machine.recording:
        return finding
    unrecorded = f"the state of {definition.unit} was not recorded (systemctl show)"
    return finding._replace(found=f"{finding.found}; {unrecorded}")


def _cause(machine: Machine, definition: Definition) -> str:
    """The error of another check that keeps this mount from being made; "" if none is known."""
    with contextlib.suppress(NotRecordedError):
        if not nfs_mounts.installed(machine):
            return "mount.nfs is not installed"
    return rdma_links.fault(machine) if definition.requested.transport == "rdma" else ""


def _waiting(machine: Machine, wanted: Definition, unit: UnitState | None) -> Finding:
    """Judge a mount that automount or autofs makes at the first access."""
    text = "not mounted: automount waits for the first access"
    if not unit or unit.active != "failed":
        return Finding(wanted.name, "ok", text)
    text += f"; the last mount failed{_why(machine, wanted, unit)}"
    return Finding(
        wanted.name, "warning", text, "a mount; the next access tries again", _log(wanted)
    )


def _not_mounted(
    machine: Machine, wanted: Definition, unit: UnitState | None, automount: UnitState | None
) -> Finding:
    """Judge a mount that is defined and not there."""
    reason = _reason(machine, wanted, unit)
    if reason:
        return reason
    if wanted.automounted:
        return _no_automount(machine, wanted, unit, automount)
    if unit and unit.active == "active":
        return _unseen(wanted.name, wanted.unit, unit)
    status, text, remedy = _fault(machine, wanted, unit)
    return Finding(wanted.name, status, text, "mounted", remedy)


def _fault(machine: Machine, wanted: Definition, unit: UnitState | None) -> tuple[Status, str, str]:
    """Status, found and remedy of a mount that should be there."""
    if not unit:
        return "error", _LOCAL, f"mount -v {_quoted(wanted.directory)}"
    text = f"{_LOCAL}{_why(machine, wanted, unit)}"
    if unit.active == "activating":
        remedy = "check whether the server answers: nfsrdma doctor SERVER"
        return "warning", f"not mounted yet: {wanted.unit} is {unit}", remedy
    if unit.load == "not-found":
        return "error", text, f"systemctl daemon-reload; mount {_quoted(wanted.directory)}"
    if unit.active == "failed":
        return "error" if wanted.automatic else "warning", text, _log(wanted)
    text += ": unmounted since, or a unit that it needs has failed"
    # nofail hides a failure from the boot, not from the programs
    return "warning" if wanted.nofail else "error", text, f"systemctl start {_quoted(wanted.unit)}"


def _reason(machine: Machine, wanted: Definition, unit: UnitState | None) -> Finding | None:
    """A finding if the mount need not be there."""
    if units.is_masked(machine, wanted.unit):
        return Finding(wanted.name, "ok", f"not mounted: {wanted.unit} is masked")
    if wanted.automatic or wanted.automounted or (unit and unit.active == "failed"):
        return None
    if unit and (unit.file.startswith("enabled") or unit.active == "activating"):
        return None
    by_hand = wanted.name.startswith("unit")
    if by_hand and not unit and machine.recording and not machine.recording.complete:
        text = f"not mounted; what starts {wanted.unit} was not recorded (systemctl show)"
        return Finding(wanted.name, "unknown", text)
    why = "no other unit starts it" if by_hand else "noauto"
    return Finding(wanted.name, "ok", f"not mounted: {why}")


def _no_automount(
    machine: Machine, wanted: Definition, unit: UnitState | None, automount: UnitState | None
) -> Finding:
    if automount and automount.active == "active":
        return _unseen(wanted.name, wanted.automount, automount)
    state = f"is {automount}" if automount else "does not wait: there is no autofs mount"
    remedy = f"systemctl restart {_quoted(wanted.automount)}"
    if automount and automount.load == "not-found":
        remedy = f"systemctl daemon-reload; {remedy}"
    text = f"{_LOCAL}; {wanted.automount} {state}"
    if unit and unit.active == "failed":
        text += _why(machine, wanted, unit)
    return Finding(wanted.name, "error", text, "an automount that waits", remedy)


def _unseen(name: str, unit: str, state: UnitState) -> Finding:
    text = f"{unit} is {state}, and this process does not see the mount"
    return Finding(name, "unknown", text, remedy="run this outside of containers")


def _why(machine: Machine, wanted: Definition, unit: UnitState) -> str:
    printed = units.last_error(machine, wanted.unit) if unit.active == "failed" else ""
    return f"; {wanted.unit} is {unit}{': ' if printed else ''}{printed}"


def _log(wanted: Definition) -> str:
    unit = _quoted(wanted.unit)
    return f"see journalctl -b -u {unit}, then: systemctl restart {unit}"


def _quoted(*words: Path | str) -> str:
    return shlex.join(map(str, words))


def compared(
    machine: Machine, wanted: Definition, entry: Entry, entries: list[Entry]
) -> Iterator[Finding]:
    """Compare what a definition requests with the mount ``entry``, one of ``entries``."""
    same = definitions.same_source(machine, wanted, entry)
    if same is False:
        text = f"source: {entry.source}"
        yield Finding(wanted.name, "warning", text, wanted.source)
    else:
        yield from _compared(machine, wanted, entry, _Clients(entries), same)


def _found_there(
    machine: Machine, wanted: Definition, here: list[Entry], nfs: _Clients
) -> Iterator[Finding]:
    """Judge a definition whose mount point has NFS mounts, the topmost one last."""
    directory, top = _quoted(wanted.directory), here[-1]
    of_source = [
        (entry, same)
        for entry in here
        if entry.is_nfs and (same := definitions.same_source(machine, wanted, entry)) is not False
    ]
    own = [entry for entry, _ in of_source]
    if own:
        yield from _compared(machine, wanted, own[-1], nfs, of_source[-1][1])
    elif not wanted.automatic:
        yield Finding(wanted.name, "ok", f"not mounted: {top.source} is mounted there")
    else:
        text = f"source: {top.source}; {_CHANGED}"
        again = f"umount {directory}; mount {directory}"
        yield Finding(wanted.name, "warning", text, wanted.source, again)
    if own and own[-1] is not top:
        text = f"covered by {top.fstype} of {top.source}: programs do not see the NFS mount"
        remedy = f"umount {directory}, unless the upper one is on purpose, such as an overlay"
        yield Finding(wanted.name, "warning", text, "the NFS mount on top", remedy)


def _compared(
    machine: Machine, wanted: Definition, entry: Entry, nfs: _Clients, same: bool | None
) -> Iterator[Finding]:
    """Compare what a definition requests with what is in effect.

    ``same`` is what ``definitions.same_source`` returns.
    """
    if same is None:
        host, other = map(first_host, (wanted.source, entry.source))
        text = f"source: {entry.source}; no address shows whether {host} is the same server"
        remedy = f"compare: getent ahosts {_quoted(host)}; getent ahosts {_quoted(other)}"
        yield Finding(wanted.name, "unknown", text, wanted.source, remedy)
    differences = list(_differences(machine, wanted.requested, entry, nfs))
    for status, text, expected, remedy in differences:
        directory = _quoted(entry.directory)
        again = f"umount {directory}; mount {directory}"
        yield Finding(wanted.name, status, text, expected, remedy or again)
    if same and not differences:
        proto, vers = entry.options.get("proto", ""), entry.options.get("vers", "")
        shown = str(wanted.requested) or f"no transport named; {proto}, vers {vers}"
        yield Finding(wanted.name, "ok", f"mounted as requested: {shown}")


def _differences(
    machine: Machine, asked: RequestedOptions, entry: Entry, nfs: _Clients
) -> Iterator[_Difference]:
    """Status, found, expected and remedy ("": mount again) for each option that differs."""
    transport = _transport_difference(machine, asked, entry, nfs)
    if transport:
        yield transport
    options = entry.options
    vers, sec = options.get("vers", ""), options.get("sec", "")
    if asked.vers and vers != asked.vers and not vers.startswith(f"{asked.vers}."):
        yield "warning", f"vers: {vers}; {_CHANGED}", asked.vers, ""
    if asked.sec and sec not in asked.sec:
        yield "error", f"sec: {sec}", ":".join(asked.sec), ""
    if transport and transport[0] == "error":
        # the other options follow from it
        return
    port = options.get("port", str(NFS_PORT))
    if asked.port and port != str(asked.port):
        yield "warning", f"port: {port}; {_CHANGED}", str(asked.port), ""
    if asked.nconnect and mounts.number(options, "nconnect", 1) < asked.nconnect:
        yield _fewer_connections(machine, asked.nconnect, entry, nfs)
    yield from _other_sizes("rsize", asked.rsize, mounts.number(options, "rsize", 0))
    yield from _other_sizes("wsize", asked.wsize, mounts.number(options, "wsize", 0))


def _other_sizes(name: str, size: int | None, value: int) -> Iterator[_Difference]:
    if not size or not value or value in _rounded(size):
        return
    if value < size:
        text = f"{name}: requested {size}, got {value}: the server or the device limits it"
        yield "warning", text, str(size), f"request {value}, or raise the server's limit"
    elif size >= _LEAST_SIZE:
        yield "warning", f"{name}: {value}; {_CHANGED}", str(size), ""


def _transport_difference(
    machine: Machine, asked: RequestedOptions, entry: Entry, nfs: _Clients
) -> _Difference | None:
    proto = entry.options.get("proto", "")
    if not proto:
        return None
    mounted = f"mounted with {proto}"
    if others := _shown_list(nfs.others(entry)):
        mounted += f", as {others}"
    remedy = "unmount all mounts of that server, then mount this one first"
    if not asked.transport:
        if not entry.over_rdma or definitions.transport_configured(machine):
            return None
        return "warning", f"{mounted}; the definition names no transport", "tcp", remedy
    if fstab.family(proto) != asked.transport:
        return "error", mounted, asked.proto or asked.transport, remedy
    if asked.proto and asked.proto != proto:
        status: Status = "error" if asked.proto.endswith("6") else "warning"
        return status, f"{mounted}: another address family", asked.proto, remedy
    return None


class _Clients:
    """The NFS mounts by client: its mounts have one server's address, one version and transport.

    nfs_match_client in fs/nfs/client.c.
    """

    def __init__(self, entries: list[Entry]) -> None:
        nfs = [entry for entry in entries if entry.is_nfs]
        numbers = {entry.id for entry in nfs}
        self._entries: dict[_Client, list[Entry]] = {}
        for entry in nfs:
            # the kernel made the others, where an export begins below a mount: they go with it
            if entry.parent not in numbers:
                self._entries.setdefault(_client(entry), []).append(entry)

    def others(self, entry: Entry) -> list[Path]:
        """The mount points of other mounts of its client."""
        if not entry.options.get("addr"):
            return []
        return list(
            dict.fromkeys(
                other.directory
                for other in self._entries.get(_client(entry), ())
                if other.device != entry.device and other.directory != entry.directory
            )
        )


_Client = tuple[str | None, ...]


def _client(entry: Entry) -> _Client:
    return tuple(entry.options.get(name) for name in ("addr", "vers", "proto"))


def _fewer_connections(machine: Machine, nconnect: int, entry: Entry, nfs: _Clients) -> _Difference:
    number = mounts.number(entry.options, "nconnect", 1)
    text = f"nconnect: {number} connection{'s' if number > 1 else ''}"
    others = nfs.others(entry)
    kernel = kernel_of(machine)
    if others:
        text += f", shared with {_shown_list(others)}: the first mount of a server decides"
        shared = _quoted(*others[:_SHOWN], entry.directory)
        more = " and the others" if len(others) > _SHOWN else ""
        remedy = f"give all mounts of that server one nconnect; umount {shared}{more}; mount again"
    elif entry.over_rdma and (0, 0, 0) < kernel.number < (6, 9, 0):
        # NFS: enable nconnect for RDMA (b326df4a8ec6, in v6.9)
        text += f"; Linux before 6.9 ignores nconnect with RDMA, and this is {kernel.release}"
        remedy = "a kernel of 6.9 or later, unless the distribution has commit b326df4a8ec6"
    else:
        hidden = _hidden_mounts(machine, entry)
        kept = (
            "the definition changed after the mount, or the kernel kept an earlier mount's client"
        )
        text += f"; {hidden or kept}"
        remedy = (
            "mount again; if that changes nothing, unmount all mounts of that server, "
            "also in containers, until /proc/fs/nfsfs/servers lacks it"
        )
    return "warning", text, f"nconnect={nconnect}", remedy


def _hidden_mounts(machine: Machine, entry: Entry) -> str:
    """Mounts of the same server that only other mount namespaces have."""
    mounted = {mount.device for mount in mountinfo.of(machine)}
    hidden = [
        device for device in sharing.of_same_server(entry.device, machine) if device not in mounted
    ]
    if not hidden:
        return ""
    return f"another mount namespace has mounts of that server: {', '.join(hidden[:_SHOWN])}"


def _shown_list(directories: list[Path]) -> str:
    shown = ", ".join(map(str, directories[:_SHOWN]))
    return f"{shown} and {len(directories) - _SHOWN} more" if directories[_SHOWN:] else shown


def _rounded(size: int) -> set[int]:
    """The sizes to which kernels round a size: whole pages, in older kernels a power of two.

    nfs_io_size and nfs_block_bits in fs/nfs/internal.h.
    """
    return {size, 1 << size.bit_length() - 1, *(size - size % page for page in _PAGES)}
