# SPDX-License-Identifier: Apache-2.0
"""Where the trials of a sweep take place: its mount point, and mounts that always come off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.module import swap as module_swap
from nfsrdma_tools.host.module.source import OURS
from nfsrdma_tools.host.nfs.mount_request import MountRequest
from nfsrdma_tools.host.nfs.mounting import mount, undo_for, unmount
from nfsrdma_tools.host.nfs.mounts import Mount, find
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.start_times import IMMEDIATELY, Rhythm
from nfsrdma_tools.sweep.trial_probes import Accounts
from nfsrdma_tools.undo import Journal

__all__ = ["Bench", "mounted", "ready", "request_for"]

# a server that is gone fails a trial instead of hanging the sweep; deciseconds, see nfs(5)
_PATIENCE = {"read": ("soft", "timeo=50", "retrans=2"), "write": ("soft", "timeo=300", "retrans=2")}


@dataclass(frozen=True)
class Bench:
    """A plan's mount point on this machine, the journal, how to reach the server's tunables.

    ``accounts`` are kept of each trial; ``rhythm`` says when their readers begin.  ``content``
    is what the test file holds, filled in before the first trial.  ``calm`` is how many seconds
    after the mount the reader begins at the earliest.
    """

    plan: Plan
    directory: Path
    book: Journal
    server_ssh: str = ""
    environment: str = ""
    accounts: Accounts = field(default_factory=Accounts)
    rhythm: Rhythm = IMMEDIATELY
    content: list[bytes | int] = field(default_factory=list)
    calm: float = 0.0


def request_for(bench: Bench, transport: str, cell: Cell | None = None) -> MountRequest:
    """The mount for a cell, or one with the kernel's own sizes.

    Raises UserError for a cell that Linux does not offer.
    """
    plan = bench.plan
    size = cell.rsize if cell else None
    return MountRequest(
        target=Target.parse(plan.target),
        directory=bench.directory,
        transport=transport,
        vers=plan.vers,
        rsize=size if plan.direction == "read" else None,
        wsize=size if plan.direction == "write" else None,
        nconnect=cell.nconnect if cell and cell.nconnect > 1 else None,
        read_ahead=cell.read_ahead if cell and plan.reads_ahead else None,
        # locks need rpc.statd with NFSv3, and nobody locks here
        options=(*_PATIENCE[plan.direction], *(("nolock",) if plan.vers == "3" else ())),
    )


def ready(bench: Bench, transport: str) -> None:
    """Have the right module carry ``transport``, where the plan compares ours with the kernel's.

    Elsewhere modules are left alone, and a mount that would get the wrong one is refused.
    """
    if OURS in bench.plan.transports and not module_swap.is_ready(transport):
        # a probe on a module's events holds the module
        bench.accounts.release()
        module_swap.ready(transport)


@contextlib.contextmanager
def mounted(bench: Bench, request: MountRequest) -> Iterator[Mount]:
    """A mount for as long as the block lasts, even when its server is gone at the end."""
    ready(bench, request.transport)
    made = mount(request, bench.book)
    try:
        yield made
    finally:
        _take_off(made, bench.book)


def _take_off(made: Mount, book: Journal) -> None:
    try:
        unmount(made, book, timeout=30)
    except UserError:
        # nothing on it is anybody's but ours: the test file, and reads of it
        run("umount", "-f", "-l", "--", made.directory, check=False, timeout=30)
        if find(made.directory):
            raise
        book.drop(undo_for(made.directory))
