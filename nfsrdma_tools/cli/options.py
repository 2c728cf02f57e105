# SPDX-License-Identifier: Apache-2.0
"""Short forms of options and arguments, and the options that several commands share."""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from nfsrdma_tools.cli import shared_options
from nfsrdma_tools.cli.process import log_programs
from nfsrdma_tools.cli.shared_commands import host_name, refuse_health
from nfsrdma_tools.cli.shared_options import (
    PATHS,
    SERVER,
    Declared,
    empty_value,
    in_range,
    ranged,
)
from nfsrdma_tools.errors import UsageError, UserError

if TYPE_CHECKING:
    from nfsrdma_tools.host.machine import Machine

__all__ = [
    "DryRun",
    "From",
    "Json",
    "OneMount",
    "PluginCommand",
    "Procfs",
    "Rootfs",
    "SectionedCommand",
    "Sysfs",
    "Timeout",
    "Verbose",
    "argument",
    "complete_mount",
    "complete_personality",
    "complete_transport",
    "complete_vers",
    "declared",
    "default_signals",
    "flag",
    "host_name",
    "log_programs",
    "machine_of",
    "option",
    "read_ahead_kb_option",
    "read_ahead_option",
    "refuse_empty_paths",
    "rsize_option",
    "vers_option",
    "wsize_option",
]

_Complete = Callable[[str], list[str]]


def argument(metavar: str, text: str, complete: _Complete | None = None) -> Any:
    """An argument with its help text."""
    shown = _states_no_default(text)
    return typer.Argument(metavar=metavar, help=text, autocompletion=complete, show_default=shown)


def option(
    metavar: str,
    text: str,
    *names: str,
    complete: _Complete | None = None,
    least: float | None = None,
    most: float = math.inf,
    panel: str | None = None,
) -> Any:
    """An option with a value; without ``names`` it has the name of its parameter.

    A ``text`` that states the default replaces the one that typer prints.  ``least`` and
    ``most`` are the range of a number, ``panel`` is the heading of the help (see
    ``SectionedCommand``).
    """
    shown = _states_no_default(text)
    return typer.Option(
        *names,
        metavar=metavar,
        help=ranged(text, least, most),
        autocompletion=complete,
        show_default=shown,
        callback=None if least is None else _between(least, most),
        rich_help_panel=panel,
    )


def _between(least: float, most: float) -> Callable[[float | None], float | None]:
    # the help of typer's own min and max has "[x>=1]"
    def check(value: float | None) -> float | None:
        try:
            return value if value is None else in_range(value, least, most)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return check


def flag(text: str, *names: str, panel: str | None = None) -> Any:
    """An option without a value."""
    shown = _states_no_default(text)
    return typer.Option(*names, help=text, show_default=shown, rich_help_panel=panel)


def declared(parameter: Declared, complete: _Complete | None = None) -> Any:
    """The option or the argument that ``nfsrdma.pyz`` has, too."""
    if not parameter.names:
        return argument(parameter.metavar, parameter.text, complete)
    if not parameter.metavar:
        return flag(parameter.text, *parameter.names)
    return option(
        parameter.metavar,
        parameter.text,
        *parameter.names,
        complete=complete,
        least=parameter.least,
        most=parameter.most,
    )


class SectionedCommand(TyperCommand):
    """A command whose help lists options with a panel below a heading of their own."""

    # Any: click's classes until typer 0.25, then those of typer's own copy of click
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Print arguments, then the options by panel."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            panel = getattr(param, "rich_help_panel", None)
            if record is not None:
                kind = "Arguments" if param.param_type_name == "argument" else "Options"
                sections.setdefault(panel or kind, []).append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


class PluginCommand(SectionedCommand):
    """The command ``health``: a wrong command line is UNKNOWN, as monitoring plugins have it."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the command line; answer one that is wrong, and exit."""
        words = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except UserError as error:
            refused = error
        except Exception as error:
            # UsageError of click, or of typer's own copy of click
            if getattr(error, "exit_code", None) != UsageError.status:
                raise
            refused = UsageError(_message(error), f"see {ctx.command_path} --help")
        raise typer.Exit(refuse_health(refused, words))


def _message(error: Any) -> str:
    """The message of an error of click, in the form of argparse."""
    param = getattr(error, "param", None)
    text = f"{param.opts[0]}: {error.message}" if param else str(error.format_message())
    return text.rstrip(".")


def refuse_empty_paths(command: Any) -> None:
    """Have a command, or all of a group, refuse "" as a path, which is ".", and as a SERVER."""
    for child in getattr(command, "commands", {}).values():
        refuse_empty_paths(child)
    for param in command.params:
        if param.type.name == "path" or param.metavar in (*PATHS, SERVER.metavar):
            param.callback = _refusing_empty(param.callback)


def _refusing_empty(callback: Callable[..., Any] | None) -> Callable[..., Any]:
    # Any: the classes of click, or of typer's own copy of click
    def check(context: Any, param: Any, value: Any) -> Any:
        given = context.get_parameter_source(param.name).name != "DEFAULT"
        if given and "" in (value if isinstance(value, (list, tuple)) else [value]):
            is_argument = param.param_type_name == "argument"
            name = param.metavar.rstrip(".") if is_argument else param.opts[0]
            raise empty_value(name, param.metavar)
        return callback(context, param, value) if callback else value

    return check


def _states_no_default(text: str) -> bool:
    return "(default:" not in text


def complete_transport(incomplete: str) -> list[str]:
    """Transports that begin with ``incomplete``."""
    from nfsrdma_tools.host.nfs.mounting import TRANSPORTS

    return _beginning(TRANSPORTS, incomplete)


def complete_personality(incomplete: str) -> list[str]:
    """Personalities that begin with ``incomplete``."""
    from nfsrdma_tools.personalities import PERSONALITIES

    return _beginning(PERSONALITIES, incomplete)


def complete_vers(incomplete: str) -> list[str]:
    """NFS versions that begin with ``incomplete``."""
    from nfsrdma_tools.host.nfs.mounting import VERSIONS

    return _beginning(VERSIONS, incomplete)


def complete_mount(incomplete: str) -> list[str]:
    """Mount points of NFS that begin with ``incomplete``."""
    from nfsrdma_tools.host.nfs.mounts import mounts

    return _beginning((str(mount.directory) for mount in mounts()), incomplete)


def vers_option(default: str) -> Any:
    """The option --vers of a command with this default."""
    text = f"NFS version: 3, 4.0, 4.1 or 4.2 (default: {default})."
    return option("VERSION", text, complete=complete_vers)


def _beginning(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


Json = Annotated[bool, declared(shared_options.JSON)]
DryRun = Annotated[bool, flag("Print the changes that it would make, and make none.", "--dry-run")]
From = Annotated[
    Path | None,
    option(
        "PATH",
        "Read a bundle of `nfsrdma collect`, or a folder with files of another host "
        "(default: this host).",
        "--from",
    ),
]
Procfs = Annotated[Path | None, declared(shared_options.PROCFS)]
Sysfs = Annotated[Path | None, declared(shared_options.SYSFS)]
Rootfs = Annotated[Path | None, declared(shared_options.ROOTFS)]
Verbose = Annotated[
    bool,
    typer.Option(
        *shared_options.VERBOSE.names, callback=log_programs, help=shared_options.VERBOSE.text
    ),
]
OneMount = Annotated[
    Path | None,
    option("DIR", "Restrict to the mount at DIR (default: all mounts).", complete=complete_mount),
]
Timeout = Annotated[
    float, option("SECONDS", "Stop waiting after SECONDS (default: 60 s).", "--timeout", least=1)
]


@contextlib.contextmanager
def machine_of(
    source: Path | None, server: str = "", process: str = "self", here: Machine | None = None
) -> Iterator[Machine]:
    """The host that --from names; this host for None.  UserError if it cannot be read.

    ``process`` is the one of this host whose mount namespace is read.  ``here`` is this host if
    the process runs in a container.
    """
    from nfsrdma_tools.host.machine import Machine

    if source is None:
        yield replace(here, server=server) if here else Machine(server=server, process=process)
        return
    from nfsrdma_tools.doctor.recorded import opened

    with opened(source, server) as machine:
        yield machine


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """Have signals end the process at once, for a block that has nothing to undo.

    Python's handlers run between two calls of a library, and a call may wait for a server.
    """
    kept = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in kept.items():
        # nohup(1) sets SIGHUP to ignored
        if handler is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def rsize_option(default: str) -> Any:
    """The option --rsize of a command with this default."""
    return option("SIZE", f"Size of a READ in bytes: 65536, 64k, 1M (default: {default}).")


def wsize_option(default: str) -> Any:
    """The option --wsize of a command with this default."""
    return option("SIZE", f"Size of a WRITE in bytes: 65536, 64k, 1M (default: {default}).")


def read_ahead_option(default: str) -> Any:
    """The option --read-ahead of a command with this default."""
    return option("N", f"Read-ahead in blocks of rsize; 0 turns it off (default: {default}).")


def read_ahead_kb_option(default: str) -> Any:
    """The option --read-ahead-kb of a command with this default."""
    text = "Read-ahead in KiB, as in read_ahead_kb; 0 turns it off"
    return option("KIB", f"{text} (default: {default}).")
