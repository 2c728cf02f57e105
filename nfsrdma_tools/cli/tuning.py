# SPDX-License-Identifier: Apache-2.0
"""The values that `nfsrdma tune` applies: the winner of a sweep, or values of the user."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from nfsrdma_tools.errors import UsageError, UserError, printable
from nfsrdma_tools.host.nfs import mountinfo, mounts
from nfsrdma_tools.host.tune.tuning import TuneRequest, TuneState
from nfsrdma_tools.sizes import parse_size
from nfsrdma_tools.sweep.choice import Choice, choose
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.store import Store

__all__ = ["by_hand", "by_store", "facts", "place"]


def place(directory: Path) -> Path:
    """A mount point as the kernel spells it; does not access the mount."""
    return mountinfo.canonical(directory, mountinfo.read())


def by_hand(
    directory: Path,
    rsize: str | None,
    wsize: str | None,
    read_ahead: int | None,
    read_ahead_kb: int | None = None,
) -> TuneRequest:
    """The values given by the user; UsageError when there are none."""
    if (rsize, wsize, read_ahead, read_ahead_kb) == (None, None, None, None):
        raise UsageError("there is nothing to tune", "give --rsize, --wsize or --read-ahead")
    return TuneRequest(place(directory), _size(rsize), _size(wsize), read_ahead, read_ahead_kb)


def _size(text: str | None) -> int | None:
    return None if text is None else parse_size(text)


def by_store(store: Path, directory: Path | None, transport: str) -> TuneRequest:
    """The values of a sweep's winner; without ``directory``, for the mount of its target."""
    with Store(store, read_only=True) as opened:
        plan = opened.plan()
        trials = opened.trials(plan)
    where = place(directory) if directory else _mounted(plan)
    wanted = transport or _transport(plan, where)
    choice = choose(trials, wanted)
    if choice is None:
        measured = ", ".join(plan.transports)
        raise UserError(f"{store} has no figures for {wanted}", f"it measured {measured}")
    return _request(plan, choice, where)


def _mounted(plan: Plan) -> Path:
    found = [m.directory for m in mounts.mounts() if str(m.target) == plan.target]
    if len(found) != 1:
        what = f"{plan.target} is mounted on {len(found)} directories"
        raise UserError(what, "give the mount point: STORE DIR")
    return found[0]


def _transport(plan: Plan, directory: Path) -> str:
    mount = mounts.find(directory)
    if mount is not None:
        return mount.transport
    if len(plan.transports) > 1:
        raise UserError(
            f"{directory} is not mounted", f"give --transport: {', '.join(plan.transports)}"
        )
    return plan.transports[0]


def _request(plan: Plan, choice: Choice, directory: Path) -> TuneRequest:
    cell = choice.winner.cell
    others = [f"nconnect={cell.nconnect}"] * (len(plan.nconnects) > 1)
    others += [f"{name}={value}" for name, value in cell.axes]
    if others:
        text = printable(", ".join(others))
        print(f"nfsrdma: the winner also has {text}; set that yourself", file=sys.stderr)
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
