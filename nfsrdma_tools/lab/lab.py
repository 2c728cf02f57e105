# SPDX-License-Identifier: Apache-2.0
"""A lab and its life cycle: started from warm snapshots, owned by a process, removed with it.

The process that holds a ``Lab`` open owns it: its machines die with that process.
``nfsrdma lab up`` starts this file as the process that owns the lab; SIGTERM stops the lab.
A killed lab leaves folders, and gigabytes of disks, which ``clean`` and the next lab remove.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from nfsrdma_tools import module_source
from nfsrdma_tools.command import kill
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.identity import of_this_process, terminate
from nfsrdma_tools.lab import client_library, image, kernels, paths, qemu
from nfsrdma_tools.lab.architecture import AMD64, ARM64, of_kernel
from nfsrdma_tools.lab.config import BUILT, CHECKING, FOREIGN, MODULE_KERNELS, LabConfig
from nfsrdma_tools.lab.console import KernelReportError
from nfsrdma_tools.lab.image import recipe_hash
from nfsrdma_tools.lab.machine import (
    IDLE_FUNCTION,
    SNAPSHOT,
    Hardware,
    Lan,
    Machine,
    boot_again,
    restore_snapshot,
    warm_disk,
)
from nfsrdma_tools.lab.nodes import LabState, Nodes, attach, read_state
from nfsrdma_tools.lock import try_file_lock, try_folder_lock

__all__ = [
    "Lab",
    "clean",
    "down",
    "prepare",
    "refresh",
    "remove_folder",
    "remove_stale_labs",
    "up",
]

_Step = Callable[[str], None]
# binds the idle function to the module of the cards
_BIND = f"""
cd /sys/bus/pci
echo nfsrdma_card > devices/{IDLE_FUNCTION}/driver_override
test -e devices/{IDLE_FUNCTION}/driver || echo {IDLE_FUNCTION} > drivers/nfsrdma_card/bind
"""
# the profile of cards that are added later
_PROFILE = "/sys/module/nfsrdma_card/parameters/profile"
# prints the type of the function's IOMMU domain, "none" without an IOMMU, and the used slots of
# bounce buffers, 0 if there are none
_READ_DMA = f"""
cat /sys/bus/pci/devices/{IDLE_FUNCTION}/iommu_group/type 2>/dev/null || echo none
cat /sys/kernel/debug/swiotlb/io_tlb_used 2>/dev/null || echo 0
"""
# as the kernel names them: DMA-FQ is an IOMMU that is not strict
_DOMAINS = {"none": "direct", "DMA": "iommu"}


def _silent(_: str) -> None:
    pass


@dataclass(frozen=True)
class Prepared:
    """Image, accelerator, disks and modules, which exist before the machines of a lab start."""

    image: image.Image
    accel: str
    disks: dict[str, Path]
    """A warm disk for each node."""
    nic_module: Path | None
    """The module of the RDMA devices; None if the kernel has it."""
    build: Path | None
    """Our module, for the nodes; None if it does not compile."""
    client: Path | None
    """The folder with libnfsrdma for the nodes; None if it does not compile."""


def prepare(config: LabConfig, step: _Step = _silent) -> Prepared:
    """Make the parts of a lab that do not exist yet.

    Raises UserError if a requested kernel is not built and Debian has none.
    """
    if config.kernel in BUILT:
        kernels.find(config.kernel)
    architecture = of_kernel(config.kernel)
    qemu.fetch(step, architecture)
    with ThreadPoolExecutor(2) as pool:
        # the two overlap: one waits for the archive while the other computes
        kernel = pool.submit(kernels.build, config.kernel, step)
        base = pool.submit(image.build, config.extras, step, architecture).result()
        native = base if architecture == AMD64 else image.build(step=step)
        boot = kernel.result()
        nic_module = pool.submit(_nic_module, config, boot, native, step)
        build = pool.submit(_our_module, boot, native, step)
        client = pool.submit(client_library.build, native, step, architecture)
        engine = qemu.choose_accelerator(config.clock, boot.vmlinuz, boot.initrd, architecture)
        hardware = _hardware(config, engine)
        roles = {node: "blank" if node in config.client_nodes else node for node in config.nodes}
        disks = {n: warm_disk(role, hardware, base, step) for n, role in roles.items()}
        modules = nic_module.result(), build.result()
        return Prepared(base, engine, disks, *modules, client.result())


def _nic_module(
    config: LabConfig, kernel: kernels.Kernel, base: image.Image, step: _Step
) -> Path | None:
    if config.nic == "card":
        return kernels.module(module_source.find_card(), kernel, base, step)
    if config.nic == "siw" and kernel.name not in CHECKING:
        return kernels.siw_module(kernel, base, step)
    return None


def _our_module(kernel: kernels.Kernel, base: image.Image, step: _Step) -> Path | None:
    if kernel.name not in MODULE_KERNELS + CHECKING + FOREIGN:
        return None
    try:
        return kernels.module(module_source.find(), kernel, base, step)
    except UserError as error:
        # most labs do without it, and `nfsrdma module build` in a node says what is wrong
        step(f"the nodes get no build of our module: {error}")
        return None


def _hardware(config: LabConfig, engine: str) -> Hardware:
    cpus = config.cpus if config.clock == "wall" else 1
    return Hardware(
        config.kernel,
        config.clock,
        engine,
        cpus,
        config.memory,
        kernel_args=config.kernel_args,
        dma=config.dma,
    )


class Lab(Nodes):
    """A lab owned by this process; use it in a ``with`` statement."""

    def __init__(self, config: LabConfig, step: _Step = _silent) -> None:
        self._prepared = prepare(config, step)
        super().__init__(config, self._prepared.accel, self._prepared.image.keys)
        self._stack = contextlib.ExitStack()
        self.machines: dict[str, Machine] = {}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._claim(stack)
            about = {"accel": self.accel, "keys": str(self.keys)}
            self.save_state(phase="starting", owner=of_this_process(), **about)
            with contextlib.closing(Lan(self.config.client_nodes)) as lan:
                for node in self.config.nodes:
                    self._start(node, lan, stack)
            for machine in self.machines.values():
                machine.wait()
            self._set_up()
            self.save_state(phase="ready")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def check(self) -> None:
        """Raise if a kernel has reported an error since the last check, or a QEMU has ended."""
        super().check()
        for machine in self.machines.values():
            machine.check_qemu()

    def restart(self) -> None:
        """Restart all machines from their snapshots; changes in the nodes are lost."""
        self._stack.close()
        # the consoles are new files: read them from the beginning
        super().__init__(self.config, self.accel, self.keys)
        self.__enter__()

    @property
    def client_library(self) -> Path | None:
        """The folder with libnfsrdma, for ``refresh``; None if it does not compile."""
        return self._prepared.client

    def pause(self) -> None:
        """Stop all processors: the lab uses no CPU time, and its clocks stop."""
        for machine in self.machines.values():
            machine.pause()

    def resume(self) -> None:
        """Resume all processors."""
        for machine in self.machines.values():
            machine.resume()

    def reset(self, node: str) -> None:
        """Reset a machine, which boots from its disk; lab-node has yet to set its role up."""
        name = self.config.machine_of(node)
        boot_again(self.machines[name].reset, _silent)
        # of a boot that the emulator failed in
        self.consoles[name].skip()

    @contextlib.contextmanager
    def unplugged(self, node: str) -> Iterator[None]:
        """Unplug the cable of a node's RDMA device during the block."""
        monitor = self.machines[self.config.machine_of(node)].monitor
        monitor.command("set_link", name="lan", up=False)
        try:
            yield
        finally:
            monitor.command("set_link", name="lan", up=True)

    def _claim(self, stack: contextlib.ExitStack) -> None:
        _lock(self.config.name, stack)
        remove_stale_labs()
        for folder in (self.folder, self._disks):
            # remove what a killed owner left
            remove_folder(folder)
            paths.create_lab_folder(folder)
            # marks the disks as in use, for labs of other run directories
            stack.enter_context(try_folder_lock(folder))
            stack.callback(_remove, folder)

    @property
    def _disks(self) -> Path:
        return paths.disks_dir() / self.config.name

    def _start(self, node: str, lan: Lan, stack: contextlib.ExitStack) -> None:
        disk = self._disks / f"{node}.qcow2"
        restore_snapshot(self._prepared.disks[node], disk)
        base = _hardware(self.config, self.accel)
        hardware = replace(base, lan=lan.arguments(node))
        machine = Machine(node, hardware, self._prepared.image, self.folder, disk)
        stack.callback(machine.stop)
        self.machines[node] = machine
        machine.start(SNAPSHOT, lan.descriptors(node))

    def _set_up(self) -> None:
        self.refresh(self._prepared.build, self.client_library)
        for number, node in enumerate(self.config.client_nodes, start=1):
            self.run(node, "lab-node", "client", str(number))
        if self.config.wire != LabConfig("default", self.config.shape).wire:
            self.set_link(str(self.config.wire))
        if self.config.nic != "rxe":
            self._use_nic()

    def _use_nic(self) -> None:
        file = self._prepared.nic_module
        module = file.read_bytes() if file else b""
        for node in self.config.nodes:
            self.run(node, "lab-nic", self.config.nic, stdin=module)
            if self.config.profile:
                # cards take the profile and the function when they are added
                self.run(node, "tee", _PROFILE, stdin=self.config.profile.encode())
            if self.config.dma:
                self._use_function(node)
            elif self.config.profile:
                self.run(node, "lab-nic", self.config.nic)
        if self.config.nic == "card":
            # new cards have an infinite rate and no delay: give them netem's
            self.set_link(str(self.config.wire))

    def _use_function(self, node: str) -> None:
        """Have cards do DMA; UserError unless the kernel maps memory in the requested form."""
        self.run(node, "sh", "-ec", _BIND)
        _, before = self._read_dma(node)
        # cards take the function when they are added, and ib_mad maps buffers for each
        self.run(node, "lab-nic", self.config.nic)
        domain, used = self._read_dma(node)
        found = "swiotlb" if used > before else _DOMAINS.get(domain, domain)
        if found != self.config.dma:
            raise UserError(
                f"DMA of {IDLE_FUNCTION} in {node}: requested {self.config.dma}, got {found}",
                "look for swiotlb and iommu in --kernel-args",
            )

    def _read_dma(self, node: str) -> tuple[str, int]:
        """The type of the function's IOMMU domain, and the used slots of bounce buffers."""
        domain, used = self.run(node, "sh", "-c", _READ_DMA).stdout.split()
        return domain, int(used)


def _remove(folder: Path) -> None:
    # the next start removes what cannot be removed now
    with contextlib.suppress(OSError, UserError):
        remove_folder(folder)


def _lock(name: str, stack: contextlib.ExitStack) -> None:
    for _ in range(20):
        if stack.enter_context(try_file_lock(paths.lab_lock(name))):
            return
        # a process that checks whether the lab is up holds the lock briefly
        time.sleep(0.05)
    raise UserError(f"the lab {name} is already up", f"nfsrdma lab down {name}")


def clean() -> int:
    """Remove files of outdated recipes and of stale labs; returns the bytes freed.

    Leaves what another process builds at the moment.
    """
    images = {recipe_hash(extras, each) for extras in (False, True) for each in (AMD64, ARM64)}
    known = kernels.present()
    # the name of a snapshot begins with the names of its image and its kernel
    warm = {f"{image}-{kernel}" for image in images for kernel in known}
    freed = remove_stale_labs()
    client = client_library.current()
    kept = {"images": images, "kernels": known, "warm": warm, "client": client}
    for name, current in kept.items():
        folder = paths.cache_dir() / name
        # a lock and the drafts of a build have its name, with another end
        built = sorted({path.with_name(paths.built_name(path)) for path in folder.glob("*")})
        freed += sum(_remove_outdated(path, current) for path in built)
    return freed


def _remove_outdated(path: Path, current: set[str]) -> int:
    outdated = current.isdisjoint((path.name, path.name.rpartition("-")[0]))
    kept = {f"{path.name}.lock"}
    kept |= set() if outdated else {path.name, f"{path.name}.qcow2"}
    with try_file_lock(paths.lock_of(path)) as free:
        if not free:
            return 0
        files = [p for p in path.parent.glob("*") if paths.built_name(p) == path.name]
        return sum(_remove_path(file) for file in files if file.name not in kept)


def remove_stale_labs() -> int:
    """Remove the files of labs without an owner; returns the bytes freed."""
    disks = paths.disks_dir()
    folders = [*paths.labs_dir().iterdir(), *(disks.iterdir() if disks.is_dir() else ())]
    names = {folder.name for folder in folders if paths.is_lab_folder(folder)}
    return sum(_remove_stale_lab(name) for name in sorted(names))


def _remove_stale_lab(name: str) -> int:
    folders = paths.lab_dir(name), paths.disks_dir() / name
    with try_file_lock(paths.lab_lock(name)) as free:
        removable = [path for path in folders if free and paths.is_lab_folder(path)]
        return sum(_remove_unlocked(folder) for folder in removable)


def _remove_unlocked(folder: Path) -> int:
    # a lab of another run directory has its lock there
    with try_folder_lock(folder) as free:
        try:
            return remove_folder(folder) if free else 0
        except OSError:
            # its machines are still exiting; the next start removes what they write now
            return 0


def remove_folder(folder: Path) -> int:
    """Remove a lab's folder, its mark last; returns the bytes freed.

    UserError if something exists there that no lab made.
    """
    if not os.path.lexists(folder):
        return 0
    if not paths.is_lab_folder(folder):
        raise UserError(f"{folder}: expected a folder of a lab, found other files", "remove it")
    size = sum(_remove_path(path) for path in folder.iterdir() if path.name != paths.MARK)
    mark = folder / paths.MARK
    mark.unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:
        # a machine that is still exiting wrote a file
        mark.touch()
        raise
    return size


def _remove_path(path: Path) -> int:
    """Remove a file or a folder; returns the bytes freed."""
    if path.is_symlink() or not path.is_dir():
        size = path.lstat().st_blocks * 512
        path.unlink()
        return size
    size = sum(p.lstat().st_blocks * 512 for p in [path, *path.rglob("*")])
    shutil.rmtree(path)
    return size


# to stop the machines and remove their disks
_STOP_SECONDS = 300


def up(config: LabConfig, step: Callable[[str], None]) -> LabState:
    """Start a supervisor that brings a lab up; returns the lab's state."""
    if read_state(config.name):
        raise UserError(f"the lab {config.name} is already up", f"nfsrdma lab down {config.name}")
    prepare(config, step)
    step("starting")
    log = _supervisor_log(config.name)
    # a session of its own: Ctrl-C and the end of this terminal do not reach the supervisor
    with log.open("wb") as output:
        supervisor = subprocess.Popen(
            (sys.executable, "-m", __name__, json.dumps(config.to_dict())),
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        return _wait_until_ready(config.name, supervisor)
    except BaseException:
        _end_supervisor(supervisor)
        raise


def _wait_until_ready(name: str, supervisor: subprocess.Popen[bytes]) -> LabState:
    # without a limit: each step of the supervisor has its own, of 15 minutes for a boot
    while True:
        ended = supervisor.poll() is not None
        state = read_state(name)
        mine = str(state.get("owner", "")).partition("-")[0] == str(supervisor.pid)
        if mine and state["phase"] == "ready":
            return state
        if ended:
            text = _supervisor_log(name).read_text(errors="replace")
            raise UserError(f"the lab failed to start: {text.strip()}")
        time.sleep(0.05)


def _end_supervisor(supervisor: subprocess.Popen[bytes]) -> None:
    supervisor.terminate()
    try:
        supervisor.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        # its machines die with it
        kill(supervisor)


def refresh(name: str, step: _Step) -> None:
    """Copy this working tree, our module and libnfsrdma to the nodes of a running lab."""
    nodes = attach(name)
    kernel = kernels.find(nodes.config.kernel)
    # one of this host's architecture compiles for all
    extras = nodes.config.extras if kernel.architecture == AMD64 else False
    if base := image.find(extras):
        client = client_library.build(base, step, kernel.architecture)
        nodes.refresh(_our_module(kernel, base, step), client)
    else:
        nodes.refresh()


def down(name: str) -> None:
    """Stop a lab and wait until it is removed."""
    if not read_state(name):
        raise UserError(f"the lab {name} is not up", "list the labs: nfsrdma lab status")
    end, owner = time.monotonic() + _STOP_SECONDS, ""
    while state := read_state(name):
        if not owner and terminate(state.get("owner", "")):
            owner = state["owner"]
        if time.monotonic() > end:
            hint = f"run: kill -9 {owner.partition('-')[0]}" if owner else "wait until it is ready"
            raise UserError(f"the lab {name} is still up after {_STOP_SECONDS} s", hint)
        time.sleep(0.05)
    _supervisor_log(name).unlink(missing_ok=True)


def _supervisor_log(name: str) -> Path:
    return paths.labs_dir() / f"{name}.keeper"


def _supervise(config: LabConfig) -> None:
    with Lab(config) as lab:
        while True:
            time.sleep(0.5)
            try:
                for machine in lab.machines.values():
                    machine.check()
            except KernelReportError as error:
                lab.save_state(report=error.message)


def _main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        _supervise(LabConfig(**json.loads(sys.argv[1])))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
