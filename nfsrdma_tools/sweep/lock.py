# SPDX-License-Identifier: Apache-2.0
"""Only one sweep on a mount point, and only one of a plan.  The kernel lets go when we die."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.undo import state_dir

__all__ = ["only_one"]


@contextlib.contextmanager
def only_one(what: str) -> Iterator[None]:
    """Hold the lock named ``what``; UserError at once when another process has it."""
    name = hashlib.sha256(os.fsencode(what)).hexdigest()[:16]
    path = state_dir() / f"sweep-{name}.lock"
    with path.open("a") as file:
        if not _locked(file.fileno()):
            hint = "wait for it, or sweep on another mount point"
            raise UserError(f"another sweep uses {what}", hint)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # the one before us may have removed the file after we opened it: then this lock is nobody's
    return os.fstat(file).st_nlink > 0
