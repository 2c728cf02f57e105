# SPDX-License-Identifier: Apache-2.0
"""A FUSE file system with one file, which is a file of another file system.

Messages: include/uapi/linux/fuse.h.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

ROOT, FILE, GENERATION = 1, 2, 77
# FUSE_EXPORT_SUPPORT, FUSE_INIT_EXT, and of the upper half FUSE_PASSTHROUGH
FLAGS, PASSTHROUGH_UPPER = 1 << 4 | 1 << 30, 1 << 5
# FOPEN_PASSTHROUGH, and FUSE_DEV_IOC_BACKING_OPEN
OPEN_PASSTHROUGH, BACKING_OPEN = 1 << 7, 0x4010E501
# seconds that the kernel may keep names and attributes
VALID = 60
# FORGET, INTERRUPT and BATCH_FORGET have no reply
UNANSWERED = (2, 36, 42)
Reply = tuple[int, bytes]


class FileSystem:
    """The device, the file, and a method for each request by its number."""

    def __init__(
        self, folder: Path, file: Path, passthrough: bool, ready: Callable[[], None]
    ) -> None:
        self.file, self.passthrough = os.open(file, os.O_RDONLY), passthrough
        self.ready = ready
        self.device, self.backing = os.open("/dev/fuse", os.O_RDWR), 0
        libc = ctypes.CDLL(None, use_errno=True)
        data = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"one-file", bytes(folder), b"fuse", 0, data):
            raise OSError(ctypes.get_errno(), "mount")
        self.answers: dict[int, Callable[[int, bytes], Reply]] = {
            1: self._lookup, 3: self._getattr, 14: self._open, 15: self._read,
            17: self._statfs, 18: self._released, 26: self._init,
        }  # fmt: skip

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self.device, 1 << 21)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                raise
            _, number, unique, node = struct.unpack("=IIQQ", request[:24])
            if number in UNANSWERED:
                continue
            status, body = self.answers.get(number, self._unknown)(node, request[40:])
            os.write(self.device, struct.pack("=IiQ", 16 + len(body), -status, unique) + body)

    def _unknown(self, node: int, body: bytes) -> Reply:
        return errno.ENOSYS, b""

    def _init(self, node: int, body: bytes) -> Reply:
        minor, upper = struct.unpack("=4xI8xI", body[:20])
        upper &= PASSTHROUGH_UPPER if self.passthrough else 0
        if upper or not self.passthrough:
            self.ready()
        # 64 KiB of writes at most, and one file system below
        fields = (7, minor, 1 << 17, FLAGS, 0, 0, 1 << 16, 1, 0, 0, upper, 1 if upper else 0)
        return 0, struct.pack("=IIIIHHIIHHII24x", *fields)

    def _attributes(self, node: int) -> bytes:
        is_root = node == ROOT
        size = 0 if is_root else os.fstat(self.file).st_size
        mode = stat.S_IFDIR | 0o755 if is_root else stat.S_IFREG | 0o644
        links = 2 if is_root else 1
        # changed at the beginning of 1970
        return struct.pack("=3Q3Q3I7I", node, size, size // 512, 0, 0, 0, 0, 0, 0,
                           mode, links, 0, 0, 0, 4096, 0)  # fmt: skip

    def _lookup(self, node: int, body: bytes) -> Reply:
        names = {b".": node, b"..": ROOT, b"file": FILE}
        number = names.get(body.rstrip(b"\0"))
        if not number:
            return errno.ENOENT, b""
        head = struct.pack("=4Q2I", number, GENERATION, VALID, VALID, 0, 0)
        return 0, head + self._attributes(number)

    def _getattr(self, node: int, body: bytes) -> Reply:
        return 0, struct.pack("=QII", VALID, 0, 0) + self._attributes(node)

    def _open(self, node: int, body: bytes) -> Reply:
        if not self.passthrough:
            return 0, struct.pack("=QIi", 0, 0, 0)
        if not self.backing:
            # the ioctl returns the number; fcntl.ioctl() does for a buffer that can be written
            mapping = bytearray(struct.pack("=iIQ", self.file, 0, 0))
            self.backing = fcntl.ioctl(self.device, BACKING_OPEN, mapping)
        return 0, struct.pack("=QIi", 0, OPEN_PASSTHROUGH, self.backing)

    def _read(self, node: int, body: bytes) -> Reply:
        offset, size = struct.unpack("=8xQI", body[:20])
        return 0, os.pread(self.file, size, offset)

    def _statfs(self, node: int, body: bytes) -> Reply:
        return 0, struct.pack("=5Q4I24x", 1, 0, 0, 2, 0, 4096, 255, 4096, 0)

    def _released(self, node: int, body: bytes) -> Reply:
        return 0, b""


def serve(folder: Path, file: Path, passthrough: bool, ready: Callable[[], None]) -> None:
    """Mount the file at ``folder``, and serve it until that is unmounted.

    With ``passthrough``, the kernel passes reads on to the pages of ``file``.  ``ready`` is called
    once the kernel has the file system.
    """
    FileSystem(folder, file, passthrough, ready).serve()
