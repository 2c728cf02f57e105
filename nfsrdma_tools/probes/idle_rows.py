# SPDX-License-Identifier: Apache-2.0
"""Rows in which nothing was counted for a while: their client is gone, or does nothing.

They are taken out of their map, so that a program that runs for months has room for the clients
that come.  One that comes back gets a new row, which begins at 0; so the reading that differences
are made to forgets the row, too.  An RPC that ends between the reading and the removal, after
IDLE seconds without any, is lost.
"""

from __future__ import annotations

from typing import Any

__all__ = ["IDLE", "free"]

IDLE = 600.0
"""Seconds after which a row is taken out."""


def free(session: Any, table: str, now: float, *reading: dict[Any, tuple[int, ...]]) -> None:
    """Take idle rows out of a map that ``maps.rows`` reads, and out of a ``reading`` of it.

    The reading's first part tells what was counted; ``now`` is in seconds.
    """
    seen: dict[Any, tuple[tuple[int, ...], float]]
    seen = session.state.setdefault(f"since when of {table}", {})
    for name, counts in reading[0].items():
        if name not in seen or seen[name][0] != counts:
            seen[name] = counts, now
    numbers: dict[Any, int] = session.state[f"numbers of {table}"]
    # rows of one number go together
    busy = {numbers[name] for name, (_, since) in seen.items() if now - since < IDLE}
    idle = [name for name in seen if numbers[name] not in busy]
    rows = session.table(table)
    for number in {numbers[name] for name in idle}:
        del rows[rows.Key(number)]
    for name in idle:
        del seen[name], numbers[name]
        for part in reading:
            part.pop(name, None)
