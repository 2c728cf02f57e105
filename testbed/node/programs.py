# SPDX-License-Identifier: Apache-2.0
"""Programs and processes in a node, and conditions that become true there."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from multiprocessing import Process

__all__ = ["call", "hung", "settled", "until"]

T = TypeVar("T")


def call(*argv: str | Path, check: bool = True, stdin: str = "") -> str:
    """Run a program; returns its output. RuntimeError has its standard error if it fails."""
    done = subprocess.run(argv, check=False, capture_output=True, text=True, input=stdin)
    if check and done.returncode:
        words = " ".join(map(str, argv))
        raise RuntimeError(f"{words}: exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def until(
    event: str, condition: Callable[[], T | None], limit: float = 120, pause: float = 0.02
) -> T:
    """Wait until a condition returns a true value, and return it.

    TimeoutError after ``limit`` seconds; ``pause`` are the seconds between two checks.
    """
    end = time.monotonic() + limit
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{event}: not in {limit:g} s, last value {value!r:.200}")
        time.sleep(pause)
    return value


def hung(processes: Sequence[Process], limit: float = 60) -> list[str]:
    """Wait for processes; returns the stacks in the kernel of those that have not ended then."""
    end = time.monotonic() + limit
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    return [Path(f"/proc/{p.pid}/stack").read_text() for p in processes if p.is_alive()]


def settled(read: Callable[[], T], limit: float = 60, pause: float = 0.2) -> T:
    """Read a value until it stays the same for ``pause`` seconds, and return it.

    TimeoutError after ``limit`` seconds.
    """
    end, value = time.monotonic() + limit, read()
    while True:
        time.sleep(pause)
        before, value = value, read()
        if value == before:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"not the same in {limit:g} s, last value {value!r:.200}")
