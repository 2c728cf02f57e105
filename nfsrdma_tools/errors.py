# SPDX-License-Identifier: Apache-2.0
"""Errors for users: one line with what happened and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

__all__ = [
    "CommandError",
    "MismatchError",
    "ProgramMissingError",
    "UsageError",
    "UserError",
    "escaped",
    "one_line",
    "printable",
]


class UserError(Exception):
    """An error that the user can act on, printed as one line without a traceback.

    ``message`` says what happened, with the found and the expected value; ``hint`` says what to do
    next.  ``option`` is the advice that names an option of the command: another command that calls
    the function, as certify calls sweep, leaves it out.  ``status`` is the exit status of the
    command: 1 failure, 2 usage.
    """

    status = 1

    def __init__(self, message: str, hint: str = "", option: str = "") -> None:
        self.message = message
        self.hint = hint
        self.option = option
        super().__init__(_with_hint(message, ", ".join(filter(None, (hint, option)))))


def _with_hint(message: str, hint: str) -> str:
    """``message`` and ``hint`` in one line, without two brackets one after the other."""
    if not hint:
        return message
    return f"{message}; {hint}" if message.endswith(")") else f"{message} ({hint})"


class UsageError(UserError):
    """The command line is wrong: an unknown word, a value out of range, options that conflict."""

    status = 2


class MismatchError(UserError):
    """The value in effect is not the requested one."""

    def __init__(
        self, subject: str, requested: object, in_effect: object, hint: str = "", option: str = ""
    ) -> None:
        self.what, self.requested, self.in_effect = subject, requested, in_effect
        super().__init__(f"{subject}: requested {requested}, got {in_effect}", hint, option)


class CommandError(UserError):
    """A program failed; carries its argv, exit status and standard error."""

    def __init__(self, argv: Sequence[str], returncode: int, stderr: str, hint: str = "") -> None:
        self.argv, self.returncode, self.stderr = list(argv), returncode, stderr
        printed = one_line(stderr) or "it printed no error"
        super().__init__(f"{shlex.join(argv)} exited with status {returncode}: {printed}", hint)


class ProgramMissingError(UserError):
    """A program is not installed."""

    def __init__(self, program: str, hint: str = "") -> None:
        self.program = program
        hint = hint or f"install the package with {program}"
        super().__init__(f"{program} is not installed", hint)


def one_line(text: str) -> str:
    """The last line of ``text`` that is not blank, without control characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable(lines[-1]) if lines else ""


def printable(text: str) -> str:
    """``text`` on one line, with ``?`` for each character that a terminal would interpret."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "?" for c in text)


def escaped(text: str, more: str = "") -> str:
    """``text`` on one line, with an octal escape for each byte that ``printable`` replaces.

    Also for a backslash, as in mountinfo, and for each character of ``more``: different texts stay
    different.
    """
    if text.isprintable() and not any(c in text for c in f"\\{more}"):
        return text
    return "".join(
        c if c.isprintable() and c != "\\" and c not in more else _octal(c) for c in text
    )


def _octal(character: str) -> str:
    # a byte that is no UTF-8 is a surrogate
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))
