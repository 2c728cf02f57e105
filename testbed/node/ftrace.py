# SPDX-License-Identifier: Apache-2.0
"""Reads the records of the kernel's function tracer."""

from __future__ import annotations

import re

__all__ = ["calls"]

# the flags behind the processor: irqs-off, need-resched, hardirq or softirq, ... (ftrace.rst)
_CALL = re.compile(r"\[\d+\] ..(?P<interrupt>.)\S* +\d+\.\d+: (?P<name>[A-Za-z0-9_.]+) <-")
_NO_INTERRUPT = "."


def calls(trace: str) -> list[str]:
    """The functions that processes called, each once.

    An interrupt runs work of others in whatever process it stops, such as RCU callbacks.
    """
    matches = _CALL.finditer(trace)
    return sorted({call["name"] for call in matches if call["interrupt"] == _NO_INTERRUPT})
