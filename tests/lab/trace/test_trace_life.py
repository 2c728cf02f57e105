# SPDX-License-Identifier: Apache-2.0
"""Accounts come, go and are killed under load, and nothing of them stays; mounts never notice."""

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Event
from typing import Any

import pytest

from nfsrdma_tools.lab.lab import Lab
from nfsrdma_tools.probes import probe_sets
from nfsrdma_tools.probes.session import Session, session
from testbed.node.files import read_from_server
from testbed.node.mounts import HERE, mounted
from testbed.node.programs import call, until
from testbed.remote import on
from testbed.tracing import tracing

SIZE, LIMIT, WORKERS = 1 << 18, 300, 2


def work(number: int, stop: Event, rounds: "SynchronizedArray[int]") -> None:
    """Write a file and read it back, until ``stop`` is set."""
    os.nice(5)  # compiling is not what is looked at
    path, turn = HERE / f"traced-{number}", 0
    while not stop.is_set():
        data = hashlib.sha256(b"%d" % turn).digest() * (SIZE // 32)
        path.write_bytes(data)
        assert read_from_server(path) == data
        turn += 1
        rounds[number] = turn
    path.unlink()


def programs() -> list[str]:
    """Programs of ours in the kernel: bcc calls them after their events."""
    rows = json.loads(call("bpftool", "-j", "prog", "show"))
    return sorted(row["name"] for row in rows if "tracepoint" in row["type"])


def all_gone() -> None:
    """Wait for the end of all programs: the kernel frees them after a grace period."""
    until("no program of a trace", lambda: not programs(), LIMIT, pause=0.5)


def detach(bpf: Any) -> None:
    for event in list(bpf.kprobe_fds):
        bpf.detach_kprobe_event(event)
    for event in list(bpf.tracepoint_fds):
        bpf.detach_tracepoint(tp=event)
    for event in list(bpf.raw_tracepoint_fds):
        bpf.detach_raw_tracepoint(tp=event)


def attached(bpf: Any) -> int:
    return len(bpf.kprobe_fds) + len(bpf.tracepoint_fds) + len(bpf.raw_tracepoint_fds)


def messages(counting: Session) -> int:
    """The RPCs that probe set chunks has counted until now."""
    rpcs: int = probe_sets.probe_set("chunks").read(counting).count("rpcs")
    return rpcs


def cycle(cycles: int, sets: tuple[str, ...]) -> None:
    """Attach and detach compiled probe sets; after the last attach, they count messages."""
    with session(sets) as counting:
        bpf = counting.bpf
        at_first = attached(bpf)
        for _ in range(cycles - 1):
            detach(bpf)
            assert attached(bpf) == 0
            bpf._trace_autoload()
            assert attached(bpf) == at_first
        before = messages(counting)
        until("a message", lambda: messages(counting) > before, LIMIT, pause=0.2)


def kill() -> None:
    """A tracer dies without a chance to detach."""
    tracer = subprocess.Popen(
        ("nfsrdma", "trace", "latency", "--json", "--interval", "0.2"), stdout=subprocess.PIPE
    )
    assert tracer.stdout
    for _ in range(4):
        assert tracer.stdout.readline(), "the tracer ended by itself"
    assert programs(), "nothing was attached"
    tracer.send_signal(signal.SIGKILL)
    tracer.wait()


@on("client", timeout=7200)
def come_and_go(sessions: int, cycles: int, kills: int, *sets: str) -> None:
    """Traces start, end and are killed, while workers write and read files of a mount."""
    # those of the test before may be on their way
    all_gone()
    fork = multiprocessing.get_context("fork")
    stop, rounds = fork.Event(), fork.Array("i", WORKERS)
    workers = [fork.Process(target=work, args=(n, stop, rounds)) for n in range(WORKERS)]
    with mounted("vers=4.2"):
        for worker in workers:
            worker.start()
        try:
            for _ in range(sessions):
                cycle(cycles, sets)
            for _ in range(kills):
                kill()
            all_gone()
        finally:
            stop.set()
            for worker in workers:
                worker.join(LIMIT)
                worker.kill()
        assert [worker.exitcode for worker in workers] == [0] * WORKERS
        assert min(rounds[:]) > 0


@pytest.mark.nightly
@pytest.mark.usefixtures("pair_lab")
@pytest.mark.parametrize("client", ("pair", "module_pair"), ids=("rpcrdma", "nfsrdma"))
def test_they_come_and_go_under_load(
    client: str, request: pytest.FixtureRequest, long: bool
) -> None:
    lab: Lab = request.getfixturevalue(client)
    # a session of all probe sets takes minutes to compile
    counted = tuple(name for name in probe_sets.NAMES if name != "cpu")
    sets = counted if long else ("chunks", "connections")
    sessions, cycles, kills = (10, 10, 10) if long else (1, 2, 1)
    come_and_go(lab, sessions, cycles, kills, *sets)


def test_a_module_that_is_looked_at_says_so_when_it_is_to_go(module_pair: Lab) -> None:
    """A probe holds the module; it is not waited for, and goes on when the probe is gone."""
    lab = module_pair
    with tracing(lab, "client", "chunks"):
        refused = lab.run("client", "nfsrdma", "module", "unload", check=False)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "nfsrdma" in refused.stderr
    lab.run("client", "nfsrdma", "module", "unload")
    lab.run("client", "nfsrdma", "module", "load")
