# SPDX-License-Identifier: Apache-2.0
"""The loop of a sweep: choose the next trial, run it, store it, report it.

The sweep always cleans up, whether it is complete, interrupted or lost its server: it restores
mounts and tunables and removes the test file that it made.  After a kill -9 the next start does
that from the journal, and the store has the state to resume from.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import state_dir
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.module import build as module_build
from nfsrdma_tools.host.module import swap as module_swap
from nfsrdma_tools.host.nfs.mounts import Mount
from nfsrdma_tools.host.nfs.readahead import kb_for
from nfsrdma_tools.host.transports import KERNELS
from nfsrdma_tools.lock import host_lock
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.sizes import format_size
from nfsrdma_tools.sweep import workload
from nfsrdma_tools.sweep.choice import Race
from nfsrdma_tools.sweep.conditions import conditions
from nfsrdma_tools.sweep.plan import SIZE_STEP, Cell, Plan
from nfsrdma_tools.sweep.progress import (
    Event,
    Finished,
    Planned,
    TrialDone,
    attaching,
    measuring,
    preparing,
    sizing,
)
from nfsrdma_tools.sweep.store import FAILED, NOT_OFFERED, Store, StoreError, Trial
from nfsrdma_tools.sweep.trial import (
    IMMEDIATELY,
    Bench,
    Load,
    Rhythm,
    TrialProbes,
    mounted,
    ready,
    request_for,
    run_trial,
    tunables,
)
from nfsrdma_tools.undo import Journal, Remove, journal

__all__ = [
    "Options",
    "file_on_server",
    "file_size",
    "mount_point",
    "sweep",
    "with_our_module",
]

_STOP_AFTER = 3
_MADE, _SIZE = "made", "file size"
_SAMPLE = 4 * SIZE_STEP
"""Bytes of the first file that estimates how large the plan's file has to be."""
_LONG_ENOUGH = 0.1
"""Share of a trial's seconds from which on a sample tells the rate."""
_SPARE = 1.25
_REREAD = 1 << 30
"""Largest file that O_DIRECT reads need: they begin with it again."""


def _file_note(plan: Plan) -> str:
    return f"file {workload.file_name(plan)}"


@contextlib.contextmanager
def file_on_server(bench: Bench, store: Store, keep: bool) -> Iterator[None]:
    """The plan's file on the server during the block; it stays if it existed before.

    As in the 2003 paper, a blind run reads the file into the server's cache.

    Raises UserError when a transport cannot be mounted, a tunable does not exist, or the file
    cannot be made or removed.
    """
    workload.require_engine(bench.plan)
    for tunable in {knob for cell in bench.plan.cells() for knob, _ in tunables(bench, cell)}:
        tunable.get()
    try:
        _make(bench, store)
        # the last first: our module, which is loaded by now
        for transport in reversed(bench.plan.transports):
            _blind_run(bench, transport)
        yield
    except UserError as error:
        left = _clean_up(bench, store, keep)
        if isinstance(error, StoreError):
            raise
        message = "; ".join(filter(None, (error.message, left)))
        raise UserError(message, error.hint, error.option) from error
    except BaseException:
        _clean_up(bench, store, keep)
        raise
    if left := _clean_up(bench, store, keep):
        raise UserError(left, "remove it there")


def _make(bench: Bench, store: Store) -> None:
    with _mounted(bench, bench.plan.transports[0]):
        if bench.plan.direction == "write":
            store.note(bench.plan, _file_note(bench.plan), _MADE)
        elif not workload.is_there(bench.directory, bench.plan):
            store.note(bench.plan, _file_note(bench.plan), _MADE)
            workload.make(bench.directory, bench.plan)


def _blind_run(bench: Bench, transport: str) -> None:
    # over each transport: its first operations cost up to a fifth more
    plan = bench.plan
    with _mounted(bench, transport):
        if plan.direction == "write":
            workload.write(bench.directory, plan, plan.cells()[0])
        elif bench.content:
            workload.check(bench.directory, plan, bench.content, plan.file_size)
        else:
            workload.verify(bench.directory, plan)
            bench.content.extend(workload.remember(bench.directory, plan))


def _clean_up(bench: Bench, store: Store, keep: bool) -> str:
    """Remove the file if this sweep made it; returns an error message when that fails."""
    if keep or store.noted(bench.plan, _file_note(bench.plan)) != _MADE:
        return ""
    try:
        with _mounted(bench, bench.plan.transports[0]):
            workload.remove(bench.directory, bench.plan)
    except (UserError, OSError):
        return f"{workload.file_name(bench.plan)} stays on the server"
    store.note(bench.plan, _file_note(bench.plan), "")
    return ""


def file_size(bench: Bench, store: Store) -> int:
    """Bytes that the plan's file needs for trials of ``plan.seconds``; the store remembers it.

    It reads (or writes) larger and larger files, with the largest sizes and window that the mount
    has, until one takes long enough to tell the rate.  The file takes half of the free space of the
    export at most.  O_DIRECT reads need _REREAD bytes at most.  Raises UserError.
    """
    if known := store.noted(bench.plan, _SIZE):
        return int(known)
    seconds, most, size, needed = bench.plan.seconds, _most(bench), _SAMPLE, 0
    while True:
        size = min(size, most)
        took = _sample(bench, store, size)
        needed = _rounded(size * seconds * _SPARE / took)
        if size == most or took >= seconds * _LONG_ENOUGH or needed <= size:
            break
        size = min(8 * size, max(needed, 2 * size))
    needed = min(needed, most)
    store.note(bench.plan, _SIZE, str(needed))
    return needed


def _rounded(size: float) -> int:
    """Up to a quarter of a power of two, which all requests divide."""
    whole = max(int(size), _SAMPLE)
    step = 1 << (whole.bit_length() - 3)
    return -(-whole // step) * step


def _most(bench: Bench) -> int:
    with _mounted(bench, bench.plan.transports[0]):
        free = os.statvfs(bench.directory)
    half = free.f_bavail * free.f_frsize // 2 // _SAMPLE * _SAMPLE
    if not half:
        message = f"the export has less than {format_size(2 * _SAMPLE)} of free space"
        raise UserError(message, "free space there", "or give --file-size")
    return min(half, _REREAD) if all(map(bench.plan.reads_again, bench.plan.cells())) else half


def _sample(bench: Bench, store: Store, size: int) -> float:
    """Seconds that the fastest transport and kind of read take for a file of ``size`` bytes."""
    plan = replace(bench.plan, file_size=size, seconds=0.0, whole_from=0)
    sample = replace(bench, plan=plan, content=[])
    largest: dict[bool, Cell] = {}
    for cell in sorted(plan.cells(), key=lambda c: (c.jobs, c.depth, c.rsize, c.read_ahead)):
        largest[cell.direct] = cell
    window = max(kb_for(each.read_ahead, each.rsize) for each in plan.cells())
    with file_on_server(sample, store, keep=False):
        ways = itertools.product(plan.transports, largest.values())
        return min(_timed(sample, name, cell, window) for name, cell in ways)


def _timed(bench: Bench, transport: str, cell: Cell, window: int) -> float:
    ready(bench, transport)
    # the kernel's own sizes: a device may not offer the largest rsize of the plan
    request = request_for(bench, transport)
    if bench.plan.has_read_ahead(cell):
        request = replace(request, read_ahead_kb=window)
    work = workload.write if bench.plan.direction == "write" else workload.read
    with mounted(bench, request):
        return max(work(bench.directory, bench.plan, cell).duration_ns, 1) / 1e9


def _mounted(bench: Bench, transport: str) -> AbstractContextManager[Mount]:
    ready(bench, transport)
    return mounted(bench, request_for(bench, transport))


def _modules(_: Plan) -> AbstractContextManager[Load]:
    return contextlib.nullcontext(module_swap.ready)


@dataclass(frozen=True)
class Options:
    """Options of a run that do not change what the plan measures.

    The reader starts at least ``pause`` seconds after the mount.  ``modules`` is entered once a
    plan exchanges modules, and left before their undo.
    """

    server_ssh: str = ""
    keep_file: bool = False
    probes: bool = True
    rhythm: Rhythm = IMMEDIATELY
    pause: float = 0.0
    modules: Callable[[Plan], AbstractContextManager[Load]] = _modules
    measure: Callable[[Bench, Trial, bool], Trial] = run_trial
    prepare: Callable[[Bench, Store, bool], AbstractContextManager[None]] = file_on_server
    size: Callable[[Bench, Store], int] = file_size


def sweep(plan: Plan, store: Store, options: Options = Options()) -> Generator[Event, None, None]:
    """Measure the trials of ``plan`` that the store lacks; yield an event after each is stored.

    Close the iterator or let KeyboardInterrupt through to stop early: it cleans up.  Raises
    UserError when nothing can be measured, or when trials in a row fail for the same reason.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_only_one(f"plan {plan.uid}"))
        if plan.directory:
            stack.enter_context(_only_one(os.path.realpath(plan.directory)))
        changes = stack.enter_context(journal())
        load: Load = module_swap.ready
        if OURS in plan.transports:
            load = stack.enter_context(with_our_module(plan, changes, options))
            # now, to have its facts, too
            load(OURS)
        probes = TrialProbes(options.probes)
        stack.callback(probes.release)
        facts = {**_conditions(plan), "probe sets": probes.summary}
        store.add_plan(plan)
        bench = Bench(
            plan,
            mount_point(plan, changes),
            changes,
            options.server_ssh,
            probes=probes,
            rhythm=options.rhythm,
            pause=options.pause,
            load=load,
        )
        bench = replace(bench, environment=store.add_environment(facts))
        trials = store.trials(plan)
        race = Race(plan, trials)
        wanted = race.expected()
        yield Planned(plan, facts, len(trials), wanted)
        if race.next():
            if not plan.file_size:
                yield sizing(plan, facts)
                plan = replace(plan, file_size=options.size(bench, store))
                bench = replace(bench, plan=plan)
            yield preparing(plan, facts)
            stack.enter_context(options.prepare(bench, store, options.keep_file))
            # where modules are swapped, probes are attached again after each swap
            if probes.enabled and OURS not in plan.transports:
                yield attaching(probes.names, facts)
                probes.attach()
            yield measuring(plan, wanted - len(trials), facts)
            yield from _trials(bench, store, trials, options)
        yield Finished(plan.uid, len(trials))


@contextlib.contextmanager
def with_our_module(plan: Plan, changes: Journal, options: Options) -> Iterator[Load]:
    """The exchange of transport modules, ours included; ``changes`` restores the one of before."""
    module_swap.prepare(changes, kernel_modules.in_file(module_build.build().path))
    with options.modules(plan) as load:
        yield load


def _only_one(resource: str) -> AbstractContextManager[None]:
    """The lock named ``resource``; UserError on entry when another sweep has it."""
    hint = "wait for it, or sweep on another mount point"
    return host_lock("sweep", resource, UserError(f"another sweep uses {resource}", hint))


def _conditions(plan: Plan) -> dict[str, str]:
    """Facts of the machine, and of the kernel's module if ours is loaded in its place."""
    if OURS not in plan.transports:
        return conditions()
    file = kernel_modules.on_disk(KERNELS)
    # rpcrdma of most kernels has no srcversion; the kernel's build identifies it
    kernels = {f"module {KERNELS}": file.srcversion or "in tree"} if file else {}
    return {**kernels, **conditions()}


def mount_point(plan: Plan, changes: Journal) -> Path:
    """The plan's mount point; a folder of its own, which ``changes`` removes, if it names none."""
    if plan.directory:
        return Path(plan.directory)
    path = state_dir() / f"mnt-{plan.uid}"
    changes.add(Remove(str(path)))
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def _trials(bench: Bench, store: Store, trials: list[Trial], options: Options) -> Iterator[Event]:
    """Run what is left of the plan; append each trial to ``trials``, which the store has."""
    streak: list[Trial] = []
    race = Race(bench.plan, trials)
    while step := race.next():
        trial = _one(bench, Trial(bench.plan.uid, *step, order=len(trials)), trials, options)
        store.add_trial(trial)
        trials.append(trial)
        race.add(trial)
        yield TrialDone(trial, race.trials, race.expected())
        streak = [*streak, trial] if trial.status == FAILED else []
        _stop_if_hopeless(streak)


def _one(bench: Bench, trial: Trial, done: list[Trial], options: Options) -> Trial:
    refused = next(
        (t for t in done if t.status == NOT_OFFERED and _offered_alike(t.cell, trial.cell)), None
    )
    if refused:
        return replace(
            trial, status=NOT_OFFERED, reason=refused.reason, environment=bench.environment
        )
    verified = any(t.cell == trial.cell and t.verified for t in done)
    return options.measure(bench, trial, bench.plan.verify and not verified)


def _offered_alike(first: Cell, second: Cell) -> bool:
    """Whether the kernel and the server offer both cells or none."""

    def offered(cell: Cell) -> Cell:
        # these do not change what they offer
        return replace(cell, read_ahead=0, jobs=1, depth=1, direct=False)

    return offered(first) == offered(second)


def _stop_if_hopeless(streak: list[Trial]) -> None:
    last = streak[-_STOP_AFTER:]
    reasons = {re.sub(r"\d+|tcp|(nfs)?rdma", "#", trial.reason) for trial in last}
    if len({trial.cell for trial in last}) == _STOP_AFTER and len(reasons) == 1:
        message = f"stopped: {_STOP_AFTER} trials in a row failed: {last[-1].reason}"
        raise UserError(message, "fix the cause", "then continue with --resume")
