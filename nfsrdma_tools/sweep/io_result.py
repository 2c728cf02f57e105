# SPDX-License-Identifier: Apache-2.0
"""The result of reading or writing the test file once, from fio or from the reader."""

from __future__ import annotations

from dataclasses import dataclass

from nfsrdma_tools.errors import UserError

__all__ = ["SLOWEST", "Job", "JobError"]

SLOWEST = 500_000
"""Bytes per second; a slower job counts as hung."""


class JobError(UserError):
    """A job failed; ``number`` is the errno, 0 when there is none."""

    def __init__(self, message: str, number: int = 0, hint: str = "") -> None:
        self.number = number
        super().__init__(message, hint)


@dataclass(frozen=True)
class Job:
    """A job's bytes, ns from the first to the last request, and CPU seconds of its thread."""

    bytes: int
    duration_ns: int
    user_s: float
    system_s: float

    @property
    def throughput(self) -> float:
        """Bytes per second; JobError when the job was too short for the program's clock."""
        if not self.duration_ns:
            what = f"{self.bytes} bytes took less than 1 ms, fio's unit"
            raise JobError(what, hint="use a larger --file-size")
        return self.bytes * 1e9 / self.duration_ns
