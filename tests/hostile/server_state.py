# SPDX-License-Identifier: Apache-2.0
"""What the module's server shows in debugfs; a hostile client runs on the same host."""

from __future__ import annotations

from pathlib import Path

SERVER = Path("/sys/kernel/debug/nfsrdma-server")


def total(name: str) -> int:
    """A figure of all connections of the server."""
    rows = (line.split() for line in (SERVER / "totals").read_text().splitlines())
    return next(int(row[1]) for row in rows if row[0] == name)
