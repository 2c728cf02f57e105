# SPDX-License-Identifier: Apache-2.0
"""Warm snapshots: booted machines in the cache, which resume in seconds."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.config import CHECKING, clock_name
from nfsrdma_tools.lab.console import EmulatorFaultError
from nfsrdma_tools.lab.image import Image
from nfsrdma_tools.lab.kernels import find
from nfsrdma_tools.lab.machine import Hardware, Machine
from nfsrdma_tools.lab.paths import cache_dir, lock_of
from nfsrdma_tools.lab.qemu import version
from nfsrdma_tools.lock import file_lock

__all__ = ["TAG", "restore", "warm"]

TAG = "warm"
_BOOTS = 3
# ignore leaks of the boot; kmemleak reports an object after it found it twice
_FORGET_LEAKS = """
leaks=/sys/kernel/debug/kmemleak
if test -e $leaks; then
	for time in first second; do echo scan > $leaks; sleep 6; done
	echo clear > $leaks
fi
"""
# The instruction clock of an idle node runs ahead while it waits for a disk: starting fio took four
# minutes of it, and timeouts expired.  So read the programs into the page cache.
_READ_BEFORE = r"""
for program in fio python3 setpriv env mount umount mount.nfs umount.nfs exportfs ip ss tc rdma; do
	path=$(command -v $program)
	ldd $path | grep -o '/[^ ]*' | xargs cat $path > /dev/null
done
cd /opt/nfsrdma/site
python3 -c 'import psutil, pyroute2, rich.progress, typer'
"""


def warm(role: str, hardware: Hardware, image: Image, step: Callable[[str], None]) -> Path:
    """The disk of a booted machine in ``role`` (see lab-node); boots one if there is none."""
    hardware = replace(hardware, lan=())
    folder = cache_dir() / "warm"
    folder.mkdir(exist_ok=True)
    kernel = find(hardware.kernel).folder.name
    script = _script(hardware)
    of = (role, hardware, image.folder.name, kernel, version(), script)
    key = hashlib.sha256(repr(of).encode())
    name = f"{image.folder.name}-{kernel}-{key.hexdigest()[:12]}"
    disk = folder / f"{name}.qcow2"
    with file_lock(lock_of(disk)):
        if not disk.exists():
            seconds = 20 if hardware.clock == "wall" else 30
            what = f"{role}, {hardware.kernel}, {clock_name(hardware.clock)}"
            step(f"booting a node once ({what}; about {seconds} s)")
            _boot_again(lambda: _boot(role, hardware, image, disk, script), step)
    return disk


def _boot_again(boot: Callable[[], None], step: Callable[[str], None]) -> None:
    """Boot; try up to two times more if the emulator failed."""
    for _ in range(_BOOTS - 1):
        try:
            return boot()
        except EmulatorFaultError as error:
            step(f"{error}: booting again")
    return boot()


def _script(hardware: Hardware) -> str:
    forget = _FORGET_LEAKS if hardware.kernel in CHECKING else ""
    return forget + (_READ_BEFORE if hardware.clock == "instructions" else "")


def _boot(role: str, hardware: Hardware, image: Image, disk: Path, script: str) -> None:
    with tempfile.TemporaryDirectory(prefix="nfsrdma-") as folder:
        draft = disk.with_suffix(".new")
        # savevm stores the machine's state in its disk: qcow2 has room for it, raw has none
        argv = ("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", image.disk, draft)
        run(*argv)
        machine = Machine(role, hardware, image, Path(folder), draft)
        try:
            machine.start()
            machine.wait()
            if script:
                machine.ssh.run("sh", "-ec", script, timeout=900)
            if hardware.kernel in CHECKING:
                machine.console.skip()
            # packets to the other machines queue until those exist: keep that time short
            machine.ssh.run("lab-node", role, timeout=900)
            machine.check()
            _save(machine)
        finally:
            machine.stop()
    draft.rename(disk)


def _save(machine: Machine) -> None:
    # a connection that is open in a snapshot stays half open
    machine.ssh.run("sync")
    machine.ssh.close()
    # the human monitor has no exit status: its command prints only errors
    error = machine.monitor.human(f"savevm {TAG}").strip()
    if error:
        raise UserError(f"QEMU failed to take a snapshot: {error}")
    machine.quit()


def restore(source: Path, disk: Path) -> None:
    """Make a copy of the warm snapshot for a machine."""
    disk.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(disk.parent).free
    if free < 2 * source.stat().st_size:
        raise UserError(f"only {free >> 20} MiB are free in {disk.parent}", "free some space")
    run("cp", "--reflink=auto", "--sparse=always", source, disk)
