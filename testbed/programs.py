# SPDX-License-Identifier: Apache-2.0
"""Programs of tests that are in no image: a browser, and some of Debian's packages, unpacked.

Prometheus' package would start a service when it is installed.
"""

import io
import shutil
import tarfile
from pathlib import Path

import pytest

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.debian_packages import unpack_once
from nfsrdma_tools.lab.nodes import Nodes
from nfsrdma_tools.lab.paths import cache_dir

__all__ = ["bring_xfs", "chromium", "prometheus"]


def chromium() -> str:
    """Where the browser is; a skipped test says how to get it."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if not path:
        pytest.skip("chromium is not installed (tools/setup browser); missed: the dashboard's page")
    return path


def prometheus() -> Path:
    """The folder that has prometheus and promtool."""
    folder = cache_dir() / "programs" / "prometheus"
    try:
        unpack_once(("prometheus",), "bookworm", folder)
    except UserError as error:
        why = f"Debian's package of prometheus cannot be had: {error}"
        pytest.skip(f"{why}; missed: a scrape by Prometheus, its rules and dashboards")
    return folder / "usr/bin"


# mkfs.xfs with the one library that the image lacks
_XFS = """
mkdir -p /run/xfs && cd /run/xfs && tar -x
printf '#!/bin/sh\nLD_LIBRARY_PATH=/run/xfs exec /run/xfs/mkfs "$@"\n' > mkfs.xfs
chmod +x mkfs.xfs
"""


def bring_xfs(lab: Nodes, node: str) -> None:
    """Have /run/xfs/mkfs.xfs in a node; a skipped test says why not."""
    folder = cache_dir() / "programs" / "xfs"
    try:
        unpack_once(("xfsprogs", "libinih1"), "trixie", folder)
    except UserError as error:
        pytest.skip(f"Debian's package of xfsprogs cannot be had: {error}; missed: XFS")
    (library,) = folder.glob("usr/lib/*/libinih.so.1")
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", dereference=True) as archive:
        archive.add(folder / "usr/sbin/mkfs.xfs", "mkfs")
        archive.add(library, library.name)
    lab.run(node, "sh", "-ec", _XFS, stdin=tar.getvalue())
