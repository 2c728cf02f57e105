# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma doctor``: check this machine for NFS over RDMA, with a remedy for each problem."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nfsrdma_tools.cli.options import (
    From,
    Json,
    Procfs,
    Rootfs,
    Sysfs,
    argument,
    flag,
    host_name,
    machine_of,
    option,
)
from nfsrdma_tools.cli.output import print_json
from nfsrdma_tools.errors import UsageError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nfsrdma_tools.doctor.finding import Finding
    from nfsrdma_tools.host.machine import Machine

__all__ = ["doctor"]

_SYMBOLS = {"ok": "+", "warning": "!", "error": "x", "unknown": "?"}
_WIDEST_NAME = 48


def doctor(
    server: Annotated[
        str,
        argument(
            "SERVER",
            "Also check the route to this server, and connect to it over TCP and RDMA "
            "(default: no connection).",
        ),
    ] = "",
    strict: Annotated[
        bool, flag("Also exit with 1 for warnings and unknown results.", "--strict")
    ] = False,
    source: From = None,
    capture: Annotated[
        Path | None,
        option(
            "FILE",
            "Examine a capture (pcap or pcapng, of a sniffer or of `nfsrdma capture`) instead of "
            "this machine (default: none).",
        ),
    ] = None,
    after_reboot: Annotated[
        bool,
        flag(
            "Instead, compare what is in effect with the files that a boot reads, and list what "
            "would end if the transport module or a driver were replaced now.",
            "--after-reboot",
        ),
    ] = False,
    procfs: Procfs = None,
    sysfs: Sysfs = None,
    rootfs: Rootfs = None,
    as_json: Json = False,
) -> None:
    """Check this machine for NFS over RDMA; print remedies.

    In a container, --path.procfs, --path.sysfs and --path.rootfs name the mounted /proc, /sys and
    root of the host. RDMA devices and listeners are those of the container's network namespace,
    so give it the host's.

    Exit status: 0 when no check found an error, 1 otherwise.  Run it as root: checks that need
    root are unknown for other users.
    """
    if after_reboot and server:
        raise UsageError("doctor --after-reboot has no SERVER")
    here = _host_of_container(procfs, sysfs, rootfs)
    if here and (source or capture):
        message = "doctor --path.procfs, --path.sysfs and --path.rootfs are of this host"
        raise UsageError(message, "omit --from and --capture")
    if capture:
        if server or source or after_reboot:
            message = "doctor --capture has no SERVER, and no option --from or --after-reboot"
            raise UsageError(message)
        findings = _examined(capture)
    elif after_reboot:
        findings = _after_reboot(source, here)
    else:
        findings = _checked(source, host_name(server), here)
    if as_json:
        print_json({"findings": [finding._asdict() for finding in findings]})
    else:
        _show(findings)
    failures = {"error", "warning", "unknown"} if strict else {"error"}
    if any(finding.status in failures for finding in findings):
        raise typer.Exit(1)


def _host_of_container(
    procfs: Path | None, sysfs: Path | None, rootfs: Path | None
) -> Machine | None:
    """The host whose filesystems are mounted in this container; None if no path is given."""
    if not (procfs or sysfs or rootfs):
        return None
    from nfsrdma_tools.host.machine import host_of_container

    return host_of_container(procfs, sysfs, rootfs)


def _checked(source: Path | None, server: str, here: Machine | None) -> list[Finding]:
    from nfsrdma_tools.doctor.checks import examine

    with machine_of(source, server, here=here) as machine:
        return examine(machine)


def _after_reboot(source: Path | None, here: Machine | None) -> list[Finding]:
    from nfsrdma_tools.doctor.checks import AFTER_REBOOT, examine

    with machine_of(source, here=here) as machine:
        return examine(machine, AFTER_REBOOT)


def _examined(path: Path) -> list[Finding]:
    from nfsrdma_tools.cli.capture import frames_of
    from nfsrdma_tools.doctor.capture import examine

    with frames_of(path) as frames:
        return examine(frames)


def _show(findings: Sequence[Finding]) -> None:
    # one long name must not move all other texts out of sight
    width = min(max(len(finding.name) for finding in findings), _WIDEST_NAME)
    for finding in findings:
        symbol = _SYMBOLS[finding.status]
        print(printable(f"{symbol} {finding.status:7}  {finding.name:{width}}  {finding.found}"))
        indent = " " * (width + 13)
        if finding.expected and finding.status != "ok":
            print(printable(f"{indent}expected: {finding.expected}"))
        if finding.remedy:
            print(printable(f"{indent}remedy: {finding.remedy}"))
    counts = (f"{_count(findings, status)} {status}" for status in _SYMBOLS)
    print(", ".join(counts))


def _count(findings: Sequence[Finding], status: str) -> int:
    return sum(finding.status == status for finding in findings)
