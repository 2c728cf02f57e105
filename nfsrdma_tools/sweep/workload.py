# SPDX-License-Identifier: Apache-2.0
"""The workload: a test file, read or written in small requests, and its data checked.

The 2003 paper's simple_read reads a file sequentially; so does sweep/reader.py, one thread, one
request at a time.  (fio would do, but takes longer to start than to read.)  Requests are small
(8 KiB): a reader of 1 MiB at a time has all of it in flight, whatever the read-ahead is.

fio makes the file, of 8 KiB blocks with a checksum and their own place in them (crc32c headers),
and checks it before the first trial, so lost, torn and misplaced data show.  What trials read is
compared with what fio found good.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError, one_line
from nfsrdma_tools.sizes import format_size
from nfsrdma_tools.sweep import file_checksums, fio
from nfsrdma_tools.sweep.file_checksums import Content
from nfsrdma_tools.sweep.io_result import SLOWEST, Job, JobError
from nfsrdma_tools.sweep.plan import BLOCK, Cell, Plan

__all__ = [
    "check",
    "file_name",
    "is_there",
    "make",
    "read",
    "remember",
    "remove",
    "verify",
    "write",
]

_READER = Path(__file__).with_name("reader.py")
# isolated, without site-packages, and ended by the kernel when this process ends
_PYTHON = ("setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-I", "-S")
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


def read(directory: Path, plan: Plan, cell: Cell) -> Job:
    """Read what a trial of ``cell`` reads, once; raises JobError."""
    path, size = directory / file_name(plan), plan.bytes_moved(cell)
    how = (size, plan.request_size(cell), "direct" if plan.direct else "buffered")
    limit = 120 + size / SLOWEST
    with _explaining(plan):
        said = run(*_PYTHON, _READER, path.absolute(), *map(str, how), check=False, timeout=limit)
        if said.returncode:
            raise _failed(said.stderr)
        done, took, user, system = map(int, said.stdout.split())
        if done != size:
            raise JobError(f"{done} bytes were read instead of {size}")
        return Job(done, took, user / 1e9, system / 1e9)


def write(directory: Path, plan: Plan, cell: Cell) -> Job:
    """Write the whole file once, to where nothing is; the fsync at its end is part of it."""
    remove(directory, plan)
    size, checked = plan.request_size(cell), _checked_size(plan, cell)
    with _explaining(plan):
        return _write(directory, file_name(plan), plan.file_size, size, checked, *_direct(plan))


def remember(directory: Path, plan: Plan) -> Content:
    """What the file holds, for ``check``; ask for it once ``verify`` has found it good."""
    with _explaining(plan), _errors():
        return file_checksums.remember(directory / file_name(plan))


def check(directory: Path, plan: Plan, expected: Content, cell: Cell | None = None) -> None:
    """Read again what a trial of ``cell`` read, or the whole file, and compare; raises JobError.

    Right after a buffered read this compares the very pages that came over the wire.
    """
    size = plan.bytes_moved(cell) if cell else plan.file_size
    with _explaining(plan), _errors():
        if not file_checksums.holds(directory / file_name(plan), expected, size, plan.direct):
            raise OSError(errno.EILSEQ, os.strerror(errno.EILSEQ))


def verify(directory: Path, plan: Plan, cell: Cell | None = None) -> None:
    """Read the whole file and check every block by the checksum and the place that are in it.

    Raises UserError when the data is not what was written.
    """
    size = math.gcd(plan.file_size, 8 * BLOCK)
    if plan.direct and cell:
        size = max(cell.rsize, BLOCK)
    checks = (*_checks(_checked_size(plan, cell)), "--verify_fatal=1")
    options = (*_ONLY_READ, *checks, *_direct(plan), f"--bs={size}", _named(plan))
    with _explaining(plan):
        fio.run_job(directory, *options, size=plan.file_size)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JobError(error.strerror or str(error), error.errno or 0) from error


def _failed(stderr: str) -> JobError:
    word, _, number = stderr.strip().partition(" ")
    if word == "errno" and number.isdigit():
        return JobError(os.strerror(int(number)), int(number))
    return JobError(one_line(stderr) or "the reader ended with a failure")


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
    except JobError as error:
        raise _explained(error, plan) from error


def _explained(error: JobError, plan: Plan) -> JobError:
    name = file_name(plan)
    if error.number == errno.EILSEQ:
        hint = "the data was damaged on its way: do not use this mount option"
        return JobError(f"{name}: the data read is not the data written", error.number, hint)
    if error.number in (errno.ENOSPC, errno.EDQUOT):
        what = f"no space on the server for {name}, {format_size(plan.file_size)}: {error.message}"
        return JobError(what, error.number, "make room there, or take a smaller --file-size")
    if error.number in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "export it with rw,no_root_squash, or have the file made on the server"
        return JobError(f"{name}: {error.message}", error.number, hint)
    return JobError(f"{name}: {error.message}", error.number, error.hint)
