# SPDX-License-Identifier: Apache-2.0
"""Reads a machine's console and detects its kernel's reports of errors."""

from __future__ import annotations

import re
import time
from pathlib import Path

from nfsrdma_tools.errors import UserError

__all__ = ["DMA_API_REPORTS", "Console", "EmulatorFaultError", "KernelReportError"]

# What lib/bug.c, lockdep, hung_task, slub and the sanitizers print, also when they give up, and a
# modelled card. It is not what `nfsrdma explain` takes for reports: the lab imports no part of the
# host, and a test has to fail on more (kmemleak that gives up, DMA-API, a device in use for ever),
# anywhere in a line: consoles join lines. Stall detectors are left out: on a busy host an emulated
# processor may stall for as long as their timeouts. So are data races (KCSAN) outside of our
# module: the kernel has many of its own.
_REPORT = re.compile(
    r"Oops|BUG: (?!soft lockup|workqueue lockup|KCSAN: (?!.*\[nfsrdma\]))|BUG \S+ \(|Kernel panic"
    r"|general protection fault|WARNING: (CPU|possible|inconsistent|suspicious RCU|bad |held lock"
    r"|lock held|Nested lock|chain_key|.*-safe -> .*-unsafe|.* still has locks|.* at )"
    r"|INFO: (task .* blocked|trying to register non-static key|lockdep is turned off)"
    r"|possible recursive locking|refcount_t:|unregister_netdevice: waiting|Unable to mount root"
    r"|UBSAN:|ODEBUG|list_(add|del) corruption|SLUB .*leak|still has objects"
    # a driver and its device: other lines are about the checker itself
    r"|DMA-API: (\S+ \S+: |.*out of memory)|nfsrdma_card: .*DMA fault"
    r"|kmemleak: (\d+ new|Memory pool empty|Cannot allocate|Kernel memory leak detector disabled)"
)
# rdma_rxe may take an RDMA Read that is retried half way as done, and warns of it. Packets are
# sent again when a host is so busy that a node does not answer in time.
_KNOWN = re.compile(r"WARNING: .* rxe_completer\+")
# Soft-iWARP takes a queue pair that closes for drained while RDMA Reads wait for their responses:
# siw_qp_nextstate_from_close() flushes them only if something is being sent. The kernel's server
# (svc_rdma_free) then destroys the queue pair while their memory regions are in use.
_UNDRAINED = re.compile(r"WARNING: .* ib_destroy_qp_user\+")
_CALLED = r"<TASK>\n(?:.*\]  \? .*\n)*.*\]  svc_rdma_free\+\S+ \[rpcrdma\]\n"
_SIW_AND_SERVER = re.compile(rf"Modules linked in:.* siw\b[\s\S]*{_CALLED}")
# Two mappings that share a cache line. That is harmless where DMA is coherent, as on x86: kernels
# from 7.0 on report it elsewhere only (kernel/dma/debug.c, commit 3d48c9fd78dd). Older ones do,
# and report no more than the number of errors that the lab has set.
_SHARED_LINE = re.compile(
    r"DMA-API: \S+ \S+: cacheline tracking EEXIST"
    r"|WARNING: .* at kernel/dma/debug\.c:\d+ add_dma_entry\+"
)
DMA_API_REPORTS = 1000
# An idle processor that gets no timer interrupt, detected by RCU on another one (kernel/rcu/
# tree_stall.h). On a busy host a processor may stall as long once; if it happens twice, twenty
# seconds apart, the emulator has lost the interrupt and will not deliver another.
_LOST_TIMER = re.compile(r"rcu: \s*Possible timer handling issue on cpu=(\d+)")
_LOST_TIMER_TIMES = 2
_OOPS = "Oops: "
_OOPS_ENDS = ("---[ end trace", "---[ end Kernel panic")
_OOPS_SECONDS = 10.0
# bits of EFLAGS that a processor can set; bit 1 is always set (Intel SDM, volume 1, 3.4.3)
_FLAGS, _ALWAYS = 0x3F7FD7, 0x2
_SHOWN_FLAGS = re.compile(r"EFLAGS: ([0-9a-f]{8})")
_BREAKPOINT, _BEFORE_IP = "cc", re.compile(r"Code: .*?([0-9a-f]{2}) <")


class KernelReportError(UserError):
    """A kernel reported an error on its console."""


class EmulatorFaultError(KernelReportError):
    """The console shows a state that is impossible on a processor: a fault of the emulator."""


def _impossible(report: str) -> str | None:
    """A part of an oops that no kernel can cause, or None."""
    flags = _SHOWN_FLAGS.search(report)
    if flags and int(flags[1], 16) & (~_FLAGS | _ALWAYS) != _ALWAYS:
        return f"EFLAGS {flags[1]} is impossible"
    before = _BEFORE_IP.search(report)
    if "Oops: int3" in report and before and before[1] != _BREAKPOINT:
        return f"a breakpoint executed where memory has {before[1]}"
    return None


def _is_known(report: str) -> bool:
    """Whether the report at the beginning of the lines is one that nothing can avoid."""
    line = report.partition("\n")[0]
    if _UNDRAINED.search(line):
        return bool(_SIW_AND_SERVER.search(report.partition(_OOPS_ENDS[0])[0]))
    return bool(_KNOWN.search(line) or _SHARED_LINE.search(line))


class Console:
    """The console of one machine, read from its log as it grows.

    Reports that nothing can avoid go to ``met`` instead of being raised: of known defects of
    soft-RoCE and soft-iWARP, and of mappings that share a cache line.
    """

    def __init__(self, node: str, log: Path) -> None:
        self.node, self.log = node, log
        self.met: list[str] = []
        self._seen = 0
        self._lost_timers = 0

    def check(self) -> None:
        """Read new lines; raises KernelReportError with the lines around a report."""
        lines = self._new_lines().splitlines()
        # a report that is waited for brings more of them
        for number, line in enumerate(lines):
            self._check_timer(line)
            if not _REPORT.search(line):
                continue
            if _UNDRAINED.search(line):
                lines[number:] = self._whole("\n".join(lines[number:])).splitlines()
            report = "\n".join(lines[number:])
            if not _is_known(report):
                self._raise(report)
            self.met.append(line)
            self._check_dma_api()

    def _new_lines(self) -> str:
        """The complete lines that were not read yet."""
        text = self.log.read_bytes()[self._seen :] if self.log.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        self._seen += len(whole)
        return whole.decode(errors="replace")

    def _check_timer(self, line: str) -> None:
        if lost := _LOST_TIMER.search(line):
            self._lost_timers += 1
            if self._lost_timers >= _LOST_TIMER_TIMES:
                fault = f"processor {lost[1]} gets no timer interrupts"
                raise EmulatorFaultError(
                    f"the emulator of {self.node} failed: {fault}",
                    f"try again; see {self.log} for the console",
                )

    def _check_dma_api(self) -> None:
        if sum("cacheline tracking" in line for line in self.met) >= DMA_API_REPORTS:
            raise KernelReportError(
                f"the DMA API of {self.node} reports nothing more: {DMA_API_REPORTS} mappings"
                " shared a cache line",
                "begin the buffers of this test at cache lines, or run less of it in one lab",
            )

    def _raise(self, report: str) -> None:
        whole = self._whole(report) if _OOPS in report else report
        impossible = _impossible(whole)
        lines = " | ".join(whole.splitlines()[:12])
        where = f"see {self.log} for the console"
        if impossible:
            message = f"the emulator of {self.node} failed: {impossible}: {lines}"
            raise EmulatorFaultError(message, f"try again; {where}")
        raise KernelReportError(f"the kernel of {self.node} reports: {lines}", where)

    def _whole(self, report: str) -> str:
        """The complete report, which has an end; waits for it."""
        limit = time.monotonic() + _OOPS_SECONDS
        while not any(end in report for end in _OOPS_ENDS) and time.monotonic() < limit:
            time.sleep(0.1)
            report += "\n" * (not report.endswith("\n")) + self._new_lines()
        return report

    def skip(self) -> None:
        """Mark the present text as read."""
        self._seen = self.log.stat().st_size if self.log.exists() else 0

    def tail(self, lines: int = 8) -> str:
        """The last lines, in one line."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return " | ".join(text.splitlines()[-lines:]) or "the console is empty"
