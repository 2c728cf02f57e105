# SPDX-License-Identifier: Apache-2.0
"""How errors and signals end a program, and what --verbose prints."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from nfsrdma_tools.cli.output import checked_output, open_streams
from nfsrdma_tools.errors import UserError, printable

__all__ = ["log_programs", "run"]


def run(work: Callable[[], None]) -> None:
    """Run a command; a UserError ends it with one line and its exit status.

    So does an error of a file, such as on a full or read-only filesystem; --verbose adds where.
    """
    open_streams()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # nohup(1) sets SIGHUP to ignored
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        with checked_output():
            work()
    except UserError as error:
        _fail(str(error), error.status)
    except OSError as error:
        import logging

        logging.getLogger("nfsrdma_tools").debug("failed", exc_info=True)
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", UserError.status)


def _fail(message: str, status: int) -> NoReturn:
    print(f"nfsrdma: {printable(message)}", file=sys.stderr)
    sys.exit(status)


def _stop(number: int, _frame: FrameType | None) -> None:
    # unwind the stack, so that the journal reverts its changes
    sys.exit(128 + number)


def log_programs(enabled: bool) -> None:
    """Log each program that nfsrdma runs, and its exit status, to standard error."""
    if enabled:
        import logging

        logging.basicConfig(format="nfsrdma: %(message)s")
        logging.getLogger("nfsrdma_tools").setLevel(logging.DEBUG)
