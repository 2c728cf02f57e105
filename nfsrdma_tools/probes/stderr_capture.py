# SPDX-License-Identifier: Apache-2.0
"""What a library writes to descriptor 2 by itself is kept aside, and not lost if it ends us.

LLVM ends the program on a fatal error (``llvm::report_fatal_error``: abort, or exit): no Python
runs after that. A child waits until we are done, and says it when we cannot.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator

from nfsrdma_tools.errors import one_line, printable

__all__ = ["aside"]


@contextlib.contextmanager
def aside(what: str) -> Iterator[Callable[[], str]]:
    """Descriptor 2 goes to a file; what is yielded gives the reason in it, "" if it has nothing.

    ``what`` is done meanwhile, as in "ended while WHAT".
    """
    with tempfile.TemporaryFile() as file, contextlib.ExitStack() as stack:
        kept = os.dup(2)
        stack.callback(os.close, kept)
        stack.enter_context(_outlived(file.fileno(), kept, what))
        os.dup2(file.fileno(), 2)
        stack.callback(os.dup2, kept, 2)
        yield lambda: _reason(file.fileno())


def _reason(file: int) -> str:
    text = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
    # what follows an error explains it, at length
    errors = (printable(line) for line in text.splitlines() if "error" in line.lower())
    return next(errors, one_line(text))


@contextlib.contextmanager
def _outlived(file: int, stderr: int, what: str) -> Iterator[None]:
    """If this process ends in the block, a child says why, in one line."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        _wait(read, file, stderr, what)
    os.close(read)
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            os.write(write, b".")
        os.close(write)
        os.waitpid(child, 0)


def _wait(done: int, file: int, stderr: int, what: str) -> None:
    """Of the child: until it is told that all is well, or nobody is there to tell it."""
    try:
        # these are for the parent, which tells
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if not os.read(done, 1):
            why = _reason(file) or "nothing was said"
            os.write(stderr, f"nfsrdma: ended while {what}: {why}\n".encode())
    finally:
        os._exit(0)
