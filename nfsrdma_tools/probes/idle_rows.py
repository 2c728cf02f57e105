# SPDX-License-Identifier: Apache-2.0
"""Removes rows that have not changed for a while: their client is gone or idle.

Without them a program that runs for months has room for new clients.  A client that becomes
active again gets a new row, which begins at 0; so the last reading drops the row too.  An RPC
that ends between the reading and the removal, after IDLE seconds without RPCs, is lost.
"""

from __future__ import annotations

from typing import Any

__all__ = ["IDLE", "free"]

IDLE = 600.0
"""Seconds without a change after which a row is removed."""


def free(session: Any, table: str, now: float, *reading: dict[Any, tuple[int, ...]]) -> None:
    """Remove idle rows from a map that ``maps.rows`` reads, and from a ``reading`` of it.

    The first part of the reading has the counters; ``now`` is in seconds.
    """
    seen: dict[Any, tuple[tuple[int, ...], float]]
    seen = session.state.setdefault(f"since when of {table}", {})
    for name, counts in reading[0].items():
        if name not in seen or seen[name][0] != counts:
            seen[name] = counts, now
    numbers: dict[Any, int] = session.state[f"numbers of {table}"]
    # remove all rows of one number together
    busy = {numbers[name] for name, (_, since) in seen.items() if now - since < IDLE}
    idle = [name for name in seen if numbers[name] not in busy]
    rows = session.table(table)
    for number in {numbers[name] for name in idle}:
        del rows[rows.Key(number)]
    for name in idle:
        del seen[name], numbers[name]
        for part in reading:
            part.pop(name, None)
