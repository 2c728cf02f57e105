# SPDX-License-Identifier: Apache-2.0
"""Run fio, which makes and verifies the test file, and parse its report.

fio gets an open file and no path: fio itself would follow a symbolic link that another writer of
the export puts in place of the file, and its parser gives some characters of a path a meaning.  The
kernel kills it when this process dies, so that it doesn't keep a mount busy after a kill -9.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from nfsrdma_tools.command import Result, run
from nfsrdma_tools.sweep.io_result import SLOWEST, Job, JobError

__all__ = ["parse", "run_job"]

_COMMON = (
    "--name=job", "--ioengine=psync", "--thread", "--numjobs=1", "--eta=never", "--disk_util=0",
    "--output-format=json", "--invalidate=0", "--fallocate=none", "--verify_state_save=0",
    # fio's POSIX_FADV_SEQUENTIAL would double the read-ahead under test
    # (generic_fadvise in mm/fadvise.c)
    "--fadvise_hint=0",
    # otherwise fio unlinks a file that is shorter than the job
    "--create_on_open=1",
)  # fmt: skip


def run_job(file: int, *options: str, size: int) -> Job:
    """Run one job of ``size`` bytes on an open file, timed in whole ms; raises JobError."""
    argv = ("setpriv", "--pdeathsig", "KILL", "--", "fio", *_COMMON)
    words = (f"--filename=/proc/{os.getpid()}/fd/{file}", f"--size={size}", *options)
    job = parse(run(*argv, *words, check=False, timeout=120 + size / SLOWEST))
    if job.bytes != size:
        raise JobError(f"fio moved {job.bytes} bytes instead of {size}")
    return job


def parse(result: Result) -> Job:
    """Parse fio's output; JobError when the job failed."""
    try:
        start = re.search(r"^\{", result.stdout, re.MULTILINE)
        data, _ = json.JSONDecoder().raw_decode(result.stdout, start.start() if start else 0)
        (job,) = data["jobs"]
        return _job(job, result)
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(_said(result)) from error


def _job(job: dict[str, Any], result: Result) -> Job:
    if job["error"] or result.returncode:
        number = int(job["error"])
        raise JobError(os.strerror(number) if number else _said(result), number)
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
    return lines[0].strip() if lines else f"fio exited with status {result.returncode}"
