# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma report`` and ``results``: draw, export, merge and compare the results of sweeps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nfsrdma_tools.cli.options import Json, argument, option
from nfsrdma_tools.cli.output import aligned, print_json
from nfsrdma_tools.errors import UsageError, UserError

if TYPE_CHECKING:
    from nfsrdma_tools.report.build import Report
    from nfsrdma_tools.sweep.server_cpu import Sample

__all__ = ["app", "report"]


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
    print_json(_report_facts(written)) if as_json else _print_report(written)


def _report_facts(written: Report) -> dict[str, object]:
    from nfsrdma_tools.report.fleet import as_facts
    from nfsrdma_tools.report.recommendation import advice, as_json, today_as_json

    study = written.study
    return {
        "plan": study.plan.uid,
        "target": study.plan.target,
        "page": str(written.files[0]),
        "figures": [str(path) for path in written.files[1:]],
        "recommendation": [as_json(study, recommended) for recommended in advice(study)],
        "as_mounted_today": today_as_json(study),
        "missing": [{"cell": str(m.cell), "reason": m.reason} for m in study.missing],
        "conditions": dict(study.conditions),
        "fleet": as_facts(study.fleet) if study.fleet else None,
    }


def _print_report(written: Report) -> None:
    from nfsrdma_tools.errors import printable
    from nfsrdma_tools.report.captions import rate
    from nfsrdma_tools.report.fleet import findings
    from nfsrdma_tools.report.recommendation import advice, headline, over_default, over_today
    from nfsrdma_tools.report.study import is_lab

    plan, advised = written.study.plan, advice(written.study)
    for recommended in advised:
        best = f"{headline(written.study, recommended)}: {rate(recommended.best.throughput.mean)}"
        print(printable(f"{best}. {over_default(written.study, recommended)}".rstrip()))
    if today := over_today(written.study):
        print(printable(today))
    # this host has no access to the server of a lab
    if advised and not is_lab(written.study.conditions):
        print(*map(printable, plan.ways_to_mount(advised[0].best.cell)), sep="\n")
    for line in findings(written.study):
        print(printable(line))
    print(printable(str(written.files[0])))


app = typer.Typer(help="Export, merge and compare the results of sweeps.", no_args_is_help=True)


@app.command()
def export(
    store: Annotated[Path, argument("STORE", "File that a sweep wrote.")],
    form: Annotated[str, option("FORMAT", "csv or json.", "--format")] = "csv",
    as_json: Json = False,
) -> None:
    """Print all trials as CSV or JSON.

    JSON also has the plans and the environments.
    """
    from nfsrdma_tools.sweep.store import Store, as_csv, as_facts

    if form not in ("csv", "json"):
        raise UsageError(f"unknown format {form!r}", "use csv or json")
    with Store(store, read_only=True) as kept:
        if as_json or form == "json":
            print_json(as_facts(kept))
        else:
            sys.stdout.write(as_csv(kept))


@app.command()
def merge(
    out: Annotated[Path, argument("OUT", "Store to add to; created if it does not exist.")],
    stores: Annotated[list[Path], argument("STORE...", "Stores of sweeps.")],
    server_cpu: Annotated[
        list[str] | None,
        option(
            "SERVER=FILE", "Output of `nfsrdma server cpu` on SERVER; repeatable (default: none)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Merge the stores of several hosts, for one report.

    Trials that OUT already has stay unchanged, so a second merge changes nothing.
    """
    import dataclasses

    from nfsrdma_tools.errors import printable
    from nfsrdma_tools.sweep.store import merge

    merged = merge(out, stores, dict(map(_samples, server_cpu or ())))
    if as_json:
        print_json(dataclasses.asdict(merged))
        return
    hosts = ", ".join(host or "a host without a name" for host in merged.hosts)
    print(printable(f"{out}: {merged.trials} trials ({merged.new} new) of {hosts}"))


def _samples(option: str) -> tuple[str, list[Sample]]:
    from nfsrdma_tools.sweep.server_cpu import read

    server, separator, path = option.partition("=")
    if not server or not separator:
        raise UsageError(f"{option!r} is not SERVER=FILE", "example: server=cpu.txt")
    try:
        with Path(path).open(encoding="utf-8") as lines:
            return server, read(lines)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


@app.command()
def compare(
    first: Annotated[Path, argument("STORE", "Store with the reference.")],
    second: Annotated[Path, argument("OTHER", "Store to compare with it.")],
    as_json: Json = False,
) -> None:
    """Compare the newest sweeps of two stores, cell by cell.

    Also print what each sweep recommends, and how far that is from the best cell by the figures of
    the first.
    """
    from nfsrdma_tools.sweep.choice import compare
    from nfsrdma_tools.sweep.store import Store

    with Store(first, read_only=True) as reference, Store(second, read_only=True) as other:
        comparison = compare(reference.trials(reference.plan()), other.trials(other.plan()))
    if as_json:
        import dataclasses

        print_json(dataclasses.asdict(comparison))
        return
    rows = [
        (str(d.cell), f"{d.first:.2f}", f"{d.second:.2f} MB/s", f"{d.relative:+.2%}")
        for d in comparison.differences
    ]
    for line in aligned(rows, right=range(1, 4)):
        print(line)
    print(f"{len(comparison.differences)} cells: median difference {comparison.median:.3%}")
    before, after = comparison.trials
    print(f"trials: {before} and {after} ({after / before:.1%})")
    for loss in comparison.losses:
        scope = f"over {loss.transport}" if loss.transport else "over all transports"
        print(f"{scope}: recommended {loss.recommended}, {loss.loss:.2%} below {loss.winner}")
