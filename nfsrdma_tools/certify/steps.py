# SPDX-License-Identifier: Apache-2.0
"""The steps of a certification: each makes its mounts, undoes them, and yields one result.

The store of the certification is that of its sweep; the result of each step is a note in it, so
that an interrupted certification resumes with the next step.  One journal has all changes, so that
after a kill -9 the mounts are undone before the transport module.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from nfsrdma_tools.certify.result import (
    FAILED,
    PASSED,
    UNKNOWN,
    Certificate,
    Result,
    Row,
    StepName,
    link_of,
    names,
    row_of,
)
from nfsrdma_tools.command import Result as Output
from nfsrdma_tools.command import run
from nfsrdma_tools.doctor.checks import examine
from nfsrdma_tools.errors import MismatchError, UserError, one_line
from nfsrdma_tools.host.kernel_log.explain import explain
from nfsrdma_tools.host.kernel_log.sources import kernel_ring
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.host.nfs.mounting import MountRequest, RejectedOptionError
from nfsrdma_tools.host.nfs.mounts import Mount, mounts
from nfsrdma_tools.host.nfs.mountstats import MountStats
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.rdma import nldev
from nfsrdma_tools.json_records import INVALID, fault, typed
from nfsrdma_tools.lock import host_lock
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.personalities import OPTIMISTIC, PERSONALITIES
from nfsrdma_tools.sizes import format_size
from nfsrdma_tools.sweep import runner
from nfsrdma_tools.sweep.conditions import lab_facts
from nfsrdma_tools.sweep.plan import PERSONALITY, Plan, preset
from nfsrdma_tools.sweep.progress import Event
from nfsrdma_tools.sweep.runner import Options, mount_point, with_our_module
from nfsrdma_tools.sweep.store import FAILED as TRIAL_FAILED
from nfsrdma_tools.sweep.store import Store
from nfsrdma_tools.sweep.trial import Bench, TrialProbes, mounted
from nfsrdma_tools.sweep.workload import ISOLATED_PYTHON, JobError
from nfsrdma_tools.undo import Run, journal

__all__ = ["Began", "Certification", "Choices", "begin", "plan_for"]

_TRANSFER = Path(__file__).with_name("transfer.py")
# a mount that shares its superblock with another one has the pages that it has read
_SOFT = ("nosharecache", "soft", "timeo=300", "retrans=2")
# 10 min: longer than a hand at the cable and a new connection take; not for ever, because the undo
# of a killed certification looks at the mount
_PATIENT = ("nosharecache", "soft", "timeo=6000", "retrans=2")
_LIMIT_S = _PULL_LIMIT_S = 300.0
_SETTLES_S, _PAUSE_S = 5.0, 0.2
_TIMED_OUT = 124
_NO_PLACE = frozenset((1, 13, 28, 30, 122))
"""EPERM, EACCES, ENOSPC, EROFS, EDQUOT: the export does not let this host write."""
_SHOWN = 3
_CHOICES, _ROW = "certify", "certify row"


class _CannotRunError(UserError):
    """A step cannot run here; that says nothing about the hardware."""


class _TransferError(UserError):
    """Files cannot be written or read."""


class Began(NamedTuple):
    """A step begins: the number of steps before it, and of all."""

    name: StepName
    done: int
    all: int


@dataclass(frozen=True)
class Choices:
    """The optional steps; the store has them for a certification that resumes."""

    module: bool = False
    pull: bool = False


@dataclass(frozen=True)
class _Transfer:
    """The numbers that transfer.py printed; ``wrong`` describes the first files with other data."""

    files: int
    bytes: int
    wrong_files: int
    wrong_bytes: int
    wrong: tuple[str, ...]


def plan_for(target: str, vers: str | None) -> Plan:
    """The short sweep of a certification; UsageError for a target or a version that is wrong.

    On hardware it has less than four minutes of trials.
    """
    length: dict[str, Any] = {"seconds": 3.0, "file_size": 0, "minutes": 4.0}
    if lab_facts():
        length = {"file_size": 8 << 20}
    grid: dict[str, Any] = {"rsizes": (64 << 10, 1 << 20), "read_aheads": (4,), "runs": 2}
    export = str(Target.parse(target))
    return preset("quick", export, vers=vers, with_direct=True, **grid, **length)


def begin(plan: Plan, choices: Choices, store: Store) -> None:
    """Store what a certification is to do."""
    store.add_plan(plan)
    store.note(plan, _CHOICES, json.dumps(asdict(choices)))


class Certification:
    """The steps of one certification, and their results until now.

    ``tell`` prints a request to the user, ``show`` an event of the sweep.
    """

    def __init__(
        self,
        store: Store,
        options: Options,
        tell: Callable[[str], None],
        show: Callable[[Event], None],
    ) -> None:
        self.store, self.plan = store, store.plan()
        noted = store.noted(self.plan, _CHOICES)
        if not noted:
            raise UserError(f"{store.path} is no store of nfsrdma certify", "give another file")
        try:
            self.choices = typed(Choices, json.loads(noted))
        except INVALID as error:
            raise UserError(f"{store.path}: {fault(error)}", "the store is damaged") from error
        self._options, self._tell, self._show = options, tell, show
        self.server = Target.parse(self.plan.target).host
        self.expected = len(names(self.choices.module, self.choices.pull))
        self._results: dict[StepName, Result] = {}
        self._module_error = ""

    def certificate(self) -> Certificate:
        """The results until now, with the row of the card."""
        return Certificate(self._row(), tuple(self._results.values()))

    def _row(self) -> Row:
        """The row of the first step; UserError if hardware or software of this host has changed."""
        link = None
        with contextlib.suppress(UserError, OSError):
            link = link_of(LIVE, self.plan.target)
        now, noted = row_of(LIVE, link), self.store.noted(self.plan, _ROW)
        if not noted:
            self.store.note(self.plan, _ROW, json.dumps(asdict(now)))
            return now
        try:
            kept = typed(Row, json.loads(noted))
        except INVALID as error:
            raise UserError(f"{self.store.path}: {fault(error)}", "the store is damaged") from error
        if link and kept.driver and replace(now, date=kept.date) != kept:
            was, is_ = (" ".join(map(str, asdict(row).values())) for row in (kept, now))
            message = f"the host has changed since this certification began: expected {was}, "
            raise UserError(f"{message}found {is_}", "begin a new one")
        return kept

    def run(self) -> Generator[Began | Result, None, None]:
        """Run the steps that the store lacks; yield each as it begins, and its result.

        Close the iterator or let KeyboardInterrupt through to stop early: it cleans up.  Raises
        UserError if no step can run.
        """
        if os.geteuid() != 0:
            raise UserError("only root may mount", "run this as root")
        busy = UserError("another certification runs on this host", "wait for it")
        with host_lock("certify", busy=busy), journal() as changes:
            # after the journal's own start, which undoes what a killed certification has mounted
            self._require_own_connections()
            self._row()
            self._changes, self._log = changes, _kernel_messages()
            wanted = names(self.choices.module, self.choices.pull)
            for ours, group in itertools.groupby(wanted, _is_ours):
                run_group = self._with_module if ours else self._steps
                yield from run_group(tuple(group))

    def _steps(self, group: Sequence[StepName]) -> Iterator[Began | Result]:
        for name in group:
            kept = self._stored(name)
            if not kept:
                yield Began(name, len(self._results), self.expected)
                began = time.monotonic()
                result = self._carried_out(name)
                kept = replace(result, seconds=round(time.monotonic() - began, 1))
                self.store.note(self.plan, _key(name), json.dumps(asdict(kept)))
            self._results[name] = kept
            yield kept

    def _require_own_connections(self) -> None:
        addresses = Target.parse(self.plan.target).addresses()
        major = self.plan.vers[0]
        for other in mounts():
            if other.vers.startswith(major) and other.options.get("addr") in addresses:
                message = f"{other.directory} is mounted from {self.server} by NFSv{major}, whose "
                message += "mounts of one server share their connections"
                another = "4.2" if major == "3" else "3"
                raise UserError(message, f"unmount it, or use --vers {another}")

    def _with_module(self, group: Sequence[StepName]) -> Iterator[Began | Result]:
        """The steps with our module in place of the kernel's."""
        with contextlib.ExitStack() as stack:
            if not all(map(self._stored, group)):
                stack.enter_context(self._changes.section())
                axes = ((PERSONALITY, tuple(PERSONALITIES)),)
                plan = replace(self.plan, transports=("tcp", OURS), vers="3", axes=axes)
                try:
                    load = stack.enter_context(with_our_module(plan, self._changes, self._options))
                    load(OURS)
                except (UserError, OSError) as error:
                    self._module_error = str(error)
            yield from self._steps(group)

    def _stored(self, name: StepName) -> Result | None:
        text = self.store.noted(self.plan, _key(name))
        return Result.from_json(text) if text else None

    def _carried_out(self, name: StepName) -> Result:
        step, over = name
        functions = {
            "doctor": self._doctor, "mount": self._mount, "data": self._data,
            "counts": self._counts, "sweep": self._sweep, "log": self._kernel_log,
            "pull": self._pull,
        }  # fmt: skip
        try:
            if _is_ours(name) and self._module_error:
                raise _CannotRunError(self._module_error)
            for needed in _needs(name):
                if self._results["mount", needed].status != PASSED:
                    raise _CannotRunError(f"not run, because mount {needed} did not pass")
            with self._changes.section():
                return functions[step](over)
        except _CannotRunError as error:
            return Result(step, over, UNKNOWN, str(error))
        except (UserError, OSError) as error:
            return Result(step, over, FAILED, str(error))

    # ---- the steps

    def _doctor(self, over: str) -> Result:
        findings = examine(Machine(server=self.server))
        count = {
            status: sum(finding.status == status for finding in findings)
            for status in ("ok", "warning", "error", "unknown")
        }
        bad = [f"{each.name}: {each.found}" for each in findings if each.status == "error"]
        found = ", ".join(f"{number} {status}" for status, number in count.items())
        status = FAILED if bad else PASSED
        return Result("doctor", over, status, "; ".join([found, *bad[:_SHOWN]]), {**count})

    def _mount(self, over: str) -> Result:
        if over == "rdma" and not any(link.active for link in nldev.links()):
            raise _CannotRunError("no RDMA port of this host is active", "see: nfsrdma link show")
        with self._mounted(over) as made:
            found = f"NFSv{made.vers}, rsize {format_size(made.rsize)}"
            found += f", wsize {format_size(made.wsize)}"
            return Result("mount", over, PASSED, found)

    def _data(self, over: str) -> Result:
        """Files of odd sizes, written over TCP and over this transport, and read over both.

        Each is read after a new mount, so that no cache of this host has it.
        """
        ways = {name: _way(name) for name in ("tcp", over)}
        counted: list[MountStats] = []
        done: dict[str, _Transfer] = {}
        cached: list[str] = []
        error: UserError | None = None
        try:
            with self._files():
                for name, way in ways.items():
                    with self._mounted(*way) as made, _counting(made, counted):
                        self._transfer("write", made, name)
                for name, way in reversed(ways.items()):
                    with self._mounted(*way) as made, _counting(made, counted):
                        done[name] = self._transfer("read", made, *ways)
                    if counted[-1].bytes.server_read < done[name].bytes:
                        cached.append(name)
        except _TransferError as fault:
            error = fault
        figures = {
            name: float(sum(getattr(each, name) for each in done.values()))
            for name in ("files", "bytes", "wrong_files", "wrong_bytes")
        }
        lost = sum(map(_reconnects, counted))
        unsent = _counter(counted, "failed_marshal_count")
        repeats = sum(
            o.transmissions - o.operations for s in counted for o in s.operations.values()
        )
        figures |= {"reconnects": lost, "unsent": unsent, "retransmissions": float(repeats)}
        if error:
            found = f"{error}; lost connections: {lost:.0f}; Calls not sent because their memory "
            found += f"could not be registered: {unsent:.0f}"
            return Result("data", over, FAILED, found, figures)
        found = f"{figures['files']:.0f} reads of files of odd sizes over {' and '.join(ways)}"
        if figures["wrong_files"]:
            wrong = [f"over {n}: {text}" for n, each in done.items() for text in each.wrong]
            found += f", {figures['wrong_files']:.0f} with other data"
            return Result("data", over, FAILED, "; ".join([found, *wrong[:_SHOWN]]), figures)
        found += ", all equal"
        if lost:
            found += f", but the connection was lost {lost:.0f} times"
            return Result("data", over, FAILED, found, figures)
        if cached:
            found += f", but not all over {', '.join(cached)} came from the server"
            return Result("data", over, UNKNOWN, found, figures)
        return Result("data", over, PASSED, found, figures)

    def _counts(self, over: str) -> Result:
        """The RPCs, bytes and regions that the probes count are those of mountstats."""
        probes = TrialProbes(True)
        if not {"chunks", "registrations"} <= {*probes.names} or not probes.enabled:
            raise _CannotRunError(f"probe sets: {probes.summary}")
        try:
            try:
                probes.attach()
            except UserError as error:
                raise _CannotRunError(error.message, error.hint) from error
            with self._files(), self._mounted(over) as made:
                self._transfer("write", made, over)
                before, readings = mountstats.read(made.directory), probes.begin()
                self._transfer("read", made, over)

                def read() -> tuple[dict[str, float], dict[str, float]]:
                    after = mountstats.difference(mountstats.read(made.directory), before)
                    return compared(after, probes.end(readings, str(made.directory)))

                # the last RPC may still be on its way
                counted, expected = read()
                end = time.monotonic() + _SETTLES_S
                while counted != expected and time.monotonic() < end:
                    time.sleep(_PAUSE_S)
                    counted, expected = read()
        finally:
            probes.release()
        differs = [
            f"{name} {number:.0f}, expected {expected[name]:.0f}"
            for name, number in counted.items()
            # the files need some of each: nothing is not a count
            if number != expected[name] or not number
        ]
        if differs:
            return Result("counts", over, FAILED, f"probes: {'; '.join(differs)}", counted)
        texts = (f"{name} {number:.0f}" for name, number in counted.items())
        return Result(
            "counts", over, PASSED, f"probes and mountstats agree: {', '.join(texts)}", counted
        )

    def _sweep(self, over: str) -> Result:
        try:
            for event in runner.sweep(self.plan, self.store, self._options):
                self._show(event)
        except UserError as error:
            cause = error.__cause__
            if isinstance(cause, JobError) and cause.number not in _NO_PLACE:
                raise
            if not any(t.status == TRIAL_FAILED for t in self.store.trials(self.plan)):
                raise _CannotRunError(error.message, error.hint) from error
        trials = self.store.trials(self.plan)
        figures: dict[str, float] = {"trials": len(trials)}
        for name in self.plan.transports:
            fast = [t.transfer.throughput for t in trials if t.ok and t.cell.transport == name]
            if fast:
                figures[f"{name}_mb_per_s"] = round(max(fast), 2)
        failed = [t for t in trials if t.status == TRIAL_FAILED]
        figures["failed_trials"] = len(failed)
        if failed:
            found = f"{len(failed)} of {len(trials)} trials failed: {failed[0].reason}"
            return Result("sweep", over, FAILED, found, figures)
        missing = [n for n in self.plan.transports if f"{n}_mb_per_s" not in figures]
        if missing:
            raise _CannotRunError(f"no trial over {', '.join(missing)}")
        best = (f"{figures[f'{n}_mb_per_s']:g} MB/s over {n}" for n in self.plan.transports)
        return Result("sweep", over, PASSED, f"{len(trials)} trials; {', '.join(best)}", figures)

    def _kernel_log(self, over: str) -> Result:
        before, after = self._log, _kernel_messages()
        for each in (before, after):
            if isinstance(each, UserError):
                raise _CannotRunError(each.message, each.hint)
        assert isinstance(before, list) and isinstance(after, list)  # noqa: S101 - for mypy
        if before and before[-1] not in after:
            raise _CannotRunError("the kernel's buffer has lost messages since the start")
        # by their number: without printk.time equal messages are equal lines
        old = Counter(before)
        old.subtract(after)
        entries = explain(line for line in after if old[line] < 0)
        found = [entry for entry in entries if entry.severity in ("error", "warning")]
        errors = [f"{entry.name} ({entry.count})" for entry in found if entry.severity == "error"]
        figures: dict[str, float] = {"errors": len(errors), "warnings": len(found) - len(errors)}
        if errors:
            text = f"the kernel reported: {', '.join(errors[:_SHOWN])}; see: nfsrdma explain"
            return Result("log", over, FAILED, text, figures)
        names_ = [f"{entry.name} ({entry.count})" for entry in found]
        warned = f"; warnings: {', '.join(names_[:_SHOWN])}" if names_ else ""
        return Result("log", over, PASSED, f"no error of NFS or RDMA{warned}", figures)

    def _pull(self, over: str) -> Result:
        """Files are read while the link goes down and comes back; their data is equal."""
        link = link_of(LIVE, self.plan.target)
        if not link:
            raise _CannotRunError("the RDMA port of the route to the server is not known")

        def is_up() -> bool:
            return any(each.name == link.name and each.active for each in nldev.links())

        with self._files():
            with self._mounted(over) as made:
                self._transfer("write", made, over)
            # a new mount: this host's cache has the files
            with self._mounted(over, options=_PATIENT) as made:
                before = mountstats.read(made.directory)
                self._tell(f"pull the cable of {link.name} now")
                if not _until(lambda: not is_up(), _PULL_LIMIT_S):
                    raise _CannotRunError(f"{link.name} stayed up for {_PULL_LIMIT_S:g} s")
                self._tell(f"{link.name} is down: plug the cable in again")
                end, up = time.monotonic() + _PULL_LIMIT_S, False

                def watch() -> None:
                    nonlocal up
                    if not up and is_up():
                        up = True
                        self._tell(f"{link.name} is up")
                    if not up and time.monotonic() > end:
                        raise UserError(f"{link.name} did not come up in {_PULL_LIMIT_S:g} s")

                limit = _PULL_LIMIT_S + _LIMIT_S
                done = self._transfer("read", made, over, limit=limit, watch=watch)
                # the answer may have come another way
                while not up:
                    time.sleep(_PAUSE_S)
                    watch()
                after = mountstats.difference(mountstats.read(made.directory), before)
        figures = {
            "files": float(done.files),
            "wrong_files": float(done.wrong_files),
            "reconnects": _reconnects(after),
        }
        if done.wrong:
            return Result("pull", over, FAILED, "; ".join(done.wrong[:_SHOWN]), figures)
        found = f"{link.name} went down and came back; {done.files} reads, all equal"
        return Result("pull", over, PASSED, found, figures)

    # ---- mounts and files

    @contextlib.contextmanager
    def _mounted(
        self, transport: str, personality: str | None = None, options: tuple[str, ...] = _SOFT
    ) -> Iterator[Mount]:
        """A mount during the block.  A kill -9 in it also removes the folder of files."""
        vers = "3" if personality == OPTIMISTIC else self.plan.vers
        directory = mount_point(self.plan, self._changes)
        request = MountRequest(
            target=Target.parse(self.plan.target),
            directory=directory,
            transport=transport,
            vers=vers,
            personality=personality,
            options=(*options, *(("nolock",) if vers == "3" else ())),
        )
        bench = Bench(self.plan, directory, self._changes)
        with contextlib.ExitStack() as stack:
            try:
                made = stack.enter_context(mounted(bench, request))
            except RejectedOptionError as error:
                raise _CannotRunError(error.message, error.hint) from error
            except MismatchError as error:
                if error.what != PERSONALITY:
                    raise
                raise _CannotRunError(f"the server does not offer it: {error.message}") from error
            remove = self._removal(directory)
            self._changes.add(remove)
            yield made
            self._changes.drop(remove)

    @contextlib.contextmanager
    def _files(self) -> Iterator[None]:
        """The folder of files is removed from the server at the end of the block.

        Over TCP: the transport of the step may be what failed.
        """
        try:
            yield
        finally:
            # an error here must not take the place of that of the block, or of Ctrl-C
            try:
                with self._mounted("tcp") as made:
                    self._removal(made.directory).undo()
            except (UserError, OSError) as error:
                name = Path(self._folder(Path())).name
                self._tell(f"{name} stays in {self.plan.target}, remove it there: {error}")

    def _removal(self, directory: Path) -> Run:
        folder = self._folder(directory)
        return Run(("rm", "-r", "--", folder), when=folder)

    def _folder(self, directory: Path) -> str:
        return str(directory / f".nfsrdma-certify-{self.plan.uid[:12]}")

    def _transfer(
        self,
        verb: str,
        made: Mount,
        *writers: str,
        limit: float | None = None,
        watch: Callable[[], None] | None = None,
    ) -> _Transfer:
        """Have transfer.py write the files of a writer, or read and compare those of several."""
        words = (verb, self._folder(made.directory), self.plan.uid, *writers)
        timeout = limit or _LIMIT_S
        result = run(*ISOLATED_PYTHON, _TRANSFER, *words, check=False, timeout=timeout, watch=watch)
        if result.returncode:
            raise _transfer_error(result, verb, made.transport)
        *rows, numbers = map(json.loads, result.stdout.splitlines())
        return _Transfer(**numbers, wrong=tuple(map(_described, rows)))


def compared(
    stats: MountStats, rows: dict[str, list[dict[str, Any]]]
) -> tuple[dict[str, float], dict[str, float]]:
    """Counts of the probes, and what each must be: by mountstats, or by another probe."""

    def sums(of: str, *columns: str) -> float:
        return float(sum(row[column] for row in rows[of] for column in columns))

    reads = (row["rpcs"] for row in rows["chunks"] if row["procedure"] == "READ")
    return {
        "reads": float(sum(reads)),
        "bytes_received": sums("chunks", "write_used", "reply_used"),
        "regions_invalidated": sums("registrations", "local_invalidations", "remote_invalidations"),
        "regions_unmapped": sums("registrations", "unmapped"),
    }, {
        "reads": float(stats.data("read").transmissions),
        "bytes_received": _counter([stats], "total_rdma_reply"),
        # a Call that finds no more regions gives those back that were not posted
        "regions_invalidated": sums("registrations", "registered"),
        "regions_unmapped": sums("registrations", "mapped"),
    }


def _described(row: dict[str, Any]) -> str:
    if row["found"] != row["size"]:
        return f"{row['file']} ({row['read']}): found {row['found']} of {row['size']} bytes"
    where = f"{row['wrong']} of {row['size']} bytes are wrong, the first at {row['first']}"
    return f"{row['file']} ({row['read']}): {where}"


def _transfer_error(result: Output, verb: str, over: str) -> UserError:
    what = f"{verb} over {over}"
    word, _, number = result.stderr.strip().partition(" ")
    if result.returncode == _TIMED_OUT:
        return _TransferError(f"{what}: no answer, {one_line(result.stderr)}")
    if word != "errno" or not number.isdigit():
        return _TransferError(f"{what}: {one_line(result.stderr)}")
    if verb == "write" and int(number) in _NO_PLACE:
        hint = "export it with rw,no_root_squash, and free some space there"
        return _CannotRunError(f"{what}: {os.strerror(int(number))}", hint)
    return _TransferError(f"{what}: {os.strerror(int(number))}")


def _way(name: str) -> tuple[str, str | None]:
    """The transport and the personality of a mount."""
    return (OURS, name) if name in PERSONALITIES else (name, None)


def _is_ours(name: StepName) -> bool:
    return name[1] == OURS or name[1] in PERSONALITIES


def _needs(name: StepName) -> tuple[str, ...]:
    """The transports whose mounts have to pass before the step."""
    step, over = name
    if step in ("doctor", "mount", "log"):
        return ()
    return ("tcp",) if over == "tcp" or _is_ours(name) else ("tcp", "rdma")


def _reconnects(stats: MountStats) -> float:
    return _counter([stats], "connect_count")


def _counter(counted: Iterable[MountStats], name: str) -> float:
    return float(sum(xprt.counters.get(name, 0) for each in counted for xprt in each.xprts))


@contextlib.contextmanager
def _counting(made: Mount, counted: list[MountStats]) -> Iterator[None]:
    """Append what mountstats counts of a mount during the block, also if it fails."""
    before = mountstats.read(made.directory)
    try:
        yield
    finally:
        counted.append(mountstats.difference(mountstats.read(made.directory), before))


def _kernel_messages() -> list[str] | UserError:
    try:
        return kernel_ring(LIVE)
    except UserError as error:
        return error


def _until(happened: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (done := happened()) and time.monotonic() < end:
        time.sleep(_PAUSE_S)
    return done


def _key(name: StepName) -> str:
    return f"certify {' '.join(name)}".strip()
