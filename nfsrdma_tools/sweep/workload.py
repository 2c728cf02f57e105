# SPDX-License-Identifier: Apache-2.0
"""The workload: read or write a test file in small requests, and verify its data.

The 2003 paper's simple_read reads a file sequentially, and so does reader.py: one thread, one
request at a time.  (fio takes longer to start than to read.)  Requests are small (8 KiB): a reader
of 1 MiB requests has all of it in flight, whatever the read-ahead.

fio makes the file of 8 KiB blocks with a checksum and their offset (crc32c headers) and verifies
it before the first trial, which detects lost, torn and misplaced data.  The data of trials is
compared with the data that fio verified.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError, one_line
from nfsrdma_tools.files import opened_regular
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
# isolated, without site-packages; the kernel kills it when this process dies
_PYTHON = ("setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-I", "-S")
_ONLY_READ = ("--rw=read", "--readonly", "--allow_file_create=0")


def file_name(plan: Plan) -> str:
    """Name of the plan's file.  Readers of one size share a file, each writer has its own."""
    if plan.direction == "write":
        return f".nfsrdma-sweep-{plan.uid[:12]}"
    return f".nfsrdma-sweep-{format_size(plan.file_size)}"


def is_there(directory: Path, plan: Plan) -> bool:
    """Whether the file exists; UserError when its size is not the plan's."""
    path = directory / file_name(plan)
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(f"{path.name} cannot be checked: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path.name} is not a regular file", "remove it on the server")
    if found.st_size != plan.file_size:
        what = f"{path.name}: expected {plan.file_size} bytes, found {found.st_size}"
        raise UserError(what, "remove it on the server")
    return True


def make(directory: Path, plan: Plan) -> None:
    """Make the file under a temporary name and rename it, so that it is complete or absent."""
    path = directory / file_name(plan)
    draft = path.with_name(f"{path.name}.{plan.uid}")
    try:
        with _explaining(plan):
            _write(draft, plan.file_size, math.gcd(plan.file_size, 1 << 20), BLOCK)
        draft.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            _discard(draft)
        raise


def remove(directory: Path, plan: Plan) -> None:
    """Remove the file if it exists."""
    _discard(directory / file_name(plan))


def read(directory: Path, plan: Plan, cell: Cell) -> Job:
    """Do the read of a trial of ``cell`` once; raises JobError."""
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
    """Write the whole file once, to a new file, with an fsync at the end."""
    path = directory / file_name(plan)
    remove(directory, plan)
    size, checked = plan.request_size(cell), _checked_size(plan, cell)
    with _explaining(plan):
        return _write(path, plan.file_size, size, checked, *_direct(plan))


def remember(directory: Path, plan: Plan) -> Content:
    """The content of the file, for ``check``; call it after ``verify``."""
    with _explaining(plan), _errors():
        return file_checksums.remember(directory / file_name(plan))


def check(directory: Path, plan: Plan, expected: Content, cell: Cell | None = None) -> None:
    """Repeat the read of a trial of ``cell``, or read the whole file, and compare; raises JobError.

    Directly after a buffered read this compares the pages that came over the network.
    """
    size = plan.bytes_moved(cell) if cell else plan.file_size
    with _explaining(plan), _errors():
        if not file_checksums.holds(directory / file_name(plan), expected, size, plan.direct):
            raise OSError(errno.EILSEQ, os.strerror(errno.EILSEQ))


def verify(directory: Path, plan: Plan, cell: Cell | None = None) -> None:
    """Read the whole file and verify the checksum and the offset in each block.

    Raises UserError when the data read is not the data written.
    """
    size = math.gcd(plan.file_size, 8 * BLOCK)
    if plan.direct and cell:
        size = max(cell.rsize, BLOCK)
    checks = (*_checks(_checked_size(plan, cell)), "--verify_fatal=1")
    options = (*_ONLY_READ, *checks, *_direct(plan), f"--bs={size}")
    path = directory / file_name(plan)
    with _explaining(plan), _errors(), opened_regular(path, os.O_RDONLY) as file:
        fio.run_job(file, *options, size=plan.file_size)


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
    return JobError(one_line(stderr) or "the reader failed")


def _discard(path: Path) -> None:
    # data in flight would be kept as .nfs...: let it be dropped first
    with contextlib.suppress(OSError), opened_regular(path, os.O_WRONLY) as file:
        # another writer of the export can link a different file here
        if os.fstat(file).st_nlink == 1:
            os.ftruncate(file, 0)
    path.unlink(missing_ok=True)


def _checked_size(plan: Plan, cell: Cell | None) -> int:
    # a block cannot be larger than the requests that wrote it
    if cell and plan.direction == "write":
        return math.gcd(plan.request_size(cell), BLOCK)
    return BLOCK


def _checks(size: int) -> tuple[str, ...]:
    return ("--verify=crc32c", f"--verify_interval={size}")


def _write(path: Path, size: int, request: int, checked: int, *more: str) -> Job:
    options = ("--rw=write", "--end_fsync=1", "--do_verify=0", f"--bs={request}")
    new = os.O_RDWR | os.O_CREAT | os.O_EXCL
    with _errors(), opened_regular(path, new) as file:
        return fio.run_job(file, *options, *_checks(checked), *more, size=size)


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
        return JobError(what, error.number, "free space there, or use a smaller --file-size")
    if error.number in (errno.ELOOP, errno.EEXIST, errno.EINVAL):
        hint = "another program made it: remove it on the server"
        return JobError(f"{name}: {error.message}", error.number, hint)
    if error.number in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = (
            "the sweep writes as root, which root_squash maps to nobody: let nobody write to the "
            "exported directory, or export it with rw,no_root_squash"
        )
        return JobError(f"{name}: {error.message}", error.number, hint)
    return JobError(f"{name}: {error.message}", error.number, error.hint)
