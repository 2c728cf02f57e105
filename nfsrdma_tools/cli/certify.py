# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma certify``: test this host, its card and a server."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nfsrdma_tools.cli.options import Json, Verbose, argument, flag, option, vers_option
from nfsrdma_tools.cli.output import print_json
from nfsrdma_tools.errors import UsageError, UserError, printable

if TYPE_CHECKING:
    from nfsrdma_tools.certify.result import Certificate

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

    from nfsrdma_tools.certify.result import table

    path = bundle or Path(f"nfsrdma-certify-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    try:
        if resume and (target or vers or module or pull or store):
            raise UsageError("--resume excludes a target, --vers, --module, --pull and --output")
        output = store or Path("certify.db")
        _require_room(path, resume or output)
        kept = resume or _begun(target, vers, module, pull, output)
        certificate = _certified(kept, path, as_json)
    except UserError as error:
        # 1 means that a step failed
        error.status = UsageError.status
        raise
    if as_json:
        print_json({**asdict(certificate), "bundle": str(path)})
    else:
        print(f"{_summary(certificate)}\nbundle: {printable(str(path))} (anonymized)")
        print(printable(f"row: {' | '.join(table([certificate])[0])}"))
    raise typer.Exit(certificate.exit_status)


def _require_room(bundle: Path, store: Path) -> None:
    """UserError now, and not after the last step, if the bundle cannot be a new file."""
    if os.path.lexists(bundle):
        raise UserError(f"{bundle} exists", "remove it, or name another file with --bundle")
    if not os.access(bundle.parent, os.W_OK):
        raise UserError(f"cannot write into {bundle.parent}", "name another file with --bundle")
    if bundle.parent.resolve() / bundle.name == store.parent.resolve() / store.name:
        raise UserError(
            f"{bundle} is both the store and the bundle", "name another file with --bundle"
        )


def _begun(target: str | None, vers: str | None, module: bool, pull: bool, path: Path) -> Path:
    """A new store with the plan of a certification."""
    from nfsrdma_tools.certify.steps import begin, plan_for
    from nfsrdma_tools.cli.shared_commands import write_new
    from nfsrdma_tools.sweep.store import DiskFullError, Store

    if not target:
        raise UsageError("the export is missing", "usage: nfsrdma certify SERVER:/PATH")
    if os.geteuid() != 0:
        # before there is a store
        raise UserError("only root may mount", "run this as root")
    plan = plan_for(target, vers)
    # an empty file is a new store; nobody else's link is in its place
    write_new(path, b"")
    try:
        with Store(path) as store:
            begin(plan, store, module, pull)
    except UserError as error:
        # without its plan, nothing can be resumed
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        if isinstance(error, DiskFullError):
            error = DiskFullError(path, "free space there, or name another file with --output")
        raise error
    return path


def _certified(path: Path, bundle: Path, as_json: bool) -> Certificate:
    """Run the steps that a store lacks, and write the bundle."""
    import shlex
    from contextlib import closing, suppress

    from rich.console import Console

    from nfsrdma_tools.certify.result import CERTIFICATE, Result
    from nfsrdma_tools.certify.steps import Certification
    from nfsrdma_tools.cli.module import build_with_progress
    from nfsrdma_tools.cli.shared_commands import write_new
    from nfsrdma_tools.cli.sweep_lab import of_this_host
    from nfsrdma_tools.doctor.anonymize import anonymized
    from nfsrdma_tools.doctor.bundle import collect
    from nfsrdma_tools.sweep.runner import Options
    from nfsrdma_tools.sweep.store import Store

    console = Console(file=sys.stderr if as_json else sys.stdout)

    def tell(text: str) -> None:
        console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
        # the request to pull the cable must not wait in a buffer
        console.file.flush()

    if not path.is_file():
        raise UserError(f"no store {path} to resume", "begin: nfsrdma certify SERVER:/PATH")
    again = f"next: nfsrdma certify --resume {shlex.quote(str(path))}"
    status = console.status("")
    with Store(path, must_exist=True) as store:
        options = of_this_host(Options(probes=False))
        certification = Certification(store, options, tell, status.update)
        try:
            if certification.certificate.module:
                tell(_MODULE)
                # its steps report an error
                with suppress(UserError):
                    build_with_progress()
            with status, closing(certification.run()) as events:
                for event in events:
                    if isinstance(event, Result):
                        line = f"{event.status:8} {' '.join(event.name).strip():16} {event.found}"
                        tell(f"{line} ({event.seconds:.0f} s)")
                    else:
                        status.update(" ".join(event))
            made = collect(certification.plan.server)
            made.files[CERTIFICATE] = certification.certificate.without_texts().encode()
            write_new(bundle, anonymized(made).archive(), "--bundle")
        except (KeyboardInterrupt, SystemExit) as stop:
            # SystemExit: SIGTERM, or SIGHUP of a terminal that is gone
            with suppress(OSError):
                tell(again)
            if isinstance(stop, SystemExit):
                raise
            raise typer.Exit(130) from None
        except (UserError, OSError) as error:
            # after the last step, only the bundle is missing
            if len(certification.certificate.steps) < len(certification.certificate.requested):
                raise
            raise UserError(f"no bundle: {error}", again) from error
        return certification.certificate


def _summary(certificate: Certificate) -> str:
    from nfsrdma_tools.certify.result import FAILED, PASSED, UNKNOWN

    found = [result.status for result in certificate.steps]
    minutes = sum(result.seconds for result in certificate.steps) / 60
    texts = (f"{found.count(status)} {status}" for status in (PASSED, FAILED, UNKNOWN))
    return f"{', '.join(texts)} in {minutes:.0f} min"
