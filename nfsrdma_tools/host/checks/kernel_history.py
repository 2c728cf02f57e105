# SPDX-License-Identifier: Apache-2.0
"""Checks of the running kernel's past: its log since the boot, and the faults of its release."""

from __future__ import annotations

from collections.abc import Iterator

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import kernel_faults, kernel_modules
from nfsrdma_tools.host.checks.finding import Finding
from nfsrdma_tools.host.kernel_faults import Fault, KernelVersion
from nfsrdma_tools.host.kernel_log.explain import Explanation, explain, kernel_ring
from nfsrdma_tools.host.machine import Machine

__all__ = ["faults", "judge_faults", "judge_log", "log"]

_LOG, _FAULTS = "kernel log", "known faults"
_MOST = 3
_MODULES = {
    "client": {"rpcrdma"},
    "server": {"rpcrdma", "nfsd"},
    "rxe": {"rdma_rxe"},
    "siw": {"siw"},
    "iwarp": {"iw_cm"},
}
"""The loaded modules without which a fault of this part cannot be met."""


def log(machine: Machine) -> Iterator[Finding]:
    """The kernel's log of this boot has no message of NFS or RDMA that needs attention."""
    yield from judge_log(explain(kernel_ring(machine)))


def judge_log(explained: list[Explanation]) -> Iterator[Finding]:
    """Judge the messages of a log.

    A log tells what was broken, not what is: an error in it is a warning here.
    """
    serious = [entry for entry in explained if entry.severity != "information"]
    if not serious:
        found = f"{len(explained)} kinds of messages recognized, all of them normal"
        yield Finding(_LOG, "ok", found if explained else "no message of NFS or RDMA")
    for entry in serious[:_MOST]:
        about = f" {entry.subject}" if entry.subject else ""
        times = "once" if entry.count == 1 else f"{entry.count} times, last"
        at = f" at {entry.last}" if entry.last else ""
        found = f"{entry.name}{about}, {times}{at}: {entry.meaning}"
        remedy = entry.next_step or "nfsrdma explain"
        yield Finding(_LOG, "warning", found, entry.doubt or "no such message", remedy)


def faults(machine: Machine) -> Iterator[Finding]:
    """The kernel's release has no known fault of NFS over RDMA in a module that is loaded."""
    machine.require("proc/modules")
    loaded = set(kernel_modules.loaded(machine.path("proc")))
    kernel = kernel_faults.kernel_version(machine.root)
    found = [fault for fault in kernel_faults.possible(kernel) if _MODULES[fault.part] <= loaded]
    yield from judge_faults(kernel, found)


def judge_faults(kernel: KernelVersion, found: list[Fault]) -> Iterator[Finding]:
    """Judge the faults that a kernel may have.

    A release such as 5.14.0-570.el9 does not tell which fixes the distribution has backported:
    its faults are unknown.
    """
    if kernel.number == (0, 0, 0):
        raise UserError(f"{kernel.release} is no release of Linux")
    if not found:
        yield Finding(_FAULTS, "ok", f"none known in the loaded modules of Linux {kernel.text}")
        return
    remedy = "nfsrdma explain --faults"
    if kernel.suffix and kernel.number[2] == 0:
        text = f"{kernel.release}: the distribution decides which fixes it has"
        yield Finding(_FAULTS, "unknown", text, f"fixes of {len(found)} known faults", remedy)
        return
    ask = "ask the distribution whether its kernel has the fix" if kernel.suffix else "update"
    # the newest fixes come last, and are those that a distribution is most likely to lack
    for fault in reversed(found[-_MOST:]):
        text = f"possible in {kernel.text}: {fault.seen}"
        fix = f"{fault.commit} ({fault.fixes})"
        yield Finding(_FAULTS, "warning", text, fix, f"{ask}: {fault.subject}")
    if len(found) > _MOST:
        yield Finding(_FAULTS, "warning", f"possible: {len(found) - _MOST} more", "", remedy)
