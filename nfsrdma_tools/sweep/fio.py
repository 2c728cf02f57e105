# SPDX-License-Identifier: Apache-2.0
"""Runs fio for one sequential job and reads its accounts.

fio runs with the folder as its working folder, so no path of a user's reaches its parser, and
with a leash: it dies with this process, so that nothing keeps a mount busy after a kill -9.
"""

from __future__ import annotations

import functools
import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nfsrdma_tools.command import Result, run
from nfsrdma_tools.errors import UserError

__all__ = [
    "FioError",
    "Job",
    "has_option",
    "log_file",
    "parse",
    "parse_log",
    "run_job",
    "run_timed",
]

_SLOWEST = 500_000  # bytes per second; what is slower than this hangs
_COMMON = (
    "--name=job", "--ioengine=psync", "--thread", "--numjobs=1", "--eta=never", "--disk_util=0",
    "--output-format=json", "--invalidate=0", "--fallocate=none", "--verify_state_save=0",
    # fio's advice "sequential" would double the read-ahead that is being measured
    # (POSIX_FADV_SEQUENTIAL in mm/fadvise.c)
    "--fadvise_hint=0",
)  # fmt: skip


class FioError(UserError):
    """fio could not do its job; ``number`` is the errno, 0 when there is none."""

    def __init__(self, message: str, number: int = 0, hint: str = "") -> None:
        self.number = number
        super().__init__(message, hint)


@dataclass(frozen=True)
class Job:
    """What a job did: bytes, ns from first to last request, CPU seconds of its thread."""

    bytes: int
    duration_ns: int
    user_s: float
    system_s: float


def run_job(directory: Path, *options: str, size: int) -> Job:
    """Run one job of ``size`` bytes in ``directory``, timed in whole ms; raises FioError."""
    argv = ("env", "-C", os.fspath(directory.absolute()), "setpriv", "--pdeathsig", "KILL", "--")
    limit = 120 + size / _SLOWEST
    words = (*_COMMON, f"--size={size}", *options)
    job = parse(run(*argv, "fio", *words, check=False, timeout=limit))
    if job.bytes != size:
        raise FioError(f"fio moved {job.bytes} bytes instead of {size}")
    return job


def run_timed(directory: Path, *options: str, size: int, log: Path) -> Job:
    """The same with the duration in ns, if fio logs issue times; not for a job that ends in fsync.

    ``log_file(log)`` is written meanwhile.
    """
    if not has_option("log_issue_time"):
        return run_job(directory, *options, size=size)
    try:
        job = run_job(directory, *options, *_logging(log), size=size)
        return replace(job, duration_ns=parse_log(log_file(log).read_text()) or job.duration_ns)
    finally:
        log_file(log).unlink(missing_ok=True)


def log_file(log: Path) -> Path:
    """The file that fio makes of a log's name."""
    return log.with_name(f"{log.name}_clat.1.log")


@functools.cache
def has_option(name: str) -> bool:
    """Whether this fio knows a job option; ProgramMissingError without fio."""
    said = run("fio", f"--cmdhelp={name}", check=False)
    return f"{name}:" in said.stdout.replace(" ", "")


def parse(result: Result) -> Job:
    """Read what fio printed; FioError when the job failed."""
    try:
        start = re.search(r"^\{", result.stdout, re.MULTILINE)
        data, _ = json.JSONDecoder().raw_decode(result.stdout, start.start() if start else 0)
        (job,) = data["jobs"]
        return _job(job, result)
    except (ValueError, KeyError, TypeError) as error:
        raise FioError(_said(result)) from error


def parse_log(text: str) -> int:
    """Nanoseconds from the first request's issue to the last one's end; 0 when it is empty.

    A line is: time (ms), latency (ns), direction, size, offset, priority, issue time (ns).
    """
    lines = text.splitlines()
    if not lines:
        return 0
    first, last = ([int(word) for word in line.split(",")] for line in (lines[0], lines[-1]))
    return last[6] + last[1] - first[6]


def _logging(path: Path) -> tuple[str, ...]:
    log = (f"--write_lat_log={path}", "--log_issue_time=1", "--log_offset=1")
    return (*log, "--disable_lat=1", "--disable_slat=1")


def _job(job: dict[str, Any], result: Result) -> Job:
    if job["error"] or result.returncode:
        number = int(job["error"])
        raise FioError(os.strerror(number) if number else _said(result), number)
    side = max(job["read"], job["write"], key=lambda side: int(side["io_bytes"]))
    seconds = job["job_runtime"] / 1000
    return Job(
        bytes=int(side["io_bytes"]),
        duration_ns=int(side["runtime"]) * 1_000_000,
        user_s=job["usr_cpu"] / 100 * seconds,
        system_s=job["sys_cpu"] / 100 * seconds,
    )


def _said(result: Result) -> str:
    if result.returncode == 124:
        return result.stderr.strip().splitlines()[-1]
    lines = [line for line in (result.stderr + result.stdout).splitlines() if "fio: " in line]
    return lines[0].strip() if lines else f"fio ended with status {result.returncode}"
