# SPDX-License-Identifier: Apache-2.0
"""Known faults of the kernel's NFS over RDMA, and which kernels may have them.

Each line was checked against the commit's message and against the releases in which it appeared:
records of the kernel's CVE team (cve.org), mails of the stable kernels' reviews (lore.kernel.org,
stable@vger.kernel.org) and the changelogs of Debian's packages, which list the stable releases.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from nfsrdma_tools.host.kernel_release import KernelVersion

__all__ = [
    "FAULTS",
    "OLDEST",
    "OLDEST_SERIES",
    "Fault",
    "is_before",
    "is_fixed",
    "may_have",
    "possible",
]

OLDEST = (5, 14, 0)
"""The first release that the table is about: that of Red Hat 9, whose faults are those of 5.15."""
OLDEST_SERIES = ".".join(map(str, OLDEST[:2]))
"""Its series, as texts name it: "5.14"."""
Part = Literal["client", "server", "rxe", "siw", "iwarp"]


class Fault(NamedTuple):
    """A fault, the commit that fixed it, and the first releases with and without it."""

    commit: str
    """Of the fix in Linus Torvalds' tree."""
    subject: str
    """First line of that commit; the CVE's number where a peer does the harm.

    This table does not say which messages harm a host that lacks the fix.
    """
    seen: str
    part: Part
    first: str
    """The first release with the fault; empty: OLDEST_SERIES or older, and not known."""
    fixed: str
    """The first release of Linus Torvalds' tree with the fix."""
    stable: tuple[tuple[str, int], ...]
    """Series with the fix, and the first of their releases that has it."""
    source: str
    unverified: tuple[str, ...] = ()
    """Series in which a fix is likely and its release is not known: never reported."""

    @property
    def fixes(self) -> str:
        """The releases with the fix, as text."""
        return ", ".join([*(f"{series}.{patch}" for series, patch in self.stable), self.fixed])

    def fixed_in(self, number: tuple[int, int, int]) -> str:
        """The stable release with the fix in the series of a release; empty if it has none."""
        series = f"{number[0]}.{number[1]}"
        patch = dict(self.stable).get(series)
        return f"{series}.{patch}" if patch is not None else ""


_STABLE = "lore.kernel.org, stable reviews of the releases named"

FAULTS = (
    Fault(
        "a9c10b5b3b67",
        "xprtrdma: fix pointer derefs in error cases of rpcrdma_ep_create",
        "the client crashes in rpcrdma_ep_destroy() when a device lacks resources for a connection",
        "client",
        "",
        "5.17",
        (("5.15", 25), ("5.16", 11)),
        "CVE-2022-48773",
    ),
    Fault(
        "773f91b2cf3f",
        "SUNRPC: Fix NFSD's request deferral on RDMA transports",
        "the server crashes in svc_rdma_sendto() after it put a request off",
        "server",
        "",
        "5.18",
        (("5.15", 35), ("5.17", 4)),
        _STABLE,
    ),
    Fault(
        "11270e7ca268",
        "see CVE-2022-49321",
        "a server that breaks the protocol can crash an NFSv3 client",
        "client",
        "4.4",
        "5.19",
        (("5.15", 47), ("5.17", 15), ("5.18", 4)),
        "CVE-2022-49321",
    ),
    Fault(
        "f012e95b377c",
        "see CVE-2022-49356",
        "a client that breaks the protocol can harm the server",
        "server",
        "5.11",
        "5.19",
        (("5.15", 47), ("5.17", 15), ("5.18", 4)),
        "CVE-2022-49356",
    ),
    Fault(
        "895cedc17919",
        "xprtrdma: Remap Receive buffers after a reconnect",
        "after the server ended a connection, each new one fails at once with LOCAL_PROT_ERR",
        "client",
        "",
        "6.5",
        (("5.15", 129), ("6.1", 50), ("6.4", 13)),
        _STABLE,
    ),
    Fault(
        "197115ebf358",
        "svcrdma: Drop connection after an RDMA Read error",
        "the server loses a WRITE when it cannot read its data, and the client waits for the"
        " timeout",
        "server",
        "",
        "6.7",
        (("5.15", 140), ("6.1", 64), ("6.5", 13), ("6.6", 3)),
        _STABLE,
    ),
    Fault(
        "4836da219781",
        "rpcrdma: fix handling for RDMA_CM_EVENT_DEVICE_REMOVAL",
        "a mount hangs until a reboot after ports of a bond went down",
        "client",
        "",
        "6.10",
        (("5.15", 161), ("6.1", 93), ("6.6", 33)),
        _STABLE,
        unverified=("6.9",),
    ),
    Fault(
        "2b23b6097303",
        "RDMA/rxe: Fix seg fault in rxe_comp_queue_pkt",
        "a host with soft-RoCE crashes under load in rxe_comp_queue_pkt()",
        "rxe",
        "4.12",
        "6.10",
        (("5.15", 168), ("6.1", 93), ("6.6", 33), ("6.8", 12), ("6.9", 3)),
        "CVE-2024-38544",
    ),
    Fault(
        "acd9f2dd23c6",
        "xprtrdma: Fix rpcrdma_reqs_reset()",
        "after a reconnect, memory registrations fail with MW_BIND_ERR and end the new connection",
        "client",
        "",
        "6.11",
        (("5.15", 165), ("6.1", 103), ("6.6", 44), ("6.10", 3)),
        _STABLE,
    ),
    Fault(
        "750037aa0a9f",
        "svcrdma: do not unregister device for listeners",
        "the second stop of nfsd warns of a reference count and may crash",
        "server",
        "6.11",
        "6.15",
        (("6.12", 24), ("6.13", 12), ("6.14", 3)),
        _STABLE,
    ),
    Fault(
        "8ac6fcae5dc0",
        "svcrdma: Unregister the device if svc_rdma_accept() fails",
        "after a refused connection, the server's device cannot be removed or reset",
        "server",
        "6.11",
        "6.16",
        (("6.12", 35), ("6.15", 4)),
        _STABLE,
    ),
    Fault(
        "6883b680e703",
        "RDMA/iwcm: Fix use-after-free of work objects after cm_id destruction",
        "a host with iWARP may crash when connections end",
        "iwarp",
        "4.8",
        "6.16",
        (("5.15", 186), ("6.1", 142), ("6.6", 95), ("6.12", 35), ("6.15", 4)),
        "CVE-2025-38211",
    ),
    Fault(
        "d1bea0ce35b6",
        "see CVE-2025-71068",
        "a client that breaks the protocol can harm the server",
        "server",
        "5.11",
        "6.19",
        (("5.15", 198), ("6.6", 120), ("6.12", 64), ("6.18", 3)),
        "CVE-2025-71068",
    ),
    Fault(
        "14ab3da122bd",
        "see CVE-2026-23242",
        "a peer that breaks the protocol can crash a host with soft-iWARP",
        "siw",
        "5.3",
        "7.0",
        (("5.15", 202), ("6.1", 165), ("6.6", 128), ("6.12", 75), ("6.18", 14), ("6.19", 4)),
        "CVE-2026-23242",
    ),
    Fault(
        "7b6275c80a0c",
        "xprtrdma: Decrement re_receiving on the early exit paths",
        "a mount hangs in rpcrdma_xprt_disconnect() after memory was short",
        "client",
        "5.13",
        "7.0",
        (("5.15", 203), ("6.1", 167), ("6.6", 130), ("6.12", 78), ("6.18", 19), ("6.19", 9)),
        "CVE-2026-43469",
    ),
    Fault(
        "00da250c21b0",
        "RDMA/rw: Fall back to direct SGE on MR pool exhaustion",
        "with the IOMMU in passthrough mode, many parallel WRITEs make the server end connections",
        "server",
        "",
        "7.0",
        (("5.15", 203), ("6.1", 168), ("6.6", 131), ("6.12", 80), ("6.18", 21), ("6.19", 11)),
        _STABLE,
    ),
    Fault(
        "a39f0ce0c9da",
        'Revert "svcrdma: Use contiguous pages for RDMA Read sink buffers"',
        "WRITEs to the server are slow, with most CPU time in the allocation of pages",
        "server",
        "7.1",
        "7.2",
        (),
        "lore.kernel.org, linux-nfs, the mail of that subject and the nfsd changes for 7.2",
    ),
    Fault(
        "e5248a742603",
        "svcrdma: wake sq waiters when the transport closes",
        "threads of nfsd hang in svc_rdma_sq_wait() when a client goes away",
        "server",
        "7.1",
        "7.2",
        (("7.1", 4),),
        "CVE-2026-64281",
    ),
    Fault(
        "abc011ddaf16",
        "see CVE-2026-72464",
        "a server that breaks the protocol can stop a mount until it reconnects",
        "client",
        "5.5",
        "7.2",
        (("6.1", 178), ("6.6", 145), ("6.12", 97), ("6.18", 40), ("7.1", 5)),
        "CVE-2026-72464",
    ),
    Fault(
        "af9b65b29af3",
        "xprtrdma: Fix ep kref imbalance on ADDR_CHANGE",
        "the client may crash when a bond fails over while a mount connects",
        "client",
        "5.8",
        "7.2",
        (("6.12", 97), ("6.18", 40), ("7.1", 5)),
        "CVE-2026-72469",
    ),
    Fault(
        "e786233d2e0b",
        "xprtrdma: Decouple req recycling from RPC completion",
        "the device may send a request's buffer after the client has reused it",
        "client",
        "5.3",
        "7.2",
        (("6.1", 178), ("6.6", 145), ("6.12", 97), ("6.18", 40), ("7.1", 5)),
        "CVE-2026-72473",
    ),
    Fault(
        "5b06f706374c",
        "rpcrdma: arm rn_done before publishing the notification",
        "the host may crash when a device is removed while a connection begins",
        "client",
        "6.11",
        "7.3",
        (("6.12", 111), ("6.18", 51), ("7.2", 5)),
        "CVE-2026-89798",
    ),
    Fault(
        "0ca487abb3bd",
        "see CVE-2026-89528",
        "a client that breaks the protocol can crash the server",
        "server",
        "4.13",
        "7.3",
        (("6.12", 114), ("6.18", 51), ("7.2", 4)),
        "CVE-2026-89528; 6.12.114: changelog of Debian's linux 6.12.118-1",
    ),
)
"""Ordered by the release with the fix."""


def may_have(number: tuple[int, int, int], fault: Fault) -> bool:
    """Whether the upstream release ``number`` has the fault."""
    series = number[:2]
    if series >= _series(fault.fixed) or (fault.first and series < _series(fault.first)):
        return False
    name = f"{series[0]}.{series[1]}"
    if name in fault.unverified:
        return False
    # a series that is not listed ended before the fix
    return not _in_stable(number, fault)


def _series(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


# Ubuntu's 7.0.0-7-generic has 7.0-rc3
_MAY_BE_EARLY = ("candidate", "series")


def possible(kernel: KernelVersion) -> list[Fault]:
    """The faults that the kernel may have; none for one older than the table, or unknown."""
    if kernel.number < OLDEST:
        return []
    return [fault for fault in FAULTS if _is_possible(kernel, fault)]


def _is_possible(kernel: KernelVersion, fault: Fault) -> bool:
    series, fixed = kernel.number[:2], _series(fault.fixed)
    if kernel.kind == "backports":
        # the fault may have come with a feature of a later release, and the fix with any package
        return series < fixed
    if kernel.kind in _MAY_BE_EARLY and series == fixed:
        return True
    return may_have(kernel.number, fault)


def is_fixed(kernel: KernelVersion, fault: Fault) -> bool:
    """Whether the kernel's release of kernel.org is certain to have the fix of the fault."""
    if kernel.kind == "unknown":
        return False
    series, fixed = kernel.number[:2], _series(fault.fixed)
    if series == fixed:
        return kernel.kind not in _MAY_BE_EARLY
    return series > fixed or (kernel.certain and _in_stable(kernel.number, fault))


def is_before(kernel: KernelVersion, fault: Fault) -> bool:
    """Whether the kernel is certain to be older than the fault."""
    if kernel.kind not in ("release", "stable") or not fault.first:
        return False
    return kernel.number[:2] < _series(fault.first)


def _in_stable(number: tuple[int, int, int], fault: Fault) -> bool:
    first = dict(fault.stable).get(f"{number[0]}.{number[1]}")
    return first is not None and number[2] >= first
