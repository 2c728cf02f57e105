# SPDX-License-Identifier: Apache-2.0
"""Before the first trial: make the test file and warm the caches.  After the last: remove it.

As in the 2003 paper, a blind run reads the file into the server's cache.  It runs over each
transport, because the first operations of a transport cost up to a fifth more.  It also verifies
the data: over the first transport by the checksums in the file, over the others by comparison.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.sweep import workload
from nfsrdma_tools.sweep.store import Store
from nfsrdma_tools.sweep.trial import tunables
from nfsrdma_tools.sweep.trial_mount import Bench, mounted, request_for

__all__ = ["file_on_server"]

_NOTE, _MADE = "file", "made"


@contextlib.contextmanager
def file_on_server(bench: Bench, store: Store, keep: bool) -> Iterator[None]:
    """The plan's file on the server during the block; it stays if it existed before.

    Raises UserError when a transport cannot be mounted, a tunable does not exist, or the file
    cannot be made or removed.
    """
    for tunable in {knob for cell in bench.plan.cells() for knob, _ in tunables(bench, cell)}:
        tunable.get()
    try:
        _make(bench, store)
        for transport in bench.plan.transports:
            _blind_run(bench, transport)
        yield
    except UserError as error:
        left = _clean_up(bench, store, keep)
        raise UserError("; ".join(filter(None, (error.message, left))), error.hint) from error
    except BaseException:
        _clean_up(bench, store, keep)
        raise
    if left := _clean_up(bench, store, keep):
        raise UserError(left, "remove it there")


def _make(bench: Bench, store: Store) -> None:
    with mounted(bench, request_for(bench, bench.plan.transports[0])):
        if bench.plan.direction == "write":
            store.note(bench.plan, _NOTE, _MADE)
        elif not workload.is_there(bench.directory, bench.plan):
            store.note(bench.plan, _NOTE, _MADE)
            workload.make(bench.directory, bench.plan)


def _blind_run(bench: Bench, transport: str) -> None:
    plan = bench.plan
    with mounted(bench, request_for(bench, transport)):
        if plan.direction == "write":
            workload.write(bench.directory, plan, plan.cells()[0])
        elif bench.content:
            workload.check(bench.directory, plan, bench.content)
        else:
            workload.verify(bench.directory, plan)
            bench.content.extend(workload.remember(bench.directory, plan))


def _clean_up(bench: Bench, store: Store, keep: bool) -> str:
    """Remove the file if this sweep made it; returns an error message when that fails."""
    if keep or store.noted(bench.plan, _NOTE) != _MADE:
        return ""
    try:
        with mounted(bench, request_for(bench, bench.plan.transports[0])):
            workload.remove(bench.directory, bench.plan)
    except (UserError, OSError):
        return f"{workload.file_name(bench.plan)} stays on the server"
    store.note(bench.plan, _NOTE, "")
    return ""
