# SPDX-License-Identifier: Apache-2.0
"""The connections of mounts, each once."""

from __future__ import annotations

from collections.abc import Iterable

from nfsrdma_tools.live.snapshot import Mount, Xprt

__all__ = ["shared"]


def shared(mounts: Iterable[Mount]) -> dict[int, tuple[Xprt, ...]]:
    """The connections of mounts by object id: mounts that share connections have the same tuple."""
    return {id(mount.xprts): mount.xprts for mount in mounts}
