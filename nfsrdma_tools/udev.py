# SPDX-License-Identifier: Apache-2.0
"""Wait for udev, whose rules change what was set before they ran."""

from __future__ import annotations

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import ProgramMissingError

__all__ = ["settle"]


def settle(timeout: float = 30) -> None:
    """Wait until udev has run its rules; return at once on a host without udev."""
    try:
        run("udevadm", "settle", f"--timeout={timeout:g}", timeout=timeout + 10, check=False)
    except ProgramMissingError:
        return
