# SPDX-License-Identifier: Apache-2.0
"""Write the flame graph of a probe set that samples stacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.files import write_atomically
from nfsrdma_tools.probes.probe_sets import ProbeSet

__all__ = ["drawing"]


def drawing(probe_set: ProbeSet, file: Path) -> Callable[[Any], None]:
    """A function that draws a snapshot into ``file`` and replaces the file in one step.

    Raises UsageError if the probe set samples no stacks, UserError if the directory is missing.
    """
    if not probe_set.draws:
        raise UsageError(f"trace {probe_set.name} has no option --flame", "use trace cpu --flame")
    if not file.parent.is_dir():
        raise UserError(f"{file.parent} is not a directory", "create it first")
    return lambda snapshot: _write(file, probe_set.flame(snapshot))


def _write(file: Path, text: str) -> None:
    try:
        write_atomically(file, text)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error
