# SPDX-License-Identifier: Apache-2.0
"""The progress bar of commands that take long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from nfsrdma_tools.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

__all__ = ["ProgressBar"]


class ProgressBar:
    """A bar of rich with one task, shown during a block unless ``hidden``."""

    def __init__(
        self, *columns: ProgressColumn, hidden: bool, console: Console | None = None
    ) -> None:
        from rich import progress

        self._bar = progress.Progress(*columns, transient=True, console=console, disable=hidden)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        self._bar.stop()

    def _say(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
