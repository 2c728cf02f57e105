# SPDX-License-Identifier: Apache-2.0
"""The work of a trial: make, read, write and verify the test file.

The reader is a program of its own (reader.py), fio writes and verifies.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import mmap
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nfsrdma_tools.command import END_WITH_US, Result, run
from nfsrdma_tools.errors import UserError, one_line
from nfsrdma_tools.files import opened_regular, readable
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.sizes import format_size
from nfsrdma_tools.sweep.plan import BLOCK, WARM_UP, Cell, Plan

__all__ = [
    "ISOLATED_PYTHON",
    "SLOWEST",
    "Content",
    "Job",
    "JobError",
    "check",
    "checked_part",
    "file_name",
    "has_content",
    "is_there",
    "make",
    "parse",
    "read",
    "read_content",
    "remember",
    "remove",
    "require_engine",
    "run_isolated",
    "run_job",
    "verify",
    "warm_up",
    "write",
]

_READER = Path(__file__).with_name("reader.py")
ISOLATED_PYTHON = (*END_WITH_US, sys.executable, "-I", "-S")
"""Words before a program that imports the standard library only: without site-packages."""
_ONLY_READ = ("--rw=read", "--readonly", "--allow_file_create=0")


SLOWEST = 500_000
"""Bytes per second; a slower job counts as hung."""


class JobError(UserError):
    """A job failed; ``number`` is the errno, 0 when there is none."""

    def __init__(self, message: str, number: int = 0, hint: str = "", option: str = "") -> None:
        self.number = number
        super().__init__(message, hint, option)


@dataclass(frozen=True)
class Job:
    """A job's bytes, ns from the first to the last request, and CPU seconds of its threads.

    ``first`` are the bytes of its first thread.  With ``has_workers``, threads of the kernel did a
    part of its work, in no thread's CPU time.
    """

    bytes: int
    duration_ns: int
    user_s: float
    system_s: float
    first: int = 0
    has_workers: bool = False

    @property
    def throughput(self) -> float:
        """Bytes per second; JobError when the job was too short for the program's clock."""
        if not self.duration_ns:
            message = f"{self.bytes} bytes took less than 1 ms, fio's unit"
            raise JobError(message, option="use a larger --file-size")
        return self.bytes * 1e9 / self.duration_ns


Content = Sequence[bytes | int]
"""Each MiB of a file: the content of the first ones, checksums of the others."""


def file_name(plan: Plan) -> str:
    """Name of the plan's file.  Readers of one size share a file, each writer has its own."""
    if plan.direction == "write":
        return f".nfsrdma-sweep-{plan.uid[:12]}"
    return f".nfsrdma-sweep-{format_size(plan.file_size)}"


def is_there(directory: Path, plan: Plan) -> bool:
    """Whether the file exists; UserError when its size is not the plan's."""
    path = directory / file_name(plan)
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(f"{path.name} cannot be checked: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path.name} is not a regular file", "remove it on the server")
    if status.st_size != plan.file_size:
        message = f"{path.name}: expected {plan.file_size} bytes, found {status.st_size}"
        raise UserError(message, "remove it on the server")
    return True


def make(directory: Path, plan: Plan) -> None:
    """Make the file under a temporary name and rename it, so that it is complete or absent."""
    path = directory / file_name(plan)
    draft = path.with_name(f"{path.name}.{plan.uid}")
    try:
        with _explaining(plan):
            # a killed attempt of this sweep left it: the uid is in its name
            with _errors():
                _discard(draft)
            request = math.gcd(plan.file_size, 1 << 20)
            _write(draft, plan.file_size, BLOCK, f"--bs={request}")
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
    with _explaining(plan):
        if plan.engine(cell):
            job = _read_with_fio(directory, plan, cell)
        else:
            sizes = plan.bytes_moved(cell), plan.request_size(cell)
            job = _read(directory, plan, *sizes, direct=plan.is_direct(cell))
        # fio rounds to ms
        is_over = plan.seconds and job.duration_ns >= plan.seconds * 1e9 - 2e6
        if job.bytes < plan.bytes_moved(cell) and not is_over:
            raise JobError(f"{job.bytes} bytes were read instead of {plan.bytes_moved(cell)}")
        return job


def warm_up(directory: Path, plan: Plan, cell: Cell) -> None:
    """Do the work of a trial for a moment; reads use O_DIRECT, which leaves the cache cold."""
    moment = replace(plan, seconds=plan.seconds * WARM_UP)
    if plan.direction == "write":
        write(directory, moment, cell)
        return
    with _explaining(plan):
        _read(directory, moment, plan.file_size, _aligned(cell.rsize), direct=True)


def _aligned(size: int) -> int:
    return max(size, mmap.PAGESIZE)


def _read(directory: Path, plan: Plan, size: int, request: int, *, direct: bool) -> Job:
    path = directory / file_name(plan)
    how = (size, request, "direct" if direct else "buffered", plan.seconds)
    limit = 120 + plan.seconds + size / SLOWEST
    output = run_isolated(_READER, str(path.absolute()), *map(str, how), timeout=limit)
    done, took, user, system = map(int, output.split())
    return Job(done, took, user / 1e9, system / 1e9, first=done)


def run_isolated(
    program: Path, *words: str, timeout: float, watch: Callable[[], None] | None = None
) -> str:
    """The output of a program that imports the standard library only; raises JobError.

    It prints the errno of a file on standard error.
    """
    result = run(*ISOLATED_PYTHON, program, *words, check=False, timeout=timeout, watch=watch)
    if result.returncode:
        raise _failed(result.stderr)
    return result.stdout


def _read_with_fio(directory: Path, plan: Plan, cell: Cell) -> Job:
    again = ("--time_based",) if plan.reads_again(cell) else ()
    options = (*_ONLY_READ, *_direct(plan, cell), *_limit(plan), *again)
    with _errors(), opened_regular(directory / file_name(plan), os.O_RDONLY) as file:
        return run_job(file, *options, *_load(plan, cell), size=plan.bytes_moved(cell))


def _load(plan: Plan, cell: Cell) -> tuple[str, ...]:
    """The options of fio for a cell's requests, and for jobs that have a part of the file each."""
    request, engine = (f"--bs={plan.request_size(cell)}",), plan.engine(cell)
    if not engine:
        return request
    jobs = (f"--numjobs={cell.jobs}", f"--offset_increment={plan.part(cell)}")
    return (*request, *jobs, f"--ioengine={engine}", f"--iodepth={cell.depth}")


def _limit(plan: Plan) -> tuple[str, ...]:
    return (f"--runtime={round(plan.seconds * 1000)}ms",) if plan.seconds else ()


def require_engine(plan: Plan, machine: Machine = LIVE) -> None:
    """UserError if the kernel does not allow what the plan's depths need."""
    setting = machine.path("proc/sys/kernel/io_uring_disabled")
    engines = map(plan.engine, plan.cells())
    if "io_uring" in engines and readable(setting).strip() == "2":
        message = "a depth above 1 needs io_uring, and kernel.io_uring_disabled is 2"
        raise UserError(message, "set it to 0 with sysctl", "or sweep with --depth 1")


def write(directory: Path, plan: Plan, cell: Cell) -> Job:
    """Write the whole file once, to a new file, with an fsync at the end.

    With ``plan.seconds`` it stops after that time.
    """
    path = directory / file_name(plan)
    remove(directory, plan)
    load, checked = _load(plan, cell), _checked_size(plan, cell)
    more = (*load, *_direct(plan, cell), *_limit(plan))
    with _explaining(plan):
        return _write(path, plan.bytes_moved(cell), checked, *more)


def remember(directory: Path, plan: Plan) -> Content:
    """The content of the file, for ``check``; call it after ``verify``."""
    with _explaining(plan), _errors():
        return read_content(directory / file_name(plan))


def checked_part(plan: Plan, moved: int) -> int:
    """How many bytes of the ``moved`` ones are verified, from the start of the file."""
    return min(moved, plan.file_size, _VERIFIED) if plan.seconds else moved


def check(
    directory: Path, plan: Plan, expected: Content, size: int, cell: Cell | None = None
) -> None:
    """Read the first ``size`` bytes of the file again, as ``cell`` does; raises JobError.

    It compares them with ``expected``.  Directly after a buffered read these are the pages that
    came over the network.
    """
    direct = plan.is_direct(cell) if cell else plan.direct
    with _explaining(plan), _errors():
        if not has_content(directory / file_name(plan), expected, size, direct):
            raise OSError(errno.EILSEQ, os.strerror(errno.EILSEQ))


def verify(directory: Path, plan: Plan, cell: Cell | None = None, length: int = 0) -> None:
    """Read the file, or its first ``length`` bytes, and verify checksum and offset of each block.

    Raises UserError when the data read is not the data written.
    """
    length = length or plan.file_size
    size = math.gcd(length, 8 * BLOCK)
    if plan.direct and cell:
        size = max(cell.rsize, BLOCK)
    checks = (*_checks(_checked_size(plan, cell)), "--verify_fatal=1")
    options = (*_ONLY_READ, *checks, *_direct(plan, cell), f"--bs={size}")
    path = directory / file_name(plan)
    with _explaining(plan), _errors(), opened_regular(path, os.O_RDONLY) as file:
        run_job(file, *options, size=length)


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


def _write(path: Path, size: int, checked: int, *more: str) -> Job:
    options = ("--rw=write", "--end_fsync=1", "--do_verify=0")
    new = os.O_RDWR | os.O_CREAT | os.O_EXCL
    with _errors(), opened_regular(path, new) as file:
        return run_job(file, *options, *_checks(checked), *more, size=size)


def _direct(plan: Plan, cell: Cell | None) -> tuple[str, ...]:
    return ("--direct=1",) if plan.direct or (cell and cell.direct) else ()


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
        message = (
            f"no space on the server for {name}, {format_size(plan.file_size)}: {error.message}"
        )
        option = "or use a smaller --file-size"
        return JobError(message, error.number, "free space there", option)
    if error.number in (errno.ELOOP, errno.EEXIST, errno.EINVAL):
        hint = "another program made it: remove it on the server"
        return JobError(f"{name}: {error.message}", error.number, hint)
    if error.number in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = (
            "the sweep writes as root, which root_squash maps to nobody: let nobody write to the "
            "exported directory, or export it with rw,no_root_squash"
        )
        return JobError(f"{name}: {error.message}", error.number, hint)
    return JobError(f"{name}: {error.message}", error.number, error.hint, error.option)


_COMMON = (
    "--name=job", "--thread", "--eta=never", "--disk_util=0",
    "--output-format=json", "--invalidate=0",
    # over NFSv4.2 fio's fallocate(2) would be an ALLOCATE on the server before the first WRITE
    "--fallocate=none",
    # fio would leave a file in the working directory
    "--verify_state_save=0",
    # fio's POSIX_FADV_SEQUENTIAL would double the read-ahead under test
    # (generic_fadvise in mm/fadvise.c)
    "--fadvise_hint=0",
    # otherwise fio unlinks a file that is shorter than the job
    "--create_on_open=1",
)  # fmt: skip


def run_job(file: int, *options: str, size: int) -> Job:
    """Run a job of fio of ``size`` bytes on an open file, timed in whole ms; raises JobError.

    The threads of ``--numjobs`` have equal shares of ``size``.  ProgramMissingError without fio.
    """
    # fio gets an open file and no path: it would follow a symbolic link that another writer of the
    # export puts in place of the file, and its parser gives some characters of a path a meaning.
    # The kernel kills it when this process dies: it would keep the mount busy after a kill -9.
    argv = (*END_WITH_US, "fio", *_COMMON)
    given = dict(option.partition("=")[::2] for option in options)
    share = size // int(given.get("--numjobs", 1))
    engine = () if "--ioengine" in given else ("--ioengine=psync",)
    words = (f"--filename=/proc/{os.getpid()}/fd/{file}", f"--size={share}", *engine, *options)
    job = parse(run(*argv, *words, check=False, timeout=120 + size / SLOWEST))
    if given.get("--ioengine") == "io_uring":
        job = replace(job, has_workers=True)
    if job.bytes != size and "--runtime" not in given:
        raise JobError(f"fio moved {job.bytes} bytes instead of {size}")
    return job


def parse(result: Result) -> Job:
    """Parse fio's output; JobError when the job failed."""
    try:
        # fio prints notes and errors of its own before and after the document
        start = re.search(r"^\{", result.stdout, re.MULTILINE)
        data, _ = json.JSONDecoder().raw_decode(result.stdout, start.start() if start else 0)
        number = next((int(job["error"]) for job in data["jobs"] if job["error"]), 0)
        if number or result.returncode:
            raise JobError(os.strerror(number) if number else _fio_error(result), number)
        jobs = list(map(_job, data["jobs"]))
        return Job(
            bytes=sum(job.bytes for job in jobs),
            duration_ns=max(job.duration_ns for job in jobs),
            user_s=sum(job.user_s for job in jobs),
            system_s=sum(job.system_s for job in jobs),
            first=jobs[0].bytes,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(_fio_error(result)) from error


def _job(job: dict[str, Any]) -> Job:
    side = max(job["read"], job["write"], key=lambda side: int(side["io_bytes"]))
    seconds = job["job_runtime"] / 1000
    return Job(
        bytes=int(side["io_bytes"]),
        duration_ns=int(side["runtime"]) * 1_000_000,
        user_s=job["usr_cpu"] / 100 * seconds,
        system_s=job["sys_cpu"] / 100 * seconds,
    )


def _fio_error(result: Result) -> str:
    if result.returncode == 124:
        return result.stderr.strip().splitlines()[-1]
    lines = [line for line in (result.stderr + result.stdout).splitlines() if "fio: " in line]
    return lines[0].strip() if lines else f"fio exited with status {result.returncode}"


_BLOCK = 1 << 20
# a comparison costs a fraction of a checksum, but needs memory
_KEPT = 64
# with trials by time: what came first is enough to find damage, and takes less time than the trial
_VERIFIED = 256 << 20


def read_content(path: Path) -> Content:
    """Read the whole file; raises OSError."""
    blocks = enumerate(_blocks(path))
    return [block if number < _KEPT else zlib.crc32(block) for number, block in blocks]


def has_content(path: Path, content: Content, size: int, direct: bool = False) -> bool:
    """Read the first ``size`` bytes in whole blocks and compare; ``direct`` uses O_DIRECT.

    Raises OSError.
    """
    wanted = content[: -(-size // _BLOCK)]
    blocks = itertools.islice(_blocks(path, direct), len(wanted))
    return all(map(_same, itertools.chain(blocks, itertools.repeat(b"")), wanted))


def _same(block: bytes, known: bytes | int) -> bool:
    return block == known if isinstance(known, bytes) else zlib.crc32(block) == known


def _blocks(path: Path, direct: bool = False) -> Iterator[bytes]:
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
    # page-aligned, as O_DIRECT requires
    with opened_regular(path, flags) as file, mmap.mmap(-1, _BLOCK) as room:
        while done := os.readv(file, [room]):
            yield room[:done]
