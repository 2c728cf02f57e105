# SPDX-License-Identifier: Apache-2.0
"""The released files of this checkout: the wheel, Debian's packages and the zipapp."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


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


def wheel(folder: Path) -> Path:
    """Build the wheel into an empty folder; returns its file."""
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
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
