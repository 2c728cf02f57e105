# SPDX-License-Identifier: Apache-2.0
"""Programs that are in no image: our own, a browser, and some of Debian's packages, unpacked.

Prometheus' package would start a service when it is installed.
"""

import io
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest

from nfsrdma_tools import command
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.debian_packages import unpack_once
from nfsrdma_tools.lab.nodes import Nodes
from nfsrdma_tools.lab.paths import cache_dir

__all__ = ["bring_xfs", "chromium", "place_compiled", "prometheus"]


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


# in a folder that may be new
_PLACE = 'mkdir -p "${1%/*}"; cat > "$1"; chmod +x "$1"'


def place_compiled(lab: Nodes, node: str, source: Path, path: str, *words: str | Path) -> None:
    """Compile a C program on this host, by more words of gcc, and write it to a path in a node."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program"
        command.run("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", file, source, *words)
        lab.run(node, "sh", "-ec", _PLACE, "sh", path, stdin=file.read_bytes())


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
