# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma collect``: a bundle of files, so that another host can judge this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from nfsrdma_tools.cli import shared_commands
from nfsrdma_tools.cli.options import Json, declared
from nfsrdma_tools.cli.shared_options import ANONYMIZE, OUTPUT, SERVER

__all__ = ["collect"]


def collect(
    server: Annotated[str, declared(SERVER)] = "",
    output: Annotated[Path | None, declared(OUTPUT)] = None,
    anonymize: Annotated[bool, declared(ANONYMIZE)] = False,
    as_json: Json = False,
) -> None:
    """Write a bundle; the help is that of the shared command."""
    shared_commands.collect(server, output, anonymize, as_json)


collect.__doc__ = shared_commands.collect.__doc__
