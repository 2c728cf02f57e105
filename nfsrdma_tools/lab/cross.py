# SPDX-License-Identifier: Apache-2.0
"""The compiler for machines of another architecture: Debian's packages for this one, unpacked once.

It runs in a root of an image of this host's architecture, which has the libraries that it needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from nfsrdma_tools.lab.architecture import Architecture
from nfsrdma_tools.lab.config import KERNELS
from nfsrdma_tools.lab.debian_kernel import SUITES
from nfsrdma_tools.lab.debian_packages import unpack_once
from nfsrdma_tools.lab.paths import cache_dir

__all__ = ["compiler"]

# those of the image's compiler
_GCC = "14"


def compiler(architecture: Architecture, step: Callable[[str], None] = lambda _: None) -> Path:
    """The folder with the compiler, to be copied to a root.

    Raises UserError if the archive is unreachable or has none.
    """
    name = architecture.compiler.rstrip("-").replace("_", "-")
    libraries = ("libc6", "libc6-dev", "libgcc-s1", f"libgcc-{_GCC}-dev", "linux-libc-dev")
    packages = (
        *(f"{program}-{name}" for program in ("binutils", "gcc", f"gcc-{_GCC}", f"cpp-{_GCC}")),
        *(f"{library}-{architecture.debian}-cross" for library in libraries),
    )
    digest = hashlib.sha256(repr(packages).encode()).hexdigest()
    folder = cache_dir() / "programs" / f"gcc-{architecture.debian}-{digest[:16]}"
    if not folder.is_dir():
        step(f"fetching the compiler for {architecture.debian} (30 s, 60 MB)")
        unpack_once(packages, SUITES[KERNELS[0]][0], folder)
    return folder
