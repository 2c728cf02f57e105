# SPDX-License-Identifier: Apache-2.0
"""A sweep in a lab: it runs in a node, whose nfsd and clock are the lab's."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nfsrdma_tools.command import run, stream
from nfsrdma_tools.errors import CommandError, UserError, one_line
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.module import swap
from nfsrdma_tools.host.transports import owner
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.personalities import DEFAULT
from nfsrdma_tools.sweep.conditions import lab_facts
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.progress import Event, follow
from nfsrdma_tools.sweep.runner import Options
from nfsrdma_tools.sweep.store import Store, Trial
from nfsrdma_tools.sweep.trial import Load

if TYPE_CHECKING:
    from nfsrdma_tools.lab.config import LabConfig

__all__ = ["of_this_host", "sweep_in_node"]

# in memory: this copy need not last, and an emulated disk delays each trial
_STORE = "/run/sweep.db"
# systemd handles changed mounts at most five times a second, then at the end of the second
# (RATELIMIT in mount_enumerate of src/core/mount.c).  That costs 7 ms of the only CPU in every
# third read.  On the instruction clock the wait takes no time.
_PAUSE = 1.1
_ACCEPTED = Path("/sys/module/nfsrdma/parameters/server_personalities")
_END_GRACE = Path("/proc/fs/nfsd/v4_end_grace")


def sweep_in_node(
    config: LabConfig, plan: Plan, store: Store, step: Callable[[str], None], probes: bool
) -> Generator[Event, None, None]:
    """Start a lab, continue ``plan`` from ``store`` in its node, and yield the node's events.

    Raises UserError with the node's error when the sweep there ends early.
    """
    # a host that starts no lab lacks what it needs
    from nfsrdma_tools.lab.lab import Lab

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


def of_this_host(options: Options, machine: Machine = LIVE) -> Options:
    """The options with what a sweep on this host needs if it is a lab's node."""
    facts = lab_facts(machine)
    if facts.get("lab clock") == "instructions":
        options = replace(options, pause=_PAUSE)
    if facts.get("lab shape") == "solo":
        options = replace(options, modules=_modules_of_server)
    return options


@contextlib.contextmanager
def _modules_of_server(plan: Plan) -> Iterator[Load]:
    """The node is the plan's server, too: its nfsd is stopped while modules are exchanged.

    Our module then accepts the plan's personalities, if there are any, in place of those of before.
    At the end the module of before is loaded: the sweep's own undo stops no nfsd.
    """
    before = OURS if owner() == OURS else "rdma"
    accepted = [name for name in plan.personalities if name != DEFAULT]
    try:
        yield lambda transport: _load(transport, accepted)
    finally:
        _load(before, [])


def _load(transport: str, accepted: list[str]) -> None:
    if swap.is_ready(transport):
        return
    with _without_nfsd():
        swap.ready(transport)
        if transport == OURS and accepted:
            _ACCEPTED.write_text(",".join(accepted))


@contextlib.contextmanager
def _without_nfsd() -> Iterator[None]:
    """Nfsd is stopped during the block, because its listener holds the module."""
    run("systemctl", "stop", "nfs-server")
    try:
        yield
    finally:
        run("systemctl", "start", "nfs-server")
        # in its grace period nfsd opens no file for a client; nobody has state to reclaim
        with contextlib.suppress(OSError):
            _END_GRACE.write_text("Y")
