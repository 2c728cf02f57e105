# SPDX-License-Identifier: Apache-2.0
"""Standard output of all commands: JSON with its schema version, and aligned tables."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nfsrdma_tools.errors import UsageError, UserError, printable

if TYPE_CHECKING:
    from nfsrdma_tools.files import FileChange

__all__ = [
    "SCHEMA_VERSION",
    "OutputError",
    "aligned",
    "checked_output",
    "open_streams",
    "print_changes",
    "print_inventory",
    "print_json",
    "print_line",
    "print_table",
    "refuse_terminal",
]

SCHEMA_VERSION = 1
"""Version of all JSON output: raised when a key is renamed, removed or changes its meaning."""


class OutputError(UserError):
    """Standard output cannot be written."""


class _Output(io.FileIO):
    """A file of which a failed write is an OutputError.

    Commands handle OSError of the files that they read, which is another fault.
    """

    def write(self, data: Any) -> int:
        """Write some bytes; BrokenPipeError if the reader has gone."""
        try:
            return super().write(data)
        except (BrokenPipeError, BlockingIOError):
            raise
        except OSError as error:
            raise OutputError(f"cannot write the output: {error.strerror}") from error


class _Errors(io.FileIO):
    """Standard error, of which a failed write is ignored: nothing else takes its report."""

    def __init__(self, before: io.TextIOWrapper | None) -> None:
        super().__init__(2, "wb", closefd=False)
        # without a reference, it would close the descriptor
        self.before = before

    def write(self, data: Any) -> int:
        """Write some bytes, or none."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def open_streams() -> None:
    """Open the standard descriptors that are closed, and ignore errors of standard error.

    A file that is opened takes the lowest number that is free.  Standard output that was closed
    can be written to, and fails then as that of a full disk does.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # reading it ends at once, and writing to it fails
            reader, writer = os.pipe()
            os.close(writer)
            os.set_inheritable(reader, True)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    # tests have another object there
    if sys.stderr is None or type(sys.stderr) is io.TextIOWrapper:
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(_Errors(sys.stderr)),
            encoding=sys.stderr.encoding if sys.stderr else None,
            errors="backslashreplace",
            line_buffering=True,
            write_through=True,
        )


@contextlib.contextmanager
def checked_output() -> Iterator[None]:
    """Have standard output raise OutputError, and escape what its encoding lacks, in the block.

    All of the output is written at the end of the block, where errors of a full disk appear.
    """
    before = sys.stdout
    # tests have another object there
    if type(before) is not io.TextIOWrapper:
        yield
        return
    before.flush()
    raw = _Output(before.fileno(), "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding,
        errors="backslashreplace",
        line_buffering=before.line_buffering,
    )
    try:
        yield
    except OutputError:
        _discard(before.fileno())
        raise
    finally:
        _finish(before.fileno())


def _discard(descriptor: int) -> None:
    # Python would write the rest again when it exits, and print a second error
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _finish(descriptor: int) -> None:
    try:
        sys.stdout.flush()
    except (OutputError, BrokenPipeError) as error:
        _discard(descriptor)
        if isinstance(error, BrokenPipeError):
            # a reader such as head(1) has enough
            sys.exit(128 + signal.SIGPIPE)
        raise


def refuse_terminal(content: str, option: str) -> None:
    """UsageError if standard output is a terminal, for a command that writes bytes to it."""
    if sys.stdout.isatty():
        raise UsageError(f"{content} is no text for a terminal", f"use {option} FILE, or a pipe")


def print_json(facts: Mapping[str, object]) -> None:
    """Print ``facts`` with the schema version as one JSON document."""
    print(_text(facts, indent=2))


def print_line(facts: Mapping[str, object]) -> None:
    """Print ``facts`` with the schema version as one line of JSON, at once."""
    print(_text(facts), flush=True)


def print_changes(changes: Sequence[str | FileChange], as_json: bool) -> None:
    """Print what a command would change (--dry-run); each text begins with a verb.

    A change of a file has its unified diff below it.
    """
    if as_json:
        print_json({"dry_run": True, "changes": [str(change) for change in changes]})
        return
    for change in changes or ("change nothing",):
        # a path in a step may contain a newline; only a diff has lines
        lines = [change] if isinstance(change, str) else str(change).splitlines()
        print("\n".join(printable(line.expandtabs()) for line in (f"would {lines[0]}", *lines[1:])))


def print_inventory(groups: Mapping[str, Any]) -> None:
    """Print an Ansible inventory, with the schema version as the variable of all hosts."""
    # Ansible takes each key at the top for a group
    everyone = groups["all"]
    variables = {**everyone["vars"], "nfsrdma_schema_version": SCHEMA_VERSION}
    print(_json({**groups, "all": {**everyone, "vars": variables}}, indent=2))


def _text(facts: Mapping[str, object], indent: int | None = None) -> str:
    return _json({"schema_version": SCHEMA_VERSION, **facts}, indent)


def _json(value: object, indent: int | None) -> str:
    import json

    return json.dumps(value, indent=indent)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns aligned left; the first row is the heading."""
    for line in aligned(rows):
        print(line)


def aligned(
    rows: Sequence[Sequence[str]], right: Container[int] = (), separator: str = "  "
) -> list[str]:
    """A line per row, with its columns aligned: those whose index is in ``right`` to the right.

    A line is as long as its cells, on a terminal and in a pipe: nothing is wrapped or left out.
    Control characters are replaced.
    """
    # not rich's Table: it takes 300 times the CPU time, in each interval of a measurement
    if len({len(row) for row in rows}) > 1:
        raise ValueError("the rows have different numbers of cells")
    columns = [_column(cells, at in right) for at, cells in enumerate(zip(*rows))]
    return [separator.join(row).rstrip() for row in zip(*columns)]


def _column(cells: Sequence[str], right: bool) -> list[str]:
    plain = [printable(cell) for cell in cells]
    lengths = [_cell_len(cell) for cell in plain]
    gaps = [" " * (max(lengths) - length) for length in lengths]
    pairs = zip(plain, gaps)
    return [gap + cell if right else cell + gap for cell, gap in pairs]


def _cell_len(text: str) -> int:
    """The number of columns of a terminal: a wide character takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
