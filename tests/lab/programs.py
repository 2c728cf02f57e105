# SPDX-License-Identifier: Apache-2.0
"""Programs that tests look at us with: a browser, and Prometheus out of its Debian package.

Prometheus' package would start a service when it is installed, so it is only unpacked.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from nfsrdma_tools.lab.places import cache_dir

__all__ = ["chromium", "prometheus"]


def chromium() -> str:
    """Where the browser is; a skipped test says how to get it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        pytest.skip("chromium is not installed: tools/setup browser")
    return found


def prometheus() -> Path:
    """The folder that has prometheus and promtool."""
    folder = cache_dir() / "programs" / "prometheus"
    if not folder.is_dir():
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as draft:
            _fetch(Path(draft))
            (Path(draft) / "root").rename(folder)
    return folder / "usr/bin"


def _fetch(draft: Path) -> None:
    for again in (False, True):
        argv = ("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", "prometheus")
        done = subprocess.run(argv, cwd=draft, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        if again:
            pytest.skip(f"Debian's package of prometheus cannot be had: {done.stderr.strip()}")
        # the lists of packages may be missing or old
        subprocess.run(("apt-get", "update", "-qq"), capture_output=True, check=False)
    (package,) = draft.glob("*.deb")
    subprocess.run(("dpkg-deb", "-x", package, draft / "root"), check=True)
