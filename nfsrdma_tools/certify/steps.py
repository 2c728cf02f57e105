# SPDX-License-Identifier: Apache-2.0
"""The steps of a certification: each makes its mounts, undoes them, and yields one result.

The store of the certification is that of its sweep; a note in it has the results, so that an
interrupted certification resumes with the next step.  One journal has all changes, so that after a
kill -9 the mounts are undone before the transport module.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nfsrdma_tools.certify.result import (
    FAILED,
    PASSED,
    UNKNOWN,
    Certificate,
    Result,
    StepName,
    link_of,
    row_of,
)
from nfsrdma_tools.doctor.checks import examine
from nfsrdma_tools.errors import ProgramMissingError, UserError
from nfsrdma_tools.host.kernel_log.explain import explain
from nfsrdma_tools.host.kernel_log.sources import kernel_ring
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.host.nfs.mounts import Mount, mounts
from nfsrdma_tools.host.nfs.mountstats import MountStats
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.rdma import nldev
from nfsrdma_tools.lock import host_lock
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.personalities import OPTIMISTIC, PERSONALITIES
from nfsrdma_tools.sizes import format_size
from nfsrdma_tools.sweep import runner
from nfsrdma_tools.sweep.conditions import lab_facts
from nfsrdma_tools.sweep.plan import PERSONALITY, Plan, preset
from nfsrdma_tools.sweep.progress import TrialDone
from nfsrdma_tools.sweep.runner import Options, mount_point, with_our_module
from nfsrdma_tools.sweep.store import FAILED as TRIAL_FAILED
from nfsrdma_tools.sweep.store import NOT_OFFERED, Store, StoreError
from nfsrdma_tools.sweep.trial import (
    Bench,
    NotOfferedError,
    TrialProbes,
    mounted_if_offered,
    request_for,
)
from nfsrdma_tools.sweep.workload import JobError, run_isolated
from nfsrdma_tools.undo import Run, journal

__all__ = ["Certification", "begin", "plan_for"]

_TRANSFER = Path(__file__).with_name("transfer.py")
# a mount that shares its superblock with another one has the pages that it has read
_OWN = ("nosharecache", "timeo=300")
# 10 min: longer than a hand at the cable and a new connection take; not for ever, because the undo
# of a killed certification looks at the mount
_PATIENT = "timeo=6000"
_LIMIT_S, _PULL_LIMIT_S = 600.0, 300.0
_SETTLES_S, _PAUSE_S = 5.0, 0.2
_NO_PLACE = frozenset((1, 13, 28, 30, 122))
"""EPERM, EACCES, ENOSPC, EROFS, EDQUOT: the export does not let this host write."""
_SHOWN = 3
_NOTE = "certify"

_Outcome = tuple[str, str, Mapping[str, float]]
"""Status, text and figures of a result."""


class _CannotRunError(UserError):
    """A step cannot run here; that says nothing about the hardware."""


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


def begin(plan: Plan, store: Store, module: bool, pull: bool) -> None:
    """Store the plan of a certification, and the hardware that it is about."""
    store.add_plan(plan)
    _keep(store, plan, Certificate(row_of(LIVE, plan.target), module=module, pull=pull))


def _keep(store: Store, plan: Plan, certificate: Certificate) -> None:
    store.note(plan, _NOTE, json.dumps(asdict(certificate)))


class Certification:
    """The steps of one certification, and their results until now in ``certificate``.

    ``tell`` prints a request to the user, ``show`` the progress of a step.
    """

    def __init__(
        self,
        store: Store,
        options: Options,
        tell: Callable[[str], None],
        show: Callable[[str], None],
    ) -> None:
        foreign = UserError(f"{store.path} is no store of nfsrdma certify", "give another file")
        if not store.plans():
            raise foreign
        self._store, self.plan = store, store.plan()
        noted = store.noted(self.plan, _NOTE)
        # a plan that certify did not write may name any mount point
        ours = replace(plan_for(self.plan.target, self.plan.vers), uid=self.plan.uid)
        if not noted or self.plan != ours:
            raise foreign
        try:
            self.certificate = Certificate.from_json(noted)
        except UserError as error:
            raise UserError(f"{store.path}: {error}", "the store is damaged") from error
        self._options, self._tell, self._show = options, tell, show
        self._name = f".nfsrdma-certify-{self.plan.uid[:12]}"
        self._counted: list[MountStats] = []
        self._log: list[str] | None = None
        self._module_error = ""

    def run(self) -> Generator[StepName | Result, None, None]:
        """Run the steps that the store lacks; yield each as it begins, and each result.

        Close the iterator or let KeyboardInterrupt through to stop early: it cleans up.  Raises
        UserError if no step can run.
        """
        if os.geteuid() != 0:
            raise UserError("only root may mount", "run this as root")
        busy = UserError("another certification runs on this host", "wait for it")
        with host_lock("certify", busy=busy), journal() as self._changes:
            # after the start of the journal, which undoes the mounts of a killed certification
            self._require_own_connections()
            self._require_same_host()
            with contextlib.suppress(UserError):
                self._log = _kernel_messages()
            for ours, group in itertools.groupby(self.certificate.requested, _is_ours):
                yield from (self._with_module if ours else self._steps)(tuple(group))

    def _require_own_connections(self) -> None:
        addresses = Target.parse(self.plan.target).addresses()
        major = self.plan.vers[0]
        for other in mounts():
            if other.vers.startswith(major) and other.options.get("addr") in addresses:
                message = f"{other.directory} shares the connections of NFSv{major} to "
                message += f"{self.plan.server}: mounts of one server do"
                another = "4.2" if major == "3" else "3"
                raise UserError(message, f"unmount it, or use --vers {another}")

    def _require_same_host(self) -> None:
        kept = self.certificate.row
        now = replace(row_of(LIVE, self.plan.target), date=kept.date)
        # without a driver, the route to the server is unknown
        if now.driver and kept.driver and now != kept:
            was, is_ = (" ".join(map(str, asdict(row).values())) for row in (kept, now))
            message = f"the host has changed since this certification began: expected {was}, "
            raise UserError(f"{message}found {is_}", "begin a new one")

    def _with_module(self, group: Sequence[StepName]) -> Iterator[StepName | Result]:
        """The steps with our module in place of the kernel's."""
        with contextlib.ExitStack() as stack:
            if not all(map(self._result_of, group)):
                stack.enter_context(self._changes.section())
                axes = ((PERSONALITY, tuple(PERSONALITIES)),)
                plan = replace(self.plan, transports=("tcp", OURS), vers="3", axes=axes)
                try:
                    load = stack.enter_context(with_our_module(plan, self._changes, self._options))
                    load(OURS)
                except (UserError, OSError) as error:
                    self._module_error = _described(error)
            yield from self._steps(group)

    def _steps(self, group: Sequence[StepName]) -> Iterator[StepName | Result]:
        for name in group:
            if not (result := self._result_of(name)):
                yield name
                began = time.monotonic()
                status, found, figures = self._outcome(name)
                seconds = round(time.monotonic() - began, 1)
                result = Result(*name, status, found, dict(figures), seconds)
                steps = (*self.certificate.steps, result)
                self.certificate = replace(self.certificate, steps=steps)
                _keep(self._store, self.plan, self.certificate)
            yield result

    def _result_of(self, name: StepName) -> Result | None:
        return next((each for each in self.certificate.steps if each.name == name), None)

    def _outcome(self, name: StepName) -> _Outcome:
        step, over = name
        functions = {
            "doctor": self._doctor, "mount": self._mount, "data": self._data,
            "counts": self._counts, "sweep": self._sweep, "log": self._kernel_log,
            "pull": self._pull,
        }  # fmt: skip
        self._counted = []
        try:
            if _is_ours(name) and self._module_error:
                raise _CannotRunError(self._module_error)
            needs = ("tcp",) if over == "tcp" or _is_ours(name) else ("tcp", "rdma")
            for needed in () if step in ("doctor", "mount", "log") else needs:
                result = self._result_of(("mount", needed))
                if not result or result.status != PASSED:
                    raise _CannotRunError(f"not run, because mount {needed} did not pass")
            with self._changes.section():
                return functions[step](over)
        except StoreError:
            # without the store the step has no result
            raise
        except (_CannotRunError, NotOfferedError, ProgramMissingError) as error:
            return UNKNOWN, _described(error), {}
        except (UserError, OSError) as error:
            return FAILED, _described(error), {}

    # ---- the steps

    def _doctor(self, _: str) -> _Outcome:
        findings = examine(Machine(server=self.plan.server))
        number = Counter(finding.status for finding in findings)
        figures = {status: number[status] for status in ("ok", "warning", "error", "unknown")}
        bad = [f"{each.name}: {each.found}" for each in findings if each.status == "error"]
        found = ", ".join(f"{count} {status}" for status, count in figures.items())
        return FAILED if bad else PASSED, "; ".join([found, *bad[:_SHOWN]]), {**figures}

    def _mount(self, over: str) -> _Outcome:
        if over == "rdma" and not any(link.active for link in nldev.links()):
            raise _CannotRunError("no RDMA port of this host is active", "see: nfsrdma link show")
        with self._mounted(over) as made:
            sizes = f"rsize {format_size(made.rsize)}, wsize {format_size(made.wsize)}"
            return PASSED, f"NFSv{made.vers}, {sizes}", {}

    def _data(self, over: str) -> _Outcome:
        """Files of odd sizes, written over TCP and over this transport, and read over both.

        Each is read after a new mount, so that no cache of this host has it.
        """
        ways = tuple(dict.fromkeys(("tcp", over)))
        numbers: Counter[str] = Counter(files=0, bytes=0, wrong_files=0, wrong_bytes=0)
        wrong: list[str] = []
        cached: list[str] = []
        error = ""
        try:
            with self._files():
                for way in ways:
                    with self._mounted(way) as made:
                        self._transfer("write", made, way)
                for way in reversed(ways):
                    with self._mounted(way) as made:
                        read, texts = self._transfer("read", made, *ways)
                    numbers.update(read)
                    wrong += [f"over {way}: {text}" for text in texts]
                    if self._counted[-1].bytes.server_read < read["bytes"]:
                        cached.append(way)
        except JobError as fault:
            error = str(fault)
        lost, unsent = self._count("connect_count"), self._count("failed_marshal_count")
        calls = [call for stats in self._counted for call in stats.operations.values()]
        repeats = sum(call.transmissions - call.operations for call in calls)
        figures = {**numbers, "reconnects": lost, "unsent": unsent, "retransmissions": repeats}
        found = f"{numbers['files']} reads of files of odd sizes over {' and '.join(ways)}"
        if error:
            memory = f"Calls not sent because their memory could not be registered: {unsent}"
            return FAILED, f"{error}; lost connections: {lost}; {memory}", figures
        if wrong:
            found += f", {numbers['wrong_files']} with other data"
            return FAILED, "; ".join([found, *wrong[:_SHOWN]]), figures
        if lost:
            return FAILED, f"{found}, all equal, but the connection was lost {lost} times", figures
        if cached:
            where = f"not all over {', '.join(cached)} came from the server"
            return UNKNOWN, f"{found}, all equal, but {where}", figures
        return PASSED, f"{found}, all equal", figures

    def _counts(self, over: str) -> _Outcome:
        """The RPCs, bytes and regions that the probes count are those of mountstats."""
        probes = TrialProbes(True)
        if not {"chunks", "registrations"} <= {*probes.names} or not probes.enabled:
            raise _CannotRunError(f"probe sets: {probes.summary}")
        counts: dict[str, tuple[float, float]] = {}
        try:
            try:
                probes.attach()
            except UserError as error:
                raise _CannotRunError(error.message, error.hint) from error
            with self._files(), self._mounted(over) as made:
                self._transfer("write", made, over)
                before, readings = mountstats.read(made.directory), probes.begin()
                self._transfer("read", made, over)

                def agree() -> bool:
                    after = mountstats.difference(mountstats.read(made.directory), before)
                    counts.update(compared(after, probes.end(readings, str(made.directory))))
                    return all(found == expected for found, expected in counts.values())

                # the last RPC may still be on its way
                _until(agree, _SETTLES_S)
        finally:
            probes.release()
        figures = {name: found for name, (found, _) in counts.items()}
        differs = [
            f"{name} {found:.0f}, expected {expected:.0f}"
            for name, (found, expected) in counts.items()
            # the files need some of each: nothing is not a count
            if found != expected or not found
        ]
        if differs:
            return FAILED, f"probes: {'; '.join(differs)}", figures
        texts = (f"{name} {number:.0f}" for name, number in figures.items())
        return PASSED, f"probes and mountstats agree: {', '.join(texts)}", figures

    def _sweep(self, _: str) -> _Outcome:
        try:
            for event in runner.sweep(self.plan, self._store, self._options):
                if isinstance(event, TrialDone):
                    self._show(f"sweep: {event.done} trials")
        except StoreError:
            raise
        except UserError as error:
            cause = error.__cause__
            if isinstance(cause, JobError) and cause.number not in _NO_PLACE:
                raise
            if not any(t.status == TRIAL_FAILED for t in self._store.trials(self.plan)):
                raise _CannotRunError(error.message, error.hint) from error
        trials = self._store.trials(self.plan)
        failed = [trial for trial in trials if trial.status == TRIAL_FAILED]
        refused = {str(t.cell): t.reason for t in trials if t.status == NOT_OFFERED}
        figures: dict[str, float] = {
            "trials": len(trials), "failed_trials": len(failed), "not_offered": len(refused),
        }  # fmt: skip
        # of a transport, the fastest is the last
        by_speed = sorted((t.transfer.throughput, t.cell.transport) for t in trials if t.ok)
        best = {name: round(speed, 2) for speed, name in by_speed}
        figures |= {f"{name}_mb_per_s": speed for name, speed in best.items()}
        if failed:
            found = f"{len(failed)} of {len(trials)} trials failed: {failed[0].reason}"
            return FAILED, found, figures
        if missing := [name for name in self.plan.transports if name not in best]:
            raise _CannotRunError(f"no trial over {', '.join(missing)}")
        texts = [f"{best[name]:g} MB/s over {name}" for name in self.plan.transports]
        found = f"{len(trials)} trials; {', '.join(texts)}"
        if refused:
            found += f"; not offered: {'; '.join(sorted(refused))} ({next(iter(refused.values()))})"
        return PASSED, found, figures

    def _kernel_log(self, _: str) -> _Outcome:
        try:
            after = _kernel_messages()
        except UserError as error:
            raise _CannotRunError(error.message, error.hint) from error
        if self._log is None or not {*self._log[-1:]} <= {*after}:
            raise _CannotRunError("the kernel's buffer has lost messages since the start")
        # by their number: without printk.time equal messages are equal lines
        new = Counter(after) - Counter(self._log)
        entries = explain(line for line in after if line in new)
        errors, warnings = (
            [f"{each.name} ({each.count})" for each in entries if each.severity == severity]
            for severity in ("error", "warning")
        )
        figures: dict[str, float] = {"errors": len(errors), "warnings": len(warnings)}
        if errors:
            text = f"the kernel reported: {', '.join(errors[:_SHOWN])}; see: nfsrdma explain"
            return FAILED, text, figures
        warned = f"; warnings: {', '.join(warnings[:_SHOWN])}" if warnings else ""
        return PASSED, f"no error of NFS or RDMA{warned}", figures

    def _pull(self, over: str) -> _Outcome:
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
            with self._mounted(over, _PATIENT) as made:
                self._tell(f"pull the cable of {link.name} now")
                if not _until(lambda: not is_up(), _PULL_LIMIT_S):
                    raise _CannotRunError(f"{link.name} stayed up for {_PULL_LIMIT_S:g} s")
                self._tell(f"{link.name} is down: plug the cable in again")
                end = time.monotonic() + _PULL_LIMIT_S

                def watch() -> None:
                    if time.monotonic() > end and not is_up():
                        raise UserError(f"{link.name} did not come up in {_PULL_LIMIT_S:g} s")

                read, wrong = self._transfer("read", made, over, watch=watch)
                # the answer may have come another way
                _until(is_up, end - time.monotonic())
                watch()
        figures = {**read, "reconnects": self._count("connect_count")}
        if wrong:
            return FAILED, "; ".join(wrong[:_SHOWN]), figures
        found = f"{link.name} went down and came back; {read['files']} reads, all equal"
        return PASSED, found, figures

    # ---- mounts and files

    @contextlib.contextmanager
    def _mounted(self, over: str, *options: str) -> Iterator[Mount]:
        """A mount over a transport, or of a personality, during the block.

        A kill -9 in it also removes the folder of files.
        """
        personality = over if over in PERSONALITIES else None
        plan = replace(self.plan, vers="3") if personality == OPTIMISTIC else self.plan
        bench = Bench(plan, mount_point(plan, self._changes), self._changes)
        request = request_for(bench, OURS if personality else over)
        options = (*request.options, *_OWN, *options)
        request = replace(request, personality=personality, options=options)
        with mounted_if_offered(bench, request) as made:
            remove = self._removal(made.directory)
            self._changes.add(remove)
            yield made
            self._changes.drop(remove)

    @contextlib.contextmanager
    def _files(self) -> Iterator[None]:
        """The folder of files is removed from the server at the end of the block.

        Over TCP, because the transport of the step may have failed.
        """
        try:
            yield
        finally:
            # an error here must not take the place of that of the block, or of Ctrl-C
            try:
                with self._mounted("tcp") as made:
                    self._removal(made.directory).undo()
            except (UserError, OSError) as error:
                self._tell(f"{self._name} stays in {self.plan.target}, remove it there: {error}")

    def _removal(self, directory: Path) -> Run:
        folder = str(directory / self._name)
        return Run(("rm", "-r", "--", folder), when=folder)

    def _transfer(
        self, verb: str, made: Mount, *writers: str, watch: Callable[[], None] | None = None
    ) -> tuple[dict[str, int], list[str]]:
        """Have transfer.py write the files of a writer, or read and compare those of several.

        Returns its numbers, and a text for each of the first files with other data.
        """
        words = (verb, str(made.directory / self._name), self.plan.uid, *writers)
        before = mountstats.read(made.directory)
        try:
            output = run_isolated(_TRANSFER, *words, timeout=_LIMIT_S, watch=watch)
        except JobError as error:
            message = f"{verb} over {made.transport}: {error.message}"
            if verb == "write" and error.number in _NO_PLACE:
                hint = "export it with rw,no_root_squash, and free some space there"
                raise _CannotRunError(message, hint) from error
            raise JobError(message) from error
        finally:
            self._counted.append(mountstats.difference(mountstats.read(made.directory), before))
        done = json.loads(output)
        return done["numbers"], done["wrong"]

    def _count(self, name: str) -> int:
        """A counter of the connections, over all transfers of this step."""
        return sum(_counter(stats, name) for stats in self._counted)


def compared(
    stats: MountStats, rows: dict[str, list[dict[str, Any]]]
) -> dict[str, tuple[float, float]]:
    """Counts of the probes, each with its expected value: of mountstats, or of another probe."""

    def sums(of: str, *columns: str) -> float:
        return float(sum(row[column] for row in rows[of] for column in columns))

    reads = sum(row["rpcs"] for row in rows["chunks"] if row["procedure"] == "READ")
    invalidated = sums("registrations", "local_invalidations", "remote_invalidations")
    return {
        "reads": (float(reads), float(stats.data("read").transmissions)),
        "bytes_received": (
            sums("chunks", "write_used", "reply_used"),
            float(_counter(stats, "total_rdma_reply")),
        ),
        # a Call that finds no more regions gives those back that were not posted
        "regions_invalidated": (invalidated, sums("registrations", "registered")),
        "regions_unmapped": (sums("registrations", "unmapped"), sums("registrations", "mapped")),
    }


def _counter(stats: MountStats, name: str) -> int:
    return sum(xprt.counters.get(name, 0) for xprt in stats.xprts)


def _described(error: UserError | OSError) -> str:
    """The error with its hint, without the advice about options, which are those of sweep."""
    if not isinstance(error, UserError):
        return str(error)
    return str(UserError(error.message, error.hint))


def _is_ours(name: StepName) -> bool:
    return name[1] == OURS or name[1] in PERSONALITIES


def _kernel_messages() -> list[str]:
    return list(filter(None, kernel_ring(LIVE)))


def _until(happened: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (done := happened()) and time.monotonic() < end:
        time.sleep(_PAUSE_S)
    return done
