# SPDX-License-Identifier: Apache-2.0
"""File systems that nfsd exports for tests of optimistic and threadless reads."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from testbed.node.grants import DISK, HUGE, MIB
from testbed.node.programs import call, until
from testbed.remote import on

SLOW = Path("/srv/slow")
DISK_IMAGE = Path("/srv/disk.img")


@on("client")
def make_disks() -> None:
    """Export a file system on a disk, and one of huge pages, unless they are there."""
    if not os.path.ismount(DISK):
        make_disk()
    make_huge()


def make_huge() -> None:
    """Export a tmpfs with large folios."""
    if os.path.ismount(HUGE):
        return
    HUGE.mkdir(parents=True, exist_ok=True)
    call("mount", "-t", "tmpfs", "-o", "size=256m,huge=always", "huge", HUGE)
    HUGE.chmod(0o777)
    export(HUGE, 78)


def make_disk() -> None:
    """Export an ext4 file system on a loop device."""
    DISK.mkdir(parents=True, exist_ok=True)
    # a loop device may still have the former one
    DISK_IMAGE.unlink(missing_ok=True)
    # room for 50,000 files of a block, and for their inodes
    make_image(DISK_IMAGE, 320)
    call("mount", "-o", "loop", DISK_IMAGE, DISK)
    DISK.chmod(0o777)
    export(DISK, 77)


def drop_disk() -> None:
    unexport(DISK)
    unmount(DISK)


def make_image(image: Path, mib: int, mkfs: str = "mkfs.ext4") -> None:
    with image.open("wb") as file:
        file.truncate(mib * MIB)
    call(mkfs, "-q", image)


def _exports(folder: Path) -> Path:
    return Path(f"/etc/exports.d/{folder.name}.exports")


def export(folder: Path, number: int) -> None:
    """Export a folder or a file, and again whenever nfsd starts."""
    file = _exports(folder)
    file.parent.mkdir(exist_ok=True)
    options = f"rw,no_root_squash,insecure,no_subtree_check,fsid={number}"
    file.write_text(f"{folder} *({options})\n")
    # it exports a file, and complains
    call("exportfs", "-r", check=folder.is_dir())


def unexport(folder: Path) -> None:
    _exports(folder).unlink()
    call("exportfs", "-u", f"*:{folder}")
    # nfsd forgets what it knows of exports, and closes files
    call("exportfs", "-f")


def unmount(folder: Path) -> None:
    """Unmount a file system of the server, which nfsd may still use for a while."""

    def is_unmounted() -> bool:
        done = subprocess.run(["umount", folder], check=False, capture_output=True)
        return not done.returncode

    until(f"unmounting {folder}", is_unmounted)


@contextmanager
def unmounting(folder: Path) -> Iterator[None]:
    """Unmount a file system of the server afterwards."""
    try:
        yield
    finally:
        unmount(folder)


def restart_nfsd() -> None:
    call("systemctl", "restart", "nfs-server")
    # nfsd refuses it if no client has state to reclaim
    with suppress(OSError):
        Path("/proc/fs/nfsd/v4_end_grace").write_text("Y\n")


@contextmanager
def slow_disk() -> Iterator[Callable[[int], None]]:
    """Export an ext4 file system; the function delays reads of its disk by milliseconds."""
    image = Path("/srv/slow.img")
    SLOW.mkdir(parents=True, exist_ok=True)
    make_image(image, 64)
    disk = call("losetup", "--find", "--show", image).strip()

    def delay(milliseconds: int) -> None:
        table = f"0 {64 * MIB // 512} delay {disk} 0 {milliseconds} {disk} 0 0"
        call("dmsetup", "load", "slow", "--table", table)
        # udev reads the device, too: do not wait for it while reads are slow
        call("dmsetup", "resume", *(["--noudevsync"] if milliseconds else []), "slow")

    call("modprobe", "dm-delay")
    call("dmsetup", "create", "slow", "--notable")
    delay(0)
    call("mount", "/dev/mapper/slow", SLOW)
    export(SLOW, 79)
    try:
        yield delay
    finally:
        delay(0)
        unexport(SLOW)
        unmount(SLOW)
        call("dmsetup", "remove", "slow")
        call("losetup", "--detach", disk)
        image.unlink()


def nfsd_waits() -> bool:
    """Whether a thread of nfsd waits for a disk."""
    return "D" in call("ps", "-C", "nfsd", "-o", "state=", check=False)
