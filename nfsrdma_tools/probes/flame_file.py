# SPDX-License-Identifier: Apache-2.0
"""Writes the flame graph of a probe set that samples stacks to a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import write_atomically
from nfsrdma_tools.probes.probe_sets import Account

__all__ = ["drawing"]


def drawing(account: Account, file: Path) -> Callable[[Any], None]:
    """The function that draws a snapshot into ``file``.  UserError if that is not possible.

    It replaces the file atomically, once, at the end.
    """
    if not account.draws:
        raise UserError(f"{account.name} samples no stacks", "use --flame with the probe set cpu")
    if not file.parent.is_dir():
        raise UserError(f"{file.parent} is not a directory", "create it first")
    return lambda snapshot: _write(file, account.flame(snapshot))


def _write(file: Path, text: str) -> None:
    try:
        write_atomically(file, text)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error
