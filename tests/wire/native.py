# SPDX-License-Identifier: Apache-2.0
"""kmod/wire/*.c as a shared library, spoken to in the types of rpcrdma.py."""

from __future__ import annotations

import ctypes
import shutil
from ctypes import POINTER, Structure, c_bool, c_char_p, c_size_t, c_ubyte, c_uint32, c_uint64
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.command import run
from wire.nfs3 import Read as Nfs3Read
from wire.notices import Credit, Grant, Notice, Revoke
from wire.rdma5666 import Padded
from wire.rpcrdma import Header, Read, RefusedError, Segment

_KMOD = Path(__file__).parents[2] / "kmod"
SOURCES = sorted((_KMOD / "wire").glob("*.c"))
COMPILER = shutil.which("gcc") or shutil.which("clang")
FLAGS = ("-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{_KMOD}")


class CSegment(Structure):
    _fields_ = (("handle", c_uint32), ("length", c_uint32), ("offset", c_uint64))


class CChunk(Structure):
    _fields_ = (("position", c_uint32), ("nsegs", c_uint32), ("segs", POINTER(CSegment)))


class CHeader(Structure):
    _fields_ = (
        *((name, c_uint32) for name in ("xid", "version", "credits", "proc", "nreads", "nwrites")),
        *((name, POINTER(CChunk)) for name in ("reads", "writes", "reply")),
        *((name, c_uint32) for name in ("error", "vers_low", "vers_high")),
    )


class CSpace(Structure):
    _fields_ = (
        *(("chunks", POINTER(CChunk)), ("nchunks", c_uint32)),
        *(("segs", POINTER(CSegment)), ("nsegs", c_uint32)),
    )


class CPadding(Structure):
    _fields_ = (("align", c_uint32), ("thresh", c_uint32))


class CPadded(Structure):
    _fields_ = tuple((name, c_uint32) for name in Padded._fields)


class CNotice(Structure):
    _fields_ = (
        *(("kind", c_uint32), ("lifetime", c_uint32), ("ends", c_bool)),
        *(("position", c_uint64), ("extent", CSegment), ("credential", c_uint64)),
        *(("fh_length", c_uint32), ("fh", c_ubyte * 64)),
        *(("count", c_uint32), ("handles", c_uint32 * 16)),
    )


class CRead(Structure):
    _fields_ = (
        *(("credential", POINTER(c_ubyte)), ("credential_length", c_uint32)),
        *(("fh", POINTER(c_ubyte)), ("fh_length", c_uint32), ("count", c_uint32)),
        ("position", c_uint64),
    )


class CPrivate(Structure):
    _fields_ = (
        *((name, c_bool) for name in ("remote_invalidation", "extended", "given")),
        *((name, c_uint32) for name in ("send_size", "recv_size", "capabilities")),
        ("token", c_uint64),
    )


class Private(NamedTuple):
    """Private data of RFC 8797, sizes in bytes, and the extension."""

    remote_invalidation: bool
    send_size: int
    recv_size: int
    extended: bool = False
    capabilities: int = 0
    token: int = 0
    given: bool = True
    """whether there was any; decoded only"""


class Wire:
    """The C code; ``folder`` takes the library."""

    PREFIX = "nfr_wire_"

    def __init__(self, folder: Path) -> None:
        assert COMPILER
        path = folder / "wire.so"
        run(COMPILER, "-shared", "-fPIC", *FLAGS, *SOURCES, "-o", path)
        self.lib = ctypes.CDLL(str(path))
        self._size, self._encode, self._judge = (
            getattr(self.lib, f"{self.PREFIX}{name}") for name in ("size", "encode", "decode")
        )
        self._size.restype = c_size_t
        self.lib.nfr_wire_encode_private.restype = c_size_t
        self.lib.nfr_wire_length.restype = c_uint32
        self.lib.nfr_wire_is_call.restype = c_bool

        self.lib.nfr_wire_is_call.argtypes = (c_char_p, c_size_t)

    def size(self, header: Header) -> int:
        return int(self._size(ctypes.byref(_to_c(header))))

    def encode(self, header: Header, room: int) -> bytes:
        """The message that was written into ``room`` bytes; RefusedError if none was."""
        buffer = (c_ubyte * (room + 6))(*[0xA5] * (room + 6))
        # three bytes on: no alignment may be counted on
        size = self._encode(ctypes.byref(_to_c(header)), ctypes.byref(buffer, 3), c_size_t(room))
        written = max(size, 0)
        assert set(buffer[:3]) | set(buffer[3 + written :]) == {0xA5}
        return bytes(buffer[3 : 3 + _good(size)])

    def decode(self, message: bytes, space: tuple[int, int] | None = None) -> tuple[Header, int]:
        """The header and its length; RefusedError when there is none.

        ``space`` is for how many chunks and segments; without it, for all that the bytes can hold.
        """
        enough = _most_chunks(message)
        head, size = self._decode(message, *(space or (enough, enough)))
        _good(size)
        return self._from_c(head), size

    def start(self, message: bytes) -> tuple[int, int, int, int]:
        """The xid, version, credits and proc, which a refused header has too."""
        head, _ = self._decode(message, 0, 0)
        return head.xid, head.version, head.credits, head.proc

    def _decode(self, message: bytes, chunks: int, segments: int) -> tuple[CHeader, int]:
        head = CHeader()
        space = CSpace((CChunk * chunks)(), chunks, (CSegment * segments)(), segments)
        buffer = (c_ubyte * (len(message) + 1))(0, *message)
        where = ctypes.byref(buffer, 1), c_size_t(len(message))
        size = self._judge(ctypes.byref(head), ctypes.byref(space), *where)
        # ctypes does not see that the header points there
        head.space = space
        return head, size

    def is_call(self, message: bytes) -> bool:
        return bool(self.lib.nfr_wire_is_call(message, len(message)))

    def encode_private(self, private: Private) -> bytes:
        buffer = (c_ubyte * 28)()
        fields = (private.extended, private.given, private.send_size, private.recv_size)
        data = CPrivate(private.remote_invalidation, *fields, private.capabilities, private.token)
        size = self.lib.nfr_wire_encode_private(ctypes.byref(data), buffer)
        return bytes(buffer)[:size]

    def decode_private(self, data: bytes) -> Private:
        private = CPrivate(True, True, True, 7, 7, 7, 7)
        self.lib.nfr_wire_decode_private(ctypes.byref(private), data, c_size_t(len(data)))
        sizes = (private.send_size, private.recv_size)
        return Private(
            *(private.remote_invalidation, *sizes),
            *(private.extended, private.capabilities, private.token, private.given),
        )

    def _from_c(self, head: CHeader) -> Header:
        return Header(
            *(head.xid, head.credits, head.proc),
            tuple(Read(c.position, self._chunk(c)) for c in head.reads[: head.nreads]),
            tuple(self._chunk(chunk) for chunk in head.writes[: head.nwrites]),
            self._chunk(head.reply[0]) if head.reply else None,
            *(head.error, (head.vers_low, head.vers_high)),
        )

    def _chunk(self, chunk: CChunk) -> tuple[Segment, ...]:
        segments = tuple(Segment(s.handle, s.length, s.offset) for s in chunk.segs[: chunk.nsegs])
        assert self.lib.nfr_wire_length(ctypes.byref(chunk)) == sum(s.length for s in segments)
        return segments


class Wire2003(Wire):
    """The C code of the header of 2003."""

    PREFIX = "nfr_wire_2003_"


class WirePadded(Wire):
    """The C code of messages with padding."""

    PREFIX = "nfr_wire_padded_"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lib.nfr_wire_is_padded.restype = c_bool
        self.lib.nfr_wire_is_padded.argtypes = (c_char_p, c_size_t)

    def is_padded(self, message: bytes) -> bool:
        return bool(self.lib.nfr_wire_is_padded(message, len(message)))

    def write(self, header: Header, align: int, thresh: int, room: int) -> bytes:
        """The message that was written into ``room`` bytes; RefusedError if none was."""
        buffer = (c_ubyte * (room + 6))(*[0xA5] * (room + 6))
        head, words = _to_c(header), CPadding(align, thresh)
        where = ctypes.byref(buffer, 3), c_size_t(room)
        size = self._encode(ctypes.byref(head), ctypes.byref(words), *where)
        written = max(size, 0)
        assert set(buffer[:3]) | set(buffer[3 + written :]) == {0xA5}
        return bytes(buffer[3 : 3 + _good(size)])

    def read(self, message: bytes) -> tuple[Header, int, int, int]:
        """Result of ``rdma5666.decode``."""
        head, words, size = self._read(message)
        # what a refused message left in the header is nothing to look at
        length = _good(size)
        return self._from_c(head), words.align, words.thresh, length

    def find(self, message: bytes) -> Padded:
        head, words, size = self._read(message)
        data = CPadded()
        where = ctypes.byref(head), ctypes.byref(words), _good(size), len(message)
        _good(self.lib.nfr_wire_padded_find(ctypes.byref(data), *where))
        return Padded(*(getattr(data, name) for name in Padded._fields))

    def _read(self, message: bytes) -> tuple[CHeader, CPadding, int]:
        enough = _most_chunks(message)
        head, words = CHeader(), CPadding()
        space = CSpace((CChunk * enough)(), enough, (CSegment * enough)(), enough)
        buffer = (c_ubyte * (len(message) + 1))(0, *message)
        where = ctypes.byref(buffer, 1), c_size_t(len(message))
        into = ctypes.byref(head), ctypes.byref(words), ctypes.byref(space)
        size = self._judge(*into, *where)
        head.space = space
        return head, words, size


class WireOptimistic(Wire):
    """The C code of notices, and of the messages of an NFSv3 READ."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lib.nfr_wire_encode_notice.restype = c_size_t
        self.lib.nfr_wire_decode_read.restype = c_bool
        self.lib.nfr_wire_is_read_answer.restype = c_bool

    def write(self, notice: Notice) -> bytes:
        """The message that the C code encodes."""
        buffer = (c_ubyte * 118)(*[0xA5] * 118)
        size = int(
            self.lib.nfr_wire_encode_notice(
                ctypes.byref(_notice_to_c(notice)), ctypes.byref(buffer, 3)
            )
        )
        assert set(buffer[:3]) | set(buffer[3 + size :]) == {0xA5}
        return bytes(buffer[3 : 3 + size])

    def read(self, message: bytes) -> Notice:
        """The notice; RefusedError if the message is none."""
        notice = CNotice()
        buffer = (c_ubyte * (len(message) + 1))(0, *message)
        where = ctypes.byref(buffer, 1), c_size_t(len(message))
        _good(self.lib.nfr_wire_decode_notice(ctypes.byref(notice), *where))
        if notice.kind == 1:
            extent = Segment(notice.extent.handle, notice.extent.length, notice.extent.offset)
            fh = bytes(notice.fh[: notice.fh_length])
            return Grant(
                notice.lifetime, notice.position, extent, fh, notice.ends, notice.credential
            )
        return (
            Revoke(tuple(notice.handles[: notice.count]))
            if notice.kind == 2
            else Credit(notice.count)
        )

    def arguments(self, message: bytes) -> Nfs3Read | None:
        """The arguments of a Call of READ with AUTH_SYS; None if the message is another one."""
        call = CRead()
        buffer = (c_ubyte * (len(message) + 1))(0, *message)
        where = ctypes.byref(buffer, 1), c_size_t(len(message))
        if not self.lib.nfr_wire_decode_read(ctypes.byref(call), *where):
            return None
        fh = bytes(call.fh[: call.fh_length])
        credential = bytes(call.credential[: call.credential_length])
        return Nfs3Read(fh, call.position, call.count, credential=credential)

    def reply(self, xid: int, count: int, eof: bool) -> bytes:
        """A Reply up to its data."""
        buffer = (c_ubyte * 50)(*[0xA5] * 50)
        where = ctypes.byref(buffer, 3), c_uint32(xid), c_uint32(count), c_bool(eof)
        self.lib.nfr_wire_encode_read_reply(*where)
        assert set(buffer[:3]) | set(buffer[47:]) == {0xA5}
        return bytes(buffer[3:47])

    def is_answer(self, message: bytes) -> bool:
        """Whether a message is a Reply with attributes, up to its data."""
        buffer = (c_ubyte * (len(message) + 1))(0, *message)
        where = ctypes.byref(buffer, 1), c_size_t(len(message))
        return bool(self.lib.nfr_wire_is_read_answer(*where))

    def answer(self, message: bytes, xid: int, count: int, eof: bool) -> bytes:
        """The same Reply to another READ."""
        buffer = (c_ubyte * 134)(*[0xA5] * 3, *message, *[0xA5] * 3)
        where = ctypes.byref(buffer, 3), c_uint32(xid), c_uint32(count), c_bool(eof)
        self.lib.nfr_wire_set_read_answer(*where)
        assert set(buffer[:3]) | set(buffer[131:]) == {0xA5}
        return bytes(buffer[3:131])


def _most_chunks(message: bytes) -> int:
    """Number of chunks that the bytes can hold: an empty one takes two words."""
    return len(message) // 8


def _notice_to_c(notice: Notice) -> CNotice:
    match notice:
        case Grant(lifetime, position, extent, fh, ends, credential):
            segment = CSegment(extent.handle, extent.length, extent.offset)
            words = 1, lifetime, ends, position, segment, credential
            return CNotice(*words, len(fh), (c_ubyte * 64)(*fh))
        case Revoke(handles):
            return CNotice(2, count=len(handles), handles=(c_uint32 * 16)(*handles))
        case Credit(count):
            return CNotice(3, count=count)


def _to_c(header: Header) -> CHeader:
    reads = [_chunk_to_c(read.position, read.segments) for read in header.reads]
    writes = [_chunk_to_c(0, segments) for segments in header.writes]
    head = CHeader(xid=header.xid, credits=header.credits, proc=header.proc, error=header.error)
    head.nreads, head.reads = len(reads), (CChunk * len(reads))(*reads)
    head.nwrites, head.writes = len(writes), (CChunk * len(writes))(*writes)
    if header.reply is not None:
        head.reply = (CChunk * 1)(_chunk_to_c(0, header.reply))
    head.vers_low, head.vers_high = header.versions
    return head


def _chunk_to_c(position: int, segments: tuple[Segment, ...]) -> CChunk:
    array = (CSegment * len(segments))(*(CSegment(s.handle, s.length, s.offset) for s in segments))
    return CChunk(position, len(segments), array)


def _good(result: int) -> int:
    if result < 0:
        raise RefusedError(-result)
    return result
