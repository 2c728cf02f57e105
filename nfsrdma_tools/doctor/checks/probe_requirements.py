# SPDX-License-Identifier: Apache-2.0
"""Checks of what the probes and perftest need: bcc, and a limit for locked memory.

Probes need no kernel headers: bpf/headers has what bcc includes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nfsrdma_tools.doctor import inputs
from nfsrdma_tools.doctor.finding import Finding, check
from nfsrdma_tools.doctor.inputs import NO_BCC
from nfsrdma_tools.errors import one_line
from nfsrdma_tools.host import packages
from nfsrdma_tools.host.machine import LIVE, Machine

__all__ = ["bcc", "judge_bcc", "memlock"]

_ENOUGH_BYTES = 1 << 30
# capabilities(7)
_CAP_IPC_LOCK = 1 << 14


@check(200, "bcc")
def bcc(machine: Machine) -> Iterator[Finding]:
    """Python can import the BPF compiler collection; PyPI's bcc is a crystal-lattice library."""
    result = inputs.bcc(machine)
    yield judge_bcc(result.returncode, result.stdout, result.stderr, machine)


def judge_bcc(status: int, stdout: str, stderr: str, machine: Machine = LIVE) -> Finding:
    """Judge the result of an attempt to use ``bcc.BPF``."""
    if status == 0:
        return Finding("bcc", "ok", f"version {one_line(stdout)}")
    expected, get = "only the probes need it", packages.install("bcc", machine=machine)
    if "AttributeError" in stderr:
        remedy = f"pip uninstall bcc; {get} (PyPI's bcc is an unrelated library)"
        return Finding(
            "bcc",
            "warning",
            "bcc has no BPF: not the BPF compiler",
            expected,
            remedy,
        )
    remedy = f"{get}, and a venv with --system-site-packages"
    reason = one_line(stderr) or f"status {status}"
    if reason == NO_BCC:
        reason = "this Python has no module bcc"
    return Finding("bcc", "warning", reason, expected, remedy)


@check(190, "memlock")
def memlock(machine: Machine) -> Iterator[Finding]:
    """User-space verbs (perftest) can register memory; NFS itself needs no limit."""
    # "Max locked memory  8388608  8388608  bytes" (proc_pid_limits(5))
    line = re.search(r"^Max locked memory +(\d+|unlimited)", machine.read("proc/self/limits"), re.M)
    soft = int(line[1]) if line and line[1] != "unlimited" else _ENOUGH_BYTES
    if _is_exempt(machine):
        yield Finding("memlock", "ok", "root is exempt")
    elif soft >= _ENOUGH_BYTES:
        unlimited = line and line[1] == "unlimited"
        yield Finding("memlock", "ok", "unlimited" if unlimited else f"{soft >> 10} KiB")
    else:
        where = "the container's settings" if machine.in_container else "/etc/security/limits.d"
        remedy = f"raise memlock in {where} (only for perftest: NFS does not need it)"
        yield Finding("memlock", "warning", f"{soft >> 10} KiB", "1 GiB or more", remedy)


def _is_exempt(machine: Machine) -> bool:
    """Whether the limit does not hold; it does for root without CAP_IPC_LOCK, as in containers."""
    match = re.search(r"^CapEff:\s*([0-9a-f]{1,16})$", machine.text("proc/self/status"), re.M)
    return bool(int(match[1], 16) & _CAP_IPC_LOCK) if match else machine.root_user
