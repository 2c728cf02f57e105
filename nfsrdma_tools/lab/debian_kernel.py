# SPDX-License-Identifier: Apache-2.0
"""Prepares a Debian kernel for machines from its packages, without root."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.lab import initrd
from nfsrdma_tools.lab.debian_packages import Archive, opened

__all__ = ["SUITES", "disk_of", "make"]

SUITES = {
    "6.12": ("trixie", "trixie-updates", "trixie-security"),
    "6.1": ("bookworm", "bookworm-updates", "bookworm-security"),
    "7.2": ("trixie", "trixie-backports"),
}
# 6.12.117+deb13, 6.1.0-56; neither cloud nor real-time kernels
_RELEASE = r"\.[\d.]+(-\d+)?(\+deb\d+)?-amd64"
# machines do not have such devices; with them depmod and the disk take five times as long
_DROPPED = (
    *("sound", "drivers/gpu", "drivers/media", "drivers/staging", "drivers/usb", "drivers/iio"),
    *("drivers/hid", "drivers/ata", "drivers/scsi", "drivers/message", "drivers/hwmon"),
    *("drivers/input", "drivers/leds", "drivers/mfd", "drivers/mmc", "drivers/mtd", "drivers/nfc"),
    *("drivers/platform", "drivers/power", "drivers/regulator", "drivers/rtc", "drivers/thermal"),
    *("drivers/i2c", "drivers/edac", "drivers/bluetooth", "drivers/comedi", "drivers/isdn"),
    *("drivers/net/ethernet", "drivers/net/wireless", "drivers/net/usb", "drivers/net/can"),
    *("drivers/infiniband/hw", "drivers/gpio", "drivers/pinctrl", "drivers/spi", "drivers/w1"),
    *("drivers/watchdog", "drivers/thunderbolt", "drivers/soundwire", "drivers/video"),
    *("drivers/misc", "drivers/block/drbd", "net/vmw_vsock", "net/bluetooth", "net/mac80211"),
    *("arch/x86/kvm", "virt"),
)


def make(series: str, out: Path) -> None:
    """Fill ``out`` with vmlinuz, initrd, modules.img, version and busybox.

    Raises UserError if the archive is unreachable or has no such kernel.
    """
    with tempfile.TemporaryDirectory(dir=out.parent, prefix="kernel-") as work, \
            opened(SUITES[series], Path(work)) as debian:  # fmt: skip
        root = Path(work) / "root"
        release = _unpack(debian, series, root)
        modules = root / "usr/lib/modules" / release
        for name in _DROPPED:
            shutil.rmtree(modules / "kernel" / name, ignore_errors=True)
        shutil.copyfile(root / f"usr/src/linux-headers-{release}/.config", modules / "config")
        run("depmod", "-b", root / "usr", release, timeout=600)
        shutil.copyfile(next(root.glob("**/vmlinuz*")), out / "vmlinuz")
        shutil.copyfile(next(root.glob("**/bin/busybox")), out / "busybox")
        initrd.make(out / "initrd", out / "busybox", release, modules)
        for other in set(root.iterdir()) - {root / "usr"}:
            shutil.rmtree(other)
        shutil.rmtree(root / "usr/bin", ignore_errors=True)
        disk_of(root, out / "modules.img")
        (out / "version").write_text(f"{release}\n")


def disk_of(root: Path, disk: Path) -> None:
    """Make a disk image of a folder, with all files owned by root."""
    size = int(run("du", "-sm", "--apparent-size", root).stdout.split()[0])
    inodes = sum(1 for _ in root.rglob("*")) + 1000
    with disk.open("wb") as file:
        file.truncate((size * 3 // 2 + inodes // 256 + 32) << 20)
    as_root = ("unshare", "-r") if os.geteuid() else ()
    options = ("-O", "^has_journal", "-m", "0", "-N", str(inodes), "-L", "kernel")
    run(*as_root, "mke2fs", "-q", "-t", "ext4", *options, "-d", root, disk, timeout=600)


def _unpack(debian: Archive, series: str, root: Path) -> str:
    image = debian.newest(f"linux-image-{series}", _RELEASE)
    release = image.removeprefix("linux-image-")
    headers = f"linux-headers-{release}"
    # 7.2 is split into several packages
    parts = [name for name in debian.depends(image, "linux-") if release in name]
    common = [n for p in ("linux-headers-", "linux-kbuild-") for n in debian.depends(headers, p)]
    debian.unpack([image, *parts, headers, *common, "busybox-static"], root)
    if (root / "lib").is_dir():
        # Debian 12 packages have /lib beside /usr/lib
        shutil.copytree(root / "lib", root / "usr/lib", symlinks=True, dirs_exist_ok=True)
    return release
