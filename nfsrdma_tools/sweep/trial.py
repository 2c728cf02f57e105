# SPDX-License-Identifier: Apache-2.0
"""One trial: set tunables, mount, verify, measure, unmount, restore.

Only the workload is measured: probe sets are read directly before and after it, and the CPU time
of starting and watching the reader is subtracted.  A trial that fails records the reason and
leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nfsrdma_tools.command import run
from nfsrdma_tools.errors import MismatchError, UsageError, UserError
from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.host.cpu_time import CpuTimes
from nfsrdma_tools.host.module import swap as module_swap
from nfsrdma_tools.host.nfs import mounting, mountstats, readahead
from nfsrdma_tools.host.nfs.mounting import MountRequest, drop_undo, mount, unmount
from nfsrdma_tools.host.nfs.mounts import Mount, find
from nfsrdma_tools.host.nfs.mountstats import MountStats
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.tunables import Tunable
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.probes import session
from nfsrdma_tools.probes.probe_sets import attached, probe_set
from nfsrdma_tools.probes.program import unreadable
from nfsrdma_tools.probes.row_filter import of_mount
from nfsrdma_tools.probes.rpc_clients import clients
from nfsrdma_tools.sweep import workload
from nfsrdma_tools.sweep.plan import PERSONALITY, Cell, Plan
from nfsrdma_tools.sweep.store import (
    FAILED,
    NOT_OFFERED,
    CpuUsage,
    InEffect,
    RpcStatistics,
    Transfer,
    Trial,
)
from nfsrdma_tools.sweep.workload import Job
from nfsrdma_tools.undo import Journal

__all__ = [
    "IMMEDIATELY",
    "NAMES",
    "Bench",
    "Load",
    "NotOfferedError",
    "Rhythm",
    "TrialProbes",
    "mounted",
    "mounted_if_offered",
    "ready",
    "release_server_pages",
    "request_for",
    "run_trial",
    "tunables",
]

_MEGA = 1_000_000


# a dead server fails a trial instead of hanging the sweep; timeo is in deciseconds, see nfs(5)
_PATIENCE = {"read": ("soft", "timeo=50", "retrans=2"), "write": ("soft", "timeo=300", "retrans=2")}


NAMES = ("cpu", "chunks", "registrations")
"""Together they add some 3 % to a 4 KiB read (docs/dev/cost-of-observation.md)."""


_HOUR, _DAY = 3600.0, 86400.0


Load = Callable[[str], None]
"""Loads the module of a transport in place of another one's; UserError if that is in use."""

# nfsd's default is 8 threads; it wakes the thread that slept last first
_THREADS = 8
_ROUNDS = 4


@dataclass(frozen=True)
class Rhythm:
    """Start times of runs on several hosts that measure at once and share only the time of day.

    The first start is ``start`` (seconds since 1970), run n is n * ``seconds`` later; 0 seconds: no
    waiting.  A host that is late starts its next run immediately, until it is back in step.
    """

    start: float = 0.0
    seconds: float = 0.0

    @classmethod
    def checked(cls, start: float, seconds: float) -> Rhythm:
        """The rhythm of these values; UsageError when they are out of range or not numbers."""
        if not 0 < seconds <= _HOUR:
            raise UsageError(f"the interval is {seconds:g} s", "the range is above 0, up to 3600 s")
        # the comparison is also false for NaN
        if not 0 <= start <= time.time() + _DAY:
            message = f"the start time {start:g} is before 1970 or more than a day ahead"
            raise UsageError(message, "give Unix time: date +%s prints it")
        return cls(start, seconds)

    def begins(self, number: int) -> float:
        """Start of run ``number`` (the first is 0), in seconds since 1970."""
        return self.start + number * self.seconds

    def wait(self, number: int) -> None:
        """Wait for the start of run ``number``; return immediately when it has passed."""
        while self.seconds and (left := self.begins(number) - time.time()) > 0:
            # short steps: the time of day may be set while this waits
            time.sleep(min(left, 1.0))


IMMEDIATELY = Rhythm()
"""No waiting."""


class TrialProbes:
    """The probe sets of each trial: attached while trials run, detached while modules change.

    They attach on first use; ``release`` detaches them until the next use.

    ``names`` has those that this kernel's events allow.  ``summary`` lists them, with the reason
    for each other one, or has the reason for none: not wanted, or what this machine lacks.
    """

    def __init__(self, wanted: bool = False) -> None:
        why_not = _why_not(wanted)
        self.enabled = not why_not
        lacking = {} if why_not else unreadable(NAMES)
        self.names = tuple(name for name in NAMES if name not in lacking)
        without = (f"; not {name}: {reason}" for name, reason in lacking.items())
        self.summary = f"none: {why_not}" if why_not else "".join((", ".join(self.names), *without))
        self._open = contextlib.ExitStack()
        self._session: session.Session | None = None
        self._clients: dict[int, tuple[str, ...]] = {}

    def attach(self) -> session.Session:
        """Attach them unless they are attached; UserError when that fails."""
        if self._session is None:
            self._session = self._attached()
        return self._session

    def begin(self) -> dict[str, Any]:
        """A reading of each probe set, for ``end``; UserError if attaching fails."""
        if not self.enabled:
            return {}
        attached_session = self.attach()
        # before counting starts: it may send RPCs to servers
        self._clients = clients()
        return {name: probe_set(name).read(attached_session) for name in attached_session.sets}

    def end(self, before: dict[str, Any], directory: str) -> dict[str, list[dict[str, Any]]]:
        """The rows counted since: those of the mount, or of the host for sets without mounts."""
        rows = {}
        for name, reading in before.items():
            kind = probe_set(name)
            grown = kind.difference(kind.read(self.attach()), reading)
            rows[name] = of_mount(kind.records(grown, self._clients), directory)
        return rows

    def release(self) -> None:
        """Detach; the next trial attaches again."""
        self._open.close()
        self._session = None

    def _attached(self) -> session.Session:
        try:
            return self._open.enter_context(attached(NAMES, sums_only=True))
        except UserError as error:
            option = f"{'or ' if error.hint else ''}sweep with --no-probes"
            raise UserError(error.message, error.hint, option) from error


def _why_not(wanted: bool) -> str:
    if not wanted:
        return "not requested"
    try:
        session.available()
    except UserError as error:
        return error.message
    return ""


@dataclass(frozen=True)
class Bench:
    """A plan's mount point on this machine, the journal, and the host for the server's tunables.

    ``probes`` are the probe sets of each trial; ``rhythm`` has the start times of the readers.
    ``content`` is the content of the test file, set before the first trial.  The reader starts at
    least ``pause`` seconds after the mount.
    """

    plan: Plan
    directory: Path
    changes: Journal
    server_ssh: str = ""
    environment: str = ""
    probes: TrialProbes = field(default_factory=TrialProbes)
    rhythm: Rhythm = IMMEDIATELY
    content: list[bytes | int] = field(default_factory=list)
    pause: float = 0.0
    load: Load = module_swap.ready


class NotOfferedError(UserError):
    """The kernel or the server does not offer what is requested."""


def run_trial(bench: Bench, trial: Trial, check_data: bool) -> Trial:
    """Measure ``trial.cell``; return the trial with its figures or the reason of its failure."""
    trial = replace(
        trial,
        environment=bench.environment,
        started=_now(),
    )
    began = time.monotonic_ns()
    try:
        with bench.changes.section():
            trial = _measured(bench, trial, check_data)
    except NotOfferedError as error:
        trial = replace(trial, status=NOT_OFFERED, reason=str(error))
    except (UserError, OSError) as error:
        trial = replace(trial, status=FAILED, reason=str(error))
    return replace(trial, total_ns=time.monotonic_ns() - began)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def tunables(bench: Bench, cell: Cell) -> list[tuple[Tunable, str]]:
    """The cell's tunables, bound to their host, with the requested values."""
    host = bench.plan.server
    return [
        (Tunable.parse(name).on(host, bench.server_ssh), value) for name, value in cell.tunables
    ]


def _measured(bench: Bench, trial: Trial, check_data: bool) -> Trial:
    cell = trial.cell
    # first: a tunable may be a parameter of the module
    ready(bench, cell.transport)
    axes = _set(bench, cell) | ({PERSONALITY: cell.personality} if cell.personality else {})
    with _mounted(bench, cell) as nfs_mount:
        kb = _read_ahead(bench, cell, nfs_mount)
        time.sleep(bench.pause)
        if bench.plan.seconds:
            workload.warm_up(bench.directory, bench.plan, cell)
        release_server_pages(bench.directory)
        bench.rhythm.wait(trial.order)
        trial, first = _run_workload(bench, trial)
        after = readahead.verify(nfs_mount.device, kb)
        if cell.personality:
            mounting.verify_personality(cell.personality, nfs_mount.device)
        part = workload.checked_part(bench.plan, first)
        if check_data and bench.plan.direction == "read":
            workload.check(bench.directory, bench.plan, bench.content, part, cell)
    if check_data and bench.plan.direction == "write":
        with _mounted(bench, cell):
            workload.verify(bench.directory, bench.plan, cell, part)
    return replace(
        trial,
        verified=check_data,
        in_effect=InEffect("server warm, client cold", nfs_mount.options, kb, after, axes),
        file_size=bench.plan.file_size,
    )


def _set(bench: Bench, cell: Cell) -> dict[str, str]:
    try:
        return {str(knob): knob.set(value, bench.changes) for knob, value in tunables(bench, cell)}
    except MismatchError as error:
        raise NotOfferedError(str(error)) from error


@contextlib.contextmanager
def _mounted(bench: Bench, cell: Cell) -> Iterator[Mount]:
    try:
        request = request_for(bench, cell.transport, cell)
    except UserError as error:
        raise NotOfferedError(str(error)) from error
    with mounted_if_offered(bench, request) as nfs_mount:
        yield nfs_mount


def _read_ahead(bench: Bench, cell: Cell, nfs_mount: Mount) -> int:
    if not bench.plan.has_read_ahead(cell):
        return readahead.get_kb(nfs_mount.device)
    blocks = readahead.kb_for(cell.read_ahead, cell.rsize)
    return readahead.verify(nfs_mount.device, cell.read_ahead_kb if cell.as_mounted else blocks)


def _run_workload(bench: Bench, trial: Trial) -> tuple[Trial, int]:
    """Run the workload once, with probe sets read before and after it.

    Returns the trial with its figures, and the bytes from the start of the file on that its first
    job moved.
    """
    readings = bench.probes.begin()
    stats = mountstats.read(bench.directory)
    began, counters, own = _now(), cpu_time.snapshot(), cpu_time.own_ns()
    job = _work(bench, trial.cell)
    own, times = cpu_time.own_ns() - own, cpu_time.difference(cpu_time.snapshot(), counters)
    stats = mountstats.difference(mountstats.read(bench.directory), stats)
    trial = replace(
        trial,
        transfer=_transfer(job),
        cpu=_cpu_usage(times, own, job),
        rpc=_rpc_statistics(stats, trial.cell, bench.plan.direction),
        began=began,
        probe_rows=bench.probes.end(readings, str(stats.directory)),
    )
    return trial, job.first


def _work(bench: Bench, cell: Cell) -> Job:
    if bench.plan.direction == "write":
        return workload.write(bench.directory, bench.plan, cell)
    return workload.read(bench.directory, bench.plan, cell)


def _transfer(job: Job) -> Transfer:
    return Transfer(job.duration_ns, job.bytes, job.throughput / _MEGA)


def _cpu_usage(times: CpuTimes, own: int, job: Job) -> CpuUsage:
    # everything but the reading itself: starting, watching and this process are not the mount's
    harness = max(own - round((job.user_s + job.system_s) * 1e9), 0)
    # the time of the process includes its workers, and with them the start of fio
    harness = 0 if job.has_workers else harness
    busy = max(times.busy_ns - harness, 0)
    return CpuUsage(
        busy_ns=busy,
        task_ns=max(times.task_ns - harness, 0),
        harness_ns=harness,
        wall_ns=times.wall_ns,
        cpu_share=min(busy / (job.duration_ns * times.cpus), 1.0),
        cpu_modes={mode: round(seconds, 3) for mode, seconds in times.modes.items()},
        steal_s=round(times.modes.get("steal", 0.0), 3),
        reader_user_s=job.user_s,
        reader_system_s=job.system_s,
    )


def _rpc_statistics(stats: MountStats, cell: Cell, direction: str) -> RpcStatistics:
    done, data = stats.operations, stats.data(direction)
    count = max(data.operations, 1)
    rtt_ms = data.rtt_ms / count
    return RpcStatistics(
        operations=data.operations,
        rpc_counts={name: o.operations for name, o in done.items() if o.operations},
        rtt_ms=rtt_ms,
        queue_ms=data.queue_ms / count,
        execute_ms=data.execute_ms / count,
        bytes_sent=sum(o.bytes_sent for o in done.values()),
        bytes_received=sum(o.bytes_received for o in done.values()),
        retransmits=sum(o.transmissions - o.operations for o in done.values()),
        ceiling=cell.rsize / (rtt_ms / 1000) / _MEGA if rtt_ms else 0.0,
        rdma=_rdma(stats),
    )


def _rdma(stats: MountStats) -> dict[str, int]:
    total: dict[str, int] = {}
    for xprt in stats.xprts:
        for name, value in xprt.counters.items() if xprt.proto == "rdma" else ():
            if name not in mountstats.STATES:
                total[name] = total.get(name, 0) + value
    return total


def request_for(bench: Bench, transport: str, cell: Cell | None = None) -> MountRequest:
    """The mount request of a cell, or one with the kernel's default sizes.

    Raises UserError for a cell that Linux does not offer.
    """
    plan = bench.plan
    size = cell.rsize if cell else None
    vers = plan.vers_of(cell) if cell else plan.vers
    ahead = cell if cell and plan.has_read_ahead(cell) else None
    return MountRequest(
        target=Target.parse(plan.target),
        directory=bench.directory,
        transport=transport,
        vers=vers,
        rsize=size if plan.direction == "read" else None,
        wsize=size if plan.direction == "write" else None,
        nconnect=cell.nconnect if cell and cell.nconnect > 1 else None,
        read_ahead=ahead.read_ahead if ahead and not ahead.as_mounted else None,
        read_ahead_kb=ahead.read_ahead_kb if ahead and ahead.as_mounted else None,
        personality=cell.personality if cell else None,
        # with NFSv3, locks need rpc.statd; a sweep uses no locks
        options=(*_PATIENCE[plan.direction], *(("nolock",) if vers == "3" else ())),
    )


def ready(bench: Bench, transport: str) -> None:
    """Load the module of ``transport``, if the plan compares our module with the kernel's.

    Otherwise modules stay unchanged, and a mount over the wrong one is refused.
    """
    if OURS in bench.plan.transports and not module_swap.is_ready(transport):
        # a probe on a module's events holds the module
        bench.probes.release()
        bench.load(transport)


@contextlib.contextmanager
def mounted(bench: Bench, request: MountRequest) -> Iterator[Mount]:
    """A mount during the block; it is unmounted even when its server is dead by then.

    Call ``ready`` before.
    """
    nfs_mount = mount(request, bench.changes).mount
    try:
        yield nfs_mount
    except BaseException:
        # an error in its place would hide it, and the caller would go on after Ctrl-C; the journal
        # still has the mount, and reports it
        with contextlib.suppress(UserError):
            _take_off(nfs_mount, bench.changes)
        raise
    _take_off(nfs_mount, bench.changes)


@contextlib.contextmanager
def mounted_if_offered(bench: Bench, request: MountRequest) -> Iterator[Mount]:
    """The same; NotOfferedError if an option or a value that is requested is not available."""
    with contextlib.ExitStack() as stack:
        try:
            nfs_mount = stack.enter_context(mounted(bench, request))
        except MismatchError as error:
            if error.what in ("rsize", "wsize", "nconnect", PERSONALITY):
                raise NotOfferedError(error.message, error.hint) from error
            raise
        except mounting.RejectedOptionError as error:
            raise NotOfferedError(error.message, error.hint) from error
        yield nfs_mount


def _take_off(nfs_mount: Mount, changes: Journal) -> None:
    try:
        unmount(nfs_mount.directory, changes, timeout=30)
    except UserError:
        # -f ends RPCs that wait for a dead server (nfs_umount_begin in fs/nfs/super.c), -l detaches
        # a mount that is still busy.  Only this sweep uses the mount: the test file, and its reads
        run("umount", "-f", "-l", "--", nfs_mount.directory, check=False, timeout=30)
        if find(nfs_mount.directory):
            raise
        drop_undo(nfs_mount.directory, changes)


def release_server_pages(directory: Path) -> None:
    """Make nfsd's threads release the pages of the previous trial.  Raises OSError.

    It sends small requests in parallel: FSSTAT, which clients do not cache.
    """
    # A thread of nfsd that is woken for an empty TCP socket releases the pages of the last reply it
    # sent, and allocates as many for the next one (svc_rqst_release_pages() and svc_alloc_arg(),
    # net/sunrpc/svc.c and svc_xprt.c of Linux 6.12).  After a READ of 512 KiB these are 129 pages.
    # A single reader keeps one thread busy and wakes another without work, so READs of 4 KiB took
    # 80 us more of the server until the other thread got a request by chance.
    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(_send_requests, directory) for _ in range(_THREADS)]:
            done.result()


def _send_requests(directory: Path) -> None:
    for _ in range(_ROUNDS):
        os.statvfs(directory)
