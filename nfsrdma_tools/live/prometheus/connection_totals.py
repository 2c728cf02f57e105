# SPDX-License-Identifier: Apache-2.0
"""Counters of connections since the exporter started, once per connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nfsrdma_tools.live.connections import connections
from nfsrdma_tools.live.prometheus.xprt_columns import COLUMNS
from nfsrdma_tools.live.snapshot import Snapshot, Xprt

__all__ = ["Connections"]


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


def _added(sums: Counter[str], xprt: Xprt) -> Counter[str]:
    sums["connects"] += xprt.connects
    for column, value in xprt.counters.items():
        if column in COLUMNS:
            sums[COLUMNS[column].name] += value
    for name, value in (xprt.personality.counters if xprt.personality else {}).items():
        sums[name] += value
    return sums
