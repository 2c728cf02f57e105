# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma doctor``: what is wrong with NFS over RDMA here, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nfsrdma_tools.errors import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nfsrdma_tools.host.checks import Finding

__all__ = ["doctor"]

_SYMBOLS = {"ok": "+", "warning": "!", "error": "x", "unknown": "?"}


def doctor(
    server: Annotated[str, typer.Argument(help="Also check the way to this server.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find what is wrong with NFS over RDMA here, with remedies.

    Exit status: 0 when all is well or there are warnings only, 1 when there is an error.
    Without root, what cannot be read is unknown.
    """
    import json
    from dataclasses import asdict

    from nfsrdma_tools.host.checks import Machine, examine

    findings = examine(Machine(server=server))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _show(findings)
    if any(finding.status == "error" for finding in findings):
        raise typer.Exit(1)


def _show(findings: Sequence[Finding]) -> None:
    width = max(len(finding.name) for finding in findings)
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
