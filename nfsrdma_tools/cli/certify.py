# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma certify``: what passes on this host, its card and a server."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from nfsrdma_tools.cli.options import Json, Verbose, argument, flag, option, vers_option
from nfsrdma_tools.cli.output import print_json
from nfsrdma_tools.cli.progress_bar import ProgressBar
from nfsrdma_tools.errors import UsageError, UserError, printable

if TYPE_CHECKING:
    from nfsrdma_tools.certify.result import Certificate, Result
    from nfsrdma_tools.certify.steps import Began
    from nfsrdma_tools.sweep.progress import Event

__all__ = ["certify"]

_MODULE = (
    "the transport module nfsrdma replaces rpcrdma for some steps, which needs all mounts over "
    "RDMA unmounted; rpcrdma is loaded again at the end, also after a kill -9"
)


def certify(
    target: Annotated[
        str | None, argument("SERVER:/PATH", "Export to use; required without --resume.")
    ] = None,
    module: Annotated[
        bool,
        flag(
            "Also test each personality of module nfsrdma, which replaces rpcrdma meanwhile.",
            "--module",
        ),
    ] = False,
    pull: Annotated[
        bool, flag("Also have you pull the cable and plug it in again, by prompts.", "--pull")
    ] = False,
    vers: Annotated[str | None, vers_option("4.2")] = None,
    store: Annotated[
        Path | None,
        option(
            "STORE", "File for the results; must not exist (default: certify.db).", "--output", "-o"
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        option("STORE", "Continue the certification of this store (default: begin one)."),
    ] = None,
    bundle: Annotated[
        Path | None,
        option("FILE", "Anonymized bundle; must not exist (default: nfsrdma-certify-TIME.tar.gz)."),
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Test this host, its RDMA card and a server.

    Check this host, mount over each transport, compare data of odd sizes, counts of probes, and
    speed. Print a line per step, and write an anonymized bundle with the results. A step that
    cannot run is unknown. Run it as root; Ctrl-C stops it and cleans up, --resume continues it.

    Exit status: 0 when all steps passed, 1 when one failed, 2 for wrong usage or without a result,
    3 when none failed and one is unknown.
    """
    import time

    from nfsrdma_tools.certify.result import bundle_of, table
    from nfsrdma_tools.cli.shared_commands import write_new

    path = bundle or Path(f"nfsrdma-certify-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    try:
        _check_new(path)
        if resume and (target or vers or module or pull or store):
            raise UsageError("--resume excludes a target, --vers, --module, --pull and --output")
        certificate, server = _certified(
            resume or _begun(target, vers, (module, pull), store or Path("certify.db")), as_json
        )
        write_new(path, bundle_of(certificate, server).archive())
    except UserError as error:
        # 1 means that a step failed
        error.status = UsageError.status
        raise
    if as_json:
        print_json({**certificate.to_json(), "bundle": str(path)})
    else:
        print(f"{_summary(certificate)}\nbundle: {printable(str(path))} (anonymized)")
        print(printable(f"row: {' | '.join(table([certificate])[0])}"))
    raise typer.Exit(certificate.exit_status)


def _check_new(path: Path) -> None:
    if path.exists():
        raise UserError(f"{path} exists", "remove it, or name another file")


def _begun(target: str | None, vers: str | None, choices: tuple[bool, bool], path: Path) -> Path:
    """A new store with the plan of a certification."""
    from nfsrdma_tools.certify.steps import Choices, begin, plan_for
    from nfsrdma_tools.sweep.store import Store

    if not target:
        raise UsageError("the export is missing", "usage: nfsrdma certify SERVER:/PATH")
    if os.geteuid() != 0:
        # before there is a store
        raise UserError("only root may mount", "run this as root")
    _check_new(path)
    plan = plan_for(target, vers)
    with Store(path) as store:
        begin(plan, Choices(*choices), store)
    return path


def _certified(path: Path, as_json: bool) -> tuple[Certificate, str]:
    """Run the steps that a store lacks; returns the results, and the server's name."""
    import shlex
    from contextlib import closing, suppress

    from nfsrdma_tools.certify.result import Result
    from nfsrdma_tools.certify.steps import Certification
    from nfsrdma_tools.cli.module import build_with_progress
    from nfsrdma_tools.cli.sweep_lab import of_this_host
    from nfsrdma_tools.sweep.runner import Options
    from nfsrdma_tools.sweep.store import Store

    if not path.is_file():
        raise UserError(f"no store {path} to resume", "begin: nfsrdma certify SERVER:/PATH")
    with Store(path) as store, _View(sys.stderr if as_json else sys.stdout) as view:
        options = of_this_host(Options(probes=False))
        certification = Certification(store, options, view.tell, view.trial)
        if certification.choices.module:
            view.tell(_MODULE)
            # its steps report an error
            with suppress(UserError):
                build_with_progress()
        try:
            with closing(certification.run()) as events:
                for event in events:
                    view.done(event) if isinstance(event, Result) else view.begin(event)
        except KeyboardInterrupt:
            view.tell(f"next: nfsrdma certify --resume {shlex.quote(str(path))}")
            raise typer.Exit(130) from None
        return certification.certificate(), certification.server


class _View(ProgressBar):
    """A line per step, and a bar with the step that runs if ``out`` is a terminal."""

    def __init__(self, out: TextIO) -> None:
        from rich import console, progress

        super().__init__(
            progress.MofNCompleteColumn(),
            progress.BarColumn(),
            progress.TextColumn("{task.description}"),
            hidden=not out.isatty(),
            console=console.Console(file=out),
        )

    def begin(self, event: Began) -> None:
        """Show the step that begins."""
        name = " ".join(filter(None, event.name))
        self._bar.update(self._task, completed=event.done, total=event.all, description=name)

    def trial(self, event: Event) -> None:
        """Show how many trials of the sweep are done."""
        done = getattr(event, "done", None)
        if done is not None:
            self._bar.update(self._task, description=f"sweep: {done} trials")

    def done(self, result: Result) -> None:
        """Print the result of a step."""
        name = " ".join(filter(None, result.name))
        self.tell(f"{result.status:8} {name:16} {result.found} ({result.seconds:.0f} s)")

    def tell(self, text: str) -> None:
        """Print a line."""
        self._say(text)
        # a request for the user's hand must not wait in a buffer
        self._bar.console.file.flush()


def _summary(certificate: Certificate) -> str:
    from collections import Counter

    from nfsrdma_tools.certify.result import FAILED, PASSED, UNKNOWN

    count = Counter(result.status for result in certificate.steps)
    minutes = sum(result.seconds for result in certificate.steps) / 60
    texts = (f"{count[status]} {status}" for status in (PASSED, FAILED, UNKNOWN))
    return f"{', '.join(texts)} in {minutes:.0f} min"
