# SPDX-License-Identifier: Apache-2.0
"""Builds libnfsrdma on this host, and programs of nodes with it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nfsrdma_tools.lab.nodes import Nodes
from testbed.programs import place_compiled

__all__ = ["built_library", "place_program"]

_LIB = Path(__file__).parents[1] / "lib"
_HEADERS = ("infiniband/verbs.h", "rdma/rdma_cma.h")


def built_library() -> Path:
    """Build the library; skips the test if this host lacks what that needs."""
    missing = [name for name in ("make", "gcc", "pkg-config", "rpcgen") if not shutil.which(name)]
    missing += [name for name in _HEADERS if not Path("/usr/include", name).exists()]
    if "pkg-config" not in missing and _run("pkg-config", "--exists", "libtirpc"):
        missing.append("libtirpc-dev")
    if missing:
        pytest.skip(f"libnfsrdma needs {', '.join(missing)}; missed: the client without a mount")
    assert _run("make", "-s", "-C", str(_LIB)) == 0
    return _LIB / "build" / "libnfsrdma.so.0"


def _run(*argv: str) -> int:
    return subprocess.run(argv, check=False).returncode


def place_program(lab: Nodes, node: str, source: Path, path: str, *options: str) -> None:
    """Compile a C program with the library inside, and write it to a path in a node."""
    archive = built_library().with_name("libnfsrdma.a")
    linked = ("-ltirpc", "-lrdmacm", "-libverbs", "-lpthread", "-lm")
    place_compiled(lab, node, source, path, f"-I{_LIB}", *options, archive, *linked)
