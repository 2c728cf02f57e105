# SPDX-License-Identifier: Apache-2.0
"""Directories, attributes and contents of SERVER:/PATH, for commands."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from nfsrdma_tools.client.place import open_place
from nfsrdma_tools.client.stream import read_pieces

__all__ = ["attributes", "content", "listing"]


def listing(target: str, attributes: bool) -> list[tuple[str, os.stat_result | None]]:
    """The entries of a directory by name, with ``attributes`` if requested; or one file."""
    with open_place(target) as place:
        status = place.session.stat(place.path)
        if not stat.S_ISDIR(status.st_mode):
            return [(place.name, status)]
        rows = []
        for entry in place.session.scandir(place.path):
            missing = attributes and entry.stat is None
            rows.append((entry.name, place.session.lstat(entry.path) if missing else entry.stat))
        return sorted(rows)


def attributes(target: str) -> os.stat_result:
    """The attributes of a file, or of a symbolic link itself."""
    with open_place(target) as place:
        return place.session.lstat(place.path)


def content(target: str) -> Iterator[memoryview]:
    """The bytes of a file, each piece until the next."""
    with open_place(target) as place, place.session.open(place.path) as file:
        yield from read_pieces(place.session, file, 0, file.size())
