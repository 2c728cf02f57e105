# SPDX-License-Identifier: Apache-2.0
"""The conditions of a study as text: machine, clock, link rate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from nfsrdma_tools.sweep.trial_record import Trial

__all__ = [
    "CARD",
    "SOFT_ROCE",
    "clock_note",
    "emulation",
    "is_lab",
    "machine",
    "merged",
    "wire_speed",
]

CARD, SOFT_ROCE = "modelled card", "soft-RoCE"
_HARDWARE = ("mlx5_ib", "irdma")


def merged(
    environments: Mapping[str, Mapping[str, str]], trials: Iterable[Trial]
) -> dict[str, str]:
    """The facts of these trials' environments; all values if they differ."""
    uids = dict.fromkeys(trial.environment for trial in trials)
    facts: dict[str, dict[str, None]] = {}
    for uid in uids:
        for name, value in environments.get(uid, {}).items():
            facts.setdefault(name, {})[value] = None
    return {name: " / ".join(values) for name, values in facts.items()}


def wire_speed(facts: Mapping[str, str]) -> float | None:
    """The lab's link rate in MB/s from "1gbit/100us"; None if unlimited or unknown."""
    match = re.match(r"(\d+(?:\.\d+)?)(g|m)bit\b", facts.get("lab link", ""))
    return float(match[1]) * {"g": 125.0, "m": 0.125}[match[2]] if match else None


def is_lab(facts: Mapping[str, str]) -> bool:
    """Whether it ran in a lab."""
    return "lab clock" in facts


def emulation(facts: Mapping[str, str]) -> str:
    """The software that stands for an RDMA card: CARD, SOFT_ROCE, or "" for a real card."""
    if any(name.startswith("rdma ") and CARD in value for name, value in facts.items()):
        return CARD
    hardware = any(f"module {name}" in facts for name in _HARDWARE)
    emulated = is_lab(facts) or ("module rdma_rxe" in facts and not hardware)
    return SOFT_ROCE if emulated else ""


def clock_note(facts: Mapping[str, str]) -> str:
    """An explanation of the lab's clock; "" outside of a lab."""
    if not is_lab(facts):
        return ""
    if facts["lab clock"] == "instructions":
        return (
            "The clock counts instructions, one nanosecond each: results compare the work of "
            "kernels and repeat on any machine with this QEMU. They are not seconds of real "
            "hardware."
        )
    if facts["lab clock"] == "counted":
        return "CPU time counts instructions, one nanosecond each; elapsed time has no meaning."
    return "The clock is a virtual machine's wall clock: other load on the host changes results."


def machine(facts: Mapping[str, str]) -> str:
    """Kernel, devices, link, CPU model and clock in one line."""
    devices = [f"{name.removeprefix('rdma ')} ({value})" for name, value in facts.items()
               if name.startswith("rdma ")]  # fmt: skip
    parts = [
        f"Linux {facts['kernel']}" if "kernel" in facts else "",
        _ours(facts),
        *([emulation(facts)] if emulation(facts) else devices),
        f"link {facts['lab link']}" if "lab link" in facts else "",
        facts.get("cpu model", ""),
        f"QEMU {facts['lab qemu'].split()[0]}" if "lab qemu" in facts else "",
        f"lab clock: {facts['lab clock']}" if is_lab(facts) else "wall clock",
    ]
    return ", ".join(part for part in parts if part)


def _ours(facts: Mapping[str, str]) -> str:
    # one version has many builds: the first digits of srcversion distinguish them
    words = facts.get("module nfsrdma", "").split()
    return f"nfsrdma {words[0]} {words[1][:8]}" if len(words) > 1 else ""
