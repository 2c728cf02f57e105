# SPDX-License-Identifier: Apache-2.0
"""A flame graph of an account that can draw one, put into a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import write_atomically
from nfsrdma_tools.probes.probe_sets import Account

__all__ = ["drawing"]


def drawing(account: Account, file: Path) -> Callable[[Any], None]:
    """What draws a snapshot into ``file``; UserError when the account or the file cannot be that.

    The file is replaced in one step, by what is drawn at the end.
    """
    if not account.draws:
        raise UserError(f"{account.name} samples no stacks", "--flame goes with cpu")
    if not file.parent.is_dir():
        raise UserError(f"{file.parent} is no directory", "make it first")
    return lambda snapshot: _write(file, account.flame(snapshot))


def _write(file: Path, text: str) -> None:
    try:
        write_atomically(file, text)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from error
