# SPDX-License-Identifier: Apache-2.0
"""Where nfsrdma keeps what outlives a command, as JSON.

Journals and what a reboot takes back are below /run/nfsrdma, what outlives a reboot is below
/var/lib/nfsrdma.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError

__all__ = ["lib_dir", "load", "save", "state_dir"]

_T = TypeVar("_T")


def state_dir() -> Path:
    """The folder of journals and locks: $NFSRDMA_STATE, or /run/nfsrdma."""
    path = _state_dir()
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {path}", "run this as root")
    return path


def _state_dir() -> Path:
    return Path(os.environ.get("NFSRDMA_STATE", "/run/nfsrdma"))


def lib_dir(root: Path = Path("/")) -> Path:
    """The folder of what outlives a reboot: $NFSRDMA_LIB, or var/lib/nfsrdma below ``root``."""
    return Path(os.environ.get("NFSRDMA_LIB", root / "var/lib/nfsrdma"))


def load(path: Path, make: Callable[[Any], _T]) -> _T | None:
    """Build an object from the file's JSON by ``make``; None when there is no file.

    Raises UserError for a damaged file: text that is not JSON, or that ``make`` cannot use.
    """
    try:
        return make(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        hint = "correct it, or move it away: the changes that it records cannot be undone then"
        raise UserError(f"{path} is damaged: {error}", hint) from error


def save(path: Path, data: object) -> None:
    """Write the file in one step; for None remove it, and a folder that is empty then.

    The folder of journals stays: another process may be about to use it.
    """
    if data is not None:
        files.write_atomically(path, json.dumps(data, indent=1) + "\n")
        return
    files.remove(path)
    if path.parent != _state_dir():
        with contextlib.suppress(OSError):
            path.parent.rmdir()
