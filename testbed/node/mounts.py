# SPDX-License-Identifier: Apache-2.0
"""Mounts in a node, parameters of our module, and what it counts in debugfs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from testbed.node.programs import call

__all__ = [
    "CLIENTS",
    "HERE",
    "SERVER",
    "connections",
    "counters",
    "drop_caches",
    "mounted",
    "parameters",
    "personalities",
]

HERE = Path("/mnt/here")
PARAMETERS = Path("/sys/module/nfsrdma/parameters")
# of debugfs: a folder for each transport of the client, for each connection of the server
CLIENTS = Path("/sys/kernel/debug/nfsrdma")
SERVER = Path("/sys/kernel/debug/nfsrdma-server")


@contextmanager
def mounted(
    options: str,
    at: Path = HERE,
    source: str = "server:/export",
    *,
    off: tuple[str, ...] = ("umount",),
) -> Iterator[Path]:
    """Mount over RDMA, at port 20049 unless the options have another; ``off`` unmounts."""
    at.mkdir(parents=True, exist_ok=True)
    # the last of two equal options counts
    call("mount", "-t", "nfs", "-o", f"proto=rdma,port=20049,{options}", source, at)
    try:
        yield at
    finally:
        call(*off, at)


def drop_caches() -> None:
    """Write dirty pages, and free all of the page cache that is not in use."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


@contextmanager
def parameters(**values: int | str) -> Iterator[None]:
    """Set parameters of our module for a while; connections made meanwhile use them."""
    files = {PARAMETERS / name: str(value) for name, value in values.items()}
    before = {file: file.read_text() for file in files}
    try:
        for file, value in files.items():
            file.write_text(value)
        yield
    finally:
        for file, value in before.items():
            file.write_text(value)


def connections(folder: Path = CLIENTS) -> list[dict[str, str]]:
    """The state of each connection below a folder of debugfs, by name."""
    return [row for each in folder.glob("[0-9]*") if (row := _values(each / "connection"))]


def personalities() -> set[str]:
    """Those of the client's connections; callbacks have none of their own."""
    return {row["personality"] for row in connections() if "personality" in row}


def counters(folder: Path = CLIENTS) -> dict[str, int]:
    """Sums of the counters of all connections below a folder of debugfs."""
    total: dict[str, int] = {}
    for each in folder.glob("[0-9]*"):
        for name, value in _values(each / "counters").items():
            total[name] = total.get(name, 0) + int(value)
    return total


def _values(file: Path) -> dict[str, str]:
    """Names and values; none of a connection that has ended meanwhile."""
    with suppress(OSError):
        return dict(line.split(" ", 1) for line in file.read_text().splitlines())
    return {}
