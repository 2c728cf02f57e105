# SPDX-License-Identifier: Apache-2.0
"""Capture files: writes pcapng, reads pcapng and pcap.

The formats are those of draft-ietf-opsawg-pcapng and draft-ietf-opsawg-pcap.  A reader trusts no
length in a file: a damaged block ends the reading with an error that names its position.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from nfsrdma_tools.errors import UserError

__all__ = [
    "ETHERNET", "INBOUND", "INFINIBAND", "OUTBOUND", "STATISTICS", "UNFINISHED", "CapturedFrame",
    "Writer", "frames",
]  # fmt: skip

ETHERNET, INFINIBAND = 1, 247
"""Link types."""
STATISTICS, UNFINISHED = -1, -2
"""In place of a link type: the frame is none, but has counts; or the file ends within it."""
INBOUND, OUTBOUND = 1, 2
"""Directions of a frame (epb_flags)."""

_SECTION, _INTERFACE, _SIMPLE, _STATISTICS, _ENHANCED = 0x0A0D0D0A, 1, 3, 5, 6
_MAGIC = 0x1A2B3C4D
# a frame is at most a jumbo frame; sniffers that merge segments write up to 256 KiB
_LONGEST = 1 << 24
# options
_END, _COMMENT, _FLAGS, _DROPPED = 0, 1, 2, 4
_NAME, _RESOLUTION, _APPLICATION, _RECEIVED, _LOST = 2, 9, 4, 4, 5
_MOST_OPTION = 0xFFFF
# magic number of a pcap file: byte order, units per second
_PCAP = {
    b"\xd4\xc3\xb2\xa1": ("<", 1_000_000),
    b"\xa1\xb2\xc3\xd4": (">", 1_000_000),
    b"\x4d\x3c\xb2\xa1": ("<", 1_000_000_000),
    b"\xa1\xb2\x3c\x4d": (">", 1_000_000_000),
}


class CapturedFrame(NamedTuple):
    """A frame of a file: ``number`` from 1, ``time`` in ns since 1970, ``length`` on the wire.

    ``data`` is shorter than ``length`` if the frame was cut.  ``dropped`` is the number of frames
    that the writer reports as lost in front of this one.  With STATISTICS as ``link`` it is no
    frame: ``dropped`` is then the total that the writer reports for an interface.
    """

    number: int
    time: int
    link: int
    data: bytes
    length: int
    comments: tuple[str, ...] = ()
    dropped: int = 0


class Writer:
    """Writes a pcapng file with one interface of link type Ethernet, in nanoseconds."""

    def __init__(self, file: BinaryIO, interface: str, application: str) -> None:
        self._file = file
        section = struct.pack("<IHHq", _MAGIC, 1, 0, -1)
        self._block(_SECTION, section + _options((_APPLICATION, application.encode())))
        described = _options((_NAME, interface.encode()), (_RESOLUTION, b"\x09"))
        self._block(_INTERFACE, struct.pack("<HHI", ETHERNET, 0, 0) + described)

    def frame(
        self, time: int, data: bytes, direction: int = 0, comment: str = "", dropped: int = 0
    ) -> None:
        """Write a frame; ``time`` in ns since 1970, ``dropped`` messages lost in front of it."""
        length, pad = len(data), -len(data) % 4
        head = struct.pack("<5I", 0, time >> 32, time & 0xFFFFFFFF, length, length)
        options: list[tuple[int, bytes]] = []
        if comment:
            options.append((_COMMENT, comment.encode()[:_MOST_OPTION]))
        if direction:
            options.append((_FLAGS, struct.pack("<I", direction)))
        if dropped:
            options.append((_DROPPED, struct.pack("<Q", dropped)))
        self._block(_ENHANCED, b"".join((head, data, bytes(pad), _options(*options))))

    def statistics(self, time: int, received: int, lost: int, comment: str = "") -> None:
        """Write how many messages were received and lost; at the end of a file."""
        options = [
            *([(_COMMENT, comment.encode()[:_MOST_OPTION])] if comment else []),
            (_RECEIVED, struct.pack("<Q", received)),
            (_LOST, struct.pack("<Q", lost)),
        ]
        head = struct.pack("<III", 0, time >> 32, time & 0xFFFFFFFF)
        self._block(_STATISTICS, head + _options(*options))

    def flush(self) -> None:
        """Hand all frames to the reader of a pipe."""
        self._file.flush()

    def _block(self, kind: int, body: bytes) -> None:
        length = len(body) + 12
        self._file.write(struct.pack("<II", kind, length) + body + struct.pack("<I", length))


def _options(*options: tuple[int, bytes]) -> bytes:
    if not options:
        return b""
    parts = [
        struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)
        for code, value in options
    ]
    return b"".join(parts) + struct.pack("<HH", _END, 0)


def frames(file: BinaryIO) -> Iterator[CapturedFrame]:
    """Yield the frames of a capture file.

    Raises UserError if it is no capture file, or where it is damaged.  A file that ends within a
    block is read up to there: the program that wrote it was killed.  The last frame is then
    UNFINISHED.
    """
    magic = file.read(4)
    if magic in _PCAP:
        yield from _pcap(file, *_PCAP[magic])
    elif magic == struct.pack("<I", _SECTION):
        yield from _PcapNg(file).frames()
    else:
        raise UserError("this is no capture file: neither pcap nor pcapng", "write it with tcpdump")


def _pcap(file: BinaryIO, order: str, units: int) -> Iterator[CapturedFrame]:
    rest = file.read(20)
    _check(len(rest) == 20, "the file ends in the middle of its header")
    # the upper bits of the link type are the length of a frame check sequence
    link = struct.unpack_from(f"{order}I", rest, 16)[0] & 0xFFFF
    number = 0
    while head := file.read(16):
        number += 1
        if len(head) < 16:
            yield _unfinished(number)
            return
        seconds, fraction, captured, length = struct.unpack(f"{order}4I", head)
        _check(captured <= _LONGEST, f"frame {number} has {captured} bytes")
        data = file.read(captured)
        if len(data) < captured:
            yield _unfinished(number)
            return
        time = seconds * 1_000_000_000 + fraction * (1_000_000_000 // units)
        yield CapturedFrame(number, time, link, data, length)


def _unfinished(number: int) -> CapturedFrame:
    return CapturedFrame(number, 0, UNFINISHED, b"", 0)


class _Interface(NamedTuple):
    link: int
    scale: Callable[[int], int]


class _PcapNg:
    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.order = "<"
        self.interfaces: list[_Interface] = []
        self.number = 0
        self.dropped = 0

    def frames(self) -> Iterator[CapturedFrame]:
        # frames() has read the kind of the first block
        head = struct.pack("<I", _SECTION)
        while len(head) == 4:
            kind = struct.unpack(f"{self.order}I", head)[0]
            if head == struct.pack("<I", _SECTION):
                kind = _SECTION
            body = self._body(kind)
            if body is None:
                break
            frame = self._read(kind, body)
            if frame:
                yield frame
            head = self.file.read(4)
        if head:
            # of a frame, or of a block behind the last frame
            yield _unfinished(self.number + 1)

    def _body(self, kind: int) -> bytes | None:
        size = self.file.read(4)
        magic = b""
        if kind == _SECTION:
            magic = self.file.read(4)
            self.order = "<" if magic == struct.pack("<I", _MAGIC) else ">"
            big = magic == struct.pack(">I", _MAGIC)
            _check(self.order == "<" or big or len(magic) < 4, "a section has no byte order")
        if len(size) < 4:
            return None
        length = struct.unpack(f"{self.order}I", size)[0]
        fits = 12 + len(magic) <= length <= _LONGEST and length % 4 == 0
        _check(fits, f"a block after frame {self.number} has {length} bytes")
        rest = length - 8 - len(magic)
        body = self.file.read(rest)
        return magic + body[:-4] if len(body) == rest else None

    def _read(self, kind: int, body: bytes) -> CapturedFrame | None:
        try:
            if kind == _SECTION:
                self.interfaces = []
            elif kind == _INTERFACE:
                self.interfaces.append(self._interface(body))
            elif kind == _SIMPLE:
                return self._simple(body)
            elif kind == _ENHANCED:
                return self._enhanced(body)
            elif kind == _STATISTICS:
                return self._statistics(body)
        except struct.error as error:
            raise _damaged(f"a block after frame {self.number} is too short") from error
        return None

    def _interface(self, body: bytes) -> _Interface:
        link = struct.unpack_from(f"{self.order}H", body)[0]
        resolution = 6
        for code, value in self._options(body[8:]):
            if code == _RESOLUTION and value:
                resolution = value[0]
        return _Interface(link, _scale(resolution))

    def _simple(self, body: bytes) -> CapturedFrame:
        _check(bool(self.interfaces), "a frame precedes its interface")
        length = struct.unpack_from(f"{self.order}I", body)[0]
        self.number += 1
        return CapturedFrame(self.number, 0, self.interfaces[0].link, body[4 : 4 + length], length)

    def _statistics(self, body: bytes) -> CapturedFrame | None:
        for code, value in self._options(body[12:]):
            if code == _LOST and len(value) == 8:
                lost = struct.unpack(f"{self.order}Q", value)[0]
                return CapturedFrame(self.number, 0, STATISTICS, b"", 0, (), lost)
        return None

    def _enhanced(self, body: bytes) -> CapturedFrame:
        which, high, low, captured, length = struct.unpack_from(f"{self.order}5I", body)
        _check(which < len(self.interfaces), "a frame precedes its interface")
        _check(20 + captured <= len(body), f"frame {self.number + 1} is longer than its block")
        self.number += 1
        comments, dropped = [], 0
        for code, value in self._options(body[20 + captured + -captured % 4 :]):
            if code == _COMMENT:
                comments.append(value.decode(errors="replace"))
            elif code == _DROPPED and len(value) == 8:
                dropped = struct.unpack(f"{self.order}Q", value)[0]
        interface = self.interfaces[which]
        time = interface.scale(high << 32 | low)
        data = body[20 : 20 + captured]
        return CapturedFrame(
            self.number, time, interface.link, data, length, tuple(comments), dropped
        )

    def _options(self, raw: bytes) -> Iterator[tuple[int, bytes]]:
        at = 0
        while at + 4 <= len(raw):
            code, length = struct.unpack_from(f"{self.order}HH", raw, at)
            if code == _END:
                return
            yield code, raw[at + 4 : at + 4 + length]
            at += 4 + length + -length % 4


def _scale(resolution: int) -> Callable[[int], int]:
    """A function that turns units into nanoseconds (if_tsresol)."""
    if resolution & 0x80:
        shift = resolution & 0x7F
        return lambda units: units * 1_000_000_000 >> shift
    if resolution <= 9:
        factor = 10 ** (9 - resolution)
        return lambda units: units * factor
    divisor = 10 ** (resolution - 9)
    return lambda units: units // divisor


def _check(condition: bool, fault: str) -> None:
    if not condition:
        raise _damaged(fault)


def _damaged(fault: str) -> UserError:
    return UserError(f"the capture is damaged: {fault}", "write it again")
