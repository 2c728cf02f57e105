# SPDX-License-Identifier: Apache-2.0
"""Block devices: how long they had requests, from /proc/diskstats, and which one has a directory.

Documentation/admin-guide/iostats.rst.  A device with requests in flight all the time need not be
at its limit: only one with a single queue is.  So the average number in flight belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import files
from nfsrdma_tools.host.nfs.mountinfo import Entry

__all__ = ["DiskCounts", "counts", "of_directories"]

_DISKSTATS = Path("/proc/diskstats")
_FIELDS = 14


@dataclass(frozen=True)
class DiskCounts:
    """Since boot: requests completed, ms with requests in flight, ms summed over the requests."""

    name: str
    requests: int = 0
    busy_ms: int = 0
    waited_ms: int = 0


def counts(path: Path = _DISKSTATS) -> dict[str, DiskCounts]:
    """The counters of all block devices and partitions, by "major:minor"."""
    found = {}
    for line in files.readable(path).splitlines():
        words = line.split()
        if len(words) < _FIELDS or not "".join((*words[:2], *words[3:_FIELDS])).isdecimal():
            continue
        requests = int(words[3]) + int(words[7])
        disk = DiskCounts(words[2], requests, int(words[12]), int(words[13]))
        found[f"{words[0]}:{words[1]}"] = disk
    return found


def of_directories(
    directories: Iterable[str], entries: Sequence[Entry], disks: Mapping[str, DiskCounts]
) -> dict[str, str]:
    """The devices ("major:minor") below these directories, and the directory of each.

    A file system without a block device, or with several of which mountinfo names none, is left
    out.
    """
    by_name = {disk.name: number for number, disk in disks.items()}
    # the kernel lists a mount after the mounts that it covers
    mounted = {entry.directory: entry for entry in entries}
    found: dict[str, str] = {}
    for directory in directories:
        path = Path(directory)
        entry = next((mounted[p] for p in (path, *path.parents) if p in mounted), None)
        if entry is None:
            continue
        # btrfs and others have a device number of their own; the source has the name of a device
        number = entry.device if entry.device in disks else by_name.get(_device_name(entry))
        if number:
            found.setdefault(number, directory)
    return found


def _device_name(entry: Entry) -> str:
    return entry.source.rpartition("/dev/")[2]
