# SPDX-License-Identifier: Apache-2.0
"""The connections of mounts, each once.  Mounts that share connections have the same tuple."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nfsrdma_tools.live.snapshot import Mount, Xprt

__all__ = ["Connection", "connections", "name", "shared"]


class Connection(NamedTuple):
    """A connection and its labels: name and transport."""

    labels: tuple[str, str]
    xprt: Xprt
    unknown: str
    """Its name before the kernel reported its number."""


def shared(mounts: Iterable[Mount]) -> dict[int, tuple[Xprt, ...]]:
    """The connections of mounts by the object id of their tuple."""
    return {id(mount.xprts): mount.xprts for mount in mounts}


def connections(mounts: Iterable[Mount]) -> Iterator[Connection]:
    """Each connection once, however many mounts share it."""
    found = set[tuple[str, str]]()
    for mount in {id(mount.xprts): mount for mount in mounts}.values():
        for index, xprt in enumerate(mount.xprts):
            labels = name(mount, index), mount.transport
            # read from a recording, mounts have equal tuples, but not the same one
            if labels not in found:
                found.add(labels)
                yield Connection(labels, xprt, _unknown(mount, index))


def name(mount: Mount, index: int) -> str:
    """The number of a mount's connection; device and index if the kernel reports no number."""
    number = mount.xprts[index].number
    return _unknown(mount, index) if number < 0 else str(number)


def _unknown(mount: Mount, index: int) -> str:
    return f"{mount.device} {index}"
