# SPDX-License-Identifier: Apache-2.0
"""The records of a log: lines, the kernel's reports of errors, and dumps of completions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from typing import Literal, NamedTuple, Union, cast

from nfsrdma_tools.host.kernel_log.completion_dumps import DUMP_WORDS, CompletionDump, DumpReader
from nfsrdma_tools.host.kernel_log.digits import masks
from nfsrdma_tools.host.kernel_log.lines import (
    Form,
    LogLine,
    Numbered,
    batches,
    form_of,
    parsed,
)
from nfsrdma_tools.host.kernel_log.reports import HEAD_WORDS, KernelReport, ReportReader

__all__ = ["Counts", "Record", "Run", "Shape", "records", "runs"]

Record = Union[LogLine, KernelReport, CompletionDump]

_WORDS = (
    *("nfs", "NFS", "rpc", "RPC", "rdma", "RDMA", "svc", "lockd", "mlx", "infiniband", "siw"),
    *("cxgb", "qedr", "bnxt", "rxe", "module", "symbol", "mount", "device", "cm_destroy_id"),
    *("AMD-Vi", "DMAR", "netdevice", "_t:s0", "hns", "mana ", "qed", "ice 0", "be2net", "QPN"),
    *("CQE contents", "ionic", "cqe with error", "erdma", "threads: ", "server ", "ae_id"),
    *("Requesting a reset", "non-flush", "wait_func", "IO_PAGE_FAULT", "arm-smmu", "AER: "),
)
"""Each line that is a record has one of these, or of the next ones."""
_MASKS = tuple(masks(_WORDS))
_FIRST_MASKS = tuple(masks((*HEAD_WORDS, *DUMP_WORDS)))
"""Each line that begins a record of several lines has one of these, without its digits."""


@dataclass
class Counts:
    """Of a log's lines."""

    lines: int = 0
    """Those that are not blank."""
    timed: bool = False
    """Whether one has a time in a known form."""


_TIME_MASKS = (b"0.0", b"0,0", b"0:0", b"0-0", b"__REALTIME_TIMESTAMP")
"""Each line with a time has one of these, without its digits."""
_MOST_SHAPES = 8192
_MOST_BYTES = 1 << 22
"""Of the lines of these shapes."""


class Shape:
    """The parts that all lines have in common that differ in digits only."""

    __slots__ = ("_parsed", "begins", "form")

    def __init__(self, *, begins: bool) -> None:
        self.form: Form | None = None
        """None: each line has to be parsed."""
        self.begins = begins
        """Whether it may begin a record of several lines."""
        self._parsed = 0

    def line(self, text: str) -> LogLine:
        """A line of this shape, parsed."""
        if self.form:
            return self.form.line(text)
        read = parsed(text)
        # names of letters make many shapes of one line, whose form would not be used
        self._parsed += 1
        if self._parsed == 2:
            self.form = form_of(text, read)
        return read


_OTHER: Literal[False] = False
"""Instead of the shape of a line that concerns neither NFS nor RDMA."""
_BLANK: Literal[""] = ""
_Known = Union[Shape, Literal[False, ""]]


class Run(NamedTuple):
    """Lines of a log, each of which may be a record of its own."""

    first: int
    """The number of the first one of ``texts``."""
    texts: Sequence[str]
    shapes: Sequence[_Known]
    places: Sequence[int]
    """Of the lines of the run, in ``texts`` and ``shapes``."""

    def lines(self) -> Iterator[tuple[int, str, Shape]]:
        """The lines of the run: number, text, shape."""
        for at in self.places:
            if shape := self.shapes[at]:
                yield self.first + at, self.texts[at], shape


def records(texts: Iterable[str]) -> Iterator[Numbered[Record]]:
    """The records of a log; lines that concern neither NFS nor RDMA may be left out."""
    for item in runs(texts, Counts()):
        if isinstance(item, Run):
            for number, text, shape in item.lines():
                yield Numbered(shape.line(text), (number,))
        else:
            yield item


def runs(texts: Iterable[str], counts: Counts) -> Iterator[Run | Numbered[Record]]:
    """The same, with lines that are records of their own together.

    ``counts`` counts the lines while they are read.
    """
    reports, dumps, shapes = ReportReader(), DumpReader(), _Shapes(counts)
    first = 0
    for lines in batches(texts):
        if any(lines) or not (reports.idle and dumps.idle):
            yield from _of_batch(first, lines, shapes.of(lines), counts, reports, dumps)
        first += len(lines)
    yield from _without_dumps(reports.end(), dumps)
    yield from dumps.end()


def _of_batch(
    first: int,
    lines: Sequence[str],
    shapes: Sequence[_Known],
    counts: Counts,
    reports: ReportReader,
    dumps: DumpReader,
) -> Iterator[Run | Numbered[Record]]:
    places = list(compress(range(len(lines)), shapes))
    marks = [*(at for at in places if (shape := shapes[at]) and shape.begins), len(lines)]
    at = 0
    while at < len(lines):
        if reports.idle and dumps.idle:
            # an open record may have any line; without one, the others are skipped
            end = marks[bisect_left(marks, at)]
            if run := places[bisect_left(places, at) : bisect_left(places, end)]:
                yield Run(first, lines, shapes, run)
            if (at := end) == len(lines):
                return
        shape = shapes[at]
        line = shape.line(lines[at]) if shape else parsed(lines[at])
        counts.timed = counts.timed or bool(line.time)
        yield from _without_dumps(reports.feed(first + at, line), dumps)
        at += 1


def _without_dumps(
    ended: Iterable[Numbered[LogLine | KernelReport]], dumps: DumpReader
) -> Iterator[Numbered[Record]]:
    for record in ended:
        yield from dumps.feed(record)


class _Shapes:
    """The shapes of the lines of a log, each found once: a look-up takes less than a search."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._known: dict[bytes, _Known] = {}
        self._bytes = 0

    def of(self, lines: Sequence[str]) -> Sequence[_Known]:
        """The shape of each line; a false value of one that concerns neither NFS nor RDMA."""
        masked = masks(lines)
        known = list(map(self._known.get, masked))
        if None in known:
            if len(self._known) > _MOST_SHAPES or self._bytes > _MOST_BYTES:
                self._known.clear()
                self._bytes = 0
            # of those that were cleared, too
            self._find(dict(zip(masked, lines)))
            known = list(map(self._known.get, masked))
        shapes = cast(list[_Known], known)
        self._counts.lines += len(shapes) - shapes.count(_BLANK)
        return shapes

    def _find(self, lines: Mapping[bytes, str]) -> None:
        """Keep the shapes of lines, of which each stands for all with the same mask."""
        new = [mask for mask in lines if mask not in self._known]
        joined = b"\n".join(new)
        self._bytes += len(joined)
        starts = list(accumulate(map((1).__add__, map(len, new)), initial=0))
        begin = _with_words(_FIRST_MASKS, joined, starts)
        concern = begin | _with_words(_MASKS, joined, starts)
        if not self._counts.timed:
            timed = _with_words(_TIME_MASKS, joined, starts)
            self._counts.timed = any(parsed(lines[new[at]]).time for at in timed)
        self._known.update(dict.fromkeys(new, _OTHER))
        self._known.update((mask, _BLANK) for mask in new if not lines[mask].strip())
        for at in concern:
            self._known[new[at]] = Shape(begins=at in begin)


def _with_words(words: Iterable[bytes], joined: bytes, starts: Sequence[int]) -> set[int]:
    """The numbers of the lines that have one of the words."""
    numbers = set[int]()
    for word in words:
        at = joined.find(word)
        while at >= 0:
            number = bisect_right(starts, at) - 1
            numbers.add(number)
            at = joined.find(word, starts[number + 1])
    return numbers
