# SPDX-License-Identifier: Apache-2.0
"""One virtual machine: its QEMU process, network, console and ssh, and snapshots of booted ones.

The process dies with its parent.  Warm snapshots are in the cache, and resume in seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from nfsrdma_tools.command import kill, run
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.architecture import Architecture, of_kernel
from nfsrdma_tools.lab.config import CHECKING, clock_name
from nfsrdma_tools.lab.console import (
    DMA_API_REPORTS,
    Console,
    EmulatorFaultError,
    KernelReportError,
)
from nfsrdma_tools.lab.image import Image
from nfsrdma_tools.lab.kernels import Kernel, find
from nfsrdma_tools.lab.nodes import Ssh
from nfsrdma_tools.lab.paths import cache_dir, lock_of
from nfsrdma_tools.lab.qemu import Monitor, qemu, version
from nfsrdma_tools.lock import file_lock

__all__ = [
    "IDLE_FUNCTION",
    "SNAPSHOT",
    "Hardware",
    "Lan",
    "Machine",
    "boot_again",
    "qemu_argv",
    "restore_snapshot",
    "warm_disk",
]

_HUB = ("-netdev", "hubport,id=lan,hubid=1")
# a kernel with KASAN takes minutes under emulation on a busy host
_BOOT_SECONDS = 900
# without gpt_auto systemd looks for partitions on the disks, which have none
_APPEND = (
    "quiet mitigations=off net.ifnames=0 systemd.show_status=0 root=/dev/vda systemd.gpt_auto=0"
    # the consoles need no login
    " systemd.getty_auto=0"
)
# With checks enabled, interpreting ACPI's interrupt routing takes a minute; there is a table, too.
# Devices and units are slow with these kernels.
_CHECKING = (
    " acpi=noirq systemd.default_timeout_start_sec=900 systemd.default_device_timeout_sec=900"
)
# The idle PCI function that modelled cards borrow. QEMU's intel-iommu needs q35; virtio devices
# bypass it.
IDLE_FUNCTION = "0000:00:10.0"
_FUNCTION = ("-device", "pci-testdev,addr=0x10")
_IOMMU = ("-machine", "q35", "-device", "intel-iommu,intremap=off")
_DMA = {
    "direct": (_FUNCTION, ""),
    "swiotlb": (_FUNCTION, " swiotlb=force"),
    # strict: the end of a mapping is the end of access
    "iommu": ((*_IOMMU, *_FUNCTION), " intel_iommu=on iommu.passthrough=0 iommu.strict=1"),
}


@dataclass(frozen=True)
class Hardware:
    """The hardware of a machine. Memory in MiB; ``lan`` are the arguments of the netdev "lan"."""

    kernel: str
    clock: str
    accel: str
    cpus: int
    memory: int
    lan: tuple[str, ...] = ()
    kernel_args: str = ""
    dma: str = ""

    @property
    def architecture(self) -> Architecture:
        """That of the kernel."""
        return of_kernel(self.kernel)


def qemu_argv(
    hardware: Hardware, kernel: Kernel, folder: Path, disk: Path, node: str
) -> tuple[str, ...]:
    """The command line of a machine whose sockets and logs are in ``folder``."""
    # The kernel sends the signal when the thread that started QEMU ends, not the process (prctl(2),
    # PR_SET_PDEATHSIG): start machines in a thread that lives as long as the lab.
    return (
        *("setpriv", "--pdeathsig", "KILL", *qemu(hardware.architecture), "-name", node),
        *(*hardware.architecture.options, "-nodefaults"),
        *_DMA.get(hardware.dma, ((), ""))[0],
        # a triple fault resets a processor and prints nothing: it ends QEMU, which check() sees
        *("-no-reboot", *_processor(hardware)),
        *("-m", str(hardware.memory), "-display", "none"),
        *("-serial", f"file:{folder / node}.console"),
        *_boot(kernel, hardware),
        # unsafe: QEMU ignores flushes, because the disk does not outlive the lab
        *("-drive", f"file={disk},if=virtio,cache=unsafe,discard=unmap"),
        *_modules(kernel),
        # restrict: the guest has no access to the host's network; port 0: QEMU takes a free one
        *("-netdev", "user,id=n0,restrict=on,hostfwd=tcp:127.0.0.1:0-:22"),
        # without a ROM the firmware does not try to boot from the network
        *("-device", "virtio-net-pci,netdev=n0,romfile="),
        *(hardware.lan or _HUB),
        *("-device", "virtio-net-pci,netdev=lan,rx_queue_size=1024,romfile="),
        *("-qmp", f"unix:{folder / node}.qmp,server=on,wait=off"),
    )


def _boot(kernel: Kernel, hardware: Hardware) -> tuple[str, ...]:
    more = _CHECKING if kernel.name in CHECKING else ""
    more += _DMA.get(hardware.dma, ((), ""))[1]
    words = f"console={hardware.architecture.console} {_APPEND}{more} {hardware.kernel_args}"
    files = ("-kernel", str(kernel.vmlinuz), "-initrd", str(kernel.initrd))
    return (*files, "-append", words.rstrip())


def _modules(kernel: Kernel) -> tuple[str, ...]:
    # a read-only disk needs no snapshot
    return ("-drive", f"file={kernel.modules},if=virtio,format=raw,readonly=on")


def _processor(hardware: Hardware) -> tuple[str, ...]:
    emulated = hardware.architecture.emulated
    if hardware.accel == "kvm":
        return ("-accel", "kvm", "-cpu", "host", "-smp", str(hardware.cpus))
    if hardware.clock != "wall":
        # counted: idle time passes in real time, so that machines can wait for each other
        sleep = "off" if hardware.clock == "instructions" else "on"
        counter = ("-icount", f"shift=0,sleep={sleep}")
        # QEMU counts instructions in one thread only: -icount excludes thread=multi
        return ("-accel", "tcg,thread=single,tb-size=1024", *emulated, "-smp", "1", *counter)
    cpus = ("-smp", str(hardware.cpus))
    return ("-accel", "tcg,thread=multi,tb-size=1024", *emulated, *cpus)


class Machine:
    """A running QEMU. ``start`` returns immediately, ``wait`` when ssh answers."""

    def __init__(
        self, node: str, hardware: Hardware, image: Image, folder: Path, disk: Path
    ) -> None:
        self.node, self.hardware, self.image = node, hardware, image
        self.folder, self.disk = folder, disk
        self.console = Console(node, folder / f"{node}.console")
        self.monitor = Monitor(folder / f"{node}.qmp")
        self.ssh = Ssh(folder, node, image.keys)
        self._log = folder / f"{node}.qemu"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, snapshot: str = "", descriptors: tuple[int, ...] = ()) -> None:
        """Power on, or resume a snapshot in the disk; QEMU inherits ``descriptors``."""
        kernel = find(self.hardware.kernel)
        argv = qemu_argv(self.hardware, kernel, self.folder, self.disk, self.node)
        more = ("-loadvm", snapshot) if snapshot else ()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                (*argv, *more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=descriptors,
            )
        self.monitor.connect(60, self.check)

    def wait(self) -> None:
        """Wait until ssh answers; raises early if the kernel dies or hangs during boot."""
        try:
            self._connect()
        except KernelReportError:
            raise
        except UserError as error:
            raise UserError(
                f"{error}; {self.node}'s console ends: {self.console.tail()}"
            ) from error

    def pause(self) -> None:
        """Stop all processors."""
        self.monitor.command("stop")

    def resume(self) -> None:
        """Resume all processors, and connect again: QEMU drops connections of a long pause."""
        self.monitor.command("cont")
        if not self.ssh.answers():
            self.ssh.close()
            self._connect()

    def reset(self) -> None:
        """Reset the hardware, and wait until the kernel has booted and ssh answers."""
        self.ssh.close()
        # the firmware may reset it once more, and -no-reboot would end QEMU
        self.monitor.command("set-action", reboot="reset")
        self.monitor.command("system_reset")
        self.wait()
        self.monitor.command("set-action", reboot="shutdown")

    def _connect(self) -> None:
        self.ssh.open(self.monitor.ssh_port(), _BOOT_SECONDS, self.check)

    def check(self) -> None:
        """Raise if the kernel reported an error or QEMU has ended."""
        self.console.check()
        self.check_qemu()

    def check_qemu(self) -> None:
        """Raise if QEMU has ended."""
        status = self._process.poll() if self._process is not None else None
        if status is None:
            return
        # subprocess negates the number of a signal
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        output = self._log.read_text(errors="replace").strip() or self.console.tail()
        raise UserError(
            f"QEMU of {self.node} ended with {how}: {output}", f"see {self.console.log}"
        )

    def quit(self) -> None:
        """End QEMU with a consistent disk."""
        self.ssh.close()
        # QEMU may exit before it sends the reply
        with contextlib.suppress(UserError):
            self.monitor.command("quit")
        if self._process is None:
            return
        try:
            self._process.wait(_BOOT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise UserError(f"QEMU of {self.node} did not quit in {_BOOT_SECONDS} s") from error

    def stop(self) -> None:
        """Power off without a shutdown of the guest; UserError if a process remains."""
        qemu_process, self._process = self._process, None
        # the last one first; each step runs, also if another one fails
        with contextlib.ExitStack() as steps:
            if qemu_process is not None:
                steps.callback(self.monitor.close)
                steps.callback(kill, qemu_process)
            steps.callback(self.ssh.close)


class Lan:
    """The network of a pair: a socket pair per client connects its QEMU with the server's.

    QEMU's own ``stream`` connection is unusable: 7.2 crashes on a packet sent before it is done.
    """

    def __init__(self, clients: Iterable[str]) -> None:
        self._wires = {client: socket.socketpair() for client in clients}

    def arguments(self, node: str) -> tuple[str, ...]:
        """The netdev ``lan`` of a node."""
        if node in self._wires:
            return _end("lan", self._wires[node][1])
        if len(self._wires) == 1:
            # no hub: QEMU's hub reorders packets if the receiver's ring is full
            return _end("lan", *(end for end, _ in self._wires.values()))
        # several clients: a hub in the server's QEMU is their switch, with a port for each
        return (*_HUB, *(word for client in self._wires for word in self._port(client)))

    def _port(self, client: str) -> tuple[str, ...]:
        hubport = f"hubport,id={client}-hub,hubid=1,netdev={client}"
        return (*_end(client, self._wires[client][0]), "-netdev", hubport)

    def descriptors(self, node: str) -> tuple[int, ...]:
        """The file descriptors that a node's QEMU inherits."""
        if node in self._wires:
            return (self._wires[node][1].fileno(),)
        return tuple(end.fileno() for end, _ in self._wires.values())

    def close(self) -> None:
        """Close our ends; the machines keep theirs."""
        for end in (end for wire in self._wires.values() for end in wire):
            end.close()


def _end(name: str, end: socket.socket) -> tuple[str, ...]:
    return ("-netdev", f"socket,id={name},fd={end.fileno()}")


SNAPSHOT = "warm"
_BOOTS = 3
# Ignore leaks of the boot; kmemleak reports an object after it found it twice. The DMA API reports
# one error only by default (Documentation/core-api/dma-api.rst).
_CHECKERS = f"""
errors=/sys/kernel/debug/dma-api/num_errors
if test -e $errors; then echo {DMA_API_REPORTS} > $errors; fi
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


def warm_disk(role: str, hardware: Hardware, image: Image, step: Callable[[str], None]) -> Path:
    """The disk of a booted machine in ``role`` (see lab-node); boots one if there is none."""
    hardware = replace(hardware, lan=())
    folder = cache_dir() / "warm"
    folder.mkdir(exist_ok=True)
    kernel = find(hardware.kernel).folder.name
    script = _warming_script(hardware)
    program = version(hardware.architecture)
    of = (role, hardware, image.folder.name, kernel, program, script, _processor(hardware))
    key = hashlib.sha256(repr(of).encode())
    name = f"{image.folder.name}-{kernel}-{key.hexdigest()[:12]}"
    disk = folder / f"{name}.qcow2"
    with file_lock(lock_of(disk)):
        if not disk.exists():
            seconds = 20 if hardware.clock == "wall" else 30
            details = f"{role}, {hardware.kernel}, {clock_name(hardware.clock)}"
            step(f"booting a node once ({details}; about {seconds} s)")
            boot_again(lambda: _save_booted(role, hardware, image, disk, script), step)
    return disk


def boot_again(boot: Callable[[], None], step: Callable[[str], None]) -> None:
    """Boot; try up to two times more if the emulator failed."""
    for _ in range(_BOOTS - 1):
        try:
            return boot()
        except EmulatorFaultError as error:
            step(f"{error}: booting again")
    return boot()


def _warming_script(hardware: Hardware) -> str:
    checkers = _CHECKERS if hardware.kernel in CHECKING else ""
    return checkers + (_READ_BEFORE if hardware.clock == "instructions" else "")


def _save_booted(role: str, hardware: Hardware, image: Image, disk: Path, script: str) -> None:
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
    error = machine.monitor.human(f"savevm {SNAPSHOT}").strip()
    if error:
        raise UserError(f"QEMU failed to take a snapshot: {error}")
    machine.quit()


def restore_snapshot(source: Path, disk: Path) -> None:
    """Make a copy of the warm snapshot for a machine."""
    disk.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(disk.parent).free
    if free < 2 * source.stat().st_size:
        raise UserError(f"only {free >> 20} MiB are free in {disk.parent}", "free some space")
    run("cp", "--reflink=auto", "--sparse=always", source, disk)
