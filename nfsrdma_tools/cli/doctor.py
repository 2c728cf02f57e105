# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma doctor``: check this machine for NFS over RDMA, with a remedy for each problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nfsrdma_tools.cli.options import From, Json, argument, flag, host_name, machine_of
from nfsrdma_tools.cli.output import print_json
from nfsrdma_tools.errors import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nfsrdma_tools.host.checks import Finding

__all__ = ["doctor"]

_SYMBOLS = {"ok": "+", "warning": "!", "error": "x", "unknown": "?"}
_WIDEST_NAME = 48


def doctor(
    server: Annotated[
        str,
        argument(
            "SERVER",
            "Also check the connection and the route to this server (default: no connection).",
        ),
    ] = "",
    strict: Annotated[
        bool, flag("Also exit with 1 for warnings and unknown results.", "--strict")
    ] = False,
    source: From = None,
    as_json: Json = False,
) -> None:
    """Check this machine for NFS over RDMA; print remedies.

    Exit status: 0 when no check found an error, 1 otherwise.  Run it as root: checks that need
    root are unknown for other users.
    """
    from nfsrdma_tools.host.checks import examine

    with machine_of(source, host_name(server)) as machine:
        findings = examine(machine)
    if as_json:
        print_json({"findings": [finding._asdict() for finding in findings]})
    else:
        _show(findings)
    failures = {"error", "warning", "unknown"} if strict else {"error"}
    if any(finding.status in failures for finding in findings):
        raise typer.Exit(1)


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
