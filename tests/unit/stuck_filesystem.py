# SPDX-License-Identifier: Apache-2.0
"""A FUSE filesystem that answers nothing: SIGKILL does not end a process that waits for it.

The messages are those of include/uapi/linux/fuse.h.  The kernel waits without regard to signals
for a request that the filesystem has read (request_wait_answer in fs/fuse/dev.c).
"""

import contextlib
import ctypes
import os
import select
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_LOOKUP, _INIT = 1, 26
_PARALLEL_LOOKUPS = 1 << 18
_IN_HEADER = struct.Struct("=IIQQIIIHH")
_OUT_HEADER = struct.Struct("=IiQ")
# major, minor, max_readahead, flags, max_background, congestion_threshold, max_write, time_gran
_INIT_OUT = struct.Struct("=IIIIHHII32x")
_MNT_DETACH = 2
_SECONDS = 60.0


class StuckFilesystem:
    """``waiting`` are the pids whose requests it has read."""

    def __init__(self, handle: int) -> None:
        self.waiting: list[int] = []
        self._handle = handle
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Abort the connection: all waiting processes end."""
        self._over.set()
        self._thread.join()

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        # a test of a command without a limit fails, and does not wait for ever
        limit = time.monotonic() + _SECONDS
        while not self._over.is_set() and time.monotonic() < limit:
            if poll.poll(50):
                self._read()
        os.close(self._handle)

    def _read(self) -> None:
        try:
            request = os.read(self._handle, 1 << 17)
        except OSError:
            # the sender was killed before this read the request, or all is unmounted
            return
        _, kind, unique, *_, pid, _, _ = _IN_HEADER.unpack_from(request)
        if kind == _INIT:
            answer = _INIT_OUT.pack(7, 31, 4096, _PARALLEL_LOOKUPS, 12, 9, 4096, 1)
            header = _OUT_HEADER.pack(_OUT_HEADER.size + len(answer), 0, unique)
            os.write(self._handle, header + answer)
        elif kind == _LOOKUP:
            self.waiting.append(pid)


@contextlib.contextmanager
def stuck_filesystem(directory: Path) -> Iterator[StuckFilesystem]:
    """Mount one on ``directory`` in the block.  OSError where that is not possible."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    path, options = os.fsencode(directory), f"fd={handle},rootmode=40000,user_id=0,group_id=0"
    if libc.mount(b"stuck", path, b"fuse", 0, options.encode()):
        os.close(handle)
        raise OSError(ctypes.get_errno(), "cannot mount a FUSE filesystem")
    filesystem = StuckFilesystem(handle)
    try:
        yield filesystem
    finally:
        libc.umount2(path, _MNT_DETACH)
        filesystem.end()
