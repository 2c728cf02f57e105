# SPDX-License-Identifier: Apache-2.0
"""QEMU: its program, its accelerator on this host, and its machine protocol (QMP).

Labs need QEMU 10.0 or newer: the system's, or one in the cache.  All clocks use the same QEMU, so
that counted results agree across hosts.  Debian 12 has 7.2, in which processes start three times as
slowly; ``fetch`` gets 10.0 from its backports.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab.architecture import AMD64, Architecture
from nfsrdma_tools.lab.debian_packages import unpack_once
from nfsrdma_tools.lab.paths import cache_dir

__all__ = ["Monitor", "choose_accelerator", "fetch", "kvm_works", "qemu", "version"]

_KVM_SECONDS = 20
_WANTED = (10, 0)
_SUITES = {"bookworm": "bookworm-backports"}


def qemu(architecture: Architecture = AMD64) -> tuple[str, ...]:
    """The command: the program, and the option for its firmware path."""
    usr = _folder(architecture) / "usr"
    if not usr.is_dir():
        return (architecture.qemu,)
    share = usr / "share"
    return (f"{usr}/bin/{architecture.qemu}", "-L", f"{share}/qemu", "-L", f"{share}/seabios")


def version(architecture: Architecture = AMD64) -> str:
    """Its version, such as ``10.0.11 (Debian 1:10.0.11+ds-0+deb13u1)``."""
    return _version(qemu(architecture)[0])


def fetch(step: Callable[[str], None], architecture: Architecture = AMD64) -> None:
    """Put a newer QEMU into the cache if the system's is old and Debian's backports have one.

    Reports to ``step``. On failure labs use the system's QEMU, and are slower.
    """
    suite = _SUITES.get(_codename())
    folder = _folder(architecture)
    if not suite or folder.is_dir():
        return
    installed = version(architecture)
    if _number(installed) >= _WANTED:
        return
    step(f"fetching QEMU from {suite}: found {installed.split()[0]}, expected 10.0 (15 s, 80 MB)")
    try:
        # they need libraries of Debian 12's QEMU packages
        unpack_once(architecture.qemu_packages, suite, folder)
    except UserError as error:
        step(f"labs use QEMU {installed.split()[0]}; results differ from other versions: {error}")


@functools.cache
def _version(program: str) -> str:
    output = run(program, "--version").stdout
    return output.splitlines()[0].removeprefix("QEMU emulator version ")


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", text)[:2])


def _codename() -> str:
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        return ""


def _folder(architecture: Architecture) -> Path:
    name = "qemu" if architecture == AMD64 else f"qemu-{architecture.debian}"
    return cache_dir() / "programs" / name


def choose_accelerator(
    clock: str, kernel: Path, initrd: Path, architecture: Architecture = AMD64
) -> str:
    """The accelerator for a clock: only emulation counts instructions; else KVM if it works."""
    if architecture != AMD64 or clock != "wall" or not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    works = kvm_works()
    if works is None:
        works = _boots_with_kvm(kernel, initrd)
        _kvm_results().write_text(json.dumps({_host(): works}))
    return "kvm" if works else "tcg"


def kvm_works() -> bool | None:
    """Whether KVM works on this host; None if not tested yet.

    A test boots a kernel: /dev/kvm may exist and still fail to run one (nested virtualisation,
    filtered MSRs).
    """
    try:
        answer = json.loads(_kvm_results().read_text()).get(_host())
    except (FileNotFoundError, ValueError):
        return None
    return bool(answer) if answer is not None else None


def _boots_with_kvm(kernel: Path, initrd: Path) -> bool:
    # without a root disk the kernel panics when it reaches user space, and QEMU exits
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "console"
        argv = (
            *(*qemu(), "-accel", "kvm", "-cpu", "host", "-m", "512", "-nodefaults", "-no-reboot"),
            *("-display", "none", "-serial", f"file:{log}"),
            *("-kernel", str(kernel), "-initrd", str(initrd)),
            *("-append", "console=ttyS0 panic=-1 rdinit=/none root=/none"),
        )
        run(*argv, timeout=_KVM_SECONDS, check=False)
        return log.exists() and "Kernel panic" in log.read_text(errors="replace")


def _kvm_results() -> Path:
    return cache_dir() / "kvm.json"


def _host() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
    return f"{platform.release()} / {model} / {version()}"


class Monitor:
    """A connection to a QEMU, on the library qemu.qmp."""

    def __init__(self, socket: Path) -> None:
        try:
            from qemu.qmp.legacy import QEMUMonitorProtocol
        except ImportError as error:
            hint = "pip install 'nfsrdma-tools[lab]'"
            raise UserError("labs need the Python library qemu.qmp", hint) from error

        self._socket = socket
        self._protocol: Any = QEMUMonitorProtocol(str(socket))

    def connect(self, seconds: float, alive: Callable[[], None]) -> None:
        """Connect, waiting until QEMU listens on its socket. ``alive`` raises if QEMU has ended."""
        end = time.monotonic() + seconds
        while not self._try_connect():
            alive()
            if time.monotonic() > end:
                raise UserError(f"QEMU did not answer on its control socket in {seconds:g} s")
            time.sleep(0.02)

    def _try_connect(self) -> bool:
        from qemu.qmp import QMPError

        # the socket exists shortly before QEMU listens
        with contextlib.suppress(QMPError, EOFError, OSError):
            if self._socket.exists():
                self._protocol.connect()
                return True
        return False

    def command(self, name: str, /, **arguments: object) -> Any:
        """Run a QMP command and return its reply; UserError if QEMU refuses it or has ended."""
        from qemu.qmp import QMPError

        try:
            return self._protocol.cmd(name, **arguments)
        except (QMPError, EOFError, OSError) as error:
            reason = str(error) or "QEMU has ended"
            raise UserError(f"QEMU command {name} failed: {reason}") from error

    def human(self, line: str) -> str:
        """Run a command of the human monitor and return its output."""
        return str(self.command("human-monitor-command", **{"command-line": line}))

    def ssh_port(self) -> int:
        """The loopback port, chosen by QEMU, that forwards to the machine's ssh."""
        # QMP has no command for the ports of a user network
        match = re.search(
            r"HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)", self.human("info usernet")
        )
        if not match:
            raise UserError("QEMU does not forward a port to the machine's ssh")
        return int(match.group(1))

    def close(self) -> None:
        """Close the connection; QEMU may have closed it already."""
        from qemu.qmp import QMPError

        with contextlib.suppress(QMPError, EOFError, OSError):
            self._protocol.close()
