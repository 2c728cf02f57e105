# SPDX-License-Identifier: Apache-2.0
"""The kernel's trace events.  Modules come and go, so nothing is remembered."""

from __future__ import annotations

import os.path
from pathlib import Path

__all__ = ["TRACEFS", "exists", "system"]

TRACEFS = Path("/sys/kernel/tracing")


def exists(system: str, event: str) -> bool:
    """Whether the kernel, or a module that is loaded now, has the event."""
    # asked each second of all events that are counted: Path takes five times as long
    return os.path.isdir(f"{TRACEFS}/events/{system}/{event}")  # noqa: PTH112


def system(name: str) -> bool:
    """Whether there are events of this system: its module is loaded."""
    return (TRACEFS / "events" / name).is_dir()
