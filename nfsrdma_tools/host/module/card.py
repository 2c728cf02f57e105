# SPDX-License-Identifier: Apache-2.0
"""Builds and loads the module of the modelled RDMA card."""

from __future__ import annotations

from collections.abc import Callable

from nfsrdma_tools import module_source
from nfsrdma_tools.command import run
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.module import build as module_build
from nfsrdma_tools.module_source import CARD
from nfsrdma_tools.undo import Journal, Run

__all__ = ["load"]


def load(journal: Journal, watch: Callable[[str], None] = lambda release: None) -> bool:
    """Build the card's module for the running kernel and load it; False if it is loaded already.

    ``watch`` is called a few times a second during the build.  ``journal`` gets the undo.
    UserError if the build fails, CommandError with the kernel's message if the module does not
    load.
    """
    if CARD in kernel_modules.loaded():
        return False
    build = module_build.build(source=module_source.find_card(), watch=watch)
    for name in kernel_modules.in_file(build.path).depends:
        kernel_modules.load(name, journal)
    journal.add(Run(("rmmod", "--", CARD), when=f"/sys/module/{CARD}"))
    run("insmod", str(build.path))
    return True
