# SPDX-License-Identifier: Apache-2.0
"""The conditions of a study in words: what it ran on, which clock, how fast the wire is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from nfsrdma_tools.sweep.trial_record import Trial

__all__ = ["clock_note", "is_emulated", "is_lab", "machine", "merged", "wire_speed"]

_HARDWARE = ("mlx5_ib", "irdma")


def merged(
    environments: Mapping[str, Mapping[str, str]], trials: Iterable[Trial]
) -> dict[str, str]:
    """The facts of the environments these trials ran in; where they differ, all values."""
    uids = dict.fromkeys(trial.environment for trial in trials)
    facts: dict[str, dict[str, None]] = {}
    for uid in uids:
        for name, value in environments.get(uid, {}).items():
            facts.setdefault(name, {})[value] = None
    return {name: " / ".join(values) for name, values in facts.items()}


def wire_speed(facts: Mapping[str, str]) -> float | None:
    """The lab's wire in MB/s out of "1gbit/100us"; None when there is none or it is unknown."""
    match = re.match(r"(\d+(?:\.\d+)?)(g|m)bit\b", facts.get("lab link", ""))
    return float(match[1]) * {"g": 125.0, "m": 0.125}[match[2]] if match else None


def is_lab(facts: Mapping[str, str]) -> bool:
    """Whether it ran in a lab of ours."""
    return "lab clock" in facts


def is_emulated(facts: Mapping[str, str]) -> bool:
    """Whether the RDMA devices are soft-RoCE's, as they are in the lab."""
    hardware = any(f"module {name}" in facts for name in _HARDWARE)
    return is_lab(facts) or ("module rdma_rxe" in facts and not hardware)


def clock_note(facts: Mapping[str, str]) -> str:
    """What the lab's clock means, in a sentence; "" outside of the lab."""
    if not is_lab(facts):
        return ""
    if facts["lab clock"] == "instructions":
        return (
            "The clock counts instructions, each of which takes one nanosecond: figures compare "
            "the work the kernels do, they repeat on any machine with this QEMU, and they are no "
            "seconds of yours."
        )
    if facts["lab clock"] == "counted":
        return (
            "CPU time counts instructions, each of which takes one nanosecond; elapsed time is of "
            "no meaning."
        )
    return "The clock is the wall's, in a virtual machine: figures drift with what else runs."


def machine(facts: Mapping[str, str]) -> str:
    """Kernel, devices, wire, CPU model and clock in a line."""
    devices = [f"{name.removeprefix('rdma ')} ({value})" for name, value in facts.items()
               if name.startswith("rdma ")]  # fmt: skip
    parts = [
        f"Linux {facts['kernel']}" if "kernel" in facts else "",
        _ours(facts),
        *(["soft-RoCE"] if is_emulated(facts) else devices),
        f"wire {facts['lab link']}" if "lab link" in facts else "",
        facts.get("cpu model", ""),
        f"QEMU {facts['lab qemu'].split()[0]}" if "lab qemu" in facts else "",
        f"lab's clock: {facts['lab clock']}" if is_lab(facts) else "wall clock",
    ]
    return ", ".join(part for part in parts if part)


def _ours(facts: Mapping[str, str]) -> str:
    # one version has many builds, and the first digits of the source's hash tell them apart
    words = facts.get("module nfsrdma", "").split()
    return f"nfsrdma {words[0]} {words[1][:8]}" if len(words) > 1 else ""
