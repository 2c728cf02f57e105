# SPDX-License-Identifier: Apache-2.0
"""The errors users see: one line that says what happened and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

__all__ = [
    "CommandError",
    "MismatchError",
    "ProgramMissingError",
    "UserError",
    "one_line",
    "printable",
]


class UserError(Exception):
    """Something the user can act on. Printed as one line, without a traceback.

    ``message`` says what happened with the expected and the found value,
    ``hint`` what to do next.  ``status`` is the exit status of the command.
    """

    status = 1

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"{message} ({hint})" if hint else message)


class MismatchError(UserError):
    """What was asked is not what is in effect (law 1)."""

    def __init__(self, what: str, asked: object, found: object, hint: str = "") -> None:
        self.what, self.asked, self.found = what, asked, found
        super().__init__(f"{what}: asked for {asked}, got {found}", hint)


class CommandError(UserError):
    """A program ended with a failure; carries its argv, status and last words."""

    def __init__(self, argv: Sequence[str], returncode: int, stderr: str, hint: str = "") -> None:
        self.argv, self.returncode, self.stderr = list(argv), returncode, stderr
        said = one_line(stderr) or "it said nothing"
        super().__init__(f"{shlex.join(argv)} ended with status {returncode}: {said}", hint)


class ProgramMissingError(UserError):
    """A program is not installed."""

    def __init__(self, program: str) -> None:
        super().__init__(f"{program} is not installed", f"install the package that has {program}")


def one_line(text: str) -> str:
    """The last line of ``text`` that says something, printable and without control characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable(lines[-1]) if lines else ""


def printable(text: str) -> str:
    """``text`` in one line, with ``?`` for what a terminal would take as a command."""
    return "".join(c if c.isprintable() else "?" for c in text)
