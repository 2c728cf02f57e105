# SPDX-License-Identifier: Apache-2.0
"""From what a user gave `nfsrdma tune` to a wish: a sweep's choice, or sizes by hand."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from nfsrdma_tools.errors import UserError, printable
from nfsrdma_tools.host.nfs import mountinfo, mounting
from nfsrdma_tools.host.tune.tuning import TuneRequest, TuneState
from nfsrdma_tools.sizes import parse_size
from nfsrdma_tools.sweep.choice import Choice, choose
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.store import Store

__all__ = ["by_hand", "by_store", "facts", "place"]


def place(directory: Path) -> Path:
    """A mount point as the kernel spells it, without touching the mount."""
    return mountinfo.canonical(directory, mountinfo.read())


def by_hand(
    directory: Path, rsize: str | None, wsize: str | None, ahead: int | None
) -> TuneRequest:
    """The wish of sizes given by hand; UserError when there is none."""
    if (rsize, wsize, ahead) == (None, None, None):
        raise UserError("there is nothing to tune", "give --rsize, --wsize or --read-ahead")
    return TuneRequest(place(directory), _size(rsize), _size(wsize), ahead)


def _size(text: str | None) -> int | None:
    return None if text is None else parse_size(text)


def by_store(store: Path, directory: Path | None, transport: str) -> TuneRequest:
    """The wish of a sweep's winner for a mount; the mount is found by its target if not given."""
    with Store(store, read_only=True) as opened:
        plan = opened.plan()
        trials = opened.trials(plan)
    where = place(directory) if directory else _mounted(plan)
    carrier = transport or _carrier(plan, where)
    choice = choose(trials, carrier)
    if choice is None:
        raise UserError(f"{store} has no figures for {carrier}", f"it measured {plan.transports}")
    return _wish(plan, choice, where)


def _mounted(plan: Plan) -> Path:
    found = [m.directory for m in mounting.mounts() if str(m.target) == plan.target]
    if len(found) != 1:
        raise UserError(f"{plan.target} is mounted on {len(found)} folders", "name one: STORE DIR")
    return found[0]


def _carrier(plan: Plan, directory: Path) -> str:
    mount = mounting.find(directory)
    if mount is not None:
        return mount.transport
    if len(plan.transports) > 1:
        raise UserError(
            f"{directory} is not mounted", f"say --transport, one of {', '.join(plan.transports)}"
        )
    return plan.transports[0]


def _wish(plan: Plan, choice: Choice, directory: Path) -> TuneRequest:
    cell = choice.winner.cell
    others = [f"nconnect={cell.nconnect}"] * (len(plan.nconnects) > 1)
    others += [f"{name}={value}" for name, value in cell.axes]
    if others:
        said = printable(", ".join(others))
        print(f"the winner also has {said}: that is yours to set", file=sys.stderr)
    if plan.direction == "write":
        return TuneRequest(directory, wsize=cell.rsize)
    ahead = cell.read_ahead if plan.reads_ahead else None
    return TuneRequest(directory, rsize=cell.rsize, read_ahead=ahead)


def facts(state: TuneState) -> dict[str, object]:
    """A tuned mount as plain values, for JSON."""
    now = {name: getattr(state, name) for name in ("rsize", "wsize", "read_ahead_kb")}
    others = [str(path) for path in state.shares_with]
    return {
        **asdict(state.tuned),
        "in_effect": now,
        "pending": state.pending,
        "shares_with": others,
    }
