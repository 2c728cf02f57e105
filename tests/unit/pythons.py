# SPDX-License-Identifier: Apache-2.0
"""Other versions of Python, of the distribution or of pyenv."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def interpreter(version: str) -> str:
    """A Python of this version; without one, the test is skipped."""
    names = [
        f"python{version}",
        *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
    ]
    for name in map(str, names):
        path = shutil.which(name)
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        # a shim of pyenv is there without its version
        if path and _printed(path, "-c", code) == version:
            return path
    pytest.skip(f"Python {version} is not installed: nothing was run on it")


def _printed(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
