# SPDX-License-Identifier: Apache-2.0
"""One trial: set tunables, mount, verify, measure, unmount, restore.

Only the workload is measured: probe sets are read directly before and after it, and the CPU time
of starting and watching the reader is subtracted.  A trial that fails records the reason and
leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.host.cpu_time import CpuTimes
from nfsrdma_tools.host.nfs import mount_personality, mountstats, readahead
from nfsrdma_tools.host.nfs.mounts import Mount
from nfsrdma_tools.host.nfs.mountstats import MountStats
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.tunables import Tunable
from nfsrdma_tools.sweep import workload
from nfsrdma_tools.sweep.io_result import Job
from nfsrdma_tools.sweep.plan import PERSONALITY, Cell
from nfsrdma_tools.sweep.release_server_pages import settle
from nfsrdma_tools.sweep.trial_mount import Bench, mounted, ready, request_for
from nfsrdma_tools.sweep.trial_record import FAILED, NOT_OFFERED, Trial

__all__ = ["run_trial", "tunables"]

_MEGA = 1_000_000


class _NotOfferedError(Exception):
    """The kernel or the server does not offer what the cell requests."""


def run_trial(bench: Bench, trial: Trial, check_data: bool) -> Trial:
    """Measure ``trial.cell``; return the trial with its figures or the reason of its failure."""
    trial = replace(
        trial,
        environment=bench.environment,
        started=_now(),
    )
    try:
        with bench.changes.section():
            return replace(trial, **_measured(bench, trial, check_data))
    except _NotOfferedError as error:
        return replace(trial, status=NOT_OFFERED, reason=str(error))
    except (UserError, OSError) as error:
        return replace(trial, status=FAILED, reason=str(error))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def tunables(bench: Bench, cell: Cell) -> list[tuple[Tunable, str]]:
    """The cell's tunables, bound to their host, with the requested values."""
    host = Target.parse(bench.plan.target).host
    return [
        (Tunable.parse(name).on(host, bench.server_ssh), value) for name, value in cell.tunables
    ]


def _measured(bench: Bench, trial: Trial, check_data: bool) -> dict[str, Any]:
    cell = trial.cell
    # first: a tunable may be a parameter of the module
    ready(bench, cell.transport)
    axes = _set(bench, cell) | ({PERSONALITY: cell.personality} if cell.personality else {})
    with _mounted(bench, cell) as made:
        kb = _read_ahead(bench, cell, made)
        time.sleep(bench.calm)
        settle(bench.directory)
        bench.rhythm.wait(trial.order)
        figures = _accounts(bench, cell)
        after = readahead.verify(made.device, kb)
        if cell.personality:
            mount_personality.verify(cell.personality, made.device)
        if check_data and bench.plan.direction == "read":
            workload.check(bench.directory, bench.plan, bench.content, cell)
    if check_data and bench.plan.direction == "write":
        with _mounted(bench, cell):
            workload.verify(bench.directory, bench.plan, cell)
    return {
        **figures,
        "cache": "server warm, client cold",
        "axes": axes,
        "mount": made.options,
        "verified": check_data,
        "read_ahead_kb_before": kb,
        "read_ahead_kb_after": after,
    }


def _set(bench: Bench, cell: Cell) -> dict[str, str]:
    try:
        return {str(knob): knob.set(value, bench.changes) for knob, value in tunables(bench, cell)}
    except MismatchError as error:
        raise _NotOfferedError(str(error)) from error


@contextlib.contextmanager
def _mounted(bench: Bench, cell: Cell) -> Iterator[Mount]:
    try:
        request = request_for(bench, cell.transport, cell)
    except UserError as error:
        raise _NotOfferedError(str(error)) from error
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(mounted(bench, request))
        except MismatchError as error:
            if error.what in ("rsize", "wsize", "nconnect", PERSONALITY):
                raise _NotOfferedError(str(error)) from error
            raise
        yield made


def _read_ahead(bench: Bench, cell: Cell, made: Mount) -> int:
    if not bench.plan.reads_ahead:
        return readahead.get_kb(made.device)
    return readahead.verify(made.device, readahead.kb_for(cell.read_ahead, cell.rsize))


def _accounts(bench: Bench, cell: Cell) -> dict[str, Any]:
    """Run the workload once, with probe sets read before and after it."""
    probed = bench.accounts.begin()
    stats = mountstats.read(bench.directory)
    began, counters, own = _now(), cpu_time.snapshot(), cpu_time.own_ns()
    job = _work(bench, cell)
    own, times = cpu_time.own_ns() - own, cpu_time.difference(cpu_time.snapshot(), counters)
    stats = mountstats.difference(mountstats.read(bench.directory), stats)
    return {
        **_of_job(job),
        **_of_cpu(times, own, job),
        **_of_rpc(stats, cell, bench.plan.direction),
        "began": began,
        "accounts": bench.accounts.end(probed, str(stats.directory)),
    }


def _work(bench: Bench, cell: Cell) -> Job:
    if bench.plan.direction == "write":
        return workload.write(bench.directory, bench.plan, cell)
    return workload.read(bench.directory, bench.plan, cell)


def _of_job(job: Job) -> dict[str, Any]:
    return {
        "duration_ns": job.duration_ns,
        "bytes": job.bytes,
        "throughput": job.throughput / _MEGA,
        "reader_user_s": job.user_s,
        "reader_system_s": job.system_s,
    }


def _of_cpu(times: CpuTimes, own: int, job: Job) -> dict[str, Any]:
    # everything but the reading itself: starting, watching and this process are not the mount's
    harness = max(own - round((job.user_s + job.system_s) * 1e9), 0)
    busy = max(times.busy_ns - harness, 0)
    return {
        "busy_ns": busy,
        "task_ns": max(times.task_ns - harness, 0),
        "harness_ns": harness,
        "wall_ns": times.wall_ns,
        "cpu_share": min(busy / (job.duration_ns * times.cpus), 1.0),
        "cpu_modes": {mode: round(seconds, 3) for mode, seconds in times.modes.items()},
        "steal_s": round(times.modes.get("steal", 0.0), 3),
    }


def _of_rpc(stats: MountStats, cell: Cell, direction: str) -> dict[str, Any]:
    done, data = stats.operations, stats.data(direction)
    count = max(data.operations, 1)
    rtt_ms = data.rtt_ms / count
    return {
        "operations": data.operations,
        "rpc_counts": {name: o.operations for name, o in done.items() if o.operations},
        "rtt_ms": rtt_ms,
        "queue_ms": data.queue_ms / count,
        "execute_ms": data.execute_ms / count,
        "bytes_sent": sum(o.bytes_sent for o in done.values()),
        "bytes_received": sum(o.bytes_received for o in done.values()),
        "retransmits": sum(o.transmissions - o.operations for o in done.values()),
        "ceiling": cell.rsize / (rtt_ms / 1000) / _MEGA if rtt_ms else 0.0,
        "rdma": _rdma(stats),
    }


def _rdma(stats: MountStats) -> dict[str, int]:
    total: dict[str, int] = {}
    for xprt in stats.xprts:
        for name, value in xprt.counters.items() if xprt.proto == "rdma" else ():
            if name not in mountstats.STATES:
                total[name] = total.get(name, 0) + value
    return total
