# SPDX-License-Identifier: Apache-2.0
"""Counters of connections since the exporter started, once per connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nfsrdma_tools.live.prometheus.metric_names import COLUMNS
from nfsrdma_tools.live.snapshot import Mount, Snapshot, Xprt

__all__ = ["Connection", "Connections", "connections", "name"]


class Connection(NamedTuple):
    """A connection and its labels: name and transport."""

    labels: tuple[str, str]
    xprt: Xprt
    unknown: str
    """Its name before the kernel reported its number."""


class Connections:
    """Totals of the connections in the newest snapshot: ``add`` each snapshot."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], Counter[str]] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Add the counts of a snapshot; drop connections that are not in it."""
        before, self._sums = self._sums, {}
        for each in connections(snapshot.mounts):
            # the snapshot before may not have had its number
            sums = before.get(each.labels) or before.get((each.unknown, each.labels[1]))
            self._sums[each.labels] = _added(sums or Counter(connects=0), each.xprt)

    def counters(self) -> Iterator[tuple[str, float, tuple[str, str]]]:
        """The name, value and labels of each series (metric_names.py)."""
        for labels, sums in self._sums.items():
            for counter, value in sums.items():
                yield f"nfsrdma_xprt_{counter}_total", value, labels


def connections(mounts: Iterable[Mount]) -> Iterator[Connection]:
    """Each connection once, however many mounts share it."""
    found = set[tuple[str, str]]()
    # most mounts that share connections have the same tuple object
    for mount in {id(mount.xprts): mount for mount in mounts}.values():
        for index, xprt in enumerate(mount.xprts):
            labels = name(mount, index), mount.transport
            if labels not in found:
                found.add(labels)
                yield Connection(labels, xprt, _unknown(mount, index))


def name(mount: Mount, index: int) -> str:
    """The number of a mount's connection; device and index if the kernel reports no number."""
    number = mount.xprts[index].number
    return _unknown(mount, index) if number < 0 else str(number)


def _unknown(mount: Mount, index: int) -> str:
    return f"{mount.device} {index}"


def _added(sums: Counter[str], xprt: Xprt) -> Counter[str]:
    sums["connects"] += xprt.connects
    for column, value in xprt.counters.items():
        if column in COLUMNS:
            sums[COLUMNS[column]] += value
    return sums
