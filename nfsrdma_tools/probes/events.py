# SPDX-License-Identifier: Apache-2.0
"""The kernel's trace events: which are there, and what each record has (tracefs, format files)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

__all__ = ["TRACEFS", "exists", "fields", "system"]

TRACEFS = Path("/sys/kernel/tracing")
_FIELD = re.compile(r"^\tfield:.*?(\w+)(?:\[\w*\])?;", re.MULTILINE)


def exists(system: str, event: str) -> bool:
    """Whether the kernel, or a module that is loaded, has the event."""
    return bool(fields(system, event))


@cache
def fields(system: str, event: str) -> frozenset[str]:
    """The names of a record's fields; none when there is no such event."""
    try:
        text = (TRACEFS / "events" / system / event / "format").read_text()
    except OSError:
        return frozenset()
    return frozenset(_FIELD.findall(text))


def system(name: str) -> bool:
    """Whether there are events of this system: its module is loaded."""
    return (TRACEFS / "events" / name).is_dir()
