# SPDX-License-Identifier: Apache-2.0
"""What connections counted, added up: once for each, however many mounts share it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nfsrdma_tools.live.prometheus.metric_names import COLUMNS
from nfsrdma_tools.live.snapshot import Mount, Snapshot, Xprt

__all__ = ["Connection", "Connections", "connections", "name"]


class Connection(NamedTuple):
    """A connection and its labels: ``name`` and transport."""

    labels: tuple[str, str]
    xprt: Xprt
    unknown: str
    """What its name was as long as the kernel did not say its number."""


class Connections:
    """``add`` each snapshot; ``counters`` are those of the connections of the last one."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], Counter[str]] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Count what is in a snapshot; connections that are gone are forgotten."""
        before, self._sums = self._sums, {}
        for each in connections(snapshot.mounts):
            # its number may have been found out only now
            sums = before.get(each.labels) or before.get((each.unknown, each.labels[1]))
            self._sums[each.labels] = _added(sums or Counter(connects=0), each.xprt)

    def counters(self) -> Iterator[tuple[str, float, tuple[str, str]]]:
        """Names, values and labels (metric_names.py)."""
        for labels, sums in self._sums.items():
            for counter, value in sums.items():
                yield f"nfsrdma_xprt_{counter}_total", value, labels


def connections(mounts: Iterable[Mount]) -> Iterator[Connection]:
    """Each connection once."""
    found = set[tuple[str, str]]()
    # most mounts that share connections have the very same tuple of them
    for mount in {id(mount.xprts): mount for mount in mounts}.values():
        for index, xprt in enumerate(mount.xprts):
            labels = name(mount, index), mount.transport
            if labels not in found:
                found.add(labels)
                yield Connection(labels, xprt, _unknown(mount, index))


def name(mount: Mount, index: int) -> str:
    """The number of a mount's connection; its place among them where the kernel has none."""
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
