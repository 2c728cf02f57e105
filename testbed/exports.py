# SPDX-License-Identifier: Apache-2.0
"""File systems that are exported for a while: one with little room, one whose power is cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nfsrdma_tools.lab.lab import Lab

__all__ = ["DISK", "SMALL", "cut_power", "disk_export", "serve_disk", "small_export"]

SMALL = "/export/small"
MAKE = f"""
mkdir {SMALL}
mount -t tmpfs -o size=$1 tmpfs {SMALL}
exportfs -o rw,insecure,no_root_squash,fsid=77 '*:{SMALL}'
"""
# nfsd lets go of a file system some time after its export has ended
REMOVE = f"""
exportfs -u '*:{SMALL}'
exportfs -f
! mountpoint -q {SMALL} || until umount {SMALL}; do sleep 0.2; done
rmdir {SMALL}
"""

DISK = "/export/disk"
_IMAGE, _EXPORTS, _DIRTY = (
    "/var/lib/disk.img",
    "/etc/exports.d/disk.exports",
    "vm.dirty_writeback_centisecs",
)
# dirty pages are written on request only, so that a power cut loses all that is not committed
MAKE_DISK = f"""
mkdir -p {DISK} /etc/exports.d
truncate -s 96M {_IMAGE}
mkfs.ext4 -q {_IMAGE}
mount -o loop {_IMAGE} {DISK}
sysctl -qw {_DIRTY}=0
echo '{DISK} *(rw,no_root_squash,insecure,no_subtree_check,fsid=78)' > {_EXPORTS}
exportfs -ra
"""
# EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH, fs/ext4/ext4.h
CUT = f"""
systemctl stop nfs-server
python3 -c 'import fcntl, os, struct
fcntl.ioctl(os.open("{DISK}", os.O_RDONLY), 0x8004587d, struct.pack("I", 2))'
until umount {DISK}; do sleep 0.2; done
mount -o loop {_IMAGE} {DISK}
systemctl start nfs-server
echo Y > /proc/fs/nfsd/v4_end_grace || true
"""
# of a machine that has booted
SERVE_DISK = f"""
mountpoint -q /export || mount /export
mkdir -p {DISK}
mount -o loop {_IMAGE} {DISK}
sysctl -qw {_DIRTY}=0
lab-node server
echo Y > /proc/fs/nfsd/v4_end_grace || true
"""
REMOVE_DISK = f"""
rm -f {_EXPORTS}
exportfs -ra
exportfs -f
! mountpoint -q {DISK} || until umount {DISK}; do sleep 0.2; done
rmdir {DISK}
rm -f {_IMAGE}
"""


@contextmanager
def disk_export(lab: Lab, node: str) -> Iterator[None]:
    """Export an ext4 file system at DISK for cut_power(); it is gone afterwards."""
    dirty = lab.run(node, "sysctl", "-n", _DIRTY).stdout.strip()
    try:
        lab.run(node, "sh", "-ec", MAKE_DISK)
        yield
    finally:
        lab.run(node, "sh", "-c", REMOVE_DISK)
        lab.run(node, "sysctl", "-qw", f"{_DIRTY}={dirty}")


def cut_power(lab: Lab, node: str) -> None:
    """Have the file system at DISK lose what is not on its disk, and restart the server."""
    lab.run(node, "sh", "-ec", CUT)


def serve_disk(lab: Lab, node: str) -> None:
    """Have a machine whose kernel has booted anew export the file system at DISK again."""
    lab.run(node, "sh", "-ec", SERVE_DISK)


@contextmanager
def small_export(lab: Lab, node: str, size: str) -> Iterator[None]:
    """Export a tmpfs of SIZE (mount's notation) at SMALL; it is gone afterwards."""
    try:
        lab.run(node, "sh", "-ec", MAKE, "-", size)
        yield
    finally:
        lab.run(node, "sh", "-c", REMOVE)
