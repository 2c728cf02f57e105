# SPDX-License-Identifier: Apache-2.0
"""Error completions that mlx5 and hns dump into the log: 32 or 64 bytes in lines after a head.

Layout of mlx5: struct mlx5_err_cqe, include/linux/mlx5/device.h.  Syndromes:
mlx5_handle_error_cqe(), drivers/infiniband/hw/mlx5/cq.c.  Layout of hns: struct hns_roce_v2_cqe,
drivers/infiniband/hw/hns/hns_roce_hw_v2.h; its statuses are the syndromes of mlx5.

Two processors may write dumps at once.  Their callers (CONFIG_PRINTK_CALLER) tell the rows apart;
without callers nothing does, and none of the dumps is decoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from nfsrdma_tools.host.kernel_log.lines import LogLine, Numbered
from nfsrdma_tools.host.kernel_log.reports import KernelReport

__all__ = ["DUMP_WORDS", "CompletionDump", "DumpReader"]

_HEAD = re.compile(
    r"(?:\S{1,40} )?(?P<device>[\w.:-]{1,64}): ?(?:dump_cqe|mlx5_\w{1,40}):\d+:\(pid \d+\):"
    r" (?:(?P<second>dump error cqe)|WC error: -?\d+, Message: .{1,80})"
    r"|(?:\S{1,40} ){0,2}(?P<net>[\w.-]{1,64}): Error cqe on cqn 0x[0-9a-f]+,"
    r" ci 0x[0-9a-f]+,.{1,160}"
    r"|\S{1,40} [\w.:-]{1,64} (?P<hns>[\w.-]{1,64}): error cqe status 0x(?P<status>[0-9a-f]{1,2}):"
)
DUMP_WORDS = ("rror cqe", "WC error")
"""Each head of a dump has one of these."""
_ROW = re.compile(
    r"(?:.{0,80}: )?000000(?P<offset>[0-3]0): (?P<bytes>[0-9a-f]{2}(?: [0-9a-f]{2}){15})"
)
_WORDS = re.compile(r"(?P<words>[0-9a-f]{8}(?: [0-9a-f]{8}){3})")
"""Of hns, and of mlx5 before Linux 4.11: four words of 32 bits a line."""
_FOREIGN = 40
"""This number of lines of others ends a dump that is not complete."""
_GAP = 5.0
"""Seconds without a line of the dump that end it, too."""
_MOST_OPEN = 8
"""Dumps that several processors write at once; with more, the oldest ends."""
_BYTES, _ROW_BYTES = 64, 16
_HNS_BYTES = (32, 64)
"""By the device."""

# the number in enum ib_wc_status by the syndrome
_STATUS = {
    0x01: 1, 0x02: 2, 0x04: 4, 0x05: 5, 0x06: 6, 0x10: 7, 0x11: 8,
    0x12: 9, 0x13: 10, 0x14: 11, 0x15: 12, 0x16: 13, 0x22: 16,
}  # fmt: skip
# enum of include/linux/mlx5/device.h, MLX5_OPCODE_*
_WORK = {
    0x01: "a Send with Invalidate", 0x08: "an RDMA Write",
    0x09: "an RDMA Write with immediate data",
    0x0A: "a Send", 0x0B: "a Send with immediate data", 0x10: "an RDMA Read",
    0x11: "an atomic operation", 0x12: "an atomic operation", 0x1B: "a local invalidation",
    0x25: "a memory registration",
}  # fmt: skip
_REQUESTER, _RESPONDER = 0xD, 0xE
"""Of a completion, bits 4 to 7 of byte 63: an error completion has one of these."""
_HNS_RECEIVE = 0x40
"""Bit 6 of word 0."""


_GENERAL = {0x23: 21}
"""Of hns alone."""


@dataclass
class CompletionDump:
    """An error completion of a device of mlx5, or of hns, as bytes."""

    device: str
    time: str
    lines: list[str] = field(default_factory=list)
    data: bytes = b""
    hns_status: int | None = None
    """Of hns: the status that the head names; None of mlx5."""
    mixed: bool = False
    """Whether its rows may be those of another dump."""

    @property
    def full(self) -> bool:
        """Whether no more bytes follow."""
        return len(self.data) == _BYTES

    @property
    def complete(self) -> bool:
        """Whether all bytes were read that tell of the work."""
        whole = len(self.data) in _HNS_BYTES if self.hns_status is not None else self.full
        return whole and not self.mixed

    @property
    def is_error(self) -> bool:
        """Whether a complete dump is an error completion; other bytes have no syndrome.

        Of hns, bits 8 to 15 of word 0 are the status that the head names.
        """
        if self.hns_status is not None:
            return self.data[2] == self.hns_status
        return self.data[63] >> 4 in (_REQUESTER, _RESPONDER)

    @property
    def syndrome(self) -> int:
        """The kind of error: of mlx5, byte 55."""
        return self.data[55] if self.hns_status is None else self.hns_status

    @property
    def vendor_syndrome(self) -> int | None:
        """Of mlx5, byte 54: the vendor's own number, which only the vendor can explain."""
        return self.data[54] if self.hns_status is None else None

    @property
    def queue_pair(self) -> int:
        """Its number on this host: of mlx5, bytes 57 to 59; of hns, bits 0 to 23 of word 3."""
        number = self.data[57:60] if self.hns_status is None else self.data[13:16]
        # Python 3.9, on which nfsrdma.pyz runs, has no default order
        return int.from_bytes(number, "big")

    @property
    def is_response(self) -> bool:
        """Whether the peer's request failed here (a receive), and not a request of this host."""
        if self.hns_status is None:
            return self.data[63] >> 4 == _RESPONDER
        return bool(self.data[3] & _HNS_RECEIVE)

    @property
    def work(self) -> str:
        """What failed: of a request of mlx5, by its opcode in byte 56."""
        if self.is_response:
            return "a receive"
        if self.hns_status is not None:
            return "a request"
        return _WORK.get(self.data[56], f"work of opcode {self.data[56]:#04x}")

    @property
    def status(self) -> int | None:
        """The number in enum ib_wc_status; None for an unknown syndrome."""
        known = _STATUS if self.hns_status is None else _STATUS | _GENERAL
        return known.get(self.syndrome)

    @property
    def source(self) -> str:
        """The function that dumps."""
        if self.hns_status is None:
            return "drivers/infiniband/hw/mlx5/cq.c, dump_cqe(); include/linux/mlx5/device.h"
        return "drivers/infiniband/hw/hns/hns_roce_hw_v2.c, get_cqe_status()"


class _Row(NamedTuple):
    """A line of a dump."""

    offset: int | None
    """None if the line does not have it."""
    data: bytes


@dataclass
class _Open:
    """A dump whose end was not read yet."""

    dump: CompletionDump
    caller: str
    seconds: float | None
    heads: list[Numbered[LogLine]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    rows: int = 0
    foreign: int = 0
    awaits_second: bool = False
    """Whether "dump error cqe" may follow its head "WC error"."""

    def add(self, numbered: Numbered[LogLine]) -> None:
        """Keep a line of the dump."""
        self.dump.lines.append(numbered.record.text)
        self.numbers.extend(numbered.numbers)
        self.seconds = numbered.record.seconds or self.seconds
        self.foreign = 0

    def ended(self) -> list[Numbered[LogLine | CompletionDump]]:
        """The dump; its heads as lines if nothing of its bytes is known that they do not say."""
        is_decoded = self.dump.complete and self.dump.is_error
        if not self.rows or (self.dump.hns_status is not None and not is_decoded):
            return [*self.heads]
        return [Numbered(self.dump, tuple(self.numbers))]


class DumpReader:
    """Takes records one by one; keeps the dumps that are open, the oldest first."""

    def __init__(self) -> None:
        self._open: list[_Open] = []

    @property
    def idle(self) -> bool:
        """Whether no dump is open."""
        return not self._open

    def feed(
        self, numbered: Numbered[LogLine | KernelReport]
    ) -> Iterator[Numbered[LogLine | KernelReport | CompletionDump]]:
        """The records that this one ends, and itself unless it is a line of a dump."""
        line = numbered.record
        if not isinstance(line, LogLine) or line.tag not in ("", "kernel"):
            yield numbered
            return
        if self._open and (now := line.seconds) is not None:
            yield from self._end([opened for opened in self._open if _late(opened, now)])
        if self._open and (row := _row(line.text)) and (owner := self._owner(line)):
            yield from self._add(owner, Numbered(line, numbered.numbers), row)
        elif head := _HEAD.fullmatch(line.text):
            yield from self._begin(head, Numbered(line, numbered.numbers))
        else:
            yield numbered
            for other in self._open:
                other.foreign += 1
            yield from self._end([opened for opened in self._open if opened.foreign > _FOREIGN])

    def end(self) -> Iterator[Numbered[LogLine | CompletionDump]]:
        """The dumps that the log's end cuts."""
        yield from self._end(list(self._open))

    def _end(self, some: Iterable[_Open]) -> Iterator[Numbered[LogLine | CompletionDump]]:
        for opened in some:
            self._open.remove(opened)
            yield from opened.ended()

    def _owner(self, line: LogLine) -> _Open | None:
        return next((opened for opened in self._open if opened.caller == line.caller), None)

    def _begin(
        self, head: re.Match[str], numbered: Numbered[LogLine]
    ) -> Iterator[Numbered[LogLine | CompletionDump]]:
        line = numbered.record
        device = head["device"] or head["net"] or head["hns"]
        same = [other for other in self._open if other.caller == line.caller]
        # "WC error" and "dump error cqe" are two heads of one dump
        first = next(
            (other for other in same if other.awaits_second and other.dump.device == device), None
        )
        if first and head["second"]:
            first.awaits_second = False
        else:
            mixed = not line.caller and not all(other.dump.complete for other in same)
            for other in same:
                other.dump.mixed = mixed
            yield from self._end([] if mixed else same)
            if len(self._open) == _MOST_OPEN:
                yield from self._end(self._open[:1])
            status = int(head["status"], 16) if head["status"] else None
            dump = CompletionDump(device, line.time, hns_status=status, mixed=mixed)
            first = _Open(dump, line.caller, line.seconds)
            first.awaits_second = bool(head["device"] and not head["second"])
            self._open.append(first)
        first.add(numbered)
        first.heads.append(numbered)

    def _add(
        self, opened: _Open, numbered: Numbered[LogLine], row: _Row
    ) -> Iterator[Numbered[LogLine | CompletionDump]]:
        at = opened.rows * _ROW_BYTES
        if not opened.dump.mixed and row.offset not in (None, at):
            # a row is missing, or it is of a dump whose head is
            yield from self._end([opened])
            yield numbered
            return
        opened.add(numbered)
        opened.awaits_second = False
        opened.rows += 1
        if not opened.dump.mixed:
            opened.dump.data += row.data
        if opened.rows * _ROW_BYTES == _BYTES:
            yield from self._end([opened])


def _late(opened: _Open, now: float) -> bool:
    return opened.seconds is not None and now - opened.seconds > _GAP


def _row(text: str) -> _Row | None:
    if match := _ROW.fullmatch(text):
        return _Row(int(match["offset"], 16), bytes.fromhex(match["bytes"]))
    match = _WORDS.fullmatch(text)
    return _Row(None, bytes.fromhex(match["words"])) if match else None
