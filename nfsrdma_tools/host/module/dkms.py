# SPDX-License-Identifier: Apache-2.0
"""DKMS, which builds the module again for each new kernel: its program, and what it knows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, ProgramMissingError
from nfsrdma_tools.host.module.source import OURS

__all__ = [
    "KEY",
    "TREE",
    "Registered",
    "add_and_install",
    "others",
    "parse",
    "registered",
    "remove",
    "source_folder",
]

TREE = Path("/var/lib/dkms")
"""Where DKMS keeps its state."""
KEY = (TREE / "mok.key", TREE / "mok.pub")
"""What DKMS signs with: made when it first builds anything, and never removed."""
_TIMEOUT = 3600  # seconds: it builds
# "nfsrdma/0.1.0, 6.12.1-amd64, x86_64: installed", or "nfsrdma/0.1.0: added"
_LINE = re.compile(
    rf"{OURS}[/, ]+(?P<version>[^,: ]+)(?:, (?P<kernel>[^,]+), [^:]+)?: (?P<state>.+)"
)


@dataclass(frozen=True)
class Registered:
    """A version of the module that DKMS knows, and for one kernel how far it got."""

    version: str
    kernel: str
    """Empty for one that is only added."""
    state: str
    """``added``, ``built`` or ``installed``, and what DKMS has to remark."""


def registered() -> list[Registered] | None:
    """What DKMS knows of the module; None when there is no DKMS."""
    try:
        return parse(run("dkms", "status", "-m", OURS, check=False).stdout)
    except ProgramMissingError:
        return None


def others() -> bool:
    """Whether DKMS knows other modules than ours; False when there is no DKMS."""
    try:
        lines = run("dkms", "status", check=False).stdout.splitlines()
    except ProgramMissingError:
        return False
    return any(line.strip() and not _LINE.fullmatch(line.strip()) for line in lines)


def parse(text: str) -> list[Registered]:
    """Read ``dkms status``."""
    matches = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return [Registered(m["version"], m["kernel"] or "", m["state"]) for m in matches if m]


def source_folder(version: str) -> Path:
    """Where DKMS looks for the source."""
    return Path(f"/usr/src/{OURS}-{version}")


def add_and_install(version: str, release: str) -> None:
    """Have DKMS build and install what lies in the source folder for a kernel, and read it back."""
    hint = f"see {TREE}/{OURS}/{version}/build/make.log"
    words = ("-m", OURS, "-v", version)
    run("dkms", "add", *words)
    run("dkms", "install", *words, "-k", release, timeout=_TIMEOUT, hint=hint)
    found = [r for r in registered() or [] if (r.version, r.kernel) == (version, release)]
    if not found or not found[0].state.startswith("installed"):
        state = found[0].state if found else "not registered"
        raise MismatchError(f"{OURS}/{version} for {release}", "installed", state, hint)


def remove(version: str) -> tuple[str, ...]:
    """The command that takes all of a version out again: its modules of all kernels, too."""
    return ("dkms", "remove", "-m", OURS, "-v", version, "--all")
