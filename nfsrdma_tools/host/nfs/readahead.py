# SPDX-License-Identifier: Apache-2.0
"""Read-ahead of one mount: /sys/class/bdi/MAJOR:MINOR/read_ahead_kb.

The 2003 paper counts reads ahead ("0, 1, 4 reads ahead"); Linux has a window in bytes.  N blocks
ahead are a window of N * rsize here.  Linux reads whole pages, so a window that is not a whole
number of pages is rounded *up* to one: asking for a block never means none.  0 is none at all.
The kernel rounds down what is written (read_ahead_kb_store in mm/backing-dev.c) and a file takes
the value over when it is opened, so it is to be set before.

nfs-utils installs a udev rule (99-nfs.rules, nfsrahead) that sets read_ahead_kb some time after
the mount: what was set at once would be overwritten.  So udev is waited for, before and after.
"""

from __future__ import annotations

import os
from pathlib import Path

from nfsrdma_tools import files
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, ProgramMissingError, UserError

__all__ = ["blocks_for", "get_kb", "kb_for", "set_kb", "verify"]

_BDI = Path("/sys/class/bdi")
_TRIES = 3


def kb_for(blocks: int, rsize: int) -> int:
    """The window in KiB for ``blocks`` reads ahead of ``rsize`` bytes, rounded up to a page."""
    if blocks < 0 or rsize <= 0:
        raise UserError(f"{blocks} blocks of {rsize} bytes is not a read-ahead")
    page = os.sysconf("SC_PAGE_SIZE")
    return -(-blocks * rsize // page) * page // 1024


def blocks_for(kb: int, rsize: int) -> float:
    """How many blocks of ``rsize`` bytes fit into a window of ``kb`` KiB; 0 without an rsize."""
    return kb * 1024 / rsize if rsize else 0.0


def get_kb(device: str, bdi: Path = _BDI) -> int:
    """The window in effect on ``device`` ("0:45"), in KiB.  Raises UserError when it is gone."""
    try:
        return int(files.raw(f"{bdi}/{device}/read_ahead_kb"))
    except (OSError, ValueError) as error:
        raise UserError(f"read-ahead of device {device} cannot be read: {error}") from error


def set_kb(device: str, kb: int, bdi: Path = _BDI) -> int:
    """Set the window of ``device`` and prove that it stays; returns what is in effect, in KiB.

    Raises MismatchError when something else is in effect afterwards, UserError when it cannot
    be written.
    """
    settle()
    for _ in range(_TRIES):
        _write(device, kb, bdi)
        settle()
        if get_kb(device, bdi) == kb:
            break
    return verify(device, kb, bdi)


def verify(device: str, kb: int, bdi: Path = _BDI) -> int:
    """Prove that the window of ``device`` is ``kb``; to be called again after a measurement."""
    found = get_kb(device, bdi)
    if found != kb:
        hint = "a udev rule may have set it (99-nfs.rules), and the kernel keeps whole pages only"
        raise MismatchError(f"read-ahead of device {device} in KiB", kb, found, hint)
    return found


def settle(timeout: float = 30) -> None:
    """Wait until udev has run its rules; a machine without udev has no rules to wait for."""
    try:
        run("udevadm", "settle", f"--timeout={timeout:g}", timeout=timeout + 10, check=False)
    except ProgramMissingError:
        return


def _write(device: str, kb: int, bdi: Path) -> None:
    try:
        _file(device, bdi).write_text(str(kb))
    except PermissionError as error:
        raise UserError(
            f"read-ahead of device {device} cannot be set", "run this as root"
        ) from error
    except OSError as error:
        raise UserError(f"read-ahead of device {device} cannot be set to {kb}: {error}") from error


def _file(device: str, bdi: Path) -> Path:
    return bdi / device / "read_ahead_kb"
