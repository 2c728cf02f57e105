# SPDX-License-Identifier: Apache-2.0
"""Listens to the messages of this host: loads bpf/capture.c, and yields what it copies."""

from __future__ import annotations

import mmap
import os
import platform
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from nfsrdma_tools import files
from nfsrdma_tools.capture.conversation import Message
from nfsrdma_tools.capture.layout import FUNCTIONS, OURS, RAW, defines
from nfsrdma_tools.capture.messages import Assembler, part
from nfsrdma_tools.capture.ring import Ring, records
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.probes import kallsyms
from nfsrdma_tools.probes.btf import Btf, load
from nfsrdma_tools.probes.program import has_event, has_system, record_checks, rows, source
from nfsrdma_tools.probes.session import check
from nfsrdma_tools.probes.session import load as compiled

__all__ = ["LARGEST", "SMALLEST", "Listener", "listening"]

SMALLEST, LARGEST = 256, 8192
"""Bytes of a part of a message that the probes can copy."""
# bytes: half a second of 4,000 messages of 8 KiB a second
_RING = 16 << 20
# seconds: of a call, between two looks at a ring that was empty
_POLL, _PAUSE = 0.1, 0.01
# records between two looks at the ring
_AT_ONCE = 64
_AVAILABLE = re.compile(r"^MemAvailable: +(\d+) kB$", re.MULTILINE)
_MISSES = re.compile(r"^recursion_misses:\s+(\d+)$", re.MULTILINE)


class Listener:
    """Attached probes; ``messages`` yields what they saw.

    A message takes longer to make than a busy mount takes to send the next.  So the ring is emptied
    every few messages, and what was in it waits in memory, up to a quarter of what is available.
    """

    def __init__(
        self, bpf: Any, assembler: Assembler, attached: bool, missing: tuple[str, ...]
    ) -> None:
        self._bpf = bpf
        # to rpcrdma
        self._attached = attached
        self._assembler = assembler
        self._ring = Ring(bpf["capture_ring"].map_fd, _RING)
        # what was taken from the ring: pieces, records of the oldest one, the next of them
        self._pieces: deque[bytes] = deque()
        self._records: Iterator[bytes] = iter(())
        self._next: deque[bytes] = deque()
        self._oldest = 0
        self._room = max(_available() // 4, _RING)
        self.missing = missing
        """Events and functions that this kernel does not have."""

    def messages(self, timeout: float = _POLL) -> Iterator[Message]:
        """Yield new messages for about ``timeout`` seconds; if it is 0, all that remain."""
        ends = time.monotonic() + timeout
        while True:
            self._advance()
            # without room the ring fills, and the probes lose messages and count them
            took = self._room > 0 and self._take()
            if timeout and time.monotonic() >= ends:
                return
            if not self._next and not took:
                if not timeout:
                    return
                time.sleep(_PAUSE)
            while self._next:
                yield from self._assembler.feed(part(self._next.popleft()))

    def _take(self) -> bool:
        """Whether there was something in the ring."""
        taken = self._ring.take()
        if taken:
            self._pieces.append(taken)
            self._room -= len(taken)
        return bool(taken)

    def _advance(self) -> None:
        """Find the next records."""
        self._next.extend(islice(self._records, _AT_ONCE - len(self._next)))
        while not self._next:
            self._room += self._oldest
            self._oldest = 0
            if not self._pieces:
                return
            oldest = self._pieces.popleft()
            self._oldest = len(oldest)
            self._records = records(oldest)
            self._next.extend(islice(self._records, _AT_ONCE))

    def stop(self) -> None:
        """Detach the probes; what they copied before can still be read."""
        if has_event(*OURS):
            self._bpf.detach_tracepoint(":".join(OURS).encode())
        if not self._attached:
            return
        for event in RAW:
            if event not in self.missing:
                self._bpf.detach_raw_tracepoint(event.encode())
        for function, program in FUNCTIONS.items():
            if function not in self.missing:
                self._bpf.detach_kprobe(event=function, fn_name=program)

    def lost(self) -> int:
        """Messages that lack a record, as far as they have been noticed."""
        return self._assembler.lost

    def total_lost(self) -> int:
        """The exact number, once the probes are detached and all messages are read."""
        began: int = sum(map(sum, self._bpf["capture_numbers"].values()))
        return began - self._assembler.complete + self._missed()

    def _missed(self) -> int:
        """Events that found their program at work on the same processor."""
        descriptors = [program.fd for program in self._bpf.funcs.values()]
        told = (files.read(f"/proc/self/fdinfo/{descriptor}") for descriptor in descriptors)
        return sum(int(number) for text in told for number in _MISSES.findall(text))

    def unknown(self) -> int:
        """Messages of connections whose addresses are unknown: they cannot be written."""
        return self._assembler.unknown


@contextmanager
def listening(snaplen: int, data: bool) -> Iterator[Listener]:
    """Attach the probes; they are detached at the end of the block.

    ``snaplen`` is the number of bytes that they copy of each part of a message; ``data``: also the
    first bytes of data in chunks.  UserError with what this host lacks.
    """
    check()
    types = load(("rpcrdma",)).get("rpcrdma") if has_system("rpcrdma") else None
    if types is None and not has_event(*OURS):
        raise _nothing()
    bpf = compiled(_text(), _flags(types, snaplen, data))
    try:
        missing = _attach(bpf, types) if types else ()
        offset = time.time_ns() - time.monotonic_ns()
        yield Listener(bpf, Assembler(offset, data), bool(types), missing)
    finally:
        bpf.cleanup()


def _available() -> int:
    """Bytes of memory that programs can have."""
    return sum(int(size) << 10 for size in _AVAILABLE.findall(files.read("/proc/meminfo")))


def _nothing() -> UserError:
    if has_system("rpcrdma"):
        message = "cannot capture: module rpcrdma has no type information (BTF)"
        hint = "boot Linux 5.11 or later with CONFIG_DEBUG_INFO_BTF_MODULES; or use nfsrdma trace"
        return UserError(message, hint)
    message = f"cannot capture: module nfsrdma has no event {OURS[1]}, because it is older"
    return UserError(message, "nfsrdma doctor")


def _text() -> str:
    text = "\n".join((source() / name).read_text() for name in ("account.h", "capture.c"))
    return text + record_checks(OURS, text) if has_event(*OURS) else text


def _flags(types: Btf | None, snaplen: int, data: bool) -> list[str]:
    try:
        layout = defines(types) if types else []
    except KeyError as error:
        message = f"this kernel's rpcrdma is not known: {error.args[0]}"
        raise UserError(message, "report it: nfsrdma collect") from error
    snap = 1 << (max(SMALLEST, min(snaplen, LARGEST)) - 1).bit_length()
    page_bits = os.sysconf("SC_PAGE_SIZE").bit_length() - 1
    return [
        *layout,
        *(["-DWITH_NFSRDMA"] if has_event(*OURS) else []),
        *_memory_of_pages(),
        f"-DSNAP={snap}",
        f"-DDATA={int(data)}",
        f"-DRING_PAGES={_RING // mmap.PAGESIZE}",
        f"-DPAGE_BITS={page_bits}",
        f"-DROWS={rows()}",
    ]


def _memory_of_pages(machine: str = platform.machine()) -> list[str]:
    """How to find the memory of a page; nothing where that is not known: pages are zeros there."""
    names = {"vmemmap_base": "VMEMMAP", "page_offset_base": "PAGE_OFFSET_BASE"}
    if machine != "x86_64":
        return []
    addresses = kallsyms.addresses(names)
    if not all(map(addresses.get, names)):
        return []
    return [f"-D{flag}={addresses[name]:#x}ULL" for name, flag in names.items()]


def _attach(bpf: Any, types: Btf) -> tuple[str, ...]:
    missing = []
    for event in RAW:
        if has_event("rpcrdma", event):
            bpf.attach_raw_tracepoint(tp=event.encode(), fn_name=f"capture_raw_{event}".encode())
        else:
            missing.append(event)
    for function, program in FUNCTIONS.items():
        if types.has_function(function):
            bpf.attach_kprobe(event=function, fn_name=program)
        else:
            missing.append(function)
    return tuple(missing)
