# SPDX-License-Identifier: Apache-2.0
"""Bytes and rates of RDMA ports and network devices.

An RDMA port counts what bypasses the kernel, a network device what passes it, and some cards count
both in both.  Devices in software (rxe, siw) have no counters of their own: the network device
below them counts their packets.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import files

__all__ = ["LinkCounts", "Links"]

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

    def __init__(self, sysfs: Path = Path("/sys")) -> None:
        self._sysfs = sysfs
        self._sources: dict[str, _Source] = {}

    def find(self) -> None:
        """List ports and network devices with a known rate.

        Some drivers take the lock of all network devices to report a rate: don't do it each second.
        """
        self._sources = {**self._netdevs(), **self._ports()}

    def read(self) -> dict[str, LinkCounts]:
        """The counters by name: "mlx5_0/1" or "eth1"."""
        found = {}
        for name, source in self._sources.items():
            received, sent = files.readable(source.received), files.readable(source.sent)
            if received.strip().isdecimal() and sent.strip().isdecimal():
                counts = (int(text) * source.unit for text in (received, sent))
                found[name] = LinkCounts(source.rate, *counts)
        return found

    def _ports(self) -> dict[str, _Source]:
        found = {}
        for folder in sorted(self._sysfs.glob("class/infiniband/*/ports/*")):
            match = _RATE.match(files.readable(folder / "rate"))
            if not match or not (folder / "counters/port_rcv_data").exists():
                continue
            rate = round(float(match[1]) * 1e9)
            if files.readable(folder / "link_layer").strip() == "InfiniBand":
                rate = rate * 8 // 10 if match[2] in _EIGHT_OF_TEN else rate
            counters = f"{folder}/counters/port_"
            source = _Source(rate, f"{counters}rcv_data", f"{counters}xmit_data", _UNIT)
            found[f"{folder.parts[-3]}/{folder.name}"] = source
        return found

    def _netdevs(self) -> dict[str, _Source]:
        """Network devices with hardware: bonds, bridges and tunnels would count a byte again."""
        found = {}
        folder = str(self._sysfs / "class/net")
        for name in sorted(os.listdir(folder) if os.path.isdir(folder) else ()):  # noqa: PTH208, PTH112
            if not os.path.exists(f"{folder}/{name}/device"):  # noqa: PTH110
                continue
            # -1 or an error: unknown, or the link is down
            speed = files.readable(f"{folder}/{name}/speed").strip()
            if speed.isdecimal() and int(speed):
                counters = f"{folder}/{name}/statistics"
                source = _Source(int(speed) * 10**6, f"{counters}/rx_bytes", f"{counters}/tx_bytes")
                found[name] = source
        return found
