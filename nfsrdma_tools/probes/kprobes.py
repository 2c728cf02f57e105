# SPDX-License-Identifier: Apache-2.0
"""Kprobes: programs on kernel functions, for what no trace event reports."""

from __future__ import annotations

from typing import Any

from nfsrdma_tools.probes.program import Missing

__all__ = ["probe", "probe_return"]


def probe(session: Any, function: str, program: str) -> None:
    """Run a program at each entry of the function; listed as missing if it does not exist."""
    if _exists(session, function):
        session.bpf.attach_kprobe(event=function, fn_name=program)


def probe_return(session: Any, function: str, program: str) -> None:
    """Run a program at each return of the function."""
    if _exists(session, function):
        session.bpf.attach_kretprobe(event=function, fn_name=program)


def _exists(session: Any, function: str) -> bool:
    # check first, because bcc would print a message and raise
    found = session.bpf.ksymname(function.encode()) != -1
    missing = Missing(f"kprobe:{function}", "this kernel has no such function")
    if not found and missing not in session.missing:
        session.missing += (missing,)
    return bool(found)
