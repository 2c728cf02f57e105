# SPDX-License-Identifier: Apache-2.0
"""The Debian mirror to build from: that of this host's apt, or $NFSRDMA_MIRROR."""

from __future__ import annotations

import os
from collections.abc import Iterable

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import ProgramMissingError, UserError

__all__ = ["parse_targets", "sources"]

_SECURITY = "Debian-Security"
_LABELS = ("Debian", _SECURITY)


def parse_targets(text: str) -> dict[str, str]:
    """The first archive of each kind in lines ``label|URI`` of apt-get indextargets.

    Labels are empty before the first ``apt-get update``; then the end of the URI decides.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        label, _, uri = line.partition("|")
        uri = uri.rstrip("/")
        last = uri.rpartition("/")[2]
        label = label or {"debian": "Debian", "debian-security": "Debian-Security"}.get(last, "")
        if label in _LABELS and uri.startswith(("http://", "https://")):
            found.setdefault(label, uri)
    return found


def sources(suites: Iterable[str], options: str = "", kind: str = "deb") -> str:
    """A sources.list with these suites; ``options`` precede each URL.

    ``kind`` is deb, or deb-src for source packages.
    """
    mirrors = _mirrors()
    # every mirror has both archives
    mirrors.setdefault(_SECURITY, f"{mirrors['Debian']}-security")
    label = {True: _SECURITY, False: "Debian"}
    lines = [f"{kind} {options}{mirrors[label[s.endswith('-security')]]} {s} main" for s in suites]
    return "\n".join(lines) + "\n"


def _mirrors() -> dict[str, str]:
    mirrors = _own() if "NFSRDMA_MIRROR" in os.environ else _of_apt()
    if "Debian" not in mirrors:
        hint = "set NFSRDMA_MIRROR to the URL of a mirror, ending in /debian"
        raise UserError("apt has no Debian archive configured", hint)
    return mirrors


def _own() -> dict[str, str]:
    return {"Debian": os.environ["NFSRDMA_MIRROR"].rstrip("/")}


def _of_apt() -> dict[str, str]:
    try:
        targets = run("apt-get", "indextargets", "--format", "$(LABEL)|$(REPO_URI)", check=False)
    except ProgramMissingError:
        return {}
    return parse_targets(targets.stdout)
