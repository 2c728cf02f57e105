# SPDX-License-Identifier: Apache-2.0
"""The workload: a test file, read or written as a whole in small requests, and its data checked.

The 2003 paper's simple_read reads a file sequentially; so does fio here, one thread, one request
at a time (psync).  Requests are small (8 KiB): a reader of 1 MiB at a time has all of it in
flight, whatever the read-ahead is.  The file is made of 8 KiB blocks with a checksum and their
own place in them (fio's crc32c headers), so lost, torn and misplaced data show.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Iterator
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.sizes import format_size
from nfsrdma_tools.sweep import fio
from nfsrdma_tools.sweep.fio import FioError, Job
from nfsrdma_tools.sweep.plan import BLOCK, Cell, Plan

__all__ = ["file_name", "is_there", "make", "read", "remove", "verify", "write"]

_MOST_TIMES = 1 << 20  # requests whose times are kept; longer runs are timed well enough in ms
_ONLY_READ = ("--rw=read", "--readonly", "--allow_file_create=0")


def file_name(plan: Plan) -> str:
    """Name of the plan's file.  All who read a size share one, each who writes has its own."""
    if plan.direction == "write":
        return f".nfsrdma-sweep-{plan.uid[:12]}"
    return f".nfsrdma-sweep-{format_size(plan.file_size)}"


def is_there(directory: Path, plan: Plan) -> bool:
    """Whether the file exists; UserError when it does and is not of the plan's size."""
    path = directory / file_name(plan)
    try:
        found = path.lstat().st_size
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(f"{path.name} cannot be looked at: {error.strerror}") from error
    if found != plan.file_size:
        what = f"{path.name}: expected {plan.file_size} bytes, found {found}"
        raise UserError(what, "remove it on the server")
    return True


def make(directory: Path, plan: Plan) -> None:
    """Make the file: under another name first, so that it is whole or not there at all.

    Nobody can guess that name and put a link there that leads fio astray.
    """
    path = directory / file_name(plan)
    draft = path.with_name(f"{path.name}.{plan.uid}")
    try:
        with _explaining(plan):
            _write(directory, draft.name, plan.file_size, math.gcd(plan.file_size, 1 << 20), BLOCK)
        draft.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            _discard(draft)
        raise


def remove(directory: Path, plan: Plan) -> None:
    """Remove the file, if it is there."""
    _discard(directory / file_name(plan))


def read(directory: Path, plan: Plan, cell: Cell, log: Path) -> Job:
    """Read the whole file once; fio keeps its times in ``log`` meanwhile."""
    size = plan.request_size(cell)
    options = (*_ONLY_READ, *_direct(plan), f"--bs={size}", _named(plan))
    with _explaining(plan):
        if plan.file_size // size > _MOST_TIMES:
            return fio.run_job(directory, *options, size=plan.file_size)
        return fio.run_timed(directory, *options, size=plan.file_size, log=log)


def write(directory: Path, plan: Plan, cell: Cell) -> Job:
    """Write the whole file once, to where nothing is; the fsync at its end is part of it."""
    remove(directory, plan)
    size, checked = plan.request_size(cell), _checked_size(plan, cell)
    with _explaining(plan):
        return _write(directory, file_name(plan), plan.file_size, size, checked, *_direct(plan))


def verify(directory: Path, plan: Plan, cell: Cell | None = None) -> None:
    """Read the file and check every block; UserError when the data is not what was written.

    Right after a buffered read this checks the very pages that came over the wire.
    """
    size = math.gcd(plan.file_size, 8 * BLOCK)
    if plan.direct and cell:
        size = max(cell.rsize, BLOCK)
    checks = (*_checks(_checked_size(plan, cell)), "--verify_fatal=1")
    options = (*_ONLY_READ, *checks, *_direct(plan), f"--bs={size}", _named(plan))
    with _explaining(plan):
        fio.run_job(directory, *options, size=plan.file_size)


def _discard(path: Path) -> None:
    # what is still on its way to the server would be kept as .nfs...: let it be dropped first
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            os.ftruncate(file, 0)
        finally:
            os.close(file)
    path.unlink(missing_ok=True)


def _checked_size(plan: Plan, cell: Cell | None) -> int:
    # a block cannot be larger than the requests it was written in
    if cell and plan.direction == "write":
        return math.gcd(plan.request_size(cell), BLOCK)
    return BLOCK


def _checks(size: int) -> tuple[str, ...]:
    return ("--verify=crc32c", f"--verify_interval={size}")


def _write(directory: Path, name: str, size: int, request: int, checked: int, *more: str) -> Job:
    options = ("--rw=write", "--end_fsync=1", "--do_verify=0", f"--bs={request}")
    words = (f"--filename={name}", *options, *_checks(checked), *more)
    return fio.run_job(directory, *words, size=size)


def _named(plan: Plan) -> str:
    return f"--filename={file_name(plan)}"


def _direct(plan: Plan) -> tuple[str, ...]:
    return ("--direct=1",) if plan.direct else ()


@contextlib.contextmanager
def _explaining(plan: Plan) -> Iterator[None]:
    try:
        yield
    except FioError as error:
        raise _explained(error, plan) from error


def _explained(error: FioError, plan: Plan) -> FioError:
    name = file_name(plan)
    if error.number == errno.EILSEQ:
        hint = "the data was damaged on its way: do not use this mount option"
        return FioError(f"{name}: the data read is not the data written", error.number, hint)
    if error.number in (errno.ENOSPC, errno.EDQUOT):
        what = f"no space on the server for {name}, {format_size(plan.file_size)}: {error.message}"
        return FioError(what, error.number, "make room there, or take a smaller --file-size")
    if error.number in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "export it with rw,no_root_squash, or have the file made on the server"
        return FioError(f"{name}: {error.message}", error.number, hint)
    return FioError(f"{name}: {error.message}", error.number, error.hint)
