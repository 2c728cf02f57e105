# SPDX-License-Identifier: Apache-2.0
"""The kernel's trace events.  Not cached, because modules are loaded and unloaded."""

from __future__ import annotations

import os.path
from pathlib import Path

__all__ = ["TRACEFS", "exists", "system"]

TRACEFS = Path("/sys/kernel/tracing")


def exists(system: str, event: str) -> bool:
    """Whether the kernel or a loaded module has the event."""
    # called each second for all counted events: Path takes five times as long
    return os.path.isdir(f"{TRACEFS}/events/{system}/{event}")  # noqa: PTH112


def system(name: str) -> bool:
    """Whether this event system exists, so that its module is loaded."""
    return (TRACEFS / "events" / name).is_dir()
