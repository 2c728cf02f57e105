# SPDX-License-Identifier: Apache-2.0
"""Mounts to ask for."""

from pathlib import Path

from nfsrdma_tools.host.nfs.mounting import MountRequest
from nfsrdma_tools.host.nfs.target import Target

HERE = Target("localhost", "/export")


def asks(**words: object) -> MountRequest:
    return MountRequest(**{"target": HERE, "directory": Path("/mnt"), **words})  # type: ignore[arg-type]
