# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma store``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from nfsrdma_tools.errors import UserError

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
    """Print all trials: CSV has a row for each, JSON has plans and environments as well."""
    from nfsrdma_tools.sweep.export import as_csv, as_json
    from nfsrdma_tools.sweep.store import Store

    forms = {"csv": as_csv, "json": as_json}
    if form not in forms:
        raise UserError(f"there is no format {form!r}", "choose csv or json")
    with Store(store, read_only=True) as kept:
        sys.stdout.write(forms[form](kept))
