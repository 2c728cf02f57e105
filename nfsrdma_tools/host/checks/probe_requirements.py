# SPDX-License-Identifier: Apache-2.0
"""Checks of what measuring needs: bcc, and memory that may be locked."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import one_line
from nfsrdma_tools.host import packages
from nfsrdma_tools.host.checks.finding import Finding, Machine

__all__ = ["bcc", "judge_bcc", "memlock"]

_ENOUGH_BYTES = 1 << 30


def bcc(machine: Machine) -> Iterator[Finding]:
    """The BPF compiler collection can be imported; PyPI's bcc is a lattice library."""
    # in a process of its own: the import takes a second, and 100 MB
    said = run(sys.executable, "-c", "import bcc; bcc.BPF; print(bcc.__version__)", check=False)
    yield judge_bcc(said.returncode, said.stdout, said.stderr, machine.root)


def judge_bcc(status: int, stdout: str, stderr: str, root: Path = Path("/")) -> Finding:
    """Judge how an attempt to use ``bcc.BPF`` ended."""
    if status == 0:
        return Finding("bcc", "ok", f"version {one_line(stdout)}")
    expected, get = "needed by the probes only", packages.install("bcc", root=root)
    if "AttributeError" in stderr:
        remedy = f"pip uninstall bcc; {get} (PyPI's bcc is another thing)"
        return Finding("bcc", "warning", "bcc has no BPF: not the real one", expected, remedy)
    remedy = f"{get}, and a venv with --system-site-packages"
    return Finding("bcc", "warning", one_line(stderr) or f"status {status}", expected, remedy)


def memlock(machine: Machine) -> Iterator[Finding]:
    """User-space verbs (perftest) can register memory; the kernel's NFS needs no limit raised."""
    del machine
    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if os.geteuid() == 0 or soft == resource.RLIM_INFINITY or soft >= _ENOUGH_BYTES:
        shown = "unlimited" if soft < 0 else f"{soft >> 10} KiB"
        yield Finding("memlock", "ok", shown if os.geteuid() else "root is not bound by it")
    else:
        remedy = "raise memlock in /etc/security/limits.d (perftest only: NFS does not need it)"
        yield Finding("memlock", "warning", f"{soft >> 10} KiB", "1 GiB or more", remedy)
