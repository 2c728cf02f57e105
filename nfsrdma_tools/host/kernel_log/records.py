# SPDX-License-Identifier: Apache-2.0
"""The records of a log: lines, the kernel's reports of errors, and dumps of completions."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Union

from nfsrdma_tools.host.kernel_log.completion_dumps import DUMP_WORDS, CompletionDump, DumpReader
from nfsrdma_tools.host.kernel_log.lines import LINE_BYTES, LogLine, Numbered, parsed
from nfsrdma_tools.host.kernel_log.reports import HEAD_WORDS, KernelReport, ReportReader

__all__ = ["Counts", "Record", "records"]

Record = Union[LogLine, KernelReport, CompletionDump]

_WORDS = (
    *("nfs", "NFS", "rpc", "RPC", "rdma", "RDMA", "svc", "lockd", "mlx", "infiniband", "siw"),
    *("cxgb", "qedr", "bnxt", "rxe", "module", "symbol", "mount", "device", "cm_destroy_id"),
    *("AMD-Vi", "DMAR", "netdevice", "_t:s0", "hns", "mana ", "qed", "ice 0", "be2net", "QPN"),
    *("CQE contents", "ionic", "cqe with error", "erdma", "threads: ", "server ", "ae_id"),
    *("Requesting a reset", "non-flush", "wait_func", "IO_PAGE_FAULT", "arm-smmu", "AER: "),
)
"""Each line that is a record has one of these, or of the next ones."""
_FIRST_WORDS = (*HEAD_WORDS, *DUMP_WORDS)
"""Each line that begins a record of several lines has one of these."""


@dataclass
class Counts:
    """Of a log's lines."""

    lines: int = 0
    """Those that are not blank."""
    timed: int = 0
    """Those with a time in a known form, as far as they were parsed."""


_BATCH = 1024
"""Lines that are searched for the words at once."""
_MAY_HAVE_TIME = re.compile(r"\d[.,:-]\d|__REALTIME_TIMESTAMP")
"""Each line with a time has it."""


def records(texts: Iterable[str], counts: Counts | None = None) -> Iterator[Numbered[Record]]:
    """The records of a log; lines that concern neither NFS nor RDMA may be left out.

    ``counts`` counts the lines while they are read.
    """
    counts = counts or Counts()
    reports, dumps = ReportReader(), DumpReader()
    first, rest = 0, iter(texts)
    while lines := list(islice(rest, _BATCH)):
        counts.lines += sum(map(bool, map(str.strip, lines)))
        joined = "\n".join(lines)
        starts = list(accumulate(map((1).__add__, map(len, lines)), initial=0))
        begin = _with_words(_FIRST_WORDS, joined, starts)
        concern = begin | _with_words(_WORDS, joined, starts)
        if not counts.timed:
            concern |= _with_time(joined, starts)
        marks, at = [*sorted(concern), len(lines)], 0
        while at < len(lines):
            idle = reports.idle and dumps.idle
            if idle:
                # an open record may have any line; without one, the others are skipped
                at = marks[bisect_left(marks, at)]
                if at == len(lines):
                    break
            line = parsed(lines[at][:LINE_BYTES])
            counts.timed += bool(line.time)
            if idle and at not in begin:
                yield line, (first + at,)
            else:
                yield from _without_dumps(reports.feed(first + at, line), dumps)
            at += 1
        first += len(lines)
    yield from _without_dumps(reports.end(), dumps)
    yield from dumps.end()


def _without_dumps(
    ended: Iterable[Numbered[LogLine | KernelReport]], dumps: DumpReader
) -> Iterator[Numbered[Record]]:
    for record in ended:
        yield from dumps.feed(record)


def _with_words(words: Iterable[str], joined: str, starts: Sequence[int]) -> set[int]:
    """The numbers of the lines that have one of the words."""
    found = set[int]()
    for word in words:
        at = joined.find(word)
        while at >= 0:
            number = bisect_right(starts, at) - 1
            found.add(number)
            at = joined.find(word, starts[number + 1])
    return found


def _with_time(joined: str, starts: Sequence[int]) -> set[int]:
    return {bisect_right(starts, found.start()) - 1 for found in _MAY_HAVE_TIME.finditer(joined)}
