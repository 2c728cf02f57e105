# SPDX-License-Identifier: Apache-2.0
"""What the kernel can report: its trace events and functions, and the names of its statuses.

Not cached, because modules are loaded and unloaded.
"""

from __future__ import annotations

import os.path
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "CM_EVENTS",
    "COMPLETIONS",
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


COMPLETIONS: dict[int, tuple[str, str]] = {
    1: ("local length error", "a message was longer than the posted receive"),
    2: ("local queue pair operation error", "the driver refused a work request"),
    4: ("local protection error", "a work request used memory that is not registered"),
    5: ("flushed", "the connection failed before; look for the first error"),
    6: ("memory window bind error", "registering or invalidating a region failed"),
    7: ("bad response", "the peer sent an unexpected response: a fault of a driver or a link"),
    8: ("local access error", "the peer used a key that is not valid here"),
    9: ("remote invalid request", "a message was longer than the peer's receive"),
    10: ("remote access error", "the peer refused a key: invalidated too early, or wrong"),
    11: ("remote operation error", "the peer failed to execute the request"),
    12: ("retries exceeded", "no response: link down, peer gone, packets lost"),
    13: ("receiver not ready", "the peer had no receive posted: more credits used than granted"),
    16: ("remote abort", "the peer aborted the operation"),
    19: ("fatal error", "the device failed"),
    20: ("response timeout", "no response: link down, peer gone, packets lost"),
    21: ("general error", "the driver reports no details"),
}
"""Name and usual cause of failed completions by enum ib_wc_status (include/rdma/ib_verbs.h)."""

CM_EVENTS = (
    *("address resolved", "address error", "route resolved", "route error", "connect request"),
    *("connect response", "connect error", "unreachable", "rejected", "established"),
    *("disconnected", "device removed", "multicast joined", "multicast error"),
    *("address changed", "end of wait after disconnect"),
)
"""Names of the connection manager's events by enum rdma_cm_event_type (include/rdma/rdma_cm.h)."""


def completion(status: int) -> str:
    """A failed completion as text."""
    name, meaning = COMPLETIONS.get(status, (f"status {status}", "no description"))
    return f"{name}: {meaning}"


def cm_event(event: int, status: int) -> str:
    """A connection manager event with its status: an errno, or a reject reason."""
    name = CM_EVENTS[event] if event < len(CM_EVENTS) else f"event {event}"
    return f"{name}, status {status}" if status else name
