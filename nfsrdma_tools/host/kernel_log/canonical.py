# SPDX-License-Identifier: Apache-2.0
"""Reports and dumps in a form that has no name of the host: what an anonymized bundle keeps.

A report keeps its kind, the place, the work and the frames.  Functions of vmlinux and of known
modules are names of the kernel's source; those of other modules may name their owner, and a
process is named by its user: these are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from nfsrdma_tools.host.kernel_log.completion_dumps import CompletionDump
from nfsrdma_tools.host.kernel_log.reports import Frame, KernelReport, Kind

__all__ = ["of_dump", "of_report"]

_HEADS: dict[Kind, str] = {
    "oops": "Oops: withheld",
    "bug": "kernel BUG at withheld!",
    "warning": "WARNING: CPU: 0 PID: {pid} at withheld:0 {place}",
    "hung task": "INFO: task {process}:{pid} blocked for more than 120 seconds.",
    "lockup": "watchdog: BUG: soft lockup - CPU#0 stuck for 0s! [{process}:{pid}]",
    "stall": "rcu: INFO: rcu detected stalls on CPUs/tasks: withheld",
    "lockdep": "WARNING: possible circular locking dependency detected",
    "sanitizer": "BUG: KASAN: withheld in {place}",
    "stack": "CPU: 0 PID: {pid} Comm: {process}",
    "allocation": "{process}: page allocation failure: withheld",
}
_KEPT = re.compile(r"refcount_t: [a-z ;-]{1,60}\.?")
"""Lines of WARN() that tell faults apart."""
_PROCESSES = re.compile(
    r"nfsd\d{0,4}|lockd|kthreadd|swapper/\d{1,4}|u?mount\.nfs4?|rpc\.\w{1,16}|systemd"
    r"|NFSv4 callback|nfsv4\.\d-svc|nfsiod|rpciod|xprtiod"
)
_KINDS = (
    (re.compile(r"kworker\S*"), "kworker/0:0"),
    (re.compile(r"\S+-manager"), "server-manager"),
)
_QUEUES = frozenset(
    [
        *("xprtiod", "rpciod", "nfsiod", "ib-comp-wq", "ib-comp-unb-wq", "ib_addr", "ib_cm"),
        *(
            "rdma_cm",
            "iw_cm_wq",
            "svcrdma",
            "svc_rdma_wq",
            "events",
            "events_unbound",
            "events_long",
        ),
        *("nfsd4", "nfsd4_callbacks", "nfsd_filecache"),
    ]
)
_SYMBOL = re.compile(r"[A-Za-z_][\w.]{0,127}")


def of_report(report: KernelReport, modules: Collection[str]) -> list[str]:
    """The lines of a report; ``modules`` may be named."""
    process = _process(report.process)
    place = _frame(report.at, modules) if report.at else "withheld+0x0/0x0"
    lines = [line for line in report.lines if _KEPT.fullmatch(line)]
    head = _HEADS[report.kind].format(pid=report.pid, process=process, place=place)
    lines = ["------------[ cut here ]------------", *lines, head] if lines else [head]
    if report.kind != "stack":
        lines.append(f"CPU: 0 PID: {report.pid} Comm: {process}")
    if report.work or report.workqueue:
        queue = report.workqueue if report.workqueue in _QUEUES else "workqueue"
        work = report.work if _SYMBOL.fullmatch(report.work) else "withheld"
        lines.append(f"Workqueue: {queue} {work}")
    if report.at:
        lines.append(f"RIP: 0010:{place}")
    lines += ["Call Trace:", *(_frame(frame, modules) for frame in report.frames)]
    if report.frames or report.at:
        lines.append("---[ end trace 0000000000000000 ]---")
    return lines


def of_dump(dump: CompletionDump, device: str) -> list[str]:
    """The lines of a dump, with the name of its device and the bytes that tell of the work."""
    zeros = " ".join(["00"] * 16)
    if dump.hns_status is not None:
        rows = [dump.data[:16].hex(" ", 4), bytes(16).hex(" ", 4)]
        return [f"hns3 0000:00:00.0 {device}: error cqe status {dump.hns_status:#x}:", *rows]
    last = dump.data[54:].hex(" ")
    return [
        f"infiniband {device}: dump_cqe:0:(pid 0): dump error cqe",
        *(f"000000{number}0: {zeros}" for number in range(3)),
        f"00000030: {zeros[: 6 * 3]}{last}",
    ]


def _frame(frame: Frame, modules: Collection[str]) -> str:
    if not frame.module:
        return f"{frame.function}+0x0/0x0"
    if frame.module in modules:
        return f"{frame.function}+0x0/0x0 [{frame.module}]"
    return "withheld+0x0/0x0 [module]"


def _process(name: str) -> str:
    if not name:
        return "process"
    same = name if _PROCESSES.fullmatch(name) else "process"
    return next((kind for pattern, kind in _KINDS if pattern.fullmatch(name)), same)
