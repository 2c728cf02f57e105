# SPDX-License-Identifier: Apache-2.0
"""The Debian mirror to build from: the one this machine's apt uses, or $NFSRDMA_MIRROR."""

from __future__ import annotations

import os

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import ProgramMissingError, UserError

__all__ = ["archive", "parse_targets", "sources"]

_SUITES = {
    "Debian": ("trixie", "trixie-updates", "trixie-backports", "bookworm", "bookworm-updates"),
    "Debian-Security": ("trixie-security", "bookworm-security"),
}


def parse_targets(text: str) -> dict[str, str]:
    """The first archive of each kind in lines of ``label|URI``, as apt-get indextargets gives them.

    Labels are empty before the first ``apt-get update``; then the URI's last part tells.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        label, _, uri = line.partition("|")
        uri = uri.rstrip("/")
        last = uri.rpartition("/")[2]
        label = label or {"debian": "Debian", "debian-security": "Debian-Security"}.get(last, "")
        if label in _SUITES and uri.startswith(("http://", "https://")):
            found.setdefault(label, uri)
    return found


def sources() -> str:
    """A sources.list with Debian 13 and, for the other kernels, its backports and Debian 12."""
    mirrors = _mirrors()
    # every mirror has them side by side
    mirrors.setdefault("Debian-Security", f"{mirrors['Debian']}-security")
    lines = [
        f"deb {mirrors[label]} {suite} main"
        for label, suites in _SUITES.items()
        for suite in suites
    ]
    return "\n".join(lines) + "\n"


def archive() -> str:
    """The URL of Debian's archive."""
    return _mirrors()["Debian"]


def _mirrors() -> dict[str, str]:
    mirrors = _own() if "NFSRDMA_MIRROR" in os.environ else _of_apt()
    if "Debian" not in mirrors:
        hint = "set NFSRDMA_MIRROR to the URL of one, which ends in /debian"
        raise UserError("apt knows no Debian archive here", hint)
    return mirrors


def _own() -> dict[str, str]:
    return {"Debian": os.environ["NFSRDMA_MIRROR"].rstrip("/")}


def _of_apt() -> dict[str, str]:
    try:
        targets = run("apt-get", "indextargets", "--format", "$(LABEL)|$(REPO_URI)", check=False)
    except ProgramMissingError:
        return {}
    return parse_targets(targets.stdout)
