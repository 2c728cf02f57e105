# SPDX-License-Identifier: Apache-2.0
"""Kernel functions by address."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from pathlib import Path

from nfsrdma_tools.probes.cpu.layers import Frame

__all__ = ["Symbols"]

_MODULES = Path("/proc/modules")


class Symbols:
    """Maps addresses to functions, with a cache; modules loaded later have no names.

    ``ksym`` is bcc's; it returns bytes such as ``do_task [rdma_rxe]`` or ``vfs_read [kernel]``.
    """

    def __init__(self, ksym: Callable[..., bytes], modules: Path = _MODULES) -> None:
        self.ksym = ksym
        self.known: dict[int, Frame] = {}
        rows = (row.split() for row in modules.read_text().splitlines())
        self.modules = sorted((int(row[5], 16), row[0]) for row in rows)

    def frames(self, addresses: Sequence[int]) -> tuple[Frame, ...]:
        """The functions at these addresses."""
        try:
            return tuple(map(self.known.__getitem__, addresses))
        except KeyError:
            return tuple(map(self.frame, addresses))

    def frame(self, address: int) -> Frame:
        """The function at an address."""
        found = self.known.get(address)
        if found is None:
            symbol = self.ksym(address, show_module=True).decode(errors="replace")
            function, _, module = symbol.partition(" [")
            named = Frame(function, module.rstrip("]").removeprefix("kernel"))
            found = self.known[address] = self._live(named, address)
        return found

    def _live(self, frame: Frame, address: int) -> Frame:
        """The frame, or one of the module whose code now is where another's init code was.

        ftrace keeps names of freed functions (ftrace_mod_get_kallsym in kernel/trace/ftrace.c),
        and other modules reuse their memory.
        """
        place = bisect.bisect(self.modules, (address, "~")) - 1
        loaded = self.modules[place][1] if place >= 0 else ""
        if loaded == frame.module or frame.module not in {name for _, name in self.modules}:
            return frame
        return Frame("(no name)", loaded)
