# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma cp``: copy files between a server and this host without a mount."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from nfsrdma_tools.cli.options import Json, argument, flag
from nfsrdma_tools.cli.output import print_json
from nfsrdma_tools.cli.progress_bar import ProgressBar
from nfsrdma_tools.errors import printable

if TYPE_CHECKING:
    from nfsrdma_tools.client.copy import Copied

__all__ = ["cp"]

_Place = "Local path, or SERVER:/PATH; exactly one of the two is remote."


def cp(
    source: Annotated[str, argument("SOURCE", _Place)],
    target: Annotated[str, argument("TARGET", f"{_Place} A directory gets a copy in it.")],
    recursive: Annotated[
        bool, flag("Copy a directory with its files and directories.", "--recursive", "-r")
    ] = False,
    resume: Annotated[
        bool,
        flag(
            "Continue an interrupted copy: skip complete files, and compare the last MiB of "
            "others with the source.",
            "--continue",
        ),
    ] = False,
    force: Annotated[bool, flag("Replace existing files.", "--force")] = False,
    as_json: Json = False,
) -> None:
    """Copy files between a server and this host without a mount.

    Until a copy is complete, its name ends with .nfsrdma-part.  The command replaces no file
    without --force.  It writes all data to stable storage and verifies the size.

    A recursive copy leaves symbolic links and special files out, and lists them.
    """
    from nfsrdma_tools.client.copy import Options, copy

    with _Progress(hidden=as_json) as progress:
        options = Options(recursive, resume, force, progress.planned, progress.advance)
        copied = copy(source, target, options)
    if as_json:
        print_json(copied._asdict())
        return
    _show(copied)


def _show(copied: Copied) -> None:
    for path in copied.skipped:
        print(printable(f"left out, neither a file nor a directory: {path}"), file=sys.stderr)
    files = "1 file" if copied.files == 1 else f"{copied.files} files"
    print(f"copied {files}, {copied.bytes} bytes")


class _Progress(ProgressBar):
    """A progress bar of bytes, on a terminal only."""

    def __init__(self, hidden: bool) -> None:
        from rich import progress

        super().__init__(
            progress.BarColumn(),
            progress.DownloadColumn(binary_units=True),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("left"),
            hidden=hidden or not sys.stdout.isatty(),
        )

    def planned(self, total: int) -> None:
        """Set the bytes of all files."""
        self._bar.update(self._task, total=total)

    def advance(self, count: int) -> None:
        """Add bytes."""
        self._bar.advance(self._task, count)
