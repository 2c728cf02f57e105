# SPDX-License-Identifier: Apache-2.0
"""A sweep in a temporary lab: the node reports each trial, and the store is on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

from nfsrdma_tools.command import stream
from nfsrdma_tools.errors import CommandError, UserError, one_line
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.progress import Event, follow
from nfsrdma_tools.sweep.store import Store
from nfsrdma_tools.sweep.trial_record import Trial

__all__ = ["sweep_in_lab"]

# in memory: this copy need not last, and an emulated disk delays each trial
_STORE = "/run/sweep.db"


def sweep_in_lab(
    config: LabConfig, plan: Plan, store: Store, step: Callable[[str], None], probes: bool
) -> Generator[Event, None, None]:
    """Start a lab, continue ``plan`` from ``store`` in its node, and yield the node's events.

    Raises UserError with the node's error when the sweep there ends early.
    """
    store.add_plan(plan)
    with Lab(config, step) as lab:
        lab.run("client", "tee", _STORE, stdin=_store_of(plan, store.trials(plan)))
        words = ("--resume", _STORE, "--json", "--probes" if probes else "--no-probes")
        argv = lab.ssh("client").argv("nfsrdma", "sweep", *words)
        try:
            yield from follow(stream(*argv, watch=lab.check), store)
        except CommandError as error:
            raise UserError(one_line(error.stderr).removeprefix("nfsrdma: ")) from error


def _store_of(plan: Plan, trials: Iterable[Trial]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with Store(path) as copy:
            copy.add_plan(plan)
            for trial in trials:
                copy.add_trial(trial)
        return path.read_bytes()
