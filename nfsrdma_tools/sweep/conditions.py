# SPDX-License-Identifier: Apache-2.0
"""The conditions of a measurement as text for the store and for captions."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

from nfsrdma_tools import __version__, files
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import ProgramMissingError
from nfsrdma_tools.host import cpu_time, kernel_modules
from nfsrdma_tools.host.machine import LIVE, Machine

__all__ = ["conditions", "lab_facts"]

_MODULES = (
    "sunrpc",
    "nfs",
    "nfsd",
    "rpcrdma",
    "nfsrdma",
    "ib_core",
    "rdma_rxe",
    "siw",
    "nfsrdma_card",
    "mlx5_ib",
    "irdma",
)
_CLOCK = "sys/devices/system/clocksource/clocksource0"
_LAB = (
    *("clock", "accel", "shape", "link", "nic", "kernel", "kernel_args"),
    *("dma", "profile", "qemu"),
)
# of nfsrdma_card, in debugfs: what its time depends on
_CARD = (
    *("rate", "latency", "message", "units", "cache_entries", "cache_miss", "moderation"),
    *("qp_cache_entries", "qp_cache_miss", "profile"),
)


def conditions(machine: Machine = LIVE) -> dict[str, str]:
    """Facts about this host by name; facts that are not available are left out.

    ``host`` is the host name; ``clock synchronised`` comes from timedatectl.

    ``module NAME`` is its version, srcversion and taints, ``nfsrdma tunables`` are the current
    parameters of our module, ``rdma NAME`` is the driver or parent of a device or the parameters of
    a modelled card, ``lab ...`` are the lab's entries in /etc/nfsrdma-lab.json.
    """
    facts = {
        "host": platform.node(),
        "clock synchronised": _line("timedatectl", "show", "--property=NTPSynchronized", "--value"),
        "toolkit": __version__,
        "kernel": platform.release(),
        "kernel build": platform.version(),
        "cpu model": _cpu_model(machine),
        "cpus": str(os.cpu_count() or 1),
        "memory": _memory(machine),
        "governor": _text(machine.path("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        "clock source": _text(machine.path(f"{_CLOCK}/current_clocksource")),
        "cpu accounting": cpu_time.accounting(machine),
        "virtualisation": _line("systemd-detect-virt"),
        "nfs-utils": _nfs_utils(),
        "fio": _line("fio", "--version"),
        **_modules(machine),
        "nfsrdma tunables": _tunables(machine),
        **_devices(machine),
        **lab_facts(machine),
    }
    return {name: value for name, value in facts.items() if value}


def _text(path: Path) -> str:
    try:
        return " ".join(files.text(path, "replace").split())
    except OSError:
        return ""


def _field(path: Path, name: str) -> str:
    try:
        lines = files.text(path, "replace").splitlines()
    except OSError:
        return ""
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(name))
    return next(values, "")


def _cpu_model(machine: Machine) -> str:
    return _field(machine.path("proc/cpuinfo"), "model name") or platform.machine()


def _memory(machine: Machine) -> str:
    total = _field(machine.path("proc/meminfo"), "MemTotal").split()
    return f"{int(total[0]) // 1024} MiB" if total else ""


def _line(*argv: str) -> str:
    try:
        result = run(*argv, check=False, timeout=10)
    except ProgramMissingError:
        return ""
    return result.stdout.strip().partition("\n")[0]


def _nfs_utils() -> str:
    # "mount.nfs: (linux nfs-utils 2.8.3)"
    return _line("mount.nfs", "-V").partition("nfs-utils ")[2].strip(") ")


def _modules(machine: Machine) -> dict[str, str]:
    modules = {}
    for name in _MODULES:
        folder = machine.path(f"sys/module/{name}")
        words = (_text(folder / "version"), _text(folder / "srcversion"), _text(folder / "taint"))
        if folder.is_dir():
            # a built-in module has no initstate; some kernels have no module versions
            plain = "loaded" if (folder / "initstate").exists() else "built in"
            modules[f"module {name}"] = " ".join(filter(None, words)) or plain
    return modules


def _tunables(machine: Machine) -> str:
    values = kernel_modules.parameters("nfsrdma", machine)
    return " ".join(f"{name}={value}" for name, value in values.items())


def _devices(machine: Machine) -> dict[str, str]:
    folder = machine.path("sys/class/infiniband")
    devices = sorted(folder.iterdir()) if folder.is_dir() else []
    return {f"rdma {d.name}": _card(machine, d.name) or _device(d) for d in devices}


def _card(machine: Machine, name: str) -> str:
    folder = machine.path(f"sys/kernel/debug/nfsrdma_card/{name}")
    if not folder.is_dir():
        return ""
    return ", ".join(["modelled card", *(f"{each} {_text(folder / each)}" for each in _CARD)])


def _device(device: Path) -> str:
    parent = _text(device / "parent")
    driver = f"on {parent}" if parent else (device / "device/driver").resolve().name
    words = (driver, _text(device / "fw_ver"), _text(device / "ports/1/rate"))
    return ", ".join(filter(None, words))


def lab_facts(machine: Machine = LIVE) -> dict[str, str]:
    """The facts of the lab whose node this host is, by name with ``lab`` before it; or none."""
    try:
        facts = json.loads(files.text(machine.path("etc/nfsrdma-lab.json")))
    except (OSError, ValueError):
        return {}
    return {f"lab {name}": str(facts[name]) for name in _LAB if facts.get(name)}
