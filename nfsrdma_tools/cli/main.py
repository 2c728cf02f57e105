# SPDX-License-Identifier: Apache-2.0
"""The program ``nfsrdma``: its commands, and how errors and signals end it."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer

from nfsrdma_tools import __version__
from nfsrdma_tools.cli import (
    doctor,
    extras,
    lab,
    link,
    live,
    module,
    mount,
    report,
    results,
    server,
    sweep,
    top,
    trace,
    tune,
)
from nfsrdma_tools.cli.options import Verbose
from nfsrdma_tools.errors import UserError, printable

__all__ = ["app", "main"]

# typer 0.15, which Debian 13 has, escapes "[default: 1]" for rich, which does not print our help
if "rich" in vars(typer.core):
    vars(typer.core)["rich"] = None

app = typer.Typer(
    name="nfsrdma",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Mount NFS over RDMA, verify the mount, measure it, and trace it.",
    epilog=(
        "Exit status: 0 success, 1 failure, 2 wrong usage, 130 interrupted by Ctrl-C."
        "\n\n"
        "Shell completion: `nfsrdma --install-completion` sets it up for your shell."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"nfsrdma {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    verbose: Verbose = False,
) -> None:
    pass


app.command()(mount.mount)
app.command()(mount.mounts)
app.command()(mount.umount)
app.add_typer(lab.app, name="lab")
app.command()(doctor.doctor)
app.add_typer(link.app, name="link")
app.add_typer(server.app, name="server")
app.add_typer(module.app, name="module")
app.command()(sweep.sweep)
app.add_typer(results.app, name="results")
app.command()(report.report)
app.add_typer(tune.app, name="tune")
app.command()(trace.trace)
app.command()(top.top)
app.command()(live.dashboard)
app.command()(live.exporter)


def main() -> None:
    """Run a command; a UserError ends it with one line and its exit status.

    So does an error of a file, such as on a full or read-only filesystem; --verbose adds where.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        # nohup(1) sets SIGHUP to ignored
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        # the name is part of the completion's protocol, also for python -m nfsrdma_tools
        with extras.needed():
            app(prog_name="nfsrdma")
    except UserError as error:
        _fail(str(error), error.status)
    except OSError as error:
        import logging

        logging.getLogger("nfsrdma_tools").debug("failed", exc_info=True)
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", UserError.status)


def _fail(message: str, status: int) -> NoReturn:
    print(f"nfsrdma: {printable(message)}", file=sys.stderr)
    sys.exit(status)


def _stop(number: int, _frame: FrameType | None) -> None:
    # unwind the stack, so that the journal reverts its changes
    sys.exit(128 + number)
