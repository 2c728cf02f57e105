# SPDX-License-Identifier: Apache-2.0
"""Instructions by address, counted by QEMU itself.

A plugin of QEMU (count_instructions.c) counts each executed instruction by its address.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nfsrdma_tools.lab import machine
from nfsrdma_tools.lab.lab import Lab

SOURCE = Path(__file__).with_name("count_instructions.c")
FLAGS = ("-O2", "-Wall", "-shared", "-fPIC", "-fvisibility=hidden")
CARD, COPY, USER = "nfsrdma_card", "card_dma", "user space"


class Plugin:
    """The plugin, compiled into a folder, and the FIFO that it reads."""

    def __init__(self, folder: Path, user: bool) -> None:
        self.folder, self.fifo, self.user = folder, folder / "orders", user
        self.file = folder / "count.so"
        subprocess.run(("gcc", *FLAGS, "-o", self.file, SOURCE), check=True)
        os.mkfifo(self.fifo)
        self._number = 0

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("-plugin", f"{self.file},orders={self.fifo}{',user=1' * self.user}")

    def counts(self) -> dict[int, int]:
        """The instructions executed so far, by address."""
        self._number += 1
        path = self.folder / f"counts{self._number}"
        self.fifo.write_text(f"{path}\n")
        done = path.with_name(f"{path.name}.done")
        while not done.exists():
            time.sleep(0.1)
        rows = (line.split() for line in done.read_text().splitlines())
        return {int(address, 16): int(count) for address, count in rows}


@contextlib.contextmanager
def plugged(user: bool = False, node: str = "") -> Iterator[Plugin]:
    """The machine that starts during the block, or that of ``node``, has the plugin; ``user``: it
    has the addresses of user space, too.
    """
    start = machine.qemu_argv
    with tempfile.TemporaryDirectory(prefix="instructions-") as folder:
        plugin = Plugin(Path(folder), user)

        def argv(*words: Any) -> tuple[str, ...]:
            return (*start(*words), *plugin.arguments * (node in ("", words[-1])))

        vars(machine)["qemu_argv"] = argv
        try:
            yield plugin
        finally:
            vars(machine)["qemu_argv"] = start


class Symbols:
    """The functions of a running kernel, by address."""

    def __init__(self, lab: Lab, node: str = "solo") -> None:
        output = lab.run(node, "cat", "/proc/kallsyms").stdout
        rows = (line.split() for line in output.splitlines())
        code = sorted((int(r[0], 16), r[2], r[3:]) for r in rows if r[1] in "tTwW")
        self.starts = [start for start, *_ in code]
        self.names = [(name, more[0].strip("[]") if more else "") for _, name, more in code]

    def find(self, address: int) -> tuple[str, str]:
        """The function and the module of a group of 16 bytes."""
        if not address:
            return USER, ""
        return self.names[max(bisect.bisect_right(self.starts, address + 15) - 1, 0)]
