# SPDX-License-Identifier: Apache-2.0
"""Read-ahead of one mount: /sys/class/bdi/MAJOR:MINOR/read_ahead_kb.

The 2003 paper counts reads ahead ("0, 1, 4 reads ahead"); Linux has a window in bytes.  Here, N
blocks ahead are a window of N * rsize.  Linux reads whole pages, so ``kb_for`` rounds the window
*up* to whole pages: a request for one block never becomes none.  0 means no read-ahead.
The kernel rounds written values down (read_ahead_kb_store in mm/backing-dev.c), and a file takes
the value when it is opened, so set it before.

nfs-utils installs a udev rule (99-nfs.rules, nfsrahead) that sets read_ahead_kb some time after
the mount and would overwrite a value set at once.  So ``set_kb`` waits for udev, before and after.
"""

from __future__ import annotations

import os
from pathlib import Path

from nfsrdma_tools import files, udev
from nfsrdma_tools.errors import MismatchError, UsageError, UserError
from nfsrdma_tools.host.machine import LIVE, Machine

__all__ = ["blocks_for", "get_kb", "kb_for", "path_of", "set_kb", "verify"]

_TRIES = 3


def kb_for(blocks: int, rsize: int) -> int:
    """The window in KiB for ``blocks`` of ``rsize`` bytes, rounded up to a page."""
    if blocks < 0 or rsize <= 0:
        raise UsageError(f"read-ahead of {blocks} blocks of {rsize} bytes is not possible")
    page = os.sysconf("SC_PAGE_SIZE")
    return -(-blocks * rsize // page) * page // 1024


def blocks_for(kb: int, rsize: int) -> float:
    """The blocks of ``rsize`` bytes in a window of ``kb`` KiB; 0 for rsize 0."""
    return kb * 1024 / rsize if rsize else 0.0


def path_of(device: str, machine: Machine = LIVE) -> Path:
    """The file that has the window of ``device``, in KiB."""
    return machine.path(f"sys/class/bdi/{device}/read_ahead_kb")


def get_kb(device: str, machine: Machine = LIVE) -> int:
    """The window in effect on ``device`` ("0:45"), in KiB.  UserError if the device is gone."""
    try:
        return int(files.raw(path_of(device, machine)))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the read-ahead of device {device}: {error}") from error


def set_kb(device: str, kb: int, machine: Machine = LIVE) -> int:
    """Set the window of ``device`` and verify that it stays; returns the value in effect, in KiB.

    Raises MismatchError if another value is in effect afterwards, UserError if it cannot be
    written.
    """
    udev.settle()
    for _ in range(_TRIES):
        _write(device, kb, machine)
        udev.settle()
        if get_kb(device, machine) == kb:
            break
    return verify(device, kb, machine)


def verify(device: str, kb: int, machine: Machine = LIVE) -> int:
    """Verify that the window of ``device`` is ``kb``; call it again after a measurement."""
    current = get_kb(device, machine)
    if current != kb:
        hint = "a udev rule may set it (99-nfs.rules), and the kernel rounds down to whole pages"
        raise MismatchError(f"read-ahead of device {device} in KiB", kb, current, hint)
    return current


def _write(device: str, kb: int, machine: Machine) -> None:
    try:
        path_of(device, machine).write_text(str(kb))
    except PermissionError as error:
        raise UserError(
            f"cannot set the read-ahead of device {device}", "run this as root"
        ) from error
    except OSError as error:
        raise UserError(f"cannot set the read-ahead of device {device} to {kb}: {error}") from error
