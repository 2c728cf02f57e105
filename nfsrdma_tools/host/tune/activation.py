# SPDX-License-Identifier: Apache-2.0
"""Puts tuned values into effect: reloads systemd and udev, sets read-ahead, remounts, verifies."""

from __future__ import annotations

from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.host.nfs import mounting, mounts, readahead
from nfsrdma_tools.host.state import Tuned
from nfsrdma_tools.host.tune import definition as tune_definition

__all__ = [
    "check",
    "mount",
    "reload_systemd",
    "reload_udev",
    "set_read_ahead",
    "shares_with",
    "unmount",
]


def reload_udev() -> None:
    """Have udev reload its rules."""
    run("udevadm", "control", "--reload")


def reload_systemd() -> None:
    """Have systemd reload fstab and its units."""
    run("systemctl", "daemon-reload")


def set_read_ahead(directory: Path, kb: int) -> None:
    """Set and verify the read-ahead (KiB) of the mount on ``directory``, if it is mounted."""
    found = mounts.find(directory)
    if found is not None:
        readahead.set_kb(found.device, kb)


def unmount(directory: Path) -> None:
    """Unmount, if mounted.  UserError that names the users of a busy mount."""
    if mounts.find(directory) is not None:
        mounting.unmount(directory)


def mount(directory: Path) -> None:
    """Mount as fstab or the mount unit defines it."""
    unit = tune_definition.unit_name(directory)
    if tune_definition.is_written_by_hand(tune_definition.cat_unit(unit)):
        run("systemctl", "start", "--", unit)
    else:
        run("mount", "--target", directory)


def check(tuned: Tuned) -> None:
    """Compare a fresh mount with the tuned values; MismatchError with both values."""
    directory = Path(tuned.directory)
    found = mounts.find(directory)
    if found is None:
        raise UserError(f"{directory} is not mounted after mount(8)", f"mount -v {directory}")
    values = {
        "rsize": found.rsize,
        "wsize": found.wsize,
        "read_ahead_kb": _settled_read_ahead(found.device),
    }
    for name, value in values.items():
        requested = getattr(tuned, name)
        if requested is not None and requested != value:
            raise MismatchError(f"{name} of {directory}", requested, value,
                                "the server or the transport limits it")  # fmt: skip


def _settled_read_ahead(device: str) -> int:
    readahead.settle()
    return readahead.get_kb(device)


def shares_with(directory: Path) -> list[Path]:
    """Other mount points of the same superblock, which share its read-ahead."""
    found = mounts.find(directory)
    everywhere = mounts.mounts() if found else []
    return [other.directory for other in everywhere
            if found and other.device == found.device and other.directory != directory]  # fmt: skip
