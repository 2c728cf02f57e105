# SPDX-License-Identifier: Apache-2.0
"""Captures what a library writes to descriptor 2, and prints it if the library ends the process.

LLVM ends the process on a fatal error (``llvm::report_fatal_error``: abort, or exit): no Python
code runs after that.  A child process waits until the block ends, and prints the reason if this
process dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator

from nfsrdma_tools.errors import one_line, printable

__all__ = ["captured_stderr"]


@contextlib.contextmanager
def captured_stderr(what: str) -> Iterator[Callable[[], str]]:
    """Redirect descriptor 2 to a file; yields a function that returns the reason in it, or "".

    ``what`` describes the block, as in "ended while WHAT".
    """
    with tempfile.TemporaryFile() as file, contextlib.ExitStack() as stack:
        kept = os.dup(2)
        stack.callback(os.close, kept)
        stack.enter_context(_report_death(file.fileno(), kept, what))
        os.dup2(file.fileno(), 2)
        stack.callback(os.dup2, kept, 2)
        yield lambda: _reason(file.fileno())


def _reason(file: int) -> str:
    text = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
    # the lines after the error are details
    errors = (printable(line) for line in text.splitlines() if "error" in line.lower())
    return next(errors, one_line(text))


@contextlib.contextmanager
def _report_death(file: int, stderr: int, what: str) -> Iterator[None]:
    """If this process ends in the block, a child prints why, in one line."""
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
    """In the child: wait until the parent reports success or has died."""
    try:
        # the parent handles these signals
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if not os.read(done, 1):
            why = _reason(file) or "no message"
            os.write(stderr, f"nfsrdma: ended while {what}: {why}\n".encode())
    finally:
        os._exit(0)
