# SPDX-License-Identifier: Apache-2.0
"""Libraries that not every installation has: a command that needs a missing one fails in one line.

pyproject.toml names them as extras: ``pip install 'nfsrdma-tools[report]'``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from nfsrdma_tools.errors import UserError

__all__ = ["EXTRAS", "needed"]

EXTRAS = {
    **dict.fromkeys(("matplotlib", "numpy"), "report"),
    **dict.fromkeys(
        ("bcrypt", "h11", "prometheus_client", "starlette", "textual", "uvicorn", "yaml"), "live"
    ),
}
"""The extra of each library, by the name that Python imports.  lab/qmp.py knows its own."""
_DEBIAN = Path("/usr/lib/python3/dist-packages")


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Raise UserError, with what to install, when the block needs a library that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        what = f"this command needs {library}, which is not installed"
        raise UserError(what, _install(library)) from error


def _install(library: str) -> str:
    if Path(__file__).is_relative_to(_DEBIAN):
        return f"apt install python3-{library.replace('_', '-')}"
    return f"{sys.executable} -m pip install 'nfsrdma-tools[{EXTRAS[library]}]'"
