# SPDX-License-Identifier: Apache-2.0
"""Old names of commands and options: they work for one more version and print a warning."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperCommand

__all__ = ["old_command", "old_options", "warn"]


def warn(old: str, new: str) -> None:
    """Print that ``old`` is deprecated and which name replaces it."""
    print(f"nfsrdma: {old} is now {new}; the next version removes the old name", file=sys.stderr)


def old_command(app: typer.Typer, old: str, new: str, command: Callable[..., Any]) -> None:
    """Let ``app`` run ``command`` by the last word of ``old``, too, hidden from its help."""

    @functools.wraps(command)
    def warned(*args: Any, **kwargs: Any) -> None:
        warn(old, new)
        command(*args, **kwargs)

    app.command(old.rsplit(maxsplit=1)[-1], hidden=True)(warned)


def old_options(names: Mapping[str, str]) -> type[TyperCommand]:
    """A command that takes the old options in ``names`` for the new ones they map to."""

    class _Command(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            options = list(itertools.takewhile(lambda word: word != "--", args))
            return super().parse_args(ctx, [*map(_new, options), *args[len(options) :]])

    def _new(word: str) -> str:
        name, equals, value = word.partition("=")
        if name not in names:
            return word
        warn(name, names[name])
        return f"{names[name]}{equals}{value}"

    return _Command
