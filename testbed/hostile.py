# SPDX-License-Identifier: Apache-2.0
"""Hostile peers (testbed/peers) in the nodes of a lab, beside a test or in its place."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import ParamSpec, TypeVar

from nfsrdma_tools.lab.nodes import Nodes
from testbed.faults import FAULTS
from testbed.mounts import mounted, nothing_lost
from testbed.peers import hostile_client, hostile_server, races, victim
from testbed.peers.hostile_client import Attack
from testbed.peers.hostile_server import LAST
from testbed.peers.races import Left
from testbed.peers.site import FOLDER
from testbed.peers.victim import PORTS, Verdict
from testbed.remote import Remote, on

__all__ = ["SEED", "attacked", "damageable", "finished", "listener_stops", "raced",
           "serving", "tricked"]  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")
LIMIT = 14400
# of what is made at random
SEED = os.environ.get("SEED", "8166")
# makes a file of 64 KiB, and 60 empty files, whose list of names is some 7,000 bytes long
MAKE = f"""
rm -rf {FOLDER} && mkdir {FOLDER} && cd {FOLDER}
head -c 65536 /dev/urandom > data
for i in $(seq 60); do : > $(printf 'a-name-%0100d' $i); done
"""


def finished(function: Remote[P, R], lab: Nodes, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function that sends its steps; prints some, and the last if it or its node fails."""
    last, began = deque[str](maxlen=8), time.monotonic()
    with function.started(lab, *args, **kwargs) as running:
        try:
            for number, step in enumerate(running, 1):
                last.append(step)
                if step.startswith("FAILED"):
                    print(step, flush=True)
                elif number % 500 == 0:
                    seconds = time.monotonic() - began
                    print(f"{number} steps in {seconds:.0f} s, {step[:80]}", flush=True)
        except BaseException:
            print(f"{function.function.__name__}, the last steps: {list(last)}", flush=True)
            raise
        return running.result()


@contextmanager
def serving(
    server: Remote[P, None], lab: Nodes, *args: P.args, **kwargs: P.kwargs
) -> Iterator[None]:
    """Run a function beside a block, from when it has sent that it listens."""
    with server.started(lab, *args, **kwargs) as running:
        running.receive(300)
        yield


suffer = on("client", timeout=LIMIT)(victim.suffer)
serve = on("server", timeout=LIMIT)(hostile_server.serve)
attack = on("client", timeout=LIMIT)(hostile_client.attack)
race = on("client", timeout=LIMIT)(races.race)


def tricked(
    lab: Nodes, seed: str, numbers: range, only: str = "", library: bool = False
) -> Verdict:
    """Mount hostile servers with our client, or give them to libnfsrdma.

    ``numbers`` are mutants.
    """
    with nothing_lost(lab, "client"), ExitStack() as servers:
        for port in PORTS:
            servers.enter_context(serving(serve, lab, port))
        try:
            verdict = finished(suffer, lab, seed, numbers.start, len(numbers), only, library)
        except BaseException:
            # a machine that died says nothing more
            print(lab.run("server", "sh", "-c", f"tail {LAST}/*", check=False, timeout=60).stdout)
            raise
    assert verdict.failures == [], f"seed {seed}"
    return verdict


def attacked(lab: Nodes, seed: str, numbers: range, only: str = "") -> Attack:
    """Send messages of a hostile client to a server; ``numbers`` are mutants.

    The client's mount uses the module that is loaded.
    """
    is_kernels = lab.run("server", "test", "-e", "/sys/module/nfsrdma", check=False).returncode
    kind = "kernel" if is_kernels else "ours"
    with _beside_a_mount(lab):
        outcomes = finished(attack, lab, kind, seed, numbers.start, len(numbers), only)
    assert outcomes.failures == [], f"seed {seed}"
    return outcomes


def raced(lab: Nodes, seed: str, count: int) -> Left:
    """Connections to a busy server that are left at every stage: nothing of them stays."""
    with _beside_a_mount(lab):
        connections = race(lab, seed, count)
    assert connections.refused == {}, f"seed {seed}"
    assert sum(connections.left.values()) == count
    return connections


def listener_stops(lab: Nodes, seed: str, times: int) -> Left:
    """The server stops listening, and starts again, while connections come and go."""
    with _beside_a_mount(lab), race.started(lab, seed, 0) as running:
        running.receive(300)
        for _ in range(times):
            time.sleep(2)
            assert not running.done(), "the load ended before the faults"
            lab.run("server", "sh", "-ec", FAULTS["server restarted"].script)
        running.end()
        return running.result()


@contextmanager
def _beside_a_mount(lab: Nodes) -> Iterator[None]:
    """Nothing of connections to the server stays, beside a mount and a folder to be damaged."""
    with nothing_lost(lab, "server"), damageable(lab), mounted(lab, "vers=3"):
        yield


@contextmanager
def damageable(lab: Nodes) -> Iterator[None]:
    """A folder on the server that may be damaged."""
    lab.run("server", "sh", "-c", MAKE)
    try:
        yield
    finally:
        lab.run("server", "rm", "-r", str(FOLDER))
