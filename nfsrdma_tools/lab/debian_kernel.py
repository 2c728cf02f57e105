# SPDX-License-Identifier: Apache-2.0
"""The files of a Debian kernel for machines, made from its packages without root.

The initrd is busybox, a few modules and a script that mounts the two disks.  It takes a tenth of
the instructions of Debian's own initrd, which probes for all kinds of disks.  Its format: the
kernel's Documentation/driver-api/early-userspace/buffer-format.rst.

The name of a kernel in the cache has a hash of this file: a change here unpacks kernels again.
"""

from __future__ import annotations

import importlib.resources
import lzma
import os
import re
import shutil
import tempfile
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.lab.architecture import of_kernel
from nfsrdma_tools.lab.debian_packages import Archive, opened

__all__ = ["INIT", "SUITES", "make", "make_initrd", "newest"]

INIT = Path(str(importlib.resources.files("nfsrdma_tools.lab") / "kernel_recipe" / "init"))
"""The first program of a machine, which mounts its disks."""
SUITES = {
    "6.12": ("trixie", "trixie-updates", "trixie-security"),
    "6.1": ("bookworm", "bookworm-updates", "bookworm-security"),
    "7.2": ("trixie", "trixie-backports"),
    "5.10": ("bullseye", "bullseye-security"),
}
# 6.12.117+deb13, 6.1.0-56; neither cloud nor real-time kernels
_RELEASE = r"\.[\d.]+(-\d+)?(\+deb\d+(\.\d+)?)?-"
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
# modules of the initrd: disks, their file systems and the network card, if not built in
_EARLY = (
    *("virtio_pci", "virtio_blk", "virtio_net", "ext4", "overlay"),
    # ext4's checksums: loaded by name at run time, so modules.dep does not list them
    *("crc32c_generic", "crc32c-generic", "crc32c-cryptoapi"),
)


def make(name: str, out: Path) -> None:
    """Fill ``out`` with vmlinuz, initrd, modules.img, version and busybox.

    ``name`` is a series, for another architecture with Debian's flavour, as in 6.12-arm64-16k; that
    gets the programs that build modules on this host, too, in kbuild.

    Raises UserError if the archive is unreachable or has no such kernel.
    """
    series, _, flavour = name.partition("-")
    architecture = of_kernel(name)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix="kernel-") as work, \
            opened(SUITES[series], Path(work), "deb", architecture.debian) as debian:  # fmt: skip
        root = Path(work) / "root"
        release = _unpack(debian, series, flavour or architecture.debian, root)
        if architecture.compiler:
            _unpack_kbuild(series, root, out)
        modules = root / "usr/lib/modules" / release
        for dropped in _DROPPED:
            shutil.rmtree(modules / "kernel" / dropped, ignore_errors=True)
        shutil.copyfile(root / f"usr/src/linux-headers-{release}/.config", modules / "config")
        run("depmod", "-b", root / "usr", release, timeout=600)
        shutil.copyfile(next(root.glob("**/vmlinuz*")), out / "vmlinuz")
        shutil.copyfile(next(root.glob("**/bin/busybox")), out / "busybox")
        make_initrd(out / "initrd", out / "busybox", release, modules)
        for other in set(root.iterdir()) - {root / "usr"}:
            shutil.rmtree(other)
        shutil.rmtree(root / "usr/bin", ignore_errors=True)
        _make_disk(root, out / "modules.img")
        (out / "version").write_text(f"{release}\n")


def _make_disk(root: Path, disk: Path) -> None:
    """Make a disk image of a folder, with all files owned by root."""
    size = int(run("du", "-sm", "--apparent-size", root).stdout.split()[0])
    inodes = sum(1 for _ in root.rglob("*")) + 1000
    with disk.open("wb") as file:
        file.truncate((size * 3 // 2 + inodes // 256 + 32) << 20)
    as_root = ("unshare", "-r") if os.geteuid() else ()
    options = ("-O", "^has_journal", "-m", "0", "-N", str(inodes), "-L", "kernel")
    run(*as_root, "mke2fs", "-q", "-t", "ext4", *options, "-d", root, disk, timeout=600)


def newest(debian: Archive, series: str, flavour: str) -> str:
    """The package of the newest kernel of a series, such as 6.12, and a flavour, such as arm64."""
    return debian.newest(f"linux-image-{series}", _RELEASE + re.escape(flavour))


def _unpack(debian: Archive, series: str, flavour: str, root: Path) -> str:
    image = newest(debian, series, flavour)
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


def _unpack_kbuild(series: str, root: Path, out: Path) -> None:
    """Unpack this host's build of the programs in the headers, which are the other machine's."""
    (package,) = (path.name for path in root.glob("usr/lib/linux-kbuild-*"))
    with opened(SUITES[series], root.parent) as debian:
        debian.unpack([package], out / "kbuild")


def make_initrd(initrd: Path, busybox: Path, release: str, modules: Path | None = None) -> None:
    """Write ``initrd`` for the kernel ``release``.

    ``modules`` is its /lib/modules/RELEASE after depmod; None if all drivers are built in.
    """
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        shutil.copyfile(busybox, root / "busybox")
        shutil.copyfile(INIT, root / "init")
        for program in ("busybox", "init"):
            (root / program).chmod(0o755)
        for folder in ("dev", "proc", "modules", "root"):
            (root / folder).mkdir()
        order = _in_order(modules) if modules else []
        for path in order:
            (root / "modules" / path.name.removesuffix(".xz")).write_bytes(_content(path))
        names = [path.name.removesuffix(".xz") for path in order]
        (root / "order").write_text("".join(f"{name}\n" for name in names))
        (root / "release").write_text(f"{release}\n")
        files = sorted(os.fspath(path.relative_to(root)) for path in root.rglob("*"))
        words = ("--quiet", "-o", "-H", "newc", "-R", "0:0", "-O", initrd.absolute())
        run("cpio", *words, stdin="\n".join(files).encode(), cwd=root)


def _in_order(modules: Path) -> list[Path]:
    """The files of the wanted modules, dependencies first."""
    lines = (modules / "modules.dep").read_text().splitlines()
    needs = {path: rest.split() for path, _, rest in (line.partition(":") for line in lines)}
    by_name = {Path(path).name.partition(".")[0]: path for path in needs}
    order: dict[str, None] = {}
    for path in (by_name[name] for name in _EARLY if name in by_name):
        # modules.dep lists the first module to load last
        order.update(dict.fromkeys([*reversed(needs[path]), path]))
    return [modules / path for path in order]


def _content(file: Path) -> bytes:
    return lzma.open(file).read() if file.suffix == ".xz" else file.read_bytes()
