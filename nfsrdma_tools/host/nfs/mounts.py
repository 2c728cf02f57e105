# SPDX-License-Identifier: Apache-2.0
"""The NFS mounts of this host, as mountinfo lists them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.host import transports
from nfsrdma_tools.host.machine import LIVE, Machine, NotRecordedError
from nfsrdma_tools.host.nfs import mountinfo, mountstats
from nfsrdma_tools.host.nfs.mountinfo import Entry
from nfsrdma_tools.host.nfs.mountstats import MountStats
from nfsrdma_tools.host.nfs.target import Target

__all__ = ["Mount", "counters", "find", "mounts", "nfs_mounts", "number"]

_NUMBER = re.compile(r"[0-9]{1,10}")


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


def mounts(machine: Machine = LIVE) -> list[Mount]:
    """All NFS mounts of a mount namespace, in the order of mountinfo.

    Of a recording without mountinfo, those of mountstats.  NotRecordedError if it has neither.
    """
    try:
        return nfs_mounts(mountinfo.read(machine), machine)
    except FileNotFoundError as error:
        if machine.recording is None:
            raise
        recorded = counters(machine)
        if not recorded:
            raise NotRecordedError(machine.missing(error)) from error
        return nfs_mounts(map(_entry_of, recorded), machine)


def counters(machine: Machine) -> list[MountStats]:
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
    entries = mountinfo.read(machine)
    if machine.live and machine.process == "self":
        entry = mountinfo.at(directory, entries)
    else:
        # links of this host say nothing about the other one
        root = machine.of_process("root") if machine.live else machine.root
        where, _ = mountinfo.without_links(directory, mountinfo.closed(entries), root)
        entry = next(
            (candidate for candidate in reversed(entries) if candidate.directory == where), None
        )
    return next(iter(nfs_mounts([entry] if entry else [], machine)), None)
