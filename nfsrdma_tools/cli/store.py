# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma store``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nfsrdma_tools.errors import UserError

if TYPE_CHECKING:
    from nfsrdma_tools.sweep.server_cpu import Sample

__all__ = ["app"]

app = typer.Typer(help="What sweeps have stored.", no_args_is_help=True)


@app.callback()
def _store() -> None:
    pass


@app.command()
def export(
    store: Annotated[Path, typer.Argument(help="The file a sweep has written.")],
    form: Annotated[str, typer.Option("--format", help="csv or json.")] = "csv",
) -> None:
    """Print all trials, as CSV or as JSON.

    CSV has a row for each, JSON has plans and environments as well.
    """
    from nfsrdma_tools.sweep.export import as_csv, as_json
    from nfsrdma_tools.sweep.store import Store

    forms = {"csv": as_csv, "json": as_json}
    if form not in forms:
        raise UserError(f"there is no format {form!r}", "choose csv or json")
    with Store(store, read_only=True) as kept:
        sys.stdout.write(forms[form](kept))


@app.command()
def merge(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The store to fill; may be new.")],
    stores: Annotated[list[Path], typer.Argument(metavar="STORE...", help="Stores of sweeps.")],
    load: Annotated[
        list[str] | None,
        typer.Option(metavar="SERVER=FILE", help="What `server load` printed there; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Put the stores of several hosts into one, for a report of all of them.

    What is there already stays as it is; merging again changes nothing.
    """
    import dataclasses
    import json

    from nfsrdma_tools.errors import printable
    from nfsrdma_tools.sweep.merge import merge

    found = merge(out, stores, dict(map(_samples, load or ())))
    if as_json:
        print(json.dumps(dataclasses.asdict(found)))
        return
    hosts = ", ".join(host or "a host without a name" for host in found.hosts)
    print(printable(f"{out}: {found.trials} trials, {found.new} of them new, of {hosts}"))


def _samples(option: str) -> tuple[str, list[Sample]]:
    from nfsrdma_tools.sweep.server_cpu import read

    server, found, path = option.partition("=")
    if not server or not found:
        raise UserError(f"{option!r} is not SERVER=FILE", "write it like server=load.txt")
    try:
        with Path(path).open(encoding="utf-8") as lines:
            return server, read(lines)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="The store to measure by.")],
    second: Annotated[Path, typer.Argument(help="The other one.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the last sweeps of two stores, cell by cell.

    Then what each recommends, measured by the first one's figures.
    """
    from nfsrdma_tools.sweep.compare import compare
    from nfsrdma_tools.sweep.store import Store

    with Store(first, read_only=True) as one, Store(second, read_only=True) as other:
        found = compare(one.trials(one.plan()), other.trials(other.plan()))
    if as_json:
        import dataclasses
        import json

        print(json.dumps(dataclasses.asdict(found)))
        return
    for d in found.differences:
        print(f"{d.cell!s:<40} {d.first:9.2f} {d.second:9.2f} MB/s {d.relative:+8.2%}")
    print(f"{len(found.differences)} cells: median difference {found.median:.3%}")
    print(
        f"trials: {found.trials[0]} and {found.trials[1]} ({found.trials[1] / found.trials[0]:.1%})"
    )
    for loss in found.losses:
        scope = f"over {loss.transport}" if loss.transport else "over all"
        print(f"{scope}: recommended {loss.recommended}, {loss.loss:.2%} below {loss.winner}")
