# SPDX-License-Identifier: Apache-2.0
"""Counters of devices: bytes and rates of links, requests of disks, and which disk has a directory.

An RDMA port counts what bypasses the kernel, a network device what passes it, and some cards count
both in both.  Devices in software (rxe, siw) have no counters of their own: the network device
below them counts their packets.

/proc/diskstats (Documentation/admin-guide/iostats.rst) has how long a disk had requests.  One with
requests in flight all the time need not be at its limit: only one with a single queue is.  So the
average number in flight belongs to it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import files
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs.mountinfo import Entry

__all__ = ["DiskCounts", "LinkCounts", "Links", "disk_counts", "disks_below"]

_RATE = re.compile(r"(\d{1,4}(?:\.\d)?) Gb/sec \(\d{1,2}X (\w+)\)")
# 8 bits of data in 10 bits on the wire; faster InfiniBand loses 3 %
_EIGHT_OF_TEN = ("SDR", "DDR", "QDR")
# port_rcv_data and port_xmit_data count units of 32 bits (Documentation/ABI/stable/
# sysfs-class-infiniband)
_UNIT = 4


@dataclass(frozen=True)
class LinkCounts:
    """The rate of a link in bits per second, and the bytes of both directions since boot."""

    rate: int
    received: int
    sent: int


@dataclass(frozen=True)
class _Source:
    rate: int
    received: str
    sent: str
    unit: int = 1


class Links:
    """Reads the links repeatedly; ``find`` lists them anew."""

    def __init__(self, machine: Machine = LIVE) -> None:
        self._sysfs = machine.path("sys")
        self._sources: dict[str, _Source] = {}

    def find(self) -> None:
        """List ports and network devices with a known rate.

        Some drivers take the lock of all network devices to report a rate: don't do it each second.
        """
        self._sources = {**self._netdevs(), **self._ports()}

    def read(self) -> dict[str, LinkCounts]:
        """The counters by name: "mlx5_0/1" or "eth1"."""
        links = {}
        for name, source in self._sources.items():
            received, sent = files.readable(source.received), files.readable(source.sent)
            if received.strip().isdecimal() and sent.strip().isdecimal():
                counts = (int(text) * source.unit for text in (received, sent))
                links[name] = LinkCounts(source.rate, *counts)
        return links

    def _ports(self) -> dict[str, _Source]:
        sources = {}
        for folder in sorted(self._sysfs.glob("class/infiniband/*/ports/*")):
            match = _RATE.match(files.readable(folder / "rate"))
            if not match or not (folder / "counters/port_rcv_data").exists():
                continue
            rate = round(float(match[1]) * 1e9)
            if files.readable(folder / "link_layer").strip() == "InfiniBand":
                rate = rate * 8 // 10 if match[2] in _EIGHT_OF_TEN else rate
            counters = f"{folder}/counters/port_"
            source = _Source(rate, f"{counters}rcv_data", f"{counters}xmit_data", _UNIT)
            sources[f"{folder.parts[-3]}/{folder.name}"] = source
        return sources

    def _netdevs(self) -> dict[str, _Source]:
        """Network devices with hardware: bonds, bridges and tunnels would count a byte again."""
        sources = {}
        folder = str(self._sysfs / "class/net")
        for name in sorted(os.listdir(folder) if os.path.isdir(folder) else ()):  # noqa: PTH208, PTH112
            if not os.path.exists(f"{folder}/{name}/device"):  # noqa: PTH110
                continue
            # -1 or an error: unknown, or the link is down
            speed = files.readable(f"{folder}/{name}/speed").strip()
            if speed.isdecimal() and int(speed):
                counters = f"{folder}/{name}/statistics"
                source = _Source(int(speed) * 10**6, f"{counters}/rx_bytes", f"{counters}/tx_bytes")
                sources[name] = source
        return sources


_FIELDS = 14


@dataclass(frozen=True)
class DiskCounts:
    """Since boot: requests completed, ms with requests in flight, ms summed over the requests."""

    name: str
    requests: int = 0
    busy_ms: int = 0
    waited_ms: int = 0


def disk_counts(machine: Machine = LIVE) -> dict[str, DiskCounts]:
    """The counters of all block devices and partitions, by "major:minor"."""
    disks = {}
    for line in files.readable(machine.path("proc/diskstats")).splitlines():
        words = line.split()
        if len(words) < _FIELDS or not "".join((*words[:2], *words[3:_FIELDS])).isdecimal():
            continue
        requests = int(words[3]) + int(words[7])
        disk = DiskCounts(words[2], requests, int(words[12]), int(words[13]))
        disks[f"{words[0]}:{words[1]}"] = disk
    return disks


def disks_below(
    directories: Iterable[str], entries: Sequence[Entry], disks: Mapping[str, DiskCounts]
) -> dict[str, str]:
    """The devices ("major:minor") below these directories, and the directory of each.

    A file system without a block device, or with several of which mountinfo names none, is left
    out.
    """
    by_name = {disk.name: number for number, disk in disks.items()}
    # the kernel lists a mount after the mounts that it covers
    mounted = {entry.directory: entry for entry in entries}
    below: dict[str, str] = {}
    for directory in directories:
        path = Path(directory)
        entry = next((mounted[p] for p in (path, *path.parents) if p in mounted), None)
        if entry is None:
            continue
        # btrfs and others have a device number of their own; the source has the name of a device
        number = entry.device if entry.device in disks else by_name.get(_device_name(entry))
        if number:
            below.setdefault(number, directory)
    return below


def _device_name(entry: Entry) -> str:
    return entry.source.rpartition("/dev/")[2]
