# SPDX-License-Identifier: Apache-2.0
"""The released files of this checkout: the wheel, Debian's packages and the zipapp; and those of an
older commit, which users may have."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
OLDEST = "0c58fd1616dcc838cffa65988933825b69ead3d9"
"""The oldest commit from whose files an upgrade is tested."""


def oldest(folder: Path) -> Path:
    """The files of the oldest commit, in a new folder; the test is skipped without that commit."""
    known = subprocess.run(("git", "-C", ROOT, "cat-file", "-e", OLDEST), check=False)
    if known.returncode:
        pytest.skip(f"this clone has no commit {OLDEST[:8]}; missed: an upgrade from it")
    folder.mkdir()
    tar = folder.with_suffix(".tar")
    output("git", "archive", "--format=tar", f"--output={tar}", OLDEST)
    output("tar", "-C", folder, "-xf", tar)
    return folder


def environment(**changes: str) -> dict[str, str]:
    """The environment of this process, without PYTHONPATH: this checkout would hide the wheel."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return known | changes


def output(*argv: str | Path, **changes: str) -> str:
    """What a program prints, in the folder of this checkout; AssertionError if it fails."""
    done = subprocess.run(
        argv, cwd=ROOT, env=environment(**changes), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def tool(name: str, *words: str | Path) -> None:
    """Run a program of tools/, with this checkout's package."""
    output(sys.executable, ROOT / "tools" / name, *words, PYTHONPATH=str(ROOT))


def wheel(folder: Path, tree: Path = ROOT) -> Path:
    """Build the wheel of a checkout into an empty folder; returns its file."""
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, tree)
    output(*pip, HATCH_BUILD_HOOK_ENABLE_CUSTOM="true")
    (made,) = folder.iterdir()
    return made


def debs(folder: Path) -> list[Path]:
    """Build Debian's packages into an empty folder; returns their files."""
    tool("deb.py", folder)
    return sorted(folder.glob("*.deb"))


def zipapp(folder: Path) -> Path:
    """Build the zipapp into a folder; returns its file."""
    tool("portable.py", folder)
    return folder / "nfsrdma.pyz"


def common(found: Any, older: Any) -> Any:
    """JSON values without the names that an older program did not have: names may be added."""
    if isinstance(found, dict) and isinstance(older, dict):
        return {name: common(each, older[name]) for name, each in found.items() if name in older}
    if isinstance(found, list) and isinstance(older, list) and len(found) == len(older):
        return [common(*pair) for pair in zip(found, older, strict=True)]
    return found
