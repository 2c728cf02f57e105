# SPDX-License-Identifier: Apache-2.0
"""Puts a load on a server: many sessions of one process, by the engine of lib/load.c.

Files that a load makes are in one directory of the export, which it removes.  The journal of
changes has that, too: after a kill -9 the next start of nfsrdma removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nfsrdma_tools.client.library import Library
from nfsrdma_tools.client.library import load as load_library
from nfsrdma_tools.client.place import is_remote, split_server
from nfsrdma_tools.client.session import Session, connect
from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.undo import Journal, Run, journal

__all__ = [
    "KINDS",
    "Operations",
    "Outcome",
    "Plan",
    "Progress",
    "Times",
    "jain",
    "load",
    "remove",
    "succeeded",
]

KINDS = ("null", "getattr", "read", "write", "readdir")
"""Kinds of operations, in the order of lib/load.h."""
_OWN = re.compile(r"nfsrdma-load-[0-9a-f]{8}")
_FILE = re.compile(r"[0-9]+")
# bytes of one write when a file is made
_PIECE = 1 << 20
# seconds of one call of the engine, after which signals are handled
_SLICE = 0.2
# seconds to wait for replies after Ctrl-C
_PATIENCE = 1.0
# open files of the process itself
_OTHER_FILES = 64
_CAP_IPC_LOCK = 14
# enum nfsrdma_load_times
_RESPONSE, _SERVICE, _INTERVAL, _LATE, _CONNECT, _OUTAGE = 0, 5, 10, 11, 12, 13
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Plan:
    """The plan of a load; times are in seconds, sizes in bytes."""

    sessions: int = 10
    depth: int = 1
    """Most unfinished operations of a session."""
    mix: Mapping[str, int] = field(default_factory=lambda: {"read": 100})
    """Weights by kind."""
    size: int = 4096
    """Of a READ or WRITE."""
    sequential: bool = False
    stable: bool = False
    """WRITEs to stable storage."""
    verify: bool = False
    rate: float = 0
    """Arrivals per second of all sessions; 0 is a closed loop."""
    think: float = 0
    """Mean time between an operation and the next one of a closed loop."""
    in_flight: int = 0
    """Unfinished operations of all sessions of a closed loop; the next one is that of a random
    session.  0: of the session whose operation has ended, so that each has ``depth`` of them."""
    queue: int = 64
    """Arrivals that a session keeps until it may send them."""
    duration: float = 10
    warm_up: float = 0
    paths: tuple[str, ...] = ()
    """Files to read, below the directory of the target; none: the load makes its own."""
    files: int = 1
    file_size: int = 16 << 20
    at_once: int = 64
    """Sessions that connect at a time."""
    timeout: float = 60
    inline_size: int = 4096
    seed: int = 1

    @property
    def needs_files(self) -> bool:
        """Whether an operation uses a file or a directory."""
        return any(weight for kind, weight in self.mix.items() if kind != "null")


class Times(NamedTuple):
    """A distribution of times, in microseconds; a percentile is less than 1/256 too high."""

    samples: int
    min: float
    mean: float
    p50: float
    p90: float
    p99: float
    p99_9: float
    p99_99: float
    max: float


class Operations(NamedTuple):
    """Operations of a kind."""

    kind: str
    done: int
    failed: int
    bytes: int
    per_second: float
    """Those that ended without an error while operations were started."""
    bytes_per_second: float
    response: Times
    """From when an operation was due to its end."""
    service: Times
    """From when the library got it to its end."""


class Progress(NamedTuple):
    """The state of a load, and its rates and times since the last report."""

    seconds: float
    """Since the start of the measurement; negative while sessions connect."""
    connected: int
    up: int
    per_second: float
    bytes_per_second: float
    p50: float
    """Microseconds."""
    p99: float
    unfinished: int


class Outcome(NamedTuple):
    """The result of a load."""

    address: str
    device: str
    seconds: float
    """Of the measurement."""
    interrupted: bool
    kinds: tuple[Operations, ...]
    total: Operations
    arrivals: int
    dropped: int
    unsent: int
    unfinished: int
    late: Times
    """From when an operation was due to when this process saw that."""
    shares: tuple[int, ...]
    """Operations of each session that was connected at the start."""
    connected: int
    connect_seconds: float | None
    """Until all sessions were connected; None: they were not."""
    connect: Times
    failures: int
    up: int
    lost: int
    reconnects: int
    outages: int
    recovery_seconds: float | None
    """From the first loss of the longest outage until all were connected; None: not all are."""
    outage: Times
    resent: int
    short_moves: int
    mismatches: int
    mismatch: str
    errors: dict[str, int]
    message: str
    left: str = ""
    """The error that left files on the server, and the command that removes them."""


def jain(shares: Sequence[int]) -> float:
    """Jain's index of fairness: 1 if all shares are equal, 1/n if one of n has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def succeeded(plan: Plan, outcome: Outcome) -> bool:
    """Whether all connected, no operation failed, no data was wrong, and no file is left."""
    failed = outcome.total.failed or outcome.mismatches or outcome.unfinished or outcome.left
    return outcome.connected == plan.sessions and not failed


def load(target: str, plan: Plan, watch: Callable[[Progress], None]) -> Outcome:
    """Put a load on SERVER:/EXPORT, or on SERVER[:PORT] with NULL calls only.

    Calls ``watch`` each second.  Ctrl-C ends the load early.  OSError if the server cannot be
    reached, UserError if this host or its device has too little for the sessions.
    """
    _check(plan)
    host, port = (target, 0) if is_remote(target) else split_server(target)
    if not is_remote(target) and plan.needs_files:
        raise UsageError(f"{target} has no export", "write SERVER:/EXPORT, or --mix null=1")
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(connect(host, port=port, timeout=plan.timeout))
        paths, directory = plan.paths, ""
        if plan.needs_files and not paths:
            files = stack.enter_context(_own_files(session, target, plan))
            directory = files.directory
            paths = tuple(f"{directory}/{number}" for number in range(plan.files))
        with _Engine(session, plan, paths, directory) as engine:
            outcome = engine.run(watch)
        return outcome._replace(left=files.remove()) if directory else outcome


def remove(target: str, directory: str) -> None:
    """Remove the directory that a load has made in an export; nothing if it is gone."""
    if not _OWN.fullmatch(directory):
        raise UsageError(
            f"{directory!r} is not a directory of nfsrdma load", "example: nfsrdma-load-0123abcd"
        )
    with connect(target) as session:
        _remove(session, directory)


def _check(plan: Plan) -> None:
    if unknown := plan.mix.keys() - set(KINDS):
        raise UsageError(f"the mix has {min(unknown)!r}", f"kinds: {', '.join(KINDS)}")
    if not any(plan.mix.values()) or min(plan.mix.values()) < 0:
        raise UsageError("the mix has no operation", "a weight must be above 0, and none below")
    if plan.mix.get("write") and plan.paths:
        raise UsageError("a load writes to files of its own only", "leave out --file")
    if plan.verify and plan.paths:
        raise UsageError("a load verifies files of its own only", "leave out --file")
    if plan.size % 8:
        raise UsageError(f"the size is {plan.size} bytes", "it must be a multiple of 8")
    if plan.file_size < plan.size:
        raise UsageError(
            f"the size is {plan.size} bytes, that of a file {plan.file_size}", "use larger files"
        )
    if plan.rate and plan.think:
        raise UsageError("an open loop has no think time", "leave out --rate or --think")
    if plan.rate and plan.in_flight:
        raise UsageError("an open loop does not limit what is in flight", "leave out --in-flight")


# --- files ---


def _program() -> tuple[str, ...]:
    """The command nfsrdma, for the journal."""
    return ("nfsrdma",) if shutil.which("nfsrdma") else (sys.executable, "-m", "nfsrdma_tools")


class _OwnFiles:
    """A directory on the server with the files of a load; ``changes`` gets its undo."""

    def __init__(self, session: Session, target: str, changes: Journal) -> None:
        self.directory = f"nfsrdma-load-{os.urandom(4).hex()}"
        self._session, self._changes = session, changes
        self.undo = Run((*_program(), "load", target, "--remove", self.directory))

    def make(self, plan: Plan) -> None:
        self._changes.add(self.undo)
        self._session.mkdir(self.directory)
        for number in range(plan.files):
            _make(self._session, f"{self.directory}/{number}", number, plan)

    def remove(self) -> str:
        """Remove them; returns a line about what is left, or ""."""
        try:
            _remove(self._session, self.directory)
        except OSError as error:
            return f"{error.strerror} ({self.undo})"
        finally:
            self._changes.drop(self.undo)
        return ""


@contextlib.contextmanager
def _own_files(session: Session, target: str, plan: Plan) -> Iterator[_OwnFiles]:
    """Files for the block, which removes them."""
    with journal() as changes:
        files = _OwnFiles(session, target, changes)
        try:
            files.make(plan)
            yield files
        except BaseException:
            _remove(session, files.directory)
            changes.drop(files.undo)
            raise


def _make(session: Session, path: str, number: int, plan: Plan) -> None:
    """Make a file that has the pattern of its number."""
    library = load_library()
    size = plan.file_size // plan.size * plan.size
    with session.open(path, "w") as file:
        for offset in range(0, size, _PIECE):
            piece = bytearray(min(_PIECE, size - offset))
            words = (library.ffi.from_buffer(piece), len(piece), offset)
            library.functions.nfsrdma_load_pattern(plan.seed, number, *words)
            file.pwrite(piece, offset)


def _remove(session: Session, directory: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        for name in session.listdir(directory):
            if _FILE.fullmatch(name):
                session.unlink(f"{directory}/{name}")
        session.rmdir(directory)


# --- limits ---


def _check_limits(limits: Any, plan: Plan) -> None:
    """UserError if this process or the device has too little; raises soft limits."""
    _raise_limit(
        resource.RLIMIT_NOFILE,
        plan.sessions * limits.descriptors + _OTHER_FILES,
        ("open files", "ulimit -n"),
    )
    if not _may_lock():
        needed = (plan.sessions * limits.locked >> 10) + 1
        _raise_limit(resource.RLIMIT_MEMLOCK, needed << 10, ("bytes of locked memory", "ulimit -l"))
    # one more: the session of the files
    for name, each in (
        ("queue pairs", limits.qps),
        ("completion queues", limits.cqs),
        ("protection domains", limits.pds),
        ("memory regions", limits.mrs // 3),
    ):
        if 0 < each < plan.sessions + 1:
            raise UserError(f"the RDMA device has {name} for {each - 1} sessions", "use fewer")


def _raise_limit(kind: int, needed: int, names: tuple[str, str]) -> None:
    soft, hard = resource.getrlimit(kind)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    noun, command = names
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(
            f"the sessions need {needed} {noun}, the limit of this process is {hard}",
            f"raise it with {command}, as root, or use fewer sessions",
        )
    resource.setrlimit(kind, (needed, hard))


def _may_lock() -> bool:
    """Whether this process may lock any amount of memory."""
    match = re.search(r"^CapEff:\s+([0-9a-f]+)$", _STATUS.read_text(), re.MULTILINE)
    return bool(match and int(match[1], 16) >> _CAP_IPC_LOCK & 1)


# --- the engine ---


class _Engine:
    """A load of the library, closed at the end of the block."""

    def __init__(self, session: Session, plan: Plan, paths: Sequence[str], directory: str) -> None:
        self._session, self._plan, self._paths = session, plan, paths
        self._directory = directory
        self._library: Library = load_library()
        self._functions = self._library.functions
        self._box = self._library.ffi.new("struct nfsrdma_load **")
        self._watch: Callable[[Progress], None] = lambda _: None
        self._began = self._reported = time.monotonic()
        self._last: Any = None
        """Totals of the last report; None before the measurement."""

    @property
    def _load(self) -> Any:
        return self._box[0]

    def __enter__(self) -> _Engine:
        ffi, plan = self._library.ffi, self._plan
        names = [ffi.new("char[]", os.fsencode(path)) for path in self._paths]
        words = {
            "sessions": plan.sessions, "depth": plan.depth, "inline_size": plan.inline_size,
            "timeout": round(plan.timeout * 1000), "at_once": plan.at_once,
            "weights": [plan.mix.get(kind, 0) for kind in KINDS], "bytes": plan.size,
            "sequential": plan.sequential, "stable": plan.stable, "verify": plan.verify,
            "queue": plan.queue, "rate": plan.rate, "think": plan.think,
            "in_flight": plan.in_flight, "seed": plan.seed,
        }  # fmt: skip
        self._session._call(
            "load_open",
            ffi.new("struct nfsrdma_load_plan *", words),
            ffi.new("char *[]", names),
            len(names),
            os.fsencode(self._directory) if plan.needs_files else ffi.NULL,
            self._box,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._functions.nfsrdma_load_close(self._load)

    def _call(self, name: str, *words: Any) -> int:
        status = int(getattr(self._functions, f"nfsrdma_load_{name}")(self._load, *words))
        if status < 0:
            raise self._library.error(status)
        return status

    def run(self, watch: Callable[[Progress], None]) -> Outcome:
        """Connect, measure, and wait for the last replies."""
        limits = self._library.ffi.new("struct nfsrdma_load_limits *")
        self._call("limits", limits)
        _check_limits(limits, self._plan)
        self._watch = watch
        self._connect()
        if not self._plan.duration:
            return self._outcome(0, self._totals(), interrupted=False)
        self._start()
        interrupted = False
        try:
            self._work(self._plan.warm_up)
            self._start()
            self._work(self._plan.duration)
        except KeyboardInterrupt:
            interrupted = True
        seconds = time.monotonic() - self._began
        self._functions.nfsrdma_load_stop(self._load)
        at_end = self._totals()
        self._drain(_PATIENCE if interrupted else self._plan.timeout + _PATIENCE)
        return self._outcome(seconds, at_end, interrupted)

    def _connect(self) -> None:
        until = time.monotonic() + self._plan.timeout
        connected = 0
        while connected < self._plan.sessions and time.monotonic() < until:
            connected = self._call("connect", round(_SLICE * 1000))
            self._report()
        if not connected:
            text = self._library.ffi.string(self._totals().message).decode(errors="replace")
            raise OSError(errno.ETIMEDOUT, text or "no session connected")

    def _start(self) -> None:
        self._functions.nfsrdma_load_start(self._load)
        self._began = self._reported = time.monotonic()
        self._last = self._totals()

    def _work(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._call("run", max(round(min(left, _SLICE) * 1000), 1))
            self._report()

    def _drain(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._totals().unfinished and time.monotonic() < until:
            self._call("run", round(_SLICE * 1000))

    def _totals(self) -> Any:
        totals = self._library.ffi.new("struct nfsrdma_load_totals *")
        self._functions.nfsrdma_load_totals(self._load, totals)
        return totals

    def _report(self) -> None:
        now = time.monotonic()
        passed = now - self._reported
        if passed < 1:
            return
        totals, last = self._totals(), self._last
        interval = self._times(_INTERVAL)
        self._watch(
            Progress(
                seconds=now - self._began if last else -1,
                connected=totals.connected,
                up=totals.up,
                per_second=(sum(totals.done) - sum(last.done)) / passed if last else 0,
                bytes_per_second=(sum(totals.bytes) - sum(last.bytes)) / passed if last else 0,
                p50=interval.p50,
                p99=interval.p99,
                unfinished=totals.unfinished,
            )
        )
        self._functions.nfsrdma_load_interval(self._load)
        self._reported = now
        self._last = totals if last else None

    def _histogram(self, which: int) -> Any:
        return self._functions.nfsrdma_load_histogram(self._load, which)

    def _times(self, *numbers: int) -> Times:
        """The distribution of one histogram, or of several ones together."""
        histogram = self._histogram(numbers[0])
        if len(numbers) > 1:
            histogram = self._library.ffi.new("struct nfsrdma_histogram *")
            for number in numbers:
                self._functions.nfsrdma_histogram_add(histogram, self._histogram(number))
        count = int(histogram.count)
        least, mean = histogram.least, histogram.sum / count if count else 0.0
        parts = (50_000, 90_000, 99_000, 99_900, 99_990, 100_000)
        percentile = self._functions.nfsrdma_histogram_percentile
        values = (least, mean, *(percentile(histogram, each) for each in parts))
        return Times(count, *(round(value / 1000, 1) for value in values))

    def _operations(self, numbers: Sequence[int], kind: str, totals: Any, rates: Any) -> Operations:
        def of(values: Any) -> int:
            return sum(values[number] for number in numbers)

        done, failed, moved, fast, wide = map(
            of, (totals.done, totals.failed, totals.bytes, *rates)
        )
        response = self._times(*(_RESPONSE + number for number in numbers))
        service = self._times(*(_SERVICE + number for number in numbers))
        return Operations(
            kind, done, failed, moved, round(fast, 3), round(wide, 3), response, service
        )

    def _outcome(self, seconds: float, at_end: Any, interrupted: bool) -> Outcome:
        totals, terms = self._totals(), self._session.terms
        per = 1 / seconds if seconds else 0
        rates = ([count * per for count in at_end.done], [size * per for size in at_end.bytes])
        numbers = [number for number, kind in enumerate(KINDS) if self._plan.mix.get(kind)]
        shares = [
            self._functions.nfsrdma_load_operations(self._load, number)
            for number in range(self._plan.sessions)
        ]
        text = self._library.ffi.string
        return Outcome(
            address=terms.address,
            device=terms.device,
            seconds=round(seconds, 3),
            interrupted=interrupted,
            kinds=tuple(self._operations([n], KINDS[n], totals, rates) for n in numbers),
            total=self._operations(numbers, "all", totals, rates),
            arrivals=totals.arrivals,
            dropped=totals.dropped,
            unsent=totals.unsent,
            unfinished=totals.unfinished,
            late=self._times(_LATE),
            shares=tuple(share for share in shares if share >= 0),
            connected=totals.connected,
            connect_seconds=round(totals.connect_ns / 1e9, 6) if totals.connect_ns else None,
            connect=self._times(_CONNECT),
            failures=totals.failures,
            up=totals.up,
            lost=totals.lost,
            reconnects=totals.reconnects,
            outages=totals.outages,
            recovery_seconds=(
                round(totals.recovery_ns / 1e9, 6) if totals.up == totals.connected else None
            ),
            outage=self._times(_OUTAGE),
            resent=totals.resent,
            short_moves=totals.short_moves,
            mismatches=totals.mismatches,
            mismatch=text(totals.mismatch).decode(),
            errors=_errors(totals),
            message=text(totals.message).decode(errors="replace"),
        )


def _errors(totals: Any) -> dict[str, int]:
    pairs = zip(totals.errors, totals.error_counts, strict=True)
    return {errno.errorcode.get(-error, "others"): count for error, count in pairs if count}
