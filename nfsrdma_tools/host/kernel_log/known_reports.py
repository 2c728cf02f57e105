# SPDX-License-Identifier: Apache-2.0
"""The meaning of the kernel's reports of its own errors for mounts and servers, by their frames.

The first entry that fits a report explains it.  Entries with ``fault`` name a fault of the table
(host/kernel_faults.py): their frames are those of its commit's message or of its reports.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from nfsrdma_tools.host.kernel_log.known_message import Recovery, Severity
from nfsrdma_tools.host.kernel_log.reports import KernelReport, Kind

__all__ = [
    "KNOWN_REPORTS",
    "MIXED",
    "OTHER_REPORTS",
    "PARTS",
    "KnownReport",
    "facts",
    "fitting",
    "is_foreign",
    "other",
    "part",
]

_FAILED: tuple[Kind, ...] = ("oops", "bug", "sanitizer")
_BROKEN: tuple[Kind, ...] = (*_FAILED, "warning")


class KnownReport(NamedTuple):
    """One kind of report."""

    name: str
    severity: Severity
    kinds: tuple[Kind, ...]
    meaning: str
    next_step: str
    """Empty: nothing to do."""
    source: str
    recovers: Recovery = "unknown"
    functions: tuple[str, ...] = ()
    """Patterns; each fits a function of the stack, or the one that failed."""
    none_of: tuple[str, ...] = ()
    """Patterns of functions that the stack does not have."""
    at: str = ""
    """A pattern of the function that failed."""
    head: str = ""
    """A pattern that is found in the lines before the stack."""
    part: str = ""
    """The part whose code it is; see ``part``."""
    foreign: bool = False
    """Whether a module of neither NFS nor RDMA crashed; see ``is_foreign``."""
    doubt: str = ""
    fault: str = ""
    """The commit that fixed it."""


_REBOOT = "restart this host when its work allows; NFS over RDMA here may hang until then"
_SERVER = "restart this server: a thread of nfsd is gone, and locks that it held stay held"

_FAULTS = (
    KnownReport(
        "rpcrdma_ep_create() failed twice",
        "error",
        _FAILED,
        "A device lacked resources for a connection, and the client followed a pointer that it had"
        " freed. The mount does not connect any more.",
        _REBOOT,
        "CVE-2022-48773",
        "no",
        ("rpcrdma_ep_destroy|rpcrdma_ep_put", "rpcrdma_ep_create"),
        fault="a9c10b5b3b67",
    ),
    KnownReport(
        "deferred request crashed the server",
        "error",
        _FAILED,
        "The server put a request off, and had lost its Receive buffer when it answered.",
        _SERVER,
        "the message of commit 773f91b2cf3f",
        "no",
        at="svc_rdma_sendto",
        fault="773f91b2cf3f",
    ),
    KnownReport(
        "mount lost with its device",
        "error",
        ("warning",),
        "A port of a bond went down, or a device was removed, while a mount used it. The kernel"
        " counted a reference of the connection wrongly: the mount does not connect again.",
        "restart this host: the mount does not recover, and umount may hang",
        "the message of commit 4836da219781; net/sunrpc/xprtrdma/verbs.c",
        "no",
        ("rpcrdma_ep_put", "rpcrdma_xprt_disconnect"),
        ("rpcrdma_cm_event_handler",),
        head="refcount_t: ",
        fault="4836da219781",
    ),
    KnownReport(
        "reference lost when an address changed",
        "error",
        _BROKEN,
        "A bond failed over while a mount connected. The kernel counted a reference of the"
        " connection wrongly, and may use memory that it freed.",
        _REBOOT,
        "CVE-2026-72469",
        "no",
        ("rpcrdma_ep_put", "rpcrdma_cm_event_handler"),
        fault="af9b65b29af3",
    ),
    KnownReport(
        "receipt of a callback crashed the client",
        "error",
        _FAILED,
        "The client failed while it received a callback on a connection without callbacks. The"
        " mount does not answer any more.",
        _REBOOT,
        "CVE-2022-49321",
        "no",
        ("rpcrdma_bc_receive_call",),
        fault="11270e7ca268",
    ),
    KnownReport(
        "soft-RoCE crashed",
        "error",
        _FAILED,
        "Soft-RoCE used a packet that had gone already. Connections over it end or hang.",
        "restart this host; use another kernel, or a card",
        "CVE-2024-38544",
        "no",
        at="rxe_comp_queue_pkt",
        fault="2b23b6097303",
    ),
    KnownReport(
        "second stop of nfsd",
        "error",
        _BROKEN,
        "nfsd stopped, and the kernel gave up a registration of the listener that it never had.",
        "restart this host before the next stop of nfsd",
        "the message of commit 750037aa0a9f",
        "no",
        ("rpcrdma_rn_unregister", "svc_rdma_free|svc_rdma_detach"),
        fault="750037aa0a9f",
    ),
    KnownReport(
        "device waits for a refused connection",
        "error",
        ("hung task",),
        "A device is removed or reset, and waits for a connection that the server refused and never"
        " gave up.",
        "restart this host",
        "the message of commit 8ac6fcae5dc0",
        "no",
        ("wait_for_completion", "rpcrdma_remove_one"),
        fault="8ac6fcae5dc0",
    ),
    KnownReport(
        "iWARP used a connection after its end",
        "error",
        ("oops", "sanitizer"),
        "The kernel worked on an event of an iWARP connection that had ended.",
        _REBOOT,
        "CVE-2025-38211",
        "no",
        at="__pwq_activate_work|pwq_activate_first_inactive|process_one_work|cm_work_handler",
        head=r"Workqueue: .*\biw_cm_wq",
        fault="6883b680e703",
    ),
    KnownReport(
        "disconnect hangs after a shortage of memory",
        "error",
        ("hung task",),
        "The client closes a connection and waits for a Receive that it counts and that does not"
        " exist. The mount hangs.",
        "restart this host: the mount does not recover",
        "CVE-2026-43469; net/sunrpc/xprtrdma/verbs.c, rpcrdma_xprt_drain()",
        "no",
        ("wait_for_completion", "rpcrdma_xprt_disconnect|rpcrdma_xprt_drain"),
        ("(?:__)?ib_drain_\\w+",),
        doubt="a driver that loses a flushed Receive leaves the same frames",
        fault="7b6275c80a0c",
    ),
    KnownReport(
        "nfsd waits for the send queue of a client that is gone",
        "error",
        ("hung task",),
        "A thread of nfsd waits for room in the send queue of a connection that ended, and nothing"
        " wakes it.",
        "restart this server: the thread does not come back, and nfsd does not stop",
        "CVE-2026-64281; net/sunrpc/xprtrdma/svc_rdma_sendto.c, svc_rdma_sq_wait()",
        "no",
        ("svc_rdma_sq_wait",),
        fault="e5248a742603",
    ),
    KnownReport(
        "device removed while a connection began",
        "error",
        _FAILED,
        "A device was removed before a new connection over it could learn of it.",
        _REBOOT,
        "CVE-2026-89798",
        "no",
        ("complete(?:_with_flags)?", "rpcrdma_remove_one"),
        fault="5b06f706374c",
    ),
)

_DOUBT = "another system may have caused it: the frames show where it was noticed"

_KINDS = (
    KnownReport(
        "connection attempt given up",
        "information",
        ("warning",),
        "The workqueue code warns about the order of its queues, which is harmless. It shows that a"
        " connection attempt of a mount was given up: the server's address did not answer.",
        "look at link, VLAN and route of the mount's server: nfsrdma doctor",
        "kernel/workqueue.c, check_flush_dependency()",
        "yes",
        at="check_flush_dependency",
        head="xprt_rdma_connect_worker",
    ),
    KnownReport(
        "workqueue order",
        "information",
        ("warning",),
        "The workqueue code warns that a queue for freeing memory waits for one that is not. It"
        " matters only when memory is short.",
        "",
        "kernel/workqueue.c, check_flush_dependency()",
        "yes",
        at="check_flush_dependency",
    ),
    KnownReport(
        "IOMMU mapping released wrongly",
        "warning",
        ("warning",),
        "The IOMMU code noticed, while a registration was given back, that its addresses were not"
        " mapped as counted. A device may have lost access to memory in use, or kept it.",
        "compare with the server's log of that time; boot with iommu=pt to see whether it ends",
        "drivers/iommu/dma-iommu.c, __iommu_dma_unmap()",
        at="__iommu_dma_unmap|iommu_unmap.*|__iommu_unmap",
        doubt="completions with errors at the peer show that it did harm",
    ),
    KnownReport(
        "program waits for an NFS server",
        "warning",
        ("hung task",),
        "A program waits for the answer of an NFS server. It goes on when the server answers.",
        "nfsrdma doctor; the message 'not responding' names the server",
        "kernel/hung_task.c; net/sunrpc/sched.c, rpc_wait_bit_killable()",
        "yes",
        (
            "rpc_wait_bit_killable|nfs_wait_bit_killable|nfs4_wait_clnt_recover|nfs_wait_client_init_complete"
            "|nfs_wait_on_request|nfs_lock_and_join_requests|nfs_iocounter_wait|nfs4_handle_exception"
            "|nfs4_delay_killable|nfs4_delay",
        ),
        doubt="the log does not tell whether the server answered since",
    ),
    KnownReport(
        "program waits for pages of an NFS file",
        "warning",
        ("hung task",),
        "A program waits for data or write-back of an NFS file, that is, for the server's answer.",
        "nfsrdma doctor; nfsrdma top shows whether requests are answered",
        "kernel/hung_task.c; mm/filemap.c, folio_wait_bit_common()",
        "yes",
        ("nfs\\w*",),
        none_of=("nfsd\\w*", "svc_\\w+"),
        doubt="the log does not tell whether the server answered since",
    ),
    KnownReport(
        "nfsd waits for its file system",
        "error",
        ("hung task",),
        "A thread of nfsd waits for the server's own disk or file system. Its clients wait, too.",
        "look at the disk: the log of its driver, iostat -x",
        "kernel/hung_task.c",
        "unknown",
        (
            "(?:nfsd|svc)\\w*",
            "(?:xfs|ext4|jbd2|btrfs|zfs|zio|zpl|blk|bio|io_schedule|dm|md|raid\\d*|gfs2|ocfs2|fuse|ceph|ll)(?:_\\w+)?",
        ),
    ),
    KnownReport(
        "nfsd waits for a client",
        "warning",
        ("hung task",),
        "A thread of nfsd waits for the answer of a client, such as the return of a delegation.",
        "look for a client that does not answer: nfsrdma server status",
        "fs/nfsd/nfs4state.c",
        "yes",
        (
            "nfsd_break_deleg\\w*|__break_lease|nfsd4_\\w*recall\\w*|rpc_shutdown_client|nfsd4_shutdown_callback|nfsd4_probe_callback_sync",
        ),
    ),
    KnownReport(
        "nfsd waits",
        "error",
        ("hung task",),
        "A thread of nfsd has waited for minutes. Its clients may wait, too.",
        "nfsrdma server status; the frames show what it waits for",
        "kernel/hung_task.c",
        part="server",
    ),
    KnownReport(
        "connection's end hangs",
        "error",
        ("hung task",),
        "A thread waits for the end of a connection, which the device's driver does not give up.",
        "read the log of the device's driver at that time",
        "kernel/hung_task.c; drivers/infiniband/core/cm.c, cma.c",
        "unknown",
        (
            "rdma_destroy_id|destroy_id_handler_unlock|cm_destroy_id|ib_drain_qp|__ib_drain_sq|__ib_drain_rq|ib_destroy_qp_user|_destroy_id",
        ),
    ),
    KnownReport(
        "device's removal hangs",
        "error",
        ("hung task",),
        "A device is removed or reset, and waits for those who use it.",
        "nfsrdma mounts; unmount NFS over this device, or restart this host",
        "kernel/hung_task.c; drivers/infiniband/core/device.c",
        "unknown",
        (
            "(?:__)?ib_unregister_device|disable_device|remove_client_context|cma_remove_one|cma_process_remove|rpcrdma_remove_one",
        ),
    ),
)


class Part(NamedTuple):
    """A part of the kernel whose code a report is in."""

    title: str
    place: str
    """Its name beside a function."""
    thread: str
    """Whose a thread is that runs its code."""
    harm: str
    """Of a crash."""
    next_step: str = _REBOOT


_HANGS = "Mounts over RDMA on this host may hang."
PARTS = {
    "client": Part("NFS client", "client over RDMA", "the NFS client", _HANGS),
    "server": Part("NFS server", "NFS server", "nfsd", "Clients of this server may hang.", _SERVER),
    "nfs": Part("NFS client", "NFS client", "the NFS client", "NFS mounts on this host may hang."),
    "rdma": Part(
        "RDMA core",
        "RDMA core",
        "the RDMA core",
        "Mounts and servers over RDMA on this host may hang.",
    ),
    "device": Part(
        "driver of an RDMA device",
        "driver of an RDMA device",
        "the driver of an RDMA device",
        "Connections over the device may hang.",
    ),
    "nfsrdma": Part(
        "module nfsrdma", "module nfsrdma", "module nfsrdma", "Mounts that use nfsrdma may hang."
    ),
}
"""By the names that ``part`` returns."""


def _by_part() -> tuple[KnownReport, ...]:
    """The entries for all other reports: one for each kind and each part of the kernel."""
    kernel = "kernel/panic.c, lib/bug.c"
    rows: list[KnownReport] = []
    for name, (title, _, _, harm, step) in PARTS.items():
        rows += (
            KnownReport(
                f"{title} crashed",
                "error",
                _FAILED,
                f"The kernel failed in code of the {title}; the thread ended, and what it held"
                f" stays held. {harm}",
                step,
                kernel,
                "no",
                part=name,
            ),
            KnownReport(
                f"warning of the {title}",
                "warning",
                ("warning",),
                f"A check in code of the {title}, or below it, failed. The kernel went on.",
                "report it with the whole record: to the distribution, or to linux-nfs",
                kernel,
                part=name,
                doubt="the record does not tell whether something broke",
            ),
            KnownReport(
                f"thread of the {title} waits",
                "warning",
                ("hung task",),
                f"A thread in code of the {title} has waited for minutes.",
                "nfsrdma doctor; the frames show what it waits for",
                "kernel/hung_task.c",
                part=name,
                doubt="the log does not tell whether it still waits",
            ),
            KnownReport(
                f"processor held in the {title}",
                "error",
                ("lockup", "stall"),
                f"A processor ran for many seconds in code of the {title} and did nothing else."
                f" {harm}",
                "look at the host's load; of a virtual machine, at steal; else report the record",
                "kernel/watchdog.c, kernel/rcu/tree_stall.h",
                part=name,
            ),
            KnownReport(
                f"stack of the {title}",
                "warning",
                ("stack",),
                f"The log has a stack in code of the {title}, without the lines that say why.",
                "read the whole log: journalctl -k",
                kernel,
                part=name,
                doubt="what the kernel reported is not in the log",
            ),
            KnownReport(
                f"lock order of the {title}",
                "warning",
                ("lockdep",),
                f"A kernel built for debugging found that locks of the {title} may deadlock.",
                "report it with the whole record to the list of the code's maintainers",
                "kernel/locking/lockdep.c",
                "yes",
                part=name,
                doubt="it did not happen yet: it may",
            ),
            KnownReport(
                f"memory short in the {title}",
                "warning",
                ("allocation",),
                f"An allocation of memory failed in code of the {title}. Most callers try again.",
                "look at free memory and its fragmentation: /proc/buddyinfo",
                "mm/page_alloc.c, warn_alloc()",
                "yes",
                part=name,
                doubt="a request may have failed",
            ),
        )
    return tuple(rows)


def _of_other_modules() -> tuple[KnownReport, ...]:
    """The entries for crashes of modules of neither NFS nor RDMA, one for each part."""
    return tuple(
        KnownReport(
            f"another module crashed in a thread of {thread}",
            "error",
            _FAILED,
            "The kernel failed in code of a module that is of neither NFS nor RDMA, in a thread of"
            f" {thread}. The thread ended, and what it held stays held.",
            f"{step}; report the record to the maintainers of the module",
            "kernel/panic.c, lib/bug.c",
            "no",
            part=name,
            foreign=True,
        )
        for name, (_, _, thread, _, step) in PARTS.items()
    )


KNOWN_REPORTS = (*_FAULTS, *_KINDS, *_of_other_modules(), *_by_part())
"""In the order of their use."""

_MINOR: tuple[Kind, ...] = ("warning", "hung task", "allocation", "lockdep", "stall")
_SERIOUS: tuple[Kind, ...] = (*_FAILED, "lockup", "stack")
_OTHER_CODE = KnownReport(
    "report of other code",
    "warning",
    _SERIOUS,
    "The kernel reports an error. Its frames name no code of NFS or RDMA.",
    "read the record; look for its first function in the kernel's bug trackers",
    "lib/bug.c, kernel/panic.c",
    doubt="it may have harmed NFS all the same",
)
_OTHER_CODE_MINOR = _OTHER_CODE._replace(severity="information", kinds=_MINOR, doubt="")
_NO_STACK = KnownReport(
    "report without its stack",
    "information",
    (*_SERIOUS, *_MINOR),
    "The kernel reports an error. The log has its first lines only, without the stack.",
    "read the whole log: journalctl -k",
    "lib/bug.c, kernel/panic.c, kernel/hung_task.c",
    doubt="whose code it is in is not known",
)
MIXED = KnownReport(
    "reports mixed",
    "warning",
    (*_SERIOUS, *_MINOR),
    "The kernel reports an error. Lines of another report stand between its lines, and the log does"
    " not name the thread of each line.",
    "read the record; a kernel with CONFIG_PRINTK_CALLER names the thread of each line",
    "lib/bug.c, kernel/panic.c, kernel/hung_task.c",
    doubt="whose code it is in is not known",
)
OTHER_REPORTS = (MIXED, _NO_STACK, _OTHER_CODE, _OTHER_CODE_MINOR)
"""Of reports that none of ``KNOWN_REPORTS`` explains."""


def other(report: KernelReport) -> KnownReport:
    """The entry of a report that none of ``KNOWN_REPORTS`` explains."""
    if report.mixed:
        return MIXED
    if not report.functions:
        return _NO_STACK
    return _OTHER_CODE_MINOR if report.kind in _MINOR else _OTHER_CODE


_DEVICES = (
    r"mlx[45]_\w+|mlx_compat|bnxt_(?:re|en)|irdma|i40iw|ice|i40e|qed[er]?|iw_cxgb4|cxgb4|efa|erdma"
    r"|hns_roce\w*|mana(?:_ib)?|rdma_rxe|siw|hfi1|qib|rdmavt|ocrdma|vmw_pvrdma|nfsrdma_card"
)


def part(report: KernelReport) -> str:
    """Whose code a report is in: client, server, nfs, rdma, device, nfsrdma; "" for other code.

    The innermost frame that belongs to one of them decides; then the work; then the process.
    """
    places = [(frame.function.partition(".")[0], frame.module) for frame in report.stack]
    for rows in (_OWN, _SHARED):
        for name, module in (*places, (report.work, "")):
            if owner := _part_of(name, module, rows):
                return owner
    return _part_of_process(report.process)


@functools.lru_cache(maxsize=256)
def _part_of_process(process: str) -> str:
    return next((name for name, who in _PROCESSES if who.fullmatch(process)), "")


_PROCESSES = (
    ("server", re.compile(r"nfsd\d*|nfsd4?_\w+|lockd")),
    ("nfs", re.compile(r"u?mount\.nfs4?|nfsv4\.\d-svc|\S+-manager|nfsiod|NFSv4 callback")),
)


_PARTS = (
    ("nfsrdma", r"nfsrdma", r".+"),
    ("device", _DEVICES, r".+"),
    ("server", r"nfsd|svcrdma|lockd", r".+"),
    (
        "server",
        r"rpcrdma|xprtrdma|sunrpc|auth_rpcgss|",
        r"_*svc_\w+|svcauth_\w+|nfsd\d*_?\w*|nlmsvc_\w+",
    ),
    ("server", r"rpcrdma|xprtrdma", r"rpcrdma_rn_\w+"),
    ("client", r"rpcrdma|xprtrdma", r"(?!rpcrdma_pool_).+"),
    ("client", r"", r"xprt_rdma_\w+|rpcrdma_\w+|frwr_\w+"),
    ("nfs", r"nfs\w*|blocklayoutdriver", r".+"),
    ("nfs", r"sunrpc", r"call_\w+|_*rpc_\w+|xprt_\w+|xs_\w+"),
    ("nfs", r"", r"_?nfs[34]?_\w+|pnfs_\w+|nlmclnt_\w+|rpc_\w+|xprt_\w+"),
    ("rdma", r"ib_core|rdma_cm|ib_cm|iw_cm|ib_uverbs|rdma_ucm|ib_umad|ib_ipoib", r".+"),
    ("rdma", r"", r"(?:__)?ib_\w+|rdma_\w+|cma_\w+|iw_cm_\w+"),
    ("device", r"", r"(?:mlx[45]|bnxt|irdma|rxe|siw|qedr|efa|erdma)_\w+"),
)
_Rows = tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...]
_OWN: _Rows = tuple((part, re.compile(module), re.compile(name)) for part, module, name in _PARTS)
_SHARED: _Rows = (("nfs", re.compile(r"sunrpc|auth_rpcgss|rpcsec_gss_krb5"), re.compile(r".+")),)
"""Code of both client and server: it decides if nothing else does."""


@functools.cache
def _part_of(name: str, module: str, rows: _Rows) -> str:
    for owner, modules, names in rows:
        if modules.fullmatch(module) and names.fullmatch(name):
            return owner
    return ""


def fitting(report: KernelReport, whose: str) -> Iterator[KnownReport]:
    """The entries that may explain a report of this ``part``, the first one best.

    Reports of code that has nothing to do with NFS or RDMA have none.
    """
    foreign = bool(whose) and is_foreign(report)
    functions, head = report.functions, _head(report)
    for entry in _of_kind(report.kind):
        if entry.foreign == foreign and _fits(entry, functions, whose, head):
            yield entry


def facts(report: KernelReport) -> tuple[Hashable, ...]:
    """All by which ``part`` and ``fitting`` judge: they say the same of reports with the same."""
    patterns = _heads(report.kind)
    head = _head(report) if patterns else ""
    return (
        report.kind,
        report.mixed,
        report.stack,
        report.work,
        _part_of_process(report.process),
        *[bool(_compiled(pattern).search(head)) for pattern in patterns],
    )


@functools.cache
def _heads(kind: Kind) -> tuple[str, ...]:
    return tuple(entry.head for entry in _of_kind(kind) if entry.head)


def _head(report: KernelReport) -> str:
    return "\n".join(line for line in report.lines[:40] if not line.startswith("Modules linked"))


def is_foreign(report: KernelReport) -> bool:
    """Whether a module that is of neither NFS nor RDMA crashed; vmlinux is not one."""
    at = report.at
    if report.kind not in _FAILED or not at or not at.module:
        return False
    name = at.function.partition(".")[0]
    return not any(_part_of(name, at.module, rows) for rows in (_OWN, _SHARED))


@functools.cache
def _of_kind(kind: Kind) -> tuple[KnownReport, ...]:
    return tuple(entry for entry in KNOWN_REPORTS if kind in entry.kinds)


def _fits(entry: KnownReport, functions: tuple[str, ...], whose: str, head: str) -> bool:
    if entry.part:
        return entry.part == whose
    if not functions and entry.functions:
        return False
    at = functions[0] if functions else ""
    return (
        (not entry.at or bool(re.fullmatch(entry.at, at)))
        and (not entry.head or bool(re.search(entry.head, head)))
        and all(_any(pattern, functions) for pattern in entry.functions)
        and not any(_any(pattern, functions) for pattern in entry.none_of)
    )


def _any(pattern: str, functions: tuple[str, ...]) -> bool:
    compiled = _compiled(pattern)
    return any(compiled.fullmatch(name) for name in functions)


_compiled = functools.cache(re.compile)
