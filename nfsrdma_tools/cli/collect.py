# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma collect``: a bundle of files, so that another host can judge this one."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from nfsrdma_tools.cli.options import Json, argument, flag, host_name, option
from nfsrdma_tools.cli.output import print_json, refuse_terminal
from nfsrdma_tools.errors import UsageError, UserError, printable

__all__ = ["collect"]


def collect(
    server: Annotated[
        str, argument("SERVER", "Also record the route to this server (default: no route).")
    ] = "",
    output: Annotated[
        Path | None,
        option(
            "FILE",
            "File to write, - for standard output; must not exist "
            "(default: nfsrdma-HOST-TIME.tar.gz).",
            "--output",
            "-o",
        ),
    ] = None,
    anonymize: Annotated[
        bool,
        flag("Write known words and numbers only, placeholders for all else.", "--anonymize"),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a bundle of files for a report about this host.

    It has what doctor, mounts, server status and trace nfsiostat read; `--from FILE` of these
    commands reads it on any host.  Reads single files, the RDMA links and the kernel's messages
    about NFS and RDMA; changes nothing.  Run it as root: other users may read less.
    """
    from nfsrdma_tools.host import bundle as bundles

    to_output = output == Path("-")
    if to_output and as_json:
        raise UsageError("standard output cannot have both the bundle and JSON", "use -o FILE")
    if to_output:
        refuse_terminal("a bundle", "-o")
    bundle = bundles.collect(host_name(server))
    if anonymize:
        from nfsrdma_tools.host.anonymize import anonymized

        bundle = anonymized(bundle)
    path = output or _default(anonymize)
    if to_output:
        sys.stdout.buffer.write(bundle.archive())
    else:
        _write(path, bundle.archive())
    left_out = [vars(entry) for entry in bundle.left_out]
    if as_json:
        count = len(bundle.files)
        withheld = {"withheld": bundle.withheld} if anonymize else {}
        print_json({"file": str(path), "files": count, "left_out": left_out, **withheld})
        return
    say = partial(print, file=sys.stderr if to_output else sys.stdout)
    say(f"wrote {'the bundle' if to_output else printable(str(path))}: {len(bundle.files)} files")
    for entry in bundle.left_out:
        say(printable(f"  left out: {entry.what}: {entry.why}"))
    if anonymize:
        count = sum(bundle.withheld.values())
        say(f"  withheld: {count} values in {len(bundle.withheld)} files, see manifest.json")
    else:
        say("  it has host names, addresses and paths; --anonymize replaces them")


def _default(anonymous: bool) -> Path:
    import platform
    import time

    host = "host" if anonymous else platform.node() or "host"
    return Path(f"nfsrdma-{host}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")


def _write(path: Path, data: bytes) -> None:
    """Write a new file that only this user may read; UserError if that fails."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(data)
    except FileExistsError as error:
        raise UserError(f"{path} exists", "remove it, or name another file with -o") from error
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
