# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from nfsrdma_tools.report.build import Report

__all__ = ["report"]


def report(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The file of a sweep.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to; beside the store by default.")
    ] = None,
    plan: Annotated[str, typer.Option(metavar="UID", help="Not the newest plan, but this.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Draw a sweep: figures, and a page with the recommendation."""
    import json

    from nfsrdma_tools.report.build import build

    made = build(store, out or store.parent / "report", plan)
    print(json.dumps(_facts(made), indent=2)) if as_json else _tell(made)


def _facts(made: Report) -> dict[str, object]:
    from nfsrdma_tools.report.fleet import as_facts
    from nfsrdma_tools.report.recommendation import advice, as_json

    study = made.study
    return {
        "plan": study.plan.uid,
        "target": study.plan.target,
        "page": str(made.files[0]),
        "figures": [str(path) for path in made.files[1:]],
        "recommendation": [as_json(study, one) for one in advice(study)],
        "missing": [{"cell": str(m.cell), "reason": m.reason} for m in study.missing],
        "conditions": dict(study.conditions),
        "fleet": as_facts(study.fleet) if study.fleet else None,
    }


def _tell(made: Report) -> None:
    from nfsrdma_tools.errors import printable
    from nfsrdma_tools.report.captions import rate
    from nfsrdma_tools.report.fleet_view import findings
    from nfsrdma_tools.report.recommendation import advice, headline, over_default

    for one in advice(made.study):
        told = f"{headline(made.study, one)}: {rate(one.best.throughput.mean)}"
        print(printable(f"{told}. {over_default(made.study, one)}".rstrip()))
    for line in findings(made.study):
        print(printable(line))
    print(printable(str(made.files[0])))
