# SPDX-License-Identifier: Apache-2.0
"""The Debian mirror to build from: the one this machine's apt uses already."""

from __future__ import annotations

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import ProgramMissingError

__all__ = ["parse_targets", "sources"]

_DEFAULTS = {
    "Debian": "http://mirror.example/debian",
    "Debian-Security": "http://mirror.example/debian-security",
}
_SUITES = {
    "Debian": ("trixie", "trixie-updates", "trixie-backports", "bookworm", "bookworm-updates"),
    "Debian-Security": ("trixie-security", "bookworm-security"),
}


def parse_targets(text: str) -> dict[str, str]:
    """The first repository of each label in the output of ``apt-get indextargets``."""
    found = dict(_DEFAULTS)
    for line in reversed(text.splitlines()):
        label, _, uri = line.partition("|")
        if label in found and uri.startswith(("http://", "https://")):
            found[label] = uri.rstrip("/")
    return found


def sources() -> str:
    """A sources.list with Debian 13 and, for the other kernels, its backports and Debian 12."""
    fields = "$(LABEL)|$(REPO_URI)"
    try:
        text = run("apt-get", "indextargets", "--format", fields, check=False).stdout
    except ProgramMissingError:
        text = ""
    mirrors = parse_targets(text)
    lines = [
        f"deb {mirrors[label]} {suite} main"
        for label, suites in _SUITES.items()
        for suite in suites
    ]
    return "\n".join(lines) + "\n"
