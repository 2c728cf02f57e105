# SPDX-License-Identifier: Apache-2.0
"""The source of a commit, for benches that count it beside today's; and a program of this host."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["ROOT", "program", "unpack"]

ROOT = Path(__file__).parents[1]


def program(*argv: str | Path) -> str:
    """The output of a program; CalledProcessError if it fails."""
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def unpack(commit: str, folder: Path, *paths: str) -> None:
    """Write these paths of the repository, as of the commit, below the folder."""
    argv = ("git", "-C", str(ROOT), "archive", commit, *paths)
    archive = subprocess.run(argv, check=True, capture_output=True).stdout
    subprocess.run(("tar", "-x", "-C", folder), check=True, input=archive)
