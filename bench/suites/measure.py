# SPDX-License-Identifier: Apache-2.0
"""Test suites of others over TCP and over RDMA.

Each test runs over TCP, over the kernel's module and over ours with each personality, with NFSv3
and NFSv4.2, between a server and a client.  Where its result is not that over TCP, it runs twice
more over both: some tests fail now and then over every transport.  A file in out/suites/ has each
result, so an interrupted run continues; it stops by itself after ``--minutes``.  The table goes to
docs/dev/suites.md.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from bench import markdown
from bench.cells import OUT, BasePart, BaseStore
from bench.suites.batches import Batch, Ended, Mount, run_batches
from bench.suites.build import built, install, version
from bench.suites.formats import FAILED, HUNG, SKIPPED, Suite, Verdict, lists, outcomes
from nfsrdma_tools.lab.config import KERNELS, LabConfig
from nfsrdma_tools.lab.console import EmulatorFaultError, KernelReportError
from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.personalities import DEFAULT, OPTIMISTIC, PERSONALITIES
from testbed.labs import OURS, THEIRS, carry, serve
from testbed.mounts import set_to

RESULTS = OUT / "suites"
VERSIONS = ("3", "4.2")
# seconds of a call in the node, after which the results so far are stored
BUDGET = 180
# for mounts, the end of a test and its directory, beyond budget and limit
SLACK = 600
# how often a test runs over TCP and over the transport where its result differs
ROUNDS = 3
# shapes of the lab: modelled cards in one machine, or soft-RoCE between two
DEVICES = {"card": "solo", "rxe": "pair"}
DEFAULT_DEVICE = "card"


@dataclass(frozen=True)
class Transport:
    """A transport of mounts, and the module that client and server have loaded."""

    name: str
    module: str = THEIRS
    personality: str = ""

    @property
    def proto(self) -> str:
        return "tcp" if self.name == "tcp" else "rdma"

    @property
    def port(self) -> int:
        return 2049 if self.proto == "tcp" else 20049

    @property
    def versions(self) -> tuple[str, ...]:
        # the personality that applies to NFSv3 only
        return VERSIONS[:1] if self.personality == OPTIMISTIC else VERSIONS


TRANSPORTS = {
    transport.name: transport
    for transport in (
        Transport("tcp"),
        Transport("rdma"),
        *(Transport(f"nfsrdma {name}", OURS, name) for name in PERSONALITIES),
    )
}


class Store(BaseStore[str]):
    """The results of a suite's tests on a kernel: a part is a version, a curve a transport."""

    def path(self, part: str, curve: str, cell: str, number: int = 0) -> Path:
        name = f"{cell.replace('/', '-')}-{number}.json"
        return self.folder / part / curve.replace(" ", "-") / name

    def results(self, vers: str, transport: str, test: str) -> list[Verdict]:
        """The results of a test in all rounds."""
        paths = [self.path(vers, transport, test, number) for number in range(ROUNDS)]
        return [Verdict(**json.loads(path.read_text())) for path in paths if path.exists()]

    def lacking(self, vers: str, test: str) -> bool:
        """Whether a test is skipped over TCP: this NFS version lacks what it needs."""
        return {result.outcome for result in self.results(vers, "tcp", test)} == {SKIPPED}


@dataclass(frozen=True)
class Job:
    """Tests over one transport and version that have no result of a round."""

    transport: Transport
    vers: str
    number: int
    tests: Sequence[str]

    def __str__(self) -> str:
        where = f"NFSv{self.vers}, {self.transport.name}"
        return f"{where}, {len(self.tests)} tests, round {self.number + 1}"


def chosen(suite: Suite, source: Path, kernel: str, only: Sequence[str] = ()) -> list[str]:
    """The tests to run: those of ``only``, or those of the source that are not left to KVM.

    Kernels other than the first get the short list.
    """
    about = lists(suite.name)
    every = suite.tests(source)
    if not only and "chosen" not in about:
        every = [test for test in every if not matches(test, about.get("kvm", {}))]
    if not only:
        only = about.get("chosen", ["*"]) if kernel == KERNELS[0] else about["short"]
    return [test for test in every if matches(test, only)]


def matches(test: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(test, pattern) for pattern in patterns)


# what varies between two runs of the same test
_VARIES = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+")


def same(result: Verdict) -> tuple[str, ...]:
    """The part of a result that is compared: outcome, and what failed, without its numbers."""
    if result.outcome != FAILED:
        return (result.outcome,)
    return (result.outcome, *(_VARIES.sub("N", line) for line in result.lines))


def differs(store: Store, vers: str, transport: str, test: str) -> bool:
    """Whether a test had a result over the transport that it never had over TCP."""
    over_tcp = {same(result) for result in store.results(vers, "tcp", test)}
    here = {same(result) for result in store.results(vers, transport, test)}
    return bool(over_tcp and here - over_tcp)


def jobs(store: Store, tests: Sequence[str], transports: Sequence[str]) -> list[Job]:
    """The first round of all transports and versions; those of one module together."""
    return [
        job
        for module in (THEIRS, OURS)
        for transport in (TRANSPORTS[name] for name in transports)
        for vers in transport.versions
        if transport.module == module and (job := _job(store, transport, vers, 0, tests)).tests
    ]


def repeats(store: Store, tests: Sequence[str], transports: Sequence[str]) -> list[Job]:
    """The other rounds, of tests whose result differs from that over TCP, over both."""
    todo = []
    over_tcp: dict[str, list[str]] = {vers: [] for vers in VERSIONS}
    for job in [(TRANSPORTS[name], vers) for name in transports if name != "tcp"
                for vers in TRANSPORTS[name].versions]:  # fmt: skip
        transport, vers = job
        differ = [t for t in tests if differs(store, vers, transport.name, t)]
        over_tcp[vers] += [test for test in differ if test not in over_tcp[vers]]
        todo += [_job(store, transport, vers, n, differ) for n in range(1, ROUNDS)]
    todo += [
        _job(store, TRANSPORTS["tcp"], vers, n, some)
        for vers, some in over_tcp.items()
        for n in range(1, ROUNDS)
    ]
    todo.sort(key=lambda job: job.transport.module == OURS)
    return [job for job in todo if job.tests]


def _job(store: Store, transport: Transport, vers: str, number: int, tests: Sequence[str]) -> Job:
    part = BasePart(vers, [transport.name], tests)
    left = store.missing(part, transport.name, number)
    return Job(transport, vers, number, needed(store, transport, vers, left))


def needed(store: Store, transport: Transport, vers: str, tests: Sequence[str]) -> list[str]:
    """Tests that can differ from TCP: those that run over it."""
    return [t for t in tests if transport.name == "tcp" or not store.lacking(vers, t)]


@dataclass
class Bench:
    """A lab with a built suite, and the module that it has loaded."""

    lab: Lab
    suite: Suite
    tar: Path
    store: Store
    end: float
    now: tuple[str, str] = field(default=("", ""))

    def prepare(self) -> None:
        """After each start of the lab."""
        self.now = ("", "")
        install(self.lab, "client", self.tar)

    def switch(self, transport: Transport) -> None:
        """Have client and server use the module, and the client request the personality."""
        module, _ = self.now
        if module != transport.module:
            serve(self.lab, "server", transport.module)
            if self.lab.config.shape == "pair":
                carry(self.lab, "client", transport.module)
            if transport.module == OURS:
                names = ",".join(name for name in PERSONALITIES if name != DEFAULT)
                set_to(self.lab, "server", "server_personalities", names)
        if transport.module == OURS:
            set_to(self.lab, "client", "personality", transport.personality)
        self.now = (transport.module, transport.personality)

    def work(self, todo: Sequence[Job]) -> None:
        """Store the results of each call in the node as soon as it ends, until the time is over."""
        for done, job in enumerate(todo):
            left = needed(self.store, job.transport, job.vers, job.tests)
            while left and time.monotonic() < self.end:
                print(f"{time.strftime('%H:%M:%S')} {done} of {len(todo)}: {job}: "
                      f"{len(job.tests) - len(left)} done", flush=True)  # fmt: skip
                for test, result in self.call(job, left):
                    name, put = job.transport.name, result._asdict()
                    self.store.put(job.vers, name, test, put, job.number)
                    left.remove(test)

    def call(self, job: Job, tests: Sequence[str]) -> Iterator[tuple[str, Verdict]]:
        """Run some of the tests.  A test that a kernel reported an error in has that as result."""
        try:
            self.switch(job.transport)
            answers = self.answers(job, tests, BUDGET)
        except KernelReportError:
            # one at a time from here on: the first one that is alone with a report has caused it
            self.restart()
            self.switch(job.transport)
            try:
                answers = self.answers(job, tests[:1], 0)
            except EmulatorFaultError:
                self.restart()
                return
            except KernelReportError as error:
                self.restart()
                yield tests[0], Verdict(HUNG, [str(error)], 0)
                return
        for answer in answers:
            yield from outcomes(self.suite, answer)
        if any(answer.stuck for answer in answers):
            self.restart()

    def answers(self, job: Job, tests: Sequence[str], budget: float) -> list[Ended]:
        transport, suite, batch = job.transport, self.suite, self.suite.batch
        what = (transport.proto, transport.port, transport.personality)
        mount = Mount(job.vers, *what, suite.folders, suite.limit)
        some = [list(tests[n : n + batch]) for n in range(0, len(tests), batch)]
        batches = [Batch(names, suite.script(names)) for names in some]
        run = run_batches.at(timeout=budget + suite.limit * batch + SLACK)
        return run(self.lab, mount, batches, suite.at_once, budget)

    def restart(self) -> None:
        self.lab.restart()
        self.prepare()


def conditions(lab: Lab, source: Path, suite: Suite) -> str:
    """The conditions of the results, for the page."""
    kernel, nic, dma = lab.config.kernel, lab.config.nic, lab.config.dma
    other = "" if kernel == KERNELS[0] else f" --kernel {kernel}"
    other += "" if nic == DEFAULT_DEVICE else f" --nic {nic}"
    other += f" --dma {dma}" if dma else ""
    command = f'make bench NAME=suites ARGS="{suite.name} SOURCE{other}"'
    about = markdown.conditions(lab, nic, command, link=False).removesuffix(".")
    return f"{about}; {suite.name} {version(source)}."


def lab_config(kernel: str, nic: str, dma: str) -> LabConfig:
    name, shape = f"suites-{os.getpid()}", DEVICES[nic]
    return LabConfig(name, shape, kernel=kernel, nic=nic, link="none", extras=True, dma=dma)


def results_of(suite: Suite, source: Path, config: LabConfig) -> Store:
    """The store of a suite's results on a kernel and devices."""
    devices = [] if config.nic == DEFAULT_DEVICE else [config.nic]
    devices += [config.dma] if config.dma else []
    return Store(RESULTS / suite.name / config.kernel / "-".join([version(source), *devices]))


def work(
    store: Store, suite: Suite, source: Path, config: LabConfig, minutes: float,
    transports: Sequence[str], tests: Sequence[str],
) -> None:  # fmt: skip
    """Run the tests without a result, for some minutes."""
    end = time.monotonic() + 60 * minutes
    tar = built(suite, source)
    with Lab(config) as lab:
        store.describe(conditions(lab, source, suite))
        bench = Bench(lab, suite, tar, store, end)
        bench.prepare()
        bench.work(jobs(store, tests, transports) or repeats(store, tests, transports))
        bench.work(repeats(store, tests, transports))
        lab.check()
