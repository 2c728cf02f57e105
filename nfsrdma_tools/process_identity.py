# SPDX-License-Identifier: Apache-2.0
"""A process by its pid and its start time, because the kernel reuses pids."""

from __future__ import annotations

import os
import signal
from pathlib import Path

__all__ = ["is_running", "of_this_process", "terminate"]


def of_this_process() -> str:
    """The identity of this process: ``PID-START``, START in clock ticks after boot."""
    pid = os.getpid()
    return f"{pid}-{_start(pid)}"


def is_running(identity: str) -> bool:
    """Whether this process runs; a zombie does not, and holds no lock."""
    pid, _, start = identity.partition("-")
    return pid.isdecimal() and start != "" and _start(int(pid)) == start


def terminate(identity: str) -> bool:
    """Send SIGTERM to this process, and to no other one; False if it no longer runs."""
    try:
        handle = os.pidfd_open(int(identity.partition("-")[0]))
    except (ProcessLookupError, ValueError):
        return False
    try:
        # the handle keeps the pid from being reused after this comparison
        if not is_running(identity):
            return False
        signal.pidfd_send_signal(handle, signal.SIGTERM)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def _start(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # proc_pid_stat(5); the name, in brackets, may contain anything
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
