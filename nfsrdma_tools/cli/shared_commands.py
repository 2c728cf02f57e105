# SPDX-License-Identifier: Apache-2.0
"""The commands `health` and `collect`, without a library for command lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nfsrdma_tools.cli.output import OutputError, print_json, refuse_terminal
from nfsrdma_tools.cli.shared_options import JSON
from nfsrdma_tools.errors import UsageError, UserError, one_line, printable

if TYPE_CHECKING:
    from nfsrdma_tools.live.health.check import Outcome

__all__ = ["HealthOptions", "collect", "health", "host_name", "refuse_health", "write_new"]

_UNKNOWN = 3


class HealthOptions(NamedTuple):
    """The options of ``health``; a path is a text, because nothing must look at it."""

    critical: str
    warning: str | None
    state: str | None
    textfile: str | None
    timeout: float
    procfs: Path | None
    sysfs: Path | None
    rootfs: Path | None
    as_json: bool


def health(mounts: Sequence[str], options: HealthOptions) -> int:
    """Check for mounts that hang, without accessing them.

    Print a summary or an error, and a line for each bad mount, on standard output, as monitoring
    plugins do.  The age of an RPC counts from the first run that saw it: run this regularly, as
    root.  The kernel lists RPCs for root only; for other users, compare the counters of two runs.

    Exit status: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN or wrong usage.
    """
    from nfsrdma_tools.host.machine import host_of_container
    from nfsrdma_tools.live.health.check import (
        Request,
        limits,
        mount_points,
        run,
        without_answer,
    )

    state, textfile = options.state, options.textfile

    def work() -> Outcome:
        try:
            request = Request(
                limits(options.critical, options.warning), mount_points(mounts),
                host_of_container(options.procfs, options.sysfs, options.rootfs),
                Path(state) if state else None, Path(textfile) if textfile else None,
            )  # fmt: skip
        except UserError as error:
            return without_answer(error)
        return run(request, options.timeout)

    return _answered(work, options.as_json)


def refuse_health(error: UserError, words: Sequence[str]) -> int:
    """Answer ``health`` with ``words`` that are no command line of it; returns the exit status."""
    from nfsrdma_tools.live.health.check import without_answer

    return _answered(lambda: without_answer(error), any(name in words for name in JSON.names))


def _outcome(work: Callable[[], Outcome]) -> Outcome:
    """The outcome of ``health``, UNKNOWN after an error of the program itself."""
    import traceback

    from nfsrdma_tools.live.health.check import without_answer

    try:
        return work()
    except Exception:
        # 1, which Python has for an error of a program, is WARNING
        traceback.print_exc()
        reason = f"an error of nfsrdma: {one_line(traceback.format_exc())}"
        return without_answer(UserError(reason, "report it, with the standard error"))


def _answered(work: Callable[[], Outcome], as_json: bool) -> int:
    """Print an outcome of ``health`` on standard output, all that monitoring shows of it."""
    try:
        outcome = _outcome(work)
        if as_json:
            print_json(outcome.plain)
        else:
            print(*outcome.lines, sep="\n")
        sys.stdout.flush()
    except OutputError as error:
        # the answer cannot be read
        error.status = _UNKNOWN
        raise
    except OSError:
        # its reader has gone
        return _UNKNOWN
    return outcome.status


def collect(server: str, output: Path | None, anonymize: bool, as_json: bool) -> None:
    """Write a bundle of files for a report about this host.

    It has what doctor, mounts, server status and trace nfsiostat read; `--from FILE` of these
    commands reads it on any host.  Reads single files, the RDMA links and the kernel's messages
    about NFS and RDMA; changes nothing.  Run it as root: other users may read less.
    """
    from nfsrdma_tools.doctor import bundle as bundles

    to_output = output == Path("-")
    if to_output and as_json:
        raise UsageError("standard output cannot have both the bundle and JSON", "use -o FILE")
    if to_output:
        refuse_terminal("a bundle", "-o")
    bundle = bundles.collect(host_name(server))
    if anonymize:
        from nfsrdma_tools.doctor.anonymize import anonymized

        bundle = anonymized(bundle)
    path = output or _default(anonymize)
    if to_output:
        sys.stdout.buffer.write(bundle.archive())
        sys.stdout.flush()
    else:
        write_new(path, bundle.archive())
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


def host_name(text: str) -> str:
    """A host's name or address without the brackets that an IPv6 address has in host:/path.

    UsageError for a text with blanks or control characters, which no name has.
    """
    if not text.isprintable() or " " in text:
        raise UsageError(f"SERVER is {text!r}, expected a host name or an address")
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def _default(anonymous: bool) -> Path:
    import platform
    import time

    host = "host" if anonymous else platform.node() or "host"
    return Path(f"nfsrdma-{host}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")


def write_new(path: Path, data: bytes, option: str = "-o") -> None:
    """Write a new file that only this user may read; UserError if that fails.

    ``option`` names the file on the command line.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except OSError:
            # a part of it is of no use, and the next attempt needs the name
            path.unlink(missing_ok=True)
            raise
    except FileExistsError as error:
        message = f"remove it, or name another file with {option}"
        raise UserError(f"{path} exists", message) from error
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
