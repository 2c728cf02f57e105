# SPDX-License-Identifier: Apache-2.0
"""Error completions that mlx5 and hns dump into the log: 32 or 64 bytes in lines after a head.

Layout of mlx5: struct mlx5_err_cqe, include/linux/mlx5/device.h.  Syndromes:
mlx5_handle_error_cqe(), drivers/infiniband/hw/mlx5/cq.c.  Layout of hns: struct hns_roce_v2_cqe,
drivers/infiniband/hw/hns/hns_roce_hw_v2.h; its statuses are the syndromes of mlx5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nfsrdma_tools.host.kernel_log.lines import LogLine, Numbered
from nfsrdma_tools.host.kernel_log.reports import KernelReport

__all__ = ["DUMP_WORDS", "CompletionDump", "DumpReader"]

_HEAD = re.compile(
    r"(?:\S{1,40} )?(?P<device>[\w.:-]{1,64}): ?(?:dump_cqe|mlx5_\w{1,40}):\d+:\(pid \d+\):"
    r" (?:dump error cqe|WC error: -?\d+, Message: .{1,80})"
    r"|(?P<net>[\w.-]{1,64}): Error cqe on cqn 0x[0-9a-f]+, ci 0x[0-9a-f]+,.{1,160}"
    r"|\S{1,40} [\w.:-]{1,64} (?P<hns>[\w.-]{1,64}): error cqe status 0x(?P<status>[0-9a-f]{1,2}):"
)
DUMP_WORDS = ("rror cqe", "WC error")
"""Each head of a dump has one of these."""
_ROW = re.compile(r"(?:.{0,80}: )?000000[0-3]0: (?P<bytes>[0-9a-f]{2}(?: [0-9a-f]{2}){15})")
_WORDS = re.compile(r"(?P<words>[0-9a-f]{8}(?: [0-9a-f]{8}){3})")
"""Of hns, and of mlx5 before Linux 4.11: four words of 32 bits a line."""
_FOREIGN = 40
"""This number of lines of others ends a dump that is not complete."""

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
_RESPONDER = 0xE
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

    @property
    def full(self) -> bool:
        """Whether no more bytes follow."""
        return len(self.data) == 64

    @property
    def complete(self) -> bool:
        """Whether all bytes were read that tell of the work."""
        return self.full or (self.hns_status is not None and len(self.data) >= 16)

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
        data = self.data[57:60] if self.hns_status is None else self.data[13:16]
        return int.from_bytes(data, "big")

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


class DumpReader:
    """Takes records one by one; keeps the dump that is open."""

    def __init__(self) -> None:
        self._dump: CompletionDump | None = None
        self._heads: list[Numbered[LogLine]] = []
        self._numbers: list[int] = []
        self._foreign = 0

    @property
    def idle(self) -> bool:
        """Whether no dump is open."""
        return not self._heads

    def feed(
        self, numbered: Numbered[LogLine | KernelReport]
    ) -> Iterator[Numbered[LogLine | KernelReport | CompletionDump]]:
        """The records that this one ends, and itself unless it is a line of a dump."""
        line, numbers = numbered
        if not isinstance(line, LogLine) or line.tag not in ("", "kernel"):
            yield numbered
        elif self._dump and (row := _row(line.text)):
            self._add(self._dump, line, row, numbers)
            if self._dump.full:
                yield from self.end()
        elif head := _HEAD.fullmatch(line.text):
            yield from self._begin(head, (line, numbers))
        else:
            yield numbered
            self._foreign += 1
            if self._dump and self._foreign > _FOREIGN:
                yield from self.end()

    def end(self) -> Iterator[Numbered[LogLine | CompletionDump]]:
        """The dump; its heads as lines if nothing followed them."""
        if self._dump and self._dump.data:
            yield self._dump, tuple(self._numbers)
        else:
            yield from self._heads
        self._dump, self._heads, self._numbers = None, [], []

    def _begin(
        self, head: re.Match[str], numbered: Numbered[LogLine]
    ) -> Iterator[Numbered[LogLine | CompletionDump]]:
        device = head["device"] or head["net"] or head["hns"]
        # "WC error" and "dump error cqe" are two heads of one dump
        if self._dump and (self._dump.data or self._dump.device != device or len(self._heads) > 1):
            yield from self.end()
        line, numbers = numbered
        status = int(head["status"], 16) if head["status"] else None
        self._dump = self._dump or CompletionDump(device, line.time, hns_status=status)
        self._dump.lines.append(line.text)
        self._heads.append(numbered)
        self._numbers.extend(numbers)
        self._foreign = 0

    def _add(self, dump: CompletionDump, line: LogLine, row: bytes, numbers: Iterable[int]) -> None:
        dump.lines.append(line.text)
        dump.data += row
        self._numbers.extend(numbers)


def _row(text: str) -> bytes:
    if found := _ROW.fullmatch(text):
        return bytes.fromhex(found["bytes"])
    found = _WORDS.fullmatch(text)
    return bytes.fromhex(found["words"]) if found else b""
