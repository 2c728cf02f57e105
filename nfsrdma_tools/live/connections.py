# SPDX-License-Identifier: Apache-2.0
"""What connections counted, added up: once for each, however many mounts share it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator

from nfsrdma_tools.live.metric_names import COLUMNS
from nfsrdma_tools.live.snapshot import Mount, Snapshot, Xprt

__all__ = ["Connections"]


class Connections:
    """``add`` each snapshot; ``counters`` are those of the mounts of one."""

    def __init__(self) -> None:
        self._sums: dict[Hashable, Counter[str]] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Count what is in a snapshot; connections that are gone are forgotten."""
        before, self._sums = self._sums, {}
        once = {id(mount.xprts): mount for mount in snapshot.mounts}
        for mount in once.values():
            for index, xprt in enumerate(mount.xprts):
                key = _key(mount, index)
                if key in self._sums:
                    continue
                # its number may have been found out only now
                sums = before.get(key) or before.get((mount.device, index))
                self._sums[key] = _added(sums or Counter(connects=0), xprt)

    def counters(self, snapshot: Snapshot) -> Iterator[tuple[str, float, tuple[str, ...]]]:
        """Names, values and labels (metric_names.py)."""
        for mount in snapshot.mounts:
            for index in range(len(mount.xprts)):
                own = (mount.directory, mount.transport, str(index))
                for name, value in self._sums[_key(mount, index)].items():
                    yield f"nfsrdma_xprt_{name}_total", value, own


def _added(sums: Counter[str], xprt: Xprt) -> Counter[str]:
    sums["connects"] += xprt.connects
    for column, value in xprt.counters.items():
        if column in COLUMNS:
            sums[COLUMNS[column]] += value
    return sums


def _key(mount: Mount, index: int) -> Hashable:
    number = mount.xprts[index].number
    # the kernel does not always say which it is
    return (mount.device, index) if number < 0 else number
