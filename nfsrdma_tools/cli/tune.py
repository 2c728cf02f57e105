# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma tune``: apply, show, undo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nfsrdma_tools.errors import UserError, printable

if TYPE_CHECKING:
    from nfsrdma_tools.host.tune.state import Tuned
    from nfsrdma_tools.host.tune.tuning import TuneState

__all__ = ["app"]

app = typer.Typer(help="Make a choice last across reboots, for one mount.", no_args_is_help=True)

_JSON = typer.Option("--json", help="Print JSON.")


@app.command()
def apply(
    store: Annotated[
        Path | None, typer.Argument(metavar="STORE", help="A sweep, to take its winner.")
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="The mount; found by its target if not given."),
    ] = None,
    transport: Annotated[
        str, typer.Option(help="The winner of tcp, rdma or nfsrdma; the mount's own by default.")
    ] = "",
    mount: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Without a STORE: the mount.")
    ] = None,
    rsize: Annotated[str | None, typer.Option(help="Bytes per READ: 65536, 64k, 1M.")] = None,
    wsize: Annotated[str | None, typer.Option(help="Bytes per WRITE.")] = None,
    read_ahead: Annotated[
        int | None, typer.Option(help="Reads ahead in blocks of rsize; 0 is none.")
    ] = None,
    remount: Annotated[
        bool, typer.Option("--remount", help="Unmount and mount now, and check what came out.")
    ] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Tune a mount by a sweep's choice, or by hand.

    rsize goes into its line of /etc/fstab or its mount unit, the read-ahead into a udev rule's
    list.  Only a real unmount and mount changes rsize.
    """
    import json

    from nfsrdma_tools.cli.tuning import by_hand, by_store, facts
    from nfsrdma_tools.host.tune import tuning

    sizes = (rsize, wsize, read_ahead)
    if (store is None) == (mount is None) or (store and any(s is not None for s in sizes)):
        raise UserError("tune apply takes a STORE, or --mount with --rsize and --read-ahead",
                        "see `nfsrdma tune apply --help`")  # fmt: skip
    _root()
    wish = by_store(store, directory, transport) if store else by_hand(mount or Path(), *sizes)
    state = tuning.apply(wish, remount=remount)
    print(json.dumps(facts(state), indent=2)) if as_json else _tell(state)


@app.command()
def show(as_json: Annotated[bool, _JSON] = False) -> None:
    """List tuned mounts with what is in effect on them."""
    import json

    from nfsrdma_tools.cli.tuning import facts
    from nfsrdma_tools.host.tune import tuning

    states = tuning.show()
    print(json.dumps([facts(one) for one in states], indent=2)) if as_json else _list(states)


@app.command()
def undo(
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The mount; all without it.")
    ] = None,
) -> None:
    """Take back what was tuned, to the byte."""
    from nfsrdma_tools.cli.tuning import place
    from nfsrdma_tools.host.tune import tuning

    _root()
    for tuned in tuning.undo(place(directory) if directory else None):
        _say(f"{tuned.directory}: taken back")
        _say_pending(tuned)


def _root() -> None:
    import os

    if os.geteuid() != 0:
        raise UserError("only root is allowed to tune", "run this as root")


def _tell(state: TuneState) -> None:
    tuned = state.tuned
    _say(f"{tuned.directory} is tuned:")
    if tuned.before is not None:
        _say(f"  {tuned.file} said  {tuned.before}")
        _say(f"  {tuned.file} says  {tuned.after}")
    elif tuned.file:
        _say(f"  {tuned.file} is new")
    if tuned.read_ahead_kb is not None:
        from nfsrdma_tools.host.tune.udev_rule import RULE

        _say(f"  /{RULE} gives it a read-ahead of {tuned.read_ahead_kb} KiB at each mount")
    for name in state.pending:
        found = getattr(state, name)
        now = f"still {found}; --remount changes it now" if found is not None else "not mounted now"
        _say(f"  {name} {getattr(tuned, name)} takes effect with the next mount ({now})")
    if state.shares_with and tuned.read_ahead_kb is not None:
        others = ", ".join(map(str, state.shares_with))
        _say(
            f"  it has one read-ahead with {others}: mount it with nosharecache to tell them apart"
        )


def _say_pending(tuned: Tuned) -> None:
    if tuned.rsize or tuned.wsize:
        _say("  rsize and wsize stay what they are until the next mount")


def _list(states: list[TuneState]) -> None:
    for state in states:
        tuned = state.tuned
        sizes = {"rsize": tuned.rsize, "wsize": tuned.wsize, "read_ahead_kb": tuned.read_ahead_kb}
        wanted = ", ".join(f"{name} {value}" for name, value in sizes.items() if value is not None)
        pending = [f"{name} is {getattr(state, name)}" for name in state.pending]
        effect = "not mounted" if state.rsize is None else "; ".join(pending) or "in effect"
        _say(f"{tuned.directory}: {wanted} ({effect})")


def _say(text: str) -> None:
    # a path may hold anything, a terminal must not see all of it
    print(printable(text))
