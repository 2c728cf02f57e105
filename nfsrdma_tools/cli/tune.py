# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma tune``: make mount options and read-ahead permanent."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nfsrdma_tools.cli.options import (
    DryRun,
    Json,
    Verbose,
    argument,
    complete_mount,
    complete_transport,
    flag,
    option,
    read_ahead_kb_option,
    read_ahead_option,
    rsize_option,
    wsize_option,
)
from nfsrdma_tools.cli.output import print_changes, print_json
from nfsrdma_tools.errors import UsageError, UserError, printable
from nfsrdma_tools.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nfsrdma_tools.host.state import Tuned
    from nfsrdma_tools.host.tune.tuning import TuneRequest, TuneState
    from nfsrdma_tools.sweep.choice import Choice
    from nfsrdma_tools.sweep.plan import Plan

__all__ = ["app", "request_of_store", "request_of_values"]

app = typer.Typer(
    help="Make rsize, wsize and read-ahead of a mount permanent.", no_args_is_help=True
)

_UNCHANGED = "unchanged"


@app.command()
def apply(
    store: Annotated[
        Path | None,
        argument("STORE", "Sweep whose best cell to apply (default: the values of options)."),
    ] = None,
    transport: Annotated[
        str,
        option(
            "NAME",
            "Apply the best cell of this transport (default: the mount's transport).",
            complete=complete_transport,
        ),
    ] = "",
    mount: Annotated[
        Path | None,
        option(
            "DIR",
            "Mount point; required without STORE (default: the mount of the sweep's target).",
            complete=complete_mount,
        ),
    ] = None,
    rsize: Annotated[str | None, rsize_option(_UNCHANGED)] = None,
    wsize: Annotated[str | None, wsize_option(_UNCHANGED)] = None,
    read_ahead: Annotated[int | None, read_ahead_option(_UNCHANGED)] = None,
    read_ahead_kb: Annotated[int | None, read_ahead_kb_option(_UNCHANGED)] = None,
    remount: Annotated[
        bool, flag("Unmount and mount now, and verify the new values.", "--remount")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Apply the best cell of a sweep, or given values, to a mount.

    rsize and wsize go into the mount's line of /etc/fstab or its mount unit; they take effect at
    the next mount (or with --remount).  Read-ahead goes into a udev rule and takes effect now.
    """
    from nfsrdma_tools.host.tune import tuning

    sizes = (rsize, wsize, read_ahead, read_ahead_kb)
    given = any(size is not None for size in sizes)
    if given if store else mount is None:
        message = "tune apply needs either a STORE, or --mount DIR with values"
        raise UsageError(message, "see `nfsrdma tune apply --help`")
    if not dry_run:
        _require_root()
    request = (
        request_of_store(store, mount, transport)
        if store
        else request_of_values(mount or Path(), *sizes)
    )
    if cost := tuning.cost_of_rsize(request.rsize):
        print(f"nfsrdma: {cost}", file=sys.stderr)
    if dry_run:
        print_changes(tuning.applying(request, remount=remount), as_json)
        return
    state = tuning.apply(request, remount=remount)
    print_json(_facts(state)) if as_json else _report(state)


@app.command()
def show(as_json: Json = False) -> None:
    """List the tuned mounts, and which values are in effect."""
    from nfsrdma_tools.host.tune import tuning

    states = tuning.show()
    print_json({"tuned": [_facts(state) for state in states]}) if as_json else _list(states)


@app.command()
def undo(
    directory: Annotated[
        Path | None,
        argument("DIR", "Mount point (default: all tuned mounts).", complete=complete_mount),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Restore the files and the read-ahead from before `tune apply`.

    A mount whose definition has changed since keeps its tuning; the others are restored, and the
    exit status is 1.
    """
    from nfsrdma_tools.host.tune import tuning

    where = _canonical(directory) if directory else None
    if dry_run:
        changes, failures = tuning.undoing(where)
        print_changes(changes, as_json)
        if failures:
            kept = (f"{mount} would stay tuned: {error}" for mount, error in failures.items())
            raise UserError("; ".join(kept))
        return
    _require_root()
    show = _print_undone_json if as_json else _print_undone
    try:
        undone = tuning.undo(where)
    except tuning.PartlyUndoneError as error:
        show(error.undone, error.failures)
        raise
    show(undone, {})


def _canonical(directory: Path) -> Path:
    """A mount point as the kernel spells it; does not access the mount."""
    from nfsrdma_tools.host.nfs import mountinfo

    return mountinfo.canonical(directory, mountinfo.read())


def request_of_values(
    directory: Path,
    rsize: str | None,
    wsize: str | None,
    read_ahead: int | None,
    read_ahead_kb: int | None = None,
) -> TuneRequest:
    """The values given by the user; UsageError when there are none."""
    from nfsrdma_tools.host.tune.tuning import TuneRequest

    if (rsize, wsize, read_ahead, read_ahead_kb) == (None, None, None, None):
        raise UsageError("there is nothing to tune", "give --rsize, --wsize or --read-ahead")
    return TuneRequest(_canonical(directory), _size(rsize), _size(wsize), read_ahead, read_ahead_kb)


def _size(text: str | None) -> int | None:
    return None if text is None else parse_size(text)


def request_of_store(store: Path, directory: Path | None, transport: str) -> TuneRequest:
    """The values of a sweep's winner; without ``directory``, for the mount of its target.

    UserError if the mount has another transport, NFS version or nconnect than the winner.
    """
    from nfsrdma_tools.sweep import fleet
    from nfsrdma_tools.sweep.choice import choose
    from nfsrdma_tools.sweep.store import Store

    with Store(store, read_only=True) as opened:
        plan = opened.plan()
        trials = fleet.comparable(opened, plan, fleet.pooled(opened, plan))
    where = _canonical(directory) if directory else _mounted(plan)
    # figures have no address family: rdma6 means rdma
    wanted = transport.removesuffix("6") or _transport(plan, where)
    choice = choose(trials, wanted)
    if choice is None:
        measured = ", ".join(plan.transports)
        raise UserError(f"{store} has no figures for {wanted}", f"it measured {measured}")
    return _request(plan, choice, where)


def _mounted(plan: Plan) -> Path:
    from nfsrdma_tools.host.nfs import mounts

    directories = [m.directory for m in mounts.mounts() if str(m.target) == plan.target]
    if len(directories) != 1:
        message = f"{plan.target} is mounted on {len(directories)} directories"
        raise UserError(message, "give the mount point: --mount DIR")
    return directories[0]


def _transport(plan: Plan, directory: Path) -> str:
    from nfsrdma_tools.host.nfs import mounts

    mount = mounts.find(directory)
    if mount is not None:
        return mount.transport
    if len(plan.transports) > 1:
        raise UserError(
            f"{directory} is not mounted", f"give --transport: {', '.join(plan.transports)}"
        )
    return plan.transports[0]


def _request(plan: Plan, choice: Choice, directory: Path) -> TuneRequest:
    from nfsrdma_tools.host.tune.tuning import TuneRequest, require_measured

    cell = choice.winner.cell
    require_measured(directory, cell.transport, plan.vers, cell.nconnect)
    others = [f"{name}={value}" for name, value in cell.axes]
    others += [f"O_DIRECT with depth {cell.depth}"] * cell.direct
    if others:
        text = printable(", ".join(others))
        print(f"nfsrdma: the winner also has {text}; set that yourself", file=sys.stderr)
    if plan.direction == "write":
        return TuneRequest(directory, wsize=cell.rsize)
    ahead = cell.read_ahead if plan.has_read_ahead(cell) else None
    return TuneRequest(directory, rsize=cell.rsize, read_ahead=ahead)


def _facts(state: TuneState) -> dict[str, object]:
    """A tuned mount as plain values, for JSON."""
    from dataclasses import asdict

    now = {name: getattr(state, name) for name in ("rsize", "wsize", "read_ahead_kb")}
    others = [str(path) for path in state.shares_with]
    return {
        **asdict(state.tuned),
        "in_effect": now,
        "pending": state.pending,
        "shares_with": others,
    }


def _require_root() -> None:
    import os

    if os.geteuid() != 0:
        raise UserError("only root can tune a mount", "run this as root")


def _report(state: TuneState) -> None:
    tuned = state.tuned
    _print(f"tuned {tuned.directory}:")
    if tuned.before is not None:
        _print(f"  {tuned.file} old: {tuned.before}")
        _print(f"  {tuned.file} new: {tuned.after}")
    elif tuned.file:
        _print(f"  created {tuned.file}")
    if tuned.read_ahead_kb is not None:
        from nfsrdma_tools.host.tune.tuning import RULE

        _print(f"  /{RULE} sets read_ahead_kb {tuned.read_ahead_kb} at each mount")
    for name in state.pending:
        current = getattr(state, name)
        now = (
            f"now {current}; --remount applies it now" if current is not None else "not mounted now"
        )
        _print(f"  {name} {getattr(tuned, name)} takes effect at the next mount ({now})")
    if state.shares_with and tuned.read_ahead_kb is not None:
        others = ", ".join(map(str, state.shares_with))
        _print(f"  read-ahead is shared with {others}: mount with nosharecache to separate them")
    _print(f"  undo: {shlex.join(('nfsrdma', 'tune', 'undo', tuned.directory))}")


def _print_undone_json(undone: Sequence[Tuned], failures: Mapping[str, UserError]) -> None:
    from dataclasses import asdict

    kept = [{"directory": mount, "error": str(error)} for mount, error in failures.items()]
    print_json({"undone": [asdict(tuned) for tuned in undone], "still_tuned": kept})


def _print_undone(undone: Sequence[Tuned], _: Mapping[str, UserError]) -> None:
    for tuned in undone:
        _print(f"{tuned.directory}: restored")
        if tuned.rsize or tuned.wsize:
            _print("  rsize and wsize change at the next mount")


def _list(states: list[TuneState]) -> None:
    for state in states:
        tuned = state.tuned
        sizes = {"rsize": tuned.rsize, "wsize": tuned.wsize, "read_ahead_kb": tuned.read_ahead_kb}
        wanted = ", ".join(f"{name} {value}" for name, value in sizes.items() if value is not None)
        pending = [f"{name} is {getattr(state, name)}" for name in state.pending]
        effect = "not mounted" if state.rsize is None else "; ".join(pending) or "in effect"
        _print(f"{tuned.directory}: {wanted} ({effect})")


def _print(text: str) -> None:
    # a path may contain control characters
    print(printable(text))
