# SPDX-License-Identifier: Apache-2.0
"""The mount point of a sweep's trials, and mounts that are always unmounted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.module import swap as module_swap
from nfsrdma_tools.host.nfs.mount_request import MountRequest
from nfsrdma_tools.host.nfs.mounting import drop_undo, mount, unmount
from nfsrdma_tools.host.nfs.mounts import Mount, find
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.sweep.plan import Cell, Plan
from nfsrdma_tools.sweep.start_times import IMMEDIATELY, Rhythm
from nfsrdma_tools.sweep.trial_probes import Accounts
from nfsrdma_tools.undo import Journal

__all__ = ["Bench", "mounted", "ready", "request_for"]

# a dead server fails a trial instead of hanging the sweep; timeo is in deciseconds, see nfs(5)
_PATIENCE = {"read": ("soft", "timeo=50", "retrans=2"), "write": ("soft", "timeo=300", "retrans=2")}


@dataclass(frozen=True)
class Bench:
    """A plan's mount point on this machine, the journal, and the host for the server's tunables.

    ``accounts`` are the probe sets of each trial; ``rhythm`` has the start times of the readers.
    ``content`` is the content of the test file, set before the first trial.  The reader starts at
    least ``calm`` seconds after the mount.
    """

    plan: Plan
    directory: Path
    changes: Journal
    server_ssh: str = ""
    environment: str = ""
    accounts: Accounts = field(default_factory=Accounts)
    rhythm: Rhythm = IMMEDIATELY
    content: list[bytes | int] = field(default_factory=list)
    calm: float = 0.0


def request_for(bench: Bench, transport: str, cell: Cell | None = None) -> MountRequest:
    """The mount request of a cell, or one with the kernel's default sizes.

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
        personality=cell.personality if cell else None,
        # with NFSv3, locks need rpc.statd; a sweep uses no locks
        options=(*_PATIENCE[plan.direction], *(("nolock",) if plan.vers == "3" else ())),
    )


def ready(bench: Bench, transport: str) -> None:
    """Load the module of ``transport``, if the plan compares our module with the kernel's.

    Otherwise modules stay unchanged, and a mount over the wrong one is refused.
    """
    if OURS in bench.plan.transports and not module_swap.is_ready(transport):
        # a probe on a module's events holds the module
        bench.accounts.release()
        module_swap.ready(transport)


@contextlib.contextmanager
def mounted(bench: Bench, request: MountRequest) -> Iterator[Mount]:
    """A mount during the block; it is unmounted even when its server is dead by then."""
    ready(bench, request.transport)
    made = mount(request, bench.changes)
    try:
        yield made
    finally:
        _take_off(made, bench.changes)


def _take_off(made: Mount, changes: Journal) -> None:
    try:
        unmount(made, changes, timeout=30)
    except UserError:
        # only this sweep uses the mount: the test file, and reads of it
        run("umount", "-f", "-l", "--", made.directory, check=False, timeout=30)
        if find(made.directory):
            raise
        drop_undo(made.directory, changes)
