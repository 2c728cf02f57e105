# SPDX-License-Identifier: Apache-2.0
"""What the numbers in connections' events mean: completions, and the connection manager's events.

Completions are enum ib_wc_status (include/rdma/ib_verbs.h), events enum rdma_cm_event_type
(include/rdma/rdma_cm.h).
"""

from __future__ import annotations

__all__ = ["CM_EVENTS", "COMPLETIONS", "cm_event", "completion"]

COMPLETIONS: dict[int, tuple[str, str]] = {
    1: ("local length error", "a message was longer than the receive that waited for it"),
    2: ("local queue pair operation error", "the driver refused a work request"),
    4: ("local protection error", "a work request named memory that is not registered"),
    5: ("flushed", "the connection broke before; look for the first error"),
    6: ("memory window bind error", "a region could not be registered or invalidated"),
    7: ("bad response", "the peer answered what was not asked; a driver's or a link's fault"),
    8: ("local access error", "the peer used a key that is not valid here"),
    9: ("remote invalid request", "a message was longer than what the peer receives"),
    10: ("remote access error", "the peer refused a key: invalidated too early, or wrong"),
    11: ("remote operation error", "the peer could not do what was asked"),
    12: ("retries exceeded", "nothing came back: link down, peer gone, packets lost"),
    13: ("receiver not ready", "the peer had no receive posted: more credits used than granted"),
    16: ("remote abort", "the peer gave the operation up"),
    19: ("fatal error", "the device gave up"),
    20: ("response timeout", "nothing came back: link down, peer gone, packets lost"),
    21: ("general error", "the driver says no more"),
}
"""Name, and what it usually means, of a completion that is not a success."""

CM_EVENTS = (
    *("address resolved", "address error", "route resolved", "route error", "connect request"),
    *("connect response", "connect error", "unreachable", "rejected", "established"),
    *("disconnected", "device removed", "multicast joined", "multicast error"),
    *("address changed", "end of wait after disconnect"),
)
"""Names of the connection manager's events by their number."""


def completion(status: int) -> str:
    """A failed completion in words."""
    name, meaning = COMPLETIONS.get(status, (f"status {status}", "unknown to this tool"))
    return f"{name}: {meaning}"


def cm_event(event: int, status: int) -> str:
    """An event of the connection manager, with its status: an errno, or a reason of rejection."""
    name = CM_EVENTS[event] if event < len(CM_EVENTS) else f"event {event}"
    return f"{name}, status {status}" if status else name
