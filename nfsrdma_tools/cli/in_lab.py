# SPDX-License-Identifier: Apache-2.0
"""A sweep in a lab of its own: the store is kept here, trial by trial, as the node reports them."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from nfsrdma_tools.command import stream
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.sweep.events import Event, follow
from nfsrdma_tools.sweep.store import Store

__all__ = ["TARGET", "sweep_in_lab"]

TARGET = "server:/export"
_STORE = "/root/sweep.db"


def sweep_in_lab(
    config: LabConfig,
    words: list[str],
    store: Path,
    progress: Callable[[Event], None],
    step: Callable[[str], None],
) -> Event | None:
    """Run ``nfsrdma sweep words...`` in a lab and keep ``store`` in step; returns the last event.

    What ``store`` holds already goes into the lab first, so that a sweep that was cut off goes on.
    """
    with Lab(config, step) as lab, Store(store) as here:
        lab.run("client", "tee", _STORE, stdin=_whole(store))
        argv = ("nfsrdma", "sweep", *words, "--store", _STORE, "--json")
        ssh = lab.ssh("client").argv(*argv)
        return follow(stream(*ssh, watch=lab.check), here, progress)


def _whole(store: Path) -> bytes:
    # a copy by SQLite itself has in it what the write-ahead log still holds
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "store"
        source, target = sqlite3.connect(store), sqlite3.connect(copy)
        source.backup(target)
        source.close()
        target.close()
        return copy.read_bytes()
