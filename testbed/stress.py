# SPDX-License-Identifier: Apache-2.0
"""Work over a mount while faults are injected, and what has to be true of it afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any

from nfsrdma_tools.command import Result
from nfsrdma_tools.lab.nodes import Nodes
from testbed.faults import AGAIN, Fault
from testbed.mounts import HERE, LIMIT, connections, mounted
from testbed.scripts import beside, code

__all__ = ["storm"]

WORKERS = ("buffered", "direct", "names", "buffered", "direct")
# seconds of faults after which the storm waits until the server answers again
UNSERVED = 40.0
# statfs always asks the server; eight of them use each connection.  Soft-RoCE that could not send
# one datagram sends no other (see faults.LINK_DOWN), which an address that goes may cause, too.
_ASK = f"""
for n in 1 2 3 4 5 6 7 8; do stat -f {HERE} >/dev/null; done &
while kill -0 $! 2>/dev/null; do
	if rdma resource show qp | grep -q "type GSI state ERR"; then {AGAIN} fi
	sleep 1
done
wait $!
"""


def storm(
    lab: Nodes,
    options: str,
    faults: Iterable[Fault],
    seconds: float,
    seed: str,
    clients: Sequence[str] = ("client",),
    least: int = 1,
    *,
    forgets: bool = False,
) -> dict[str, Any]:
    """Work over mounts of some clients while ``faults`` happen in turn, a second between them.

    ``forgets``: the server may lose its record of executed Calls; see faults.py.
    ``least`` faults happen even where the machines are so slow that the time is over before.
    AssertionError names a failure, a byte that differs on either side, or a process that hangs.
    Returns the faults in order, the results of the workers, and the connections' facts.
    """
    words = (seed, "forgets" if forgets else "remembers")
    with ExitStack() as mounts:
        for client in clients:
            mounts.enter_context(mounted(lab, options, node=client))
        happened, answers = worked(lab, faults, seconds, words, clients, least)
        facts = [connection for client in clients for connection in connections(lab, client)]
    # not before the unmount: it gives back what was delegated
    for answer in answers:
        same_on_the_server(lab, answer)
    done = [result for answer in answers for result in answer["done"]]
    return {"faults": happened, "done": done, "connections": facts}


def same_on_the_server(lab: Nodes, answer: dict[str, Any]) -> None:
    lines = [f"{r['sha256']}  {r['worker']}\n" for r in answer["done"] if "sha256" in r]
    folder = f"/export/{answer['folder']}"
    script = f"cd {folder} && sha256sum --check --quiet && rm -r {folder}"
    lab.run("server", "sh", "-c", script, stdin="".join(lines).encode())


def worked(
    lab: Nodes,
    faults: Iterable[Fault],
    seconds: float,
    words: tuple[str, str],
    clients: Sequence[str],
    least: int,
) -> tuple[list[str], list[dict[str, Any]]]:
    with ExitStack() as programs:
        works = {
            # a fault takes up to LIMIT, as does the end
            client: programs.enter_context(
                working(lab, client, seconds + (least + 1) * LIMIT, words)
            )
            for client in clients
        }
        happened = inject(lab, faults, seconds, works, least)
    answers = [json.loads(work.result().stdout) for work in works.values()]
    about = f"seed {words[0]}, after {', '.join(happened)}"
    for answer in answers:
        assert answer["hung"] == [], about
        errors = [result for result in answer["done"] if "error" in result]
        assert errors == [], f"{about}: {errors}"
        assert len(answer["done"]) == len(WORKERS), about
    return happened, answers


@contextmanager
def working(
    lab: Nodes, client: str, timeout: float, words: tuple[str, str]
) -> Iterator[Future[Result]]:
    """Run the workers of a client; at the end, stop them and wait."""
    argv = ("python3", "-", "work", *words, *WORKERS)
    with beside(lab, client, *argv, stdin=code("storm"), timeout=timeout) as work:
        try:
            yield work
        finally:
            lab.ssh(client).run("touch", "/run/storm.stop")


def inject(
    lab: Nodes,
    faults: Iterable[Fault],
    seconds: float,
    works: Mapping[str, Future[Result]],
    least: int,
) -> list[str]:
    """One fault after the other until the time is over or some work ends by itself.

    Afterwards the server answers again.
    """
    end, served = time.monotonic() + seconds, time.monotonic()
    happened: list[str] = []
    for fault in faults:
        over = time.monotonic() > end and len(happened) >= least
        if over or any(work.done() for work in works.values()):
            break
        happened.append(f"{fault.name} ({fault.node})")
        lab.run(fault.node, "sh", "-ec", fault.script, timeout=LIMIT)
        time.sleep(1)
        # chance may keep a server silent for longer than a task may wait (hung_task_timeout_secs)
        if time.monotonic() - served > UNSERVED:
            ask(lab, works)
            served = time.monotonic()
    ask(lab, works)
    return happened


def ask(lab: Nodes, clients: Iterable[str]) -> None:
    """Wait until the server answers each client, whose soft-RoCE may have to be made again."""
    for client in clients:
        lab.run(client, "sh", "-ec", _ASK, timeout=LIMIT)
