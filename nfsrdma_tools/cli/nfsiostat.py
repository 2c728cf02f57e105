# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma trace nfsiostat``: mountstats in the columns of nfsiostat(8).

nfsiostat(8) counts one connection of a mount with nconnect, and over RDMA it takes the column
``req_u`` for the backlog.  Here the counters of all connections are summed, by their own columns.
READ includes READ_PLUS, which NFSv4.2 over TCP uses.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from nfsrdma_tools.cli.output import print_line
from nfsrdma_tools.errors import UserError, printable
from nfsrdma_tools.host.machine import LIVE, Machine, NotRecordedError
from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.host.nfs.mountstats import MountStats, Operation
from nfsrdma_tools.probes.row_filter import Filter

__all__ = ["facts", "lines", "run"]

_FILTERS = ("mount", "procedures")
_FIELDS = {
    "ops/s": "ops_per_s",
    "kB/s": "kb_per_s",
    "kB/op": "kb_per_op",
    "retrans": "retrans",
    "avg RTT (ms)": "rtt_ms",
    "avg exe (ms)": "exe_ms",
    "avg queue (ms)": "queue_ms",
    "errors": "errors",
}
_COUNTS = {"retrans", "errors"}


def run(
    wanted: Filter,
    interval: float | None,
    count: int,
    as_json: bool,
    machine: Machine = LIVE,
) -> None:
    """Print the report since each mount, then one per interval; only the first without interval.

    Raises UserError when the mount point of ``wanted`` is not an NFS mount.
    """
    wanted.check("nfsiostat", _FILTERS)
    directory = wanted.mount_point(machine)
    if not machine.live and not machine.path("proc/self/mountstats").exists():
        raise NotRecordedError(machine.unrecorded("/proc/self/mountstats"))
    try:
        for reports in _reports(directory, interval, count, machine):
            rows = [facts(stats, seconds, wanted.procedures) for stats, seconds in reports]
            if as_json:
                print_line({"time": time.time(), "mounts": rows})
            else:
                print("\n".join(_page(rows)), flush=True)
    except KeyboardInterrupt:
        # without COUNT, Ctrl-C is how it ends
        if count:
            raise


def _reports(
    directory: str | None, interval: float | None, count: int, machine: Machine
) -> Iterator[list[tuple[MountStats, float]]]:
    """The counters of each mount and the seconds they cover, per report."""
    before: dict[str, MountStats] = {}
    done, at = 0, time.monotonic()
    while True:
        now = {str(each.directory): each for each in mountstats.read_all(machine)}
        seconds, at = time.monotonic() - at, time.monotonic()
        yield [
            _since(stats, before.get(name), seconds)
            for name, stats in now.items()
            if directory in (None, name)
        ]
        before, done = now, done + 1
        if interval is None or done == count:
            return
        time.sleep(interval)


def _since(
    after: MountStats, before: MountStats | None, seconds: float
) -> tuple[MountStats, float]:
    """The difference; the counters since the mount if it is new."""
    try:
        if before:
            return mountstats.difference(after, before), seconds
    except UserError:
        # mounted again since the last report
        pass
    return after, float(after.age_s or 1)


def facts(stats: MountStats, seconds: float, procedures: Sequence[str] = ()) -> dict[str, Any]:
    """A report of one mount: rates per second, sizes in kB of 1024 bytes, times in ms."""
    sends = _total(stats, "sends")
    backlog = _total(stats, "bklog_u") / sends / seconds if sends else 0.0
    names = [name.upper() for name in procedures] or ["READ", "WRITE"]
    return {
        "export": stats.device,
        "mount": str(stats.directory),
        "seconds": seconds,
        "ops_per_s": sends / seconds,
        "rpc_backlog": backlog,
        "operations": {name: _operation(_done(stats, name), seconds) for name in names},
    }


def _total(stats: MountStats, name: str) -> int:
    return sum(xprt.counters.get(name, 0) for xprt in stats.xprts)


def _done(stats: MountStats, name: str) -> Operation:
    if name.lower() in mountstats.DATA:
        return stats.data(name.lower())
    return stats.operations.get(name, mountstats.NOTHING)


def _operation(done: Operation, seconds: float) -> dict[str, float]:
    kilobytes = (done.bytes_sent + done.bytes_received) / 1024
    each = done.operations or 1
    return {
        "ops_per_s": done.operations / seconds,
        "kb_per_s": kilobytes / seconds,
        "kb_per_op": kilobytes / each if done.operations else 0.0,
        "operations": done.operations,
        "retrans": done.transmissions - done.operations,
        "rtt_ms": done.rtt_ms / each,
        "exe_ms": done.execute_ms / each,
        "queue_ms": done.queue_ms / each,
        "errors": done.errors,
    }


def lines(report: dict[str, Any]) -> list[str]:
    """A report of one mount in the layout of nfsiostat(8)."""
    head = f"{report['export']} mounted on {report['mount']}:"
    return [
        "",
        printable(head),
        "",
        f"{'ops/s':>16}{'rpc bklog':>16}",
        f"{report['ops_per_s']:>16.3f}{report['rpc_backlog']:>16.3f}",
        "",
        *(line for name, each in report["operations"].items() for line in _rows(name, each)),
    ]


def _rows(name: str, operation: dict[str, float]) -> list[str]:
    first, *columns = _FIELDS
    head = f"{name.lower() + ':':<16}{first:>8}" + "".join(f"{column:>16}" for column in columns)
    cells = "".join(f"{_cell(operation, column):>16}" for column in columns)
    return [head, f"{operation[_FIELDS[first]]:>24.3f}{cells}"]


def _cell(operation: dict[str, float], column: str) -> str:
    value = operation[_FIELDS[column]]
    if column not in _COUNTS:
        return f"{value:.3f}"
    percent = value * 100 / (operation["operations"] or 1)
    return f"{value:.0f} ({percent:.1f}%)"


def _page(reports: Sequence[dict[str, Any]]) -> list[str]:
    if not reports:
        return ["No NFS mount points were found"]
    return [line for report in reports for line in lines(report)]
