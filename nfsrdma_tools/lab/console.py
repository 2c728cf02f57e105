# SPDX-License-Identifier: Apache-2.0
"""A machine's console: what its kernel says, and whether that is a report of something broken."""

from __future__ import annotations

import re
from pathlib import Path

from nfsrdma_tools.errors import UserError

__all__ = ["Console", "KernelReportError"]

# What lib/bug.c, lockdep, hung_task and the sanitizers print. Stall detectors are left out: on a
# busy host an emulated processor may stand still for as long as they wait.
_REPORT = re.compile(
    r"Oops|BUG: (?!soft lockup)|Kernel panic|general protection fault|WARNING: (CPU|possible)"
    r"|WARNING: .* at "
    r"|INFO: task .* blocked|possible recursive locking|refcount_t:|unregister_netdevice: waiting"
    r"|UBSAN:|kmemleak: \d+ new|DMA-API: .*(error|warning)|Unable to mount root|SLUB .*leak"
)


class KernelReportError(UserError):
    """A kernel said on its console that something is broken."""


class Console:
    """The console of one machine, read from its log as it grows."""

    def __init__(self, node: str, log: Path) -> None:
        self.node, self.log = node, log
        self._seen = 0

    def check(self) -> None:
        """Read what is new; raises KernelReportError with the lines around a report."""
        text = self.log.read_bytes()[self._seen :] if self.log.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        self._seen += len(whole)
        lines = whole.decode(errors="replace").splitlines()
        for number, line in enumerate(lines):
            if _REPORT.search(line):
                raise KernelReportError(
                    f"the kernel of {self.node} reports: {' | '.join(lines[number : number + 12])}",
                    f"the whole console is in {self.log}",
                )

    def skip(self) -> None:
        """Take what is there as seen."""
        self._seen = self.log.stat().st_size if self.log.exists() else 0

    def tail(self, lines: int = 8) -> str:
        """The last lines, in one line."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return " | ".join(text.splitlines()[-lines:]) or "the console is empty"
