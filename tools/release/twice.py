# SPDX-License-Identifier: Apache-2.0
"""``make release-check``: build a release twice, and compare the files byte by byte.

Each build is `make release` in a clone of its own.  The folders, their lengths, umask, time zone,
locale and day differ; the second build has the packages that the first one recorded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.command import is_installed
from nfsrdma_tools.errors import UserError
from release import recorded
from release.archives import difference

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "out/release-check"


class Conditions(NamedTuple):
    """What a release may not depend on."""

    folder: str
    umask: int
    clock: str
    environment: dict[str, str]


CONDITIONS = (
    Conditions("first", 0o022, "+0h", {"TZ": "UTC", "LC_ALL": "C"}),
    # not further: the lists of Debian's updates are valid for a week
    Conditions(
        *("second-in-a-folder-with-a-longer-name", 0o027, "+30h"),
        {"TZ": "Pacific/Chatham", "LC_ALL": "C.UTF-8", "USER": "nobody", "HOSTNAME": "other"},
    ),
)


def main() -> None:
    """Build twice; exit status 1 if a file differs, or one is missing."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    if not is_installed("faketime"):
        print("not tried: another day: faketime is not installed")
    first, second = CONDITIONS
    one = built(first, "")
    other = built(second, f"--packages {one / recorded.FILE}")
    found = list(compared(one, other))
    for name, where in found:
        print(f"{name}: {where or 'equal'}")
    sys.exit(any(where for _, where in found) or not found)


def built(conditions: Conditions, words: str) -> Path:
    """Build a release in a new clone; returns the folder with its files."""
    clone = FOLDER / conditions.folder
    clock = ("faketime", "-f", conditions.clock) if is_installed("faketime") else ()
    for argv in (
        ("git", "clone", "--quiet", "--no-local", ROOT, clone),
        (*clock, "make", "-C", clone, "release", f"ARGS=--draft {words}"),
    ):
        # make of this build would hand its own variables on
        known = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "ARGS")}
        done = subprocess.run(
            argv,
            env=known | conditions.environment | {"PYTHONPATH": ""},
            umask=conditions.umask,
            check=False,
        )
        if done.returncode:
            raise UserError(f"{conditions.folder}: {argv[0]} failed", "the reason is above")
    (folder,) = (clone / "dist").glob("release-*")
    return folder


def compared(one: Path, other: Path) -> Iterator[tuple[str, str]]:
    """Each file of two folders, and where the two differ; "" for equal ones."""
    for name in sorted({path.name for folder in (one, other) for path in folder.iterdir()}):
        files = [folder / name for folder in (one, other)]
        if all(file.exists() for file in files):
            yield name, difference(name, *(file.read_bytes() for file in files))
        else:
            yield name, "is in one of the builds only"


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"release-check: {error}")
