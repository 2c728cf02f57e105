# SPDX-License-Identifier: Apache-2.0
"""Tests whether KVM works on this host by booting a kernel, and caches the result.

/dev/kvm may exist and still fail to run a kernel (nested virtualisation, filtered MSRs).
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.lab.paths import cache_dir
from nfsrdma_tools.lab.qemu_binary import qemu, version

__all__ = ["choose", "verdict"]

_SECONDS = 20


def choose(clock: str, kernel: Path, initrd: Path) -> str:
    """The accelerator for a clock: only emulation counts instructions; else KVM if it works."""
    if clock != "wall" or not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    known = verdict()
    if known is None:
        known = _boots(kernel, initrd)
        _memory().write_text(json.dumps({_machine(): known}))
    return "kvm" if known else "tcg"


def verdict() -> bool | None:
    """Whether KVM works on this host; None if not tested yet."""
    try:
        answer = json.loads(_memory().read_text()).get(_machine())
    except (FileNotFoundError, ValueError):
        return None
    return bool(answer) if answer is not None else None


def _boots(kernel: Path, initrd: Path) -> bool:
    # without a root disk the kernel panics when it reaches user space, and QEMU exits
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "console"
        argv = (
            *(*qemu(), "-accel", "kvm", "-cpu", "host", "-m", "512", "-nodefaults", "-no-reboot"),
            *("-display", "none", "-serial", f"file:{log}"),
            *("-kernel", str(kernel), "-initrd", str(initrd)),
            *("-append", "console=ttyS0 panic=-1 rdinit=/none root=/none"),
        )
        run(*argv, timeout=_SECONDS, check=False)
        return log.exists() and "Kernel panic" in log.read_text(errors="replace")


def _memory() -> Path:
    return cache_dir() / "kvm.json"


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
    return f"{platform.release()} / {model} / {version()}"
