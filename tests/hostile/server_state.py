# SPDX-License-Identifier: Apache-2.0
"""Reads what nfsrdma's server shows in debugfs.  Hostile clients run on the server's host."""

from __future__ import annotations

from pathlib import Path

SERVER = Path("/sys/kernel/debug/nfsrdma-server")


def total(name: str) -> int:
    """A figure of all connections of the server."""
    rows = (line.split() for line in (SERVER / "totals").read_text().splitlines())
    return next(int(row[1]) for row in rows if row[0] == name)
