# SPDX-License-Identifier: Apache-2.0
"""The trace events of the kernel, and the names of the statuses that they report.

Not cached, because modules are loaded and unloaded.
"""

from __future__ import annotations

import os.path
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.host.rdma.completions import COMPLETIONS

__all__ = [
    "CM_EVENTS",
    "TRACEFS",
    "Missing",
    "cm_event",
    "completion",
    "has_event",
    "has_system",
]

TRACEFS = Path("/sys/kernel/tracing")


@dataclass(frozen=True)
class Missing:
    """An event that cannot be counted here, and why."""

    event: str
    reason: str


def has_event(system: str, event: str) -> bool:
    """Whether the kernel or a loaded module has the event."""
    # called each second for all counted events: Path takes five times as long
    return os.path.isdir(f"{TRACEFS}/events/{system}/{event}")  # noqa: PTH112


def has_system(name: str) -> bool:
    """Whether this event system exists, so that its module is loaded."""
    return (TRACEFS / "events" / name).is_dir()


CM_EVENTS = (
    *("address resolved", "address error", "route resolved", "route error", "connect request"),
    *("connect response", "connect error", "unreachable", "rejected", "established"),
    *("disconnected", "device removed", "multicast joined", "multicast error"),
    *("address changed", "end of wait after disconnect"),
)
"""Names of the connection manager's events by enum rdma_cm_event_type (include/rdma/rdma_cm.h)."""


def completion(status: int) -> str:
    """A failed completion as text."""
    if status not in COMPLETIONS:
        return f"status {status}: no description"
    return f"{COMPLETIONS[status].name}: {COMPLETIONS[status].cause}"


def cm_event(event: int, status: int) -> str:
    """A connection manager event with its status: an errno, or a reject reason."""
    name = CM_EVENTS[event] if event < len(CM_EVENTS) else f"event {event}"
    return f"{name}, status {status}" if status else name
