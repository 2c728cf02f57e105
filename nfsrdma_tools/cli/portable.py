# SPDX-License-Identifier: Apache-2.0
"""The program ``nfsrdma.pyz``: `health` and `collect` on Python 3.9, without any package.

`make zipapp` builds it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from nfsrdma_tools import __version__
from nfsrdma_tools.cli import shared_commands
from nfsrdma_tools.cli import shared_options as options
from nfsrdma_tools.cli.process import log_programs, run
from nfsrdma_tools.cli.shared_options import Declared
from nfsrdma_tools.errors import UsageError, UserError

__all__ = ["COMMANDS", "Command", "main"]

_PROGRAM = "nfsrdma.pyz"
_ABOUT = (
    "Check NFS mounts, and collect files for a report, on a host without nfsrdma-tools. "
    "`nfsrdma doctor --from FILE` reads the file on another host."
)


class Command(NamedTuple):
    """A command: what runs it, its help, and its options by the names of their values."""

    work: Callable[[argparse.Namespace], int]
    text: str
    declared: dict[str, Declared]
    refuse: Callable[[UserError, Sequence[str]], int] | None = None
    """Answers a wrong command line, and returns the exit status; without it, main() does so."""


def _health(given: argparse.Namespace) -> int:
    values = vars(given)
    wanted = {name: values[name] for name in shared_commands.HealthOptions._fields}
    for name in ("procfs", "sysfs", "rootfs"):
        wanted[name] = None if wanted[name] is None else Path(wanted[name])
    return shared_commands.health(given.mounts, shared_commands.HealthOptions(**wanted))


def _collect(given: argparse.Namespace) -> int:
    output = None if given.output is None else Path(given.output)
    shared_commands.collect(given.server, output, given.anonymize, given.as_json)
    return 0


COMMANDS = {
    "health": Command(
        _health,
        cleandoc(shared_commands.health.__doc__ or ""),
        {
            "mounts": options.MOUNTS,
            "critical": options.MAX_RPC_AGE,
            "warning": options.WARN_RPC_AGE,
            "state": options.STATE,
            "textfile": options.TEXTFILE,
            "timeout": options.TIMEOUT,
            "procfs": options.PROCFS,
            "sysfs": options.SYSFS,
            "rootfs": options.ROOTFS,
            "as_json": options.JSON,
        },
        shared_commands.refuse_health,
    ),
    "collect": Command(
        _collect,
        cleandoc(shared_commands.collect.__doc__ or ""),
        {
            "server": options.SERVER,
            "output": options.OUTPUT,
            "anonymize": options.ANONYMIZE,
            "as_json": options.JSON,
        },
    ),
}


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors."""

    def __init__(self, **words: Any) -> None:
        shape = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=shape, **words)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(message.removeprefix("argument "), f"see {self.prog} --help")


def main() -> None:
    """Run a command of the command line."""
    run(lambda: sys.exit(_run(sys.argv[1:])))


def _run(words: Sequence[str]) -> int:
    program = _program()
    given = program.parse_args(words)
    if not given.command:
        program.error(f"expected a command: {' or '.join(COMMANDS)}")
    log_programs(given.verbose)
    command = COMMANDS[given.command]
    try:
        values = _parsed(given.command, given.rest)
    except UsageError as error:
        if command.refuse is None:
            raise
        return command.refuse(error, given.rest)
    return command.work(values)


def _parsed(name_of_command: str, words: Sequence[str]) -> argparse.Namespace:
    """The values of a command line; UsageError if it is wrong."""
    command = COMMANDS[name_of_command]
    parser = _Parser(prog=f"{_PROGRAM} {name_of_command}", description=command.text)
    for name, declared in command.declared.items():
        _add(parser, name, declared)
    # options may stand behind arguments
    values = parser.parse_intermixed_args(words)
    # "" among the words may be a path; it is also the value of a SERVER that is not given
    for name, declared in sorted(command.declared.items(), key=lambda item: not item[1].is_path):
        is_host = declared is options.SERVER
        given_empty = declared.is_path or (is_host and "" in words)
        if given_empty and getattr(values, name) == "":
            parameter = declared.names[0] if declared.names else declared.metavar
            raise options.empty_value(parameter, declared.metavar)
    return values


def _program() -> _Parser:
    commands = "\n".join(
        f"  {name:10}{command.text.partition(chr(10))[0]}" for name, command in COMMANDS.items()
    )
    parser = _Parser(
        prog=_PROGRAM,
        usage=f"{_PROGRAM} [-h] [--version] [-v] COMMAND ...",
        description=f"{_ABOUT}\n\ncommands:\n{commands}",
    )
    parser.add_argument("--version", action="version", version=f"nfsrdma {__version__}")
    verbose = options.VERBOSE
    parser.add_argument(*verbose.names, action="store_true", help=verbose.text)
    parser.add_argument(
        "command", nargs="?", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS
    )
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add(parser: argparse.ArgumentParser, name: str, declared: Declared) -> None:
    text = options.ranged(declared.text, declared.least, declared.most)
    if isinstance(declared.default, float) or (declared.default and "(default:" not in text):
        text += f" [default: {declared.default}]"
    text = text.replace("%", "%%")
    if not declared.names:
        several = declared.metavar.endswith("...")
        parser.add_argument(
            name,
            nargs="*" if several else "?",
            default=[] if several else declared.default,
            metavar=declared.metavar.strip("[].") if several else declared.metavar,
            help=text,
        )
    elif not declared.metavar:
        parser.add_argument(*declared.names, dest=name, action="store_true", help=text)
    else:
        parser.add_argument(
            *declared.names,
            dest=name,
            metavar=declared.metavar,
            default=declared.default,
            type=str if declared.least is None else _number(declared),
            help=text,
        )


def _number(declared: Declared) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            return options.in_range(float(text), declared.least or 0, declared.most)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return number
