# SPDX-License-Identifier: Apache-2.0
"""Run a function in a process of its own, so that whatever it waits for, the caller goes on.

A thread that waits in the kernel cannot be ended, and its process stays until it ends.  The child
has none of the caller's files open, so no reader of the caller's output waits for it.  It ends
with the caller, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from nfsrdma_tools.errors import UserError

__all__ = ["guarded"]

_AT_ONCE = 64 << 10
_DONE = b"\0"


def guarded(work: Callable[[], str], seconds: float) -> str:
    """What ``work`` returns.

    Raises the UserError that it raised, and UserError if it does not end in ``seconds``.
    """
    caller = os.getpid()
    try:
        reader, writer = os.pipe()
        child = os.fork()
    except OSError as error:
        raise UserError(f"cannot start a process: {error.strerror}", "see ulimit -a") from error
    if not child:
        os.close(reader)
        _run(work, writer, caller)
    os.close(writer)
    try:
        output = _read(reader, seconds)
        computes = output is None and _computes(child)
    finally:
        os.close(reader)
        # without effect on one that has ended, which stays a zombie until it is waited for
        os.kill(child, signal.SIGKILL)
    if computes:
        raise UserError(
            f"the check did not end within {seconds:g} s",
            "it was computing, not waiting: give a longer --timeout",
        )
    if output is None:
        raise UserError(
            f"the files of the kernel could not be read within {seconds:g} s",
            f"/proc/{child}/wchan names where it waits",
        )
    os.waitpid(child, 0)
    kind, _, text = output.partition(_DONE)
    if kind == b"result":
        return text.decode("utf-8", "surrogateescape")
    if kind == b"error":
        message, _, hint = text.decode("utf-8", "surrogateescape").partition("\0")
        raise UserError(message, hint)
    if not output:
        raise UserError("the check ended without a result", "it was killed, or had no memory left")
    raise RuntimeError(output.decode("utf-8", "replace"))


def _read(reader: int, seconds: float) -> bytes | None:
    """All that the child writes; None if it is not finished in time."""
    limit = time.monotonic() + seconds
    parts: list[bytes] = []
    while select.select([reader], [], [], max(limit - time.monotonic(), 0))[0]:
        part = os.read(reader, _AT_ONCE)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return None


def _computes(child: int) -> bool:
    """Whether a process runs, or waits for a processor, and for nothing else."""
    try:
        text = Path(f"/proc/{child}/stat").read_bytes()
    except OSError:
        return False
    # behind the name, which may have any bytes
    return text.rpartition(b")")[2].split()[:1] == [b"R"]


def _end_with(caller: int, writer: int) -> None:
    """Have the kernel end this process when the only reader of ``writer`` is gone.

    Not prctl(2), which Python does not have.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(writer, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(writer, fcntl.F_SETFL, os.O_ASYNC)
    if os.getppid() != caller:
        # it ended before
        os._exit(0)


def _nowhere() -> int:
    """A descriptor that gives nothing and takes nothing."""
    try:
        return os.open(os.devnull, os.O_RDWR)
    except OSError:
        # a container or a root without devices
        return os.open("/", os.O_RDONLY)


def _run(work: Callable[[], str], writer: int, caller: int) -> None:
    """Run ``work`` in the child, write its result, and end."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nowhere = _nowhere()
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
        _end_with(caller, writer)
        try:
            output = b"result\0" + work().encode("utf-8", "surrogateescape")
        except UserError as error:
            text = f"{error.message}\0{error.hint}"
            output = b"error\0" + text.encode("utf-8", "surrogateescape")
        except BaseException:
            output = traceback.format_exc().encode("utf-8", "replace")
        # what is read sends the signal, too
        fcntl.fcntl(writer, fcntl.F_SETFL, 0)
        with os.fdopen(writer, "wb") as file:
            file.write(output)
    finally:
        os._exit(0)
