# SPDX-License-Identifier: Apache-2.0
"""The NFS mounts that fstab and systemd's mount units define, and what they request.

A unit in /etc/systemd/system takes precedence over the line of fstab for the same mount point.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.host.machine import Machine, NotRecordedError
from nfsrdma_tools.host.nfs import fstab, mountinfo, units
from nfsrdma_tools.host.nfs.fstab import RequestedOptions
from nfsrdma_tools.host.nfs.mountinfo import Entry
from nfsrdma_tools.host.nfs.servers import first_host
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.nfs.units import UnitState

__all__ = [
    "Definition",
    "defined",
    "doubt",
    "requested_transports",
    "same_source",
    "states",
    "transport_configured",
]

_GENERATED = f"/{units.GENERATED}/"


class Definition(NamedTuple):
    """A mount that fstab or a unit defines, and whether anything mounts it without being asked."""

    name: str
    directory: Path
    source: str
    unit: str
    requested: RequestedOptions
    automatic: bool
    automounted: bool
    nofail: bool
    overridden: str = ""
    """The unit file that systemd uses in place of this line."""

    @property
    def automount(self) -> str:
        """The name of the automount unit that starts it at the first access."""
        return f"{self.unit.removesuffix('.mount')}.automount"


def defined(machine: Machine) -> Iterator[Definition]:
    """The NFS mounts that fstab and mount units define; those of fstab first, in its order.

    NotRecordedError if a recording has neither; OSError if fstab cannot be read.
    """
    mount_units, wanted = units.nfs_units(machine), units.wanted(machine)
    by_hand = {unit.name: unit for unit in mount_units if not unit.file.startswith(_GENERATED)}
    path = machine.path("etc/fstab")
    text = files.read(path)
    for line in fstab.nfs_lines(text):
        if not line.directory.is_absolute():
            # "none", as for swap
            continue
        words = mountinfo.options(line.options)
        name = units.unit_name(line.directory)
        yield Definition(
            name=f"fstab {line.directory}",
            directory=line.directory,
            source=line.source,
            unit=name,
            requested=RequestedOptions.of(line.options, line.fstype),
            automatic="noauto" not in words,
            automounted="x-systemd.automount" in words
            or words.get("comment") == "systemd.automount",
            nofail="nofail" in words,
            overridden=by_hand[name].file if name in by_hand else "",
        )
    for unit in mount_units:
        # its line was removed, or is judged above
        if unit.from_fstab and path.exists():
            continue
        yield Definition(
            name=f"unit {unit.name}",
            directory=unit.directory,
            source=unit.source,
            unit=unit.name,
            requested=RequestedOptions.of(unit.options, unit.fstype),
            automatic=unit.name in wanted,
            automounted=unit.automount in wanted and units.has_file(machine, unit.automount),
            nofail=False,
        )
    if not text and not mount_units:
        machine.require("etc/fstab")


def doubt(machine: Machine) -> str:
    """Why ``defined`` may lack a mount: fstab is too large; "" if it lacks none."""
    is_cut = fstab.is_cut(machine.text("etc/fstab"))
    return f"the end of /etc/fstab is not judged: {fstab.LIMIT}" if is_cut else ""


def requested_transports(machine: Machine, closed: Container[str]) -> dict[Path, str]:
    """The transport that each definition requests, by the name of its mount point in mountinfo.

    "rdma", "tcp" or "udp"; "tcp" is the default of nfs(5), and "" stands for a default that
    nfsmount.conf may change.  ``closed`` are the mount points that it must not access
    (``mountinfo.closed``).  OSError if fstab cannot be read.
    """
    default = "" if transport_configured(machine) else "tcp"
    transports: dict[Path, str] = {}
    for definition in defined(machine):
        if not definition.overridden:
            directory, _ = mountinfo.without_links(definition.directory, closed, machine.root)
            transports[directory] = definition.requested.transport or default
    return transports


def transport_configured(machine: Machine) -> bool:
    """Whether nfsmount.conf requests RDMA for some mounts."""
    drop_ins = files.matching(machine.path("etc/nfsmount.conf.d"), "*.conf")
    texts = [machine.text("etc/nfsmount.conf"), *map(files.readable, drop_ins)]
    return any(re.search(r"(?im)^\s*(default)?(proto\s*=\s*)?rdma", text) for text in texts)


def states(machine: Machine, wanted: Iterable[Definition]) -> dict[str, UnitState]:
    """The states that systemd prints for the units of these definitions, by name."""
    return units.states(
        machine, (name for definition in wanted for name in (definition.unit, definition.automount))
    )


def same_source(machine: Machine, wanted: Definition, entry: Entry) -> bool | None:
    """Whether a mount is of the source of a definition; None if no address decides.

    Mounts by several names of a server share a superblock, and mountinfo has the first name.
    """
    asked, mounted = Target.of(wanted.source), Target.of(entry.source)
    paths = (posixpath.normpath(target.path.lstrip("/")) for target in (asked, mounted))
    if len(set(paths)) > 1:
        return False
    host = first_host(wanted.source)
    if host.lower() == first_host(entry.source).lower():
        return True
    address = entry.options.get("addr", "").partition("%")[0]
    try:
        known = machine.addresses(host)
    except NotRecordedError:
        return None
    return address in known if address and known else None
