# SPDX-License-Identifier: Apache-2.0
"""Run by udev for each new NFS bdi: prints the read-ahead (KiB) tuned for its mount point.

Usage: DEVICE [CONFIG [MOUNTINFO [VOLUMES]]].  The bdi of an NFS mount is an anonymous device
("0:45") that appears shortly before the mount (nfs-utils' nfsrahead has the same problem), so the
helper waits until DEVICE is in mountinfo, at most DEADLINE_S.  FUSE and other filesystems have
such devices too: the helper waits only for devices that the NFS client lists.  If the device does
not belong to a tuned mount, the exit status is 1 and udev leaves the read-ahead as it is.  udev
runs a copy of this file as root outside of any virtual environment, so it uses only the standard
library.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time

DEADLINE_S = 5.0
CONFIG = "/var/lib/nfsrdma/tune.json"
MOUNTINFO = "/proc/self/mountinfo"
VOLUMES = "/proc/fs/nfsfs/volumes"


def tuned(path: str | int) -> dict[str, int]:
    """Mount point -> read_ahead_kb, from the state file of nfsrdma tune or its descriptor."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        rows = json.load(file)["mounts"]
    kib = ((row["directory"], row["read_ahead_kb"]) for row in rows)
    return {directory: int(value) for directory, value in kib if value is not None}


def mount_points(device: str, path: str) -> list[str]:
    """The mount points of the NFS superblock with this device number (proc_pid_mountinfo(5))."""
    with open(path, "rb") as file:  # noqa: PTH123
        rows = [line.rstrip(b"\n").split(b" ") for line in file]
    mine = [row for row in rows if row[2] == device.encode()]
    return [plain(row[4]) for row in mine if row[row.index(b"-") + 1] in (b"nfs", b"nfs4")]


def plain(field: bytes) -> str:
    """Decode the octal escapes of a field of mountinfo or fstab."""
    return os.fsdecode(re.sub(rb"\\([0-3][0-7]{2})", lambda m: bytes([int(m[1], 8)]), field))


def is_nfs(device: str, volumes: str) -> bool:
    """Whether the NFS client lists this device, which it does before it makes the bdi.

    nfs_server_insert_lists in fs/nfs/client.c; nfs_get_tree_common in fs/nfs/super.c.
    """
    try:
        with open(volumes, encoding="ascii") as file:  # noqa: PTH123
            return any(device in line.split() for line in file)
    except FileNotFoundError:
        # module nfs is not loaded
        return False


def wait_for(device: str, path: str, volumes: str) -> list[str]:
    """The mount points of ``device``; [] if there are none at the deadline."""
    if not is_nfs(device, volumes):
        return []
    end = time.monotonic() + DEADLINE_S
    with open(path, "rb") as changes:  # noqa: PTH123
        poll = select.poll()
        poll.register(changes, select.POLLPRI | select.POLLERR)
        changes.read()
        while not (directories := mount_points(device, path)) and time.monotonic() < end:
            # the bdi of a failed mount, or of one in another namespace, disappears silently
            if not poll.poll(250) and not os.path.exists("/sys/class/bdi/" + device):  # noqa: PTH110
                break
    return directories


def main(argv: list[str]) -> int:
    """Print the read-ahead for argv[0]; returns the exit status."""
    device, config, mountinfo, volumes = argv + [CONFIG, MOUNTINFO, VOLUMES][len(argv) - 1 :]
    try:
        wanted = tuned(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"{config}: {error}\n")
        return 1
    directories = wait_for(device, mountinfo, volumes) if wanted else []
    values = [wanted[directory] for directory in directories if directory in wanted]
    if not values:
        return 1
    sys.stdout.write(f"{values[0]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
