# SPDX-License-Identifier: Apache-2.0
"""The records of a log: lines, the kernel's reports of errors, and dumps of completions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nfsrdma_tools.host.kernel_log.completion_dumps import CompletionDump, DumpReader
from nfsrdma_tools.host.kernel_log.lines import LINE_BYTES, LogLine, Numbered, parsed
from nfsrdma_tools.host.kernel_log.reports import HEAD_WORDS, KernelReport, ReportReader

__all__ = ["Counts", "Record", "records"]

Record = LogLine | KernelReport | CompletionDump

_WORDS = (
    *("nfs", "NFS", "rpc", "RPC", "rdma", "RDMA", "svc", "lockd", "mlx", "infiniband", "siw"),
    *("cxgb", "qedr", "bnxt", "rxe", "module", "symbol", "mount", "device", "cm_destroy_id"),
    *("AMD-Vi", "DMAR", "netdevice", "_t:s0", "hns", "mana ", "qed", "ice 0", "be2net", "QPN"),
    *("CQE contents", "ionic", "erdma"),
    *HEAD_WORDS,
)
"""Each line that begins or is a record has one of these."""


@dataclass
class Counts:
    """Of a log's lines."""

    lines: int = 0
    """Those that are not blank."""
    timed: int = 0
    """Those with a time in a known form, as far as they were parsed."""


def records(texts: Iterable[str], counts: Counts | None = None) -> Iterator[Numbered[Record]]:
    """The records of a log; lines that concern neither NFS nor RDMA may be left out.

    ``counts`` counts the lines while they are read.
    """
    counts = counts or Counts()
    reports, dumps = ReportReader(), DumpReader()
    for number, text in enumerate(texts):
        counts.lines += bool(text.strip())
        if counts.timed and reports.idle and dumps.idle and not _may_concern(text):
            continue
        line = parsed(text[:LINE_BYTES])
        counts.timed += bool(line.time)
        for report in reports.feed(number, line):
            yield from dumps.feed(report)
    for report in reports.end():
        yield from dumps.feed(report)
    yield from dumps.end()


def _may_concern(text: str) -> bool:
    return any(word in text for word in _WORDS)
