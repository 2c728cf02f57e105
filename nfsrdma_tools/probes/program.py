# SPDX-License-Identifier: Apache-2.0
"""A BPF program for some accounts: the text, and which of its events this kernel has."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.probes import events

__all__ = ["TRANSPORTS", "Missing", "Program", "program"]

TRANSPORTS = ("rpcrdma", "nfsrdma")
"""Who brings a transport's events: the kernel's module, ours."""

_EVENT = re.compile(r"^TRACEPOINT_PROBE\((\w+), (\w+)\)", re.MULTILINE)
# systems whose events come with a module of that name; the others are built into the kernel
_MODULES = {*TRANSPORTS, "sunrpc", "nfs", "nfsd"}


@dataclass(frozen=True)
class Missing:
    """An event that cannot be counted here, and why."""

    event: str
    reason: str


@dataclass(frozen=True)
class Program:
    """A text in bcc's dialect, its compiler flags, and what it will not see."""

    text: str
    flags: tuple[str, ...]
    events: tuple[str, ...]
    missing: tuple[Missing, ...]


def program(accounts: Sequence[str]) -> Program:
    """The program of ``accounts``, files of bpf/ without their suffix, for the running kernel."""
    folder = source()
    texts = [(folder / name).read_text() for name in ("account.h", *(f"{a}.c" for a in accounts))]
    asked = sorted({match.groups() for text in texts for match in _EVENT.finditer(text)})
    there = [pair for pair in asked if events.exists(*pair)]
    idle = [name for name in TRANSPORTS if not events.system(name)]
    # a transport that nobody has loaded carries nothing
    asked = [pair for pair in asked if pair[0] not in idle]
    return Program(
        text="\n".join(texts),
        flags=tuple(f"-DHAVE_{system}_{event}" for system, event in there),
        events=tuple(f"{system}:{event}" for system, event in there),
        missing=tuple(_missing(*pair) for pair in asked if pair not in there),
    )


def source() -> Path:
    """The folder bpf/: part of the package in a wheel, beside it in a checkout."""
    package = Path(str(importlib.resources.files("nfsrdma_tools")))
    inside = package / "data" / "bpf"
    return inside if inside.is_dir() else package.parent / "bpf"


def _missing(system: str, event: str) -> Missing:
    if system in _MODULES and not events.system(system):
        return Missing(f"{system}:{event}", f"module {system} is not loaded")
    return Missing(f"{system}:{event}", "this kernel has no such event")
