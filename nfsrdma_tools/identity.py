# SPDX-License-Identifier: Apache-2.0
"""Identities of processes and mounts: recorded with a change, compared before it is undone.

The kernel reuses pids.  It also reuses the id of a mount and the number of its device at once, so
that a later mount of the same export on the same directory has both.  Linux 6.8 and later also have
a mount id that is never reused (STATX_MNT_ID_UNIQUE, commit 98d2b43081972, "add unique mount ID");
on earlier kernels the line of mountinfo has to do.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools import files

__all__ = ["MountIdentity", "is_running", "mounts_on", "of_this_process", "terminate"]

_MOUNTINFO = Path("/proc/self/mountinfo")
# include/uapi/linux/stat.h and fcntl.h
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_NO_AUTOMOUNT, _AT_STATX_DONT_SYNC = -100, 0x100, 0x800, 0x4000
_STATX_MNT_ID, _STATX_MNT_ID_UNIQUE = 0x1000, 0x4000
_STATX_ATTR_MOUNT_ROOT = 0x2000
# struct statx: the offset and the size of stx_mask, stx_attributes and stx_mnt_id, and its own size
_MASK, _ATTRIBUTES, _MNT_ID, _SIZE = (0, 4), (8, 8), (144, 8), 256


def of_this_process() -> str:
    """The identity of this process: ``PID-START``, START in clock ticks after boot."""
    pid = os.getpid()
    return f"{pid}-{_start(pid)}"


def is_running(identity: str) -> bool:
    """Whether this process runs; a zombie does not, and holds no lock."""
    pid, _, start = identity.partition("-")
    return pid.isdecimal() and start != "" and _start(int(pid)) == start


def terminate(identity: str) -> bool:
    """Send SIGTERM to this process, and to no other one; False if it no longer runs."""
    try:
        handle = os.pidfd_open(int(identity.partition("-")[0]))
    except (ProcessLookupError, ValueError):
        return False
    try:
        # the handle keeps the pid from being reused after this comparison
        if not is_running(identity):
            return False
        signal.pidfd_send_signal(handle, signal.SIGTERM)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def _start(pid: int) -> str:
    try:
        # a name may have any bytes
        stat = files.text(f"/proc/{pid}/stat", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # proc_pid_stat(5); the name, in brackets, may contain anything
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


@dataclass(frozen=True)
class MountIdentity:
    """A mount: its line in mountinfo, and the id that is never reused (0: the kernel has none)."""

    line: str
    unique: int = 0

    @property
    def device(self) -> str:
        """The number of its device, as MAJOR:MINOR."""
        return self.line.split(" ", 3)[2]

    @property
    def fstype(self) -> str:
        """Its type, such as ``nfs4``."""
        return self.line.partition(" - ")[2].partition(" ")[0]

    @property
    def source(self) -> str:
        """What is mounted, such as ``server:/export``."""
        fields = self.line.partition(" - ")[2].split(" ")
        return files.unescape(fields[1]) if len(fields) > 1 else ""

    def is_same(self, other: MountIdentity) -> bool:
        """Whether both are the same mount."""
        if self.unique and other.unique:
            return self.unique == other.unique
        return self.line == other.line

    def is_alike(self, other: MountIdentity) -> bool:
        """Whether both mount the same thing with the same options, as one mount or as two.

        The address of the server may differ: mount.nfs resolves its name at each mount.
        """
        return self._parts() == other._parts()

    def _parts(self) -> tuple[list[str], list[str], list[str]]:
        # proc_pid_mountinfo(5); the ids, the device and the peer groups belong to one mount
        of_mount, _, of_filesystem = self.line.partition(" - ")
        *words, options = of_filesystem.split(" ")
        lasting = [option for option in options.split(",") if not option.startswith("addr=")]
        return of_mount.split(" ")[3:6], words, lasting


def mounts_on(directory: str) -> list[MountIdentity]:
    """The mounts on ``directory``, the topmost last; each one covers those before it.

    Does not ask the server of a network filesystem, which may be gone.
    """
    mount = _statx(directory, _STATX_MNT_ID)
    if mount is None or not _field(mount, _ATTRIBUTES) & _STATX_ATTR_MOUNT_ROOT:
        return []
    lines = _lines()
    prefix = f"{_field(mount, _MNT_ID)} "
    top = next((line for line in lines if line.startswith(prefix)), "")
    covered = [line for line in lines if line != top and _mount_point(line) == _mount_point(top)]
    unique = _statx(directory, _STATX_MNT_ID_UNIQUE)
    known = unique is not None and _field(unique, _MASK) & _STATX_MNT_ID_UNIQUE
    number = _field(unique, _MNT_ID) if unique and known else 0
    return [*map(MountIdentity, covered), MountIdentity(top, number)]


def _lines() -> list[str]:
    return [line for line in os.fsdecode(files.raw(_MOUNTINFO)).split("\n") if line]


def _mount_point(line: str) -> str:
    return line.split(" ", 5)[4] if line else ""


def _statx(path: str, wanted: int) -> bytes | None:
    """The kernel's struct statx, which os.stat() does not return in whole; None for an error."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_SIZE)
    flags = _AT_SYMLINK_NOFOLLOW | _AT_NO_AUTOMOUNT | _AT_STATX_DONT_SYNC
    failed = libc.statx(_AT_FDCWD, os.fsencode(path), flags, wanted, buffer)
    return None if failed else buffer.raw


def _field(statx: bytes, position: tuple[int, int]) -> int:
    start, length = position
    return int.from_bytes(statx[start : start + length], sys.byteorder)
