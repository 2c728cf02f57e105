# SPDX-License-Identifier: Apache-2.0
"""DKMS, which rebuilds the module for each new kernel: its commands and its status."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, ProgramMissingError
from nfsrdma_tools.module_source import OURS

__all__ = [
    "KEY",
    "TREE",
    "Registered",
    "add_and_install",
    "install_commands",
    "others",
    "parse",
    "registered",
    "remove",
    "source_folder",
]

TREE = Path("/var/lib/dkms")
"""The state directory of DKMS."""
KEY = (TREE / "mok.key", TREE / "mok.pub")
"""The signing key of DKMS, which it makes at its first build and never removes."""
_TIMEOUT = 3600  # in seconds; it includes a build
# "nfsrdma/0.1.0, 6.12.1-amd64, x86_64: installed", or "nfsrdma/0.1.0: added"
_LINE = re.compile(
    rf"{OURS}[/, ]+(?P<version>[^,: ]+)(?:, (?P<kernel>[^,]+), [^:]+)?: (?P<state>.+)"
)


@dataclass(frozen=True)
class Registered:
    """A registered version of the module, and its state for one kernel."""

    version: str
    kernel: str
    """Empty if the version is only added."""
    state: str
    """``added``, ``built`` or ``installed``, with the remarks of DKMS."""


def registered() -> list[Registered] | None:
    """The registered versions of the module; None if DKMS is not installed."""
    try:
        return parse(run("dkms", "status", "-m", OURS, check=False).stdout)
    except ProgramMissingError:
        return None


def others() -> bool:
    """Whether DKMS has other modules than ours; False if it is not installed."""
    try:
        lines = run("dkms", "status", check=False).stdout.splitlines()
    except ProgramMissingError:
        return False
    return any(line.strip() and not _LINE.fullmatch(line.strip()) for line in lines)


def parse(text: str) -> list[Registered]:
    """Parse ``dkms status``."""
    matches = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return [Registered(m["version"], m["kernel"] or "", m["state"]) for m in matches if m]


def source_folder(version: str) -> Path:
    """The directory in which DKMS expects the source."""
    return Path(f"/usr/src/{OURS}-{version}")


def install_commands(version: str, release: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The commands that register the source folder, and build and install it for a kernel."""
    words = ("-m", OURS, "-v", version)
    return ("dkms", "add", *words), ("dkms", "install", *words, "-k", release)


def add_and_install(version: str, release: str) -> None:
    """Have DKMS build and install the source folder for a kernel, and verify it."""
    hint = f"see {TREE}/{OURS}/{version}/build/make.log"
    add, install = install_commands(version, release)
    run(*add)
    run(*install, timeout=_TIMEOUT, hint=hint)
    found = [r for r in registered() or [] if (r.version, r.kernel) == (version, release)]
    if not found or not found[0].state.startswith("installed"):
        state = found[0].state if found else "not registered"
        raise MismatchError(f"{OURS}/{version} for {release}", "installed", state, hint)


def remove(version: str) -> tuple[str, ...]:
    """The command that removes a version with its modules for all kernels."""
    return ("dkms", "remove", "-m", OURS, "-v", version, "--all")
