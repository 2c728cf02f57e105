# SPDX-License-Identifier: Apache-2.0
"""A machine's console: what its kernel says, and whether that is a report of something broken."""

from __future__ import annotations

import re
from pathlib import Path

from nfsrdma_tools.errors import UserError

__all__ = ["Console", "KernelReportError"]

# What lib/bug.c, lockdep, hung_task, slub and the sanitizers print, also when they give up. Stall
# detectors are left out: on a busy host an emulated processor may stand still for as long as they
# wait. So are data races (KCSAN) without our module: the kernel has many of its own.
_REPORT = re.compile(
    r"Oops|BUG: (?!soft lockup|workqueue lockup|KCSAN: (?!.*\[nfsrdma\]))|BUG \S+ \(|Kernel panic"
    r"|general protection fault|WARNING: (CPU|possible|inconsistent|suspicious RCU|bad |held lock"
    r"|lock held|Nested lock|chain_key|.*-safe -> .*-unsafe|.* still has locks|.* at )"
    r"|INFO: (task .* blocked|trying to register non-static key|lockdep is turned off)"
    r"|possible recursive locking|refcount_t:|unregister_netdevice: waiting|Unable to mount root"
    r"|UBSAN:|ODEBUG|list_(add|del) corruption|SLUB .*leak|still has objects"
    r"|DMA-API: .*(error|warning|out of memory|ENOMEM)"
    r"|kmemleak: (\d+ new|Memory pool empty|Cannot allocate|Kernel memory leak detector disabled)"
)


class KernelReportError(UserError):
    """A kernel said on its console that something is broken."""


class Console:
    """The console of one machine, read from its log as it grows.

    Reports that ``known`` matches are kept in ``met`` instead of being raised: for a test that
    cannot avoid a defect that is not its own.
    """

    def __init__(self, node: str, log: Path) -> None:
        self.node, self.log = node, log
        self.known: re.Pattern[str] | None = None
        self.met: list[str] = []
        self._seen = 0

    def check(self) -> None:
        """Read what is new; raises KernelReportError with the lines around a report."""
        text = self.log.read_bytes()[self._seen :] if self.log.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        self._seen += len(whole)
        lines = whole.decode(errors="replace").splitlines()
        for number, line in enumerate(lines):
            if not _REPORT.search(line):
                continue
            if not self.known or not self.known.search(line):
                raise KernelReportError(
                    f"the kernel of {self.node} reports: {' | '.join(lines[number : number + 12])}",
                    f"the whole console is in {self.log}",
                )
            self.met.append(line)

    def skip(self) -> None:
        """Take what is there as seen."""
        self._seen = self.log.stat().st_size if self.log.exists() else 0

    def tail(self, lines: int = 8) -> str:
        """The last lines, in one line."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return " | ".join(text.splitlines()[-lines:]) or "the console is empty"
