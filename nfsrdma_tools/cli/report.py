# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma report``: draw the results of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nfsrdma_tools.cli.options import Json, argument, option
from nfsrdma_tools.cli.output import print_json

if TYPE_CHECKING:
    from nfsrdma_tools.report.build import Report

__all__ = ["report"]


def report(
    store: Annotated[Path, argument("STORE", "File that a sweep wrote.")],
    output: Annotated[
        Path | None,
        option("DIR", "Folder to write to (default: report, beside STORE).", "--output", "-o"),
    ] = None,
    plan: Annotated[str, option("UID", "Plan to draw (default: the newest).")] = "",
    as_json: Json = False,
) -> None:
    """Write an HTML page with figures of a sweep.

    The page recommends a cell per transport and says how certain that is.
    """
    from nfsrdma_tools.report.build import build

    written = build(store, output or store.parent / "report", plan)
    print_json(_facts(written)) if as_json else _print(written)


def _facts(written: Report) -> dict[str, object]:
    from nfsrdma_tools.report.fleet import as_facts
    from nfsrdma_tools.report.recommendation import advice, as_json

    study = written.study
    return {
        "plan": study.plan.uid,
        "target": study.plan.target,
        "page": str(written.files[0]),
        "figures": [str(path) for path in written.files[1:]],
        "recommendation": [as_json(study, one) for one in advice(study)],
        "missing": [{"cell": str(m.cell), "reason": m.reason} for m in study.missing],
        "conditions": dict(study.conditions),
        "fleet": as_facts(study.fleet) if study.fleet else None,
    }


def _print(written: Report) -> None:
    from nfsrdma_tools.errors import printable
    from nfsrdma_tools.report.captions import rate
    from nfsrdma_tools.report.fleet import findings
    from nfsrdma_tools.report.recommendation import advice, headline, over_default

    for one in advice(written.study):
        best = f"{headline(written.study, one)}: {rate(one.best.throughput.mean)}"
        print(printable(f"{best}. {over_default(written.study, one)}".rstrip()))
    for line in findings(written.study):
        print(printable(line))
    print(printable(str(written.files[0])))
