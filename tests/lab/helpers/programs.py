# SPDX-License-Identifier: Apache-2.0
"""Programs that tests look at us with: a browser, and Prometheus out of its Debian package.

Prometheus' package would start a service when it is installed, so it is only unpacked.
"""

import shutil
from pathlib import Path

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.debian_packages import unpack_once
from nfsrdma_tools.lab.paths import cache_dir

__all__ = ["chromium", "prometheus"]


def chromium() -> str:
    """Where the browser is; a skipped test says how to get it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        pytest.skip("chromium is not installed (tools/setup browser); missed: the dashboard's page")
    return found


def prometheus() -> Path:
    """The folder that has prometheus and promtool."""
    folder = cache_dir() / "programs" / "prometheus"
    try:
        unpack_once(("prometheus",), "bookworm", folder)
    except UserError as error:
        why = f"Debian's package of prometheus cannot be had: {error}"
        pytest.skip(f"{why}; missed: a scrape by Prometheus, its rules and dashboards")
    return folder / "usr/bin"
