# SPDX-License-Identifier: Apache-2.0
"""The ``nfsrdma`` program: its commands, and how an error ends it."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import typer

from nfsrdma_tools.cli import (
    doctor,
    extras,
    lab,
    link,
    live,
    module,
    mount,
    report,
    server,
    store,
    sweep,
    trace,
    tune,
)
from nfsrdma_tools.errors import UserError, printable

app = typer.Typer(
    name="nfsrdma",
    help="Mount NFS over RDMA, prove what it is, sweep it, and see inside it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(mount.mount)
app.command()(mount.mounts)
app.command()(mount.umount)
app.add_typer(lab.app, name="lab")
app.command()(doctor.doctor)
app.add_typer(link.app, name="link")
app.add_typer(server.app, name="server")
app.add_typer(module.app, name="module")
app.command()(sweep.sweep)
app.add_typer(store.app, name="store")
app.command()(report.report)
app.add_typer(tune.app, name="tune")
app.command()(trace.trace)
app.command()(live.top)
app.command()(live.dashboard)
app.command()(live.exporter)


def main() -> None:
    """Run a command; a UserError ends it in one line and its exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # nohup has us ignore SIGHUP
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        with extras.needed():
            app()
    except UserError as error:
        print(f"nfsrdma: {printable(str(error))}", file=sys.stderr)
        sys.exit(error.status)


def _stop(number: int, _frame: FrameType | None) -> None:
    # unwinds the stack, so that the journal takes its changes back
    sys.exit(128 + number)
