# SPDX-License-Identifier: Apache-2.0
"""Work over a mount while faults are injected, and what has to be true of it afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Event
from typing import Any

from faults import AGAIN, Fault
from node_files import node_script

from nfsrdma_tools.command import Result
from nfsrdma_tools.lab.nodes import Nodes

__all__ = [
    "beside",
    "code",
    "connections",
    "mounted",
    "nothing_lost",
    "on",
    "set_parameters",
    "set_to",
    "storm",
]

PARAMETERS = "/sys/module/nfsrdma/parameters"
HERE = "/mnt/here"
WORKERS = ("buffered", "direct", "names", "buffered", "direct")
# a hard mount goes on for ever; a test does not
LIMIT = 600.0
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
# the end of each program in a node: what hangs there is not waited for, whatever main() raises
_ANSWER = b"""
import json, os, traceback
try:
    print(json.dumps(main()), flush=True)
    os._exit(0)
except Exception:
    traceback.print_exc()
    os._exit(1)
"""


def code(script: str) -> bytes:
    """The program of ``module_SCRIPT_node.py``: prints what its main() returns as JSON."""
    return node_script(f"module_{script}") + _ANSWER


def on(lab: Nodes, node: str, script: str, *words: str, timeout: float = LIMIT) -> Any:
    """Run ``module_SCRIPT_node.py`` in a node; returns the result of its main()."""
    argv = ("python3", "-", *words)
    return json.loads(lab.run(node, *argv, stdin=code(script), timeout=timeout).stdout)


def set_to(lab: Nodes, node: str, parameter: str, value: str) -> None:
    """Set a parameter of our module; connections made afterwards use it."""
    lab.run(node, "tee", f"{PARAMETERS}/{parameter}", stdin=f"{value}\n".encode())


@contextmanager
def set_parameters(lab: Nodes, node: str = "client", **values: int) -> Iterator[None]:
    """Set parameters of the module for a while; connections made meanwhile use them."""
    before = {name: lab.run(node, "cat", f"{PARAMETERS}/{name}").stdout.strip() for name in values}
    try:
        for name, value in values.items():
            set_to(lab, node, name, str(value))
        yield
    finally:
        for name, text in before.items():
            set_to(lab, node, name, text)


@contextmanager
def mounted(
    lab: Nodes, options: str, off: tuple[str, ...] = ("umount",), node: str = "client"
) -> Iterator[None]:
    """A mount by our module at /mnt/here of a node; ``off`` takes it off."""
    words = f"{options},proto=rdma,port=20049"
    script = f"mkdir -p {HERE} && mount -t nfs -o {words} server:/export {HERE}"
    lab.run(node, "sh", "-c", script)
    assert connections(lab, node), "the mount is not carried by our module"
    try:
        yield
    finally:
        lab.run(node, *off, HERE, timeout=LIMIT)


def connections(lab: Nodes, node: str = "client", folder: str = "nfsrdma") -> list[dict[str, str]]:
    """The values in debugfs of each connection of our module, by name."""
    script = f"cd /sys/kernel/debug/{folder} && for n in */; do cat $n*; echo; done"
    said = lab.run(node, "sh", "-c", script).stdout
    # of a transport that is ending there may be a folder and no files
    found = [one.strip() for one in said.split("\n\n")]
    return [dict(line.split(" ", 1) for line in one.splitlines()) for one in found if one]


def resources(lab: Nodes, node: str = "client") -> dict[str, int]:
    """RDMA objects in a node by kind, as the kernel counts them; the device's own are there too."""
    found = json.loads(lab.run(node, "rdma", "-j", "resource").stdout)
    return {name: count for name, count in found[0].items() if name not in ("ifindex", "ifname")}


@contextmanager
def nothing_lost(lab: Nodes, *nodes: str, limit: float = 600) -> Iterator[None]:
    """RDMA objects of nodes are as many afterwards as before; connections need time to end."""
    before = _settled(lab, nodes)
    yield
    end = time.monotonic() + limit
    while (after := _objects(lab, nodes)) != before:
        assert time.monotonic() < end, f"{after}, not {before}"
        time.sleep(0.5)


def _objects(lab: Nodes, nodes: Sequence[str]) -> dict[str, dict[str, int]]:
    return {node: resources(lab, node) for node in nodes}


def _settled(lab: Nodes, nodes: Sequence[str]) -> dict[str, dict[str, int]]:
    """The RDMA objects of nodes once they stay the same: a test before may leave some that end."""
    now = _objects(lab, nodes)
    for _ in range(60):
        before = now
        time.sleep(0.5)
        now = _objects(lab, nodes)
        if now == before:
            break
    return now


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
        facts = [one for client in clients for one in connections(lab, client)]
    # not before the unmount: it gives back what was delegated
    for answer in answers:
        same_on_the_server(lab, answer)
    done = [one for answer in answers for one in answer["done"]]
    return {"faults": happened, "done": done, "connections": facts}


def same_on_the_server(lab: Nodes, answer: dict[str, Any]) -> None:
    lines = [f"{one['sha256']}  {one['worker']}\n" for one in answer["done"] if "sha256" in one]
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
        errors = [one for one in answer["done"] if "error" in one]
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


@contextmanager
def beside(
    lab: Nodes, node: str, *argv: str, stdin: bytes = b"", timeout: float = LIMIT
) -> Iterator[Future[Result]]:
    """A program in a node, beside which the caller does something else; then it is waited for.

    When what the caller does fails, the program is given up: its machine may answer no more.
    """
    given_up = Event()
    with ThreadPoolExecutor() as pool:
        # only the caller's thread looks at the consoles
        work = pool.submit(
            lab.ssh(node).run, *argv, stdin=stdin, timeout=timeout, watch=lambda: left(given_up)
        )
        try:
            yield work
            while not work.done():
                lab.check()
                time.sleep(0.2)
        except BaseException:
            given_up.set()
            raise
    lab.check()


def left(given_up: Event) -> None:
    if given_up.is_set():
        raise InterruptedError("the program was given up")


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
