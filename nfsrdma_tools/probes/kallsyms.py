# SPDX-License-Identifier: Apache-2.0
"""Symbols of the kernel: /proc/kallsyms."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

__all__ = ["addresses", "are_hidden"]

_KALLSYMS = Path("/proc/kallsyms")
# on each architecture (scripts/kallsyms.c)
_FIRST = "_stext"


def addresses(names: Collection[str]) -> dict[str, int]:
    """The addresses of those of the symbols that exist, by name; 0 where the kernel hides them.

    The kernel hides addresses from programs without CAP_SYSLOG, unless kernel.kptr_restrict and
    kernel.perf_event_paranoid allow them (kallsyms_show_value() in kernel/ksyms_common.c).
    """
    by_name: dict[str, int] = {}
    with _KALLSYMS.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            address, _, name = line.split(None, 3)[:3]
            if name in names:
                by_name[name] = int(address, 16)
                if len(by_name) == len(names):
                    break
    return by_name


def are_hidden() -> bool:
    """Whether the kernel hides the addresses of its symbols from this process."""
    try:
        return not addresses((_FIRST,)).get(_FIRST)
    except OSError:
        return True
