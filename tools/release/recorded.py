# SPDX-License-Identifier: Apache-2.0
"""The recorded set of packages that a release was built with: lines ``KIND NAME VERSION``.

The kinds: ``host`` for programs of the machine, ``python`` for packages of the index, ``debian``
for those of the Debian 13 in which Debian's packages are built.
"""

from __future__ import annotations

import platform
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import ProgramMissingError, UserError

__all__ = ["FILE", "host", "require", "versions"]

FILE = "build-packages.txt"
_PROGRAMS = (("git", "--version"), ("mmdebstrap", "--version"), ("rpmbuild", "--version"))


def host() -> Iterator[str]:
    """The programs of this machine that write released files."""
    yield f"host python {platform.python_version()}"
    yield f"host zlib {zlib.ZLIB_RUNTIME_VERSION}"
    for program, option in _PROGRAMS:
        try:
            first = run(program, option).stdout.splitlines()[0]
        except ProgramMissingError:
            continue
        yield f"host {program} {first.split()[-1]}"


def versions(lines: Iterable[str], kind: str) -> dict[str, str]:
    """The packages of a kind, and their versions."""
    words = (line.split() for line in lines)
    return {name: version for found, name, version in words if found == kind}


def require(file: Path, kind: str, lines: Iterable[str]) -> None:
    """UserError with the first package whose version is not the recorded one."""
    recorded = versions(file.read_text().splitlines(), kind)
    found = versions(lines, kind)
    for name in sorted(recorded | found):
        one, other = recorded.get(name, "none"), found.get(name, "none")
        if one != other:
            hint = "use the machine of the record"
            if kind == "debian":
                hint = "set NFSRDMA_MIRROR to a snapshot of the archive"
            raise UserError(f"{kind} {name}: recorded {one}, found {other}", hint)
