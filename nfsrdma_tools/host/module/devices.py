# SPDX-License-Identifier: Apache-2.0
"""The limits of RDMA devices for our module, from its debugfs (kmod/module.c); root only.

The module computes each limit: a line has a name and a value, or "VALUE of MOST".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DeviceLimits", "devices"]

_FILE = "sys/kernel/debug/nfsrdma-devices"
_LANES = {
    "lane_read": "READs of clients on lanes (pre-posted)",
    "lane_reply": "replies of the server on lanes (pre-posted)",
}
_NO_GRANTS = {
    "copies": "it would read copies of memory (bounce buffers)",
    "caches": "it bypasses the caches of processors",
    "stuck": "it has refused to destroy a memory region",
}


@dataclass(frozen=True)
class DeviceLimits:
    """An RDMA device, and its limits for our module."""

    name: str
    values: dict[str, str]
    """As the module prints them."""
    limits: tuple[str, ...]
    """Lines about its limits, with the cause of each; () for a device without limits."""


def devices(machine: Machine = LIVE) -> list[DeviceLimits]:
    """The devices; [] if our module is not loaded, and for users other than root."""
    try:
        text = machine.path(_FILE).read_text()
    except OSError:
        return []
    return [_device(part) for part in re.split("^device ", text, flags=re.MULTILINE)[1:]]


def _device(part: str) -> DeviceLimits:
    name, *lines = part.splitlines()
    values = dict(line.split(" ", 1) for line in lines)
    return DeviceLimits(name, values, tuple(_limits(values)))


def _limits(values: dict[str, str]) -> Iterator[str]:
    pages, pages_most = _pair(values["region_pages"])
    if pages < (least := int(values["region_pages_needed"])):
        yield f"unusable: it registers {pages} pages at once, expected at least {least}"
        return
    if pages < pages_most:
        yield f"registers {pages} of {pages_most} pages at once: more registrations for each Call"
    yield from _optimistic(values)
    for name, messages in _LANES.items():
        size, most = _pair(values[name])
        if not size:
            yield f"no {messages}"
        elif size < most:
            yield f"{messages}: up to {format_size(size)}"
    if (grants := values["grants"]) != "yes":
        yield f"grants nothing to clients (optimistic): {_NO_GRANTS.get(grants, grants)}"


def _optimistic(values: dict[str, str]) -> Iterator[str]:
    elements, _ = _pair(values["optimistic_elements"])
    size, most = _pair(values["optimistic_read"])
    if not elements:
        yield "no optimistic reads: iWARP would register the memory of each"
    elif size < most:
        yield (
            f"optimistic reads: up to {format_size(size)} of pages that lie apart"
            f" ({elements} elements)"
        )


def _pair(text: str) -> tuple[int, int]:
    value, _, most = text.partition(" of ")
    return int(value), int(most)
