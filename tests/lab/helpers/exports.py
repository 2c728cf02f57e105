# SPDX-License-Identifier: Apache-2.0
"""A file system with little room, exported for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nfsrdma_tools.lab.lab import Lab

__all__ = ["SMALL", "small_export"]

SMALL = "/export/small"
MAKE = f"""
mkdir {SMALL}
mount -t tmpfs -o size=$1 tmpfs {SMALL}
exportfs -o rw,insecure,no_root_squash,fsid=77 '*:{SMALL}'
"""
# nfsd lets go of a file system some time after its export has ended
REMOVE = f"""
exportfs -u '*:{SMALL}'
exportfs -f
! mountpoint -q {SMALL} || until umount {SMALL}; do sleep 0.2; done
rmdir {SMALL}
"""


@contextmanager
def small_export(lab: Lab, node: str, size: str) -> Iterator[None]:
    """Export a tmpfs of SIZE (mount's notation) at SMALL; it is gone afterwards."""
    try:
        lab.run(node, "sh", "-ec", MAKE, "-", size)
        yield
    finally:
        lab.run(node, "sh", "-c", REMOVE)
