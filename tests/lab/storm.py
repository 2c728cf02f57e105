# SPDX-License-Identifier: Apache-2.0
"""Work over a mount while faults are injected, and what has to be true of it afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from faults import Fault

from nfsrdma_tools.command import Result
from nfsrdma_tools.lab.nodes import Nodes

__all__ = ["beside", "connections", "mounted", "on", "resources", "set_parameters", "storm"]

PARAMETERS = "/sys/module/nfsrdma/parameters"
HERE = "/mnt/here"
WORKERS = ("buffered", "direct", "names", "buffered", "direct")
# a hard mount goes on for ever; a test does not
LIMIT = 600.0


def code(script: str) -> bytes:
    return Path(__file__).with_name(f"module_{script}_node.py").read_bytes()


def on(lab: Nodes, node: str, script: str, *words: str, timeout: float = LIMIT) -> Any:
    """What ``module_SCRIPT_node.py`` answers in a node."""
    argv = ("python3", "-", *words)
    return json.loads(lab.run(node, *argv, stdin=code(script), timeout=timeout).stdout)


@contextmanager
def set_parameters(lab: Nodes, **values: int) -> Iterator[None]:
    """The module's tunables are these for connections made meanwhile."""
    before = {
        name: lab.run("client", "cat", f"{PARAMETERS}/{name}").stdout.strip() for name in values
    }
    try:
        for name, value in values.items():
            lab.run("client", "tee", f"{PARAMETERS}/{name}", stdin=str(value).encode())
        yield
    finally:
        for name, text in before.items():
            lab.run("client", "tee", f"{PARAMETERS}/{name}", stdin=text.encode())


@contextmanager
def mounted(lab: Nodes, options: str, off: tuple[str, ...] = ("umount",)) -> Iterator[None]:
    """A mount by our module at /mnt/here of the client; ``off`` takes it off."""
    words = f"{options},proto=rdma,port=20049"
    script = f"mkdir -p {HERE} && mount -t nfs -o {words} server:/export {HERE}"
    lab.run("client", "sh", "-c", script)
    assert connections(lab), "the mount is not carried by our module"
    try:
        yield
    finally:
        lab.run("client", *off, HERE, timeout=LIMIT)


def connections(lab: Nodes) -> list[dict[str, str]]:
    """What debugfs tells of each connection of our module: a name and a value per line."""
    script = "cd /sys/kernel/debug/nfsrdma && for n in *; do cat $n/*; echo; done"
    said = lab.run("client", "sh", "-c", script).stdout
    return [
        dict(line.split(" ", 1) for line in one.splitlines()) for one in said.split("\n\n") if one
    ]


def resources(lab: Nodes, node: str = "client") -> dict[str, int]:
    """RDMA objects in a node by kind, as the kernel counts them; the device's own are there too."""
    found = json.loads(lab.run(node, "rdma", "-j", "resource").stdout)
    return {name: count for name, count in found[0].items() if name not in ("ifindex", "ifname")}


def storm(
    lab: Nodes,
    options: str,
    faults: Sequence[Fault],
    seconds: float,
    seed: str,
    workers: Sequence[str] = WORKERS,
) -> dict[str, Any]:
    """Work over a mount while ``faults`` happen in turn, a second between them.

    Nothing fails, no byte differs on either side and nothing hangs, or AssertionError says what
    did.  Returns how many faults there were, what the workers did, and the connections' facts.
    """
    with mounted(lab, options):
        answer = worked(lab, faults, seconds, seed, workers)
        answer["connections"] = connections(lab)
    # not before the unmount: it gives back what was delegated
    lines = [f"{one['sha256']}  {one['worker']}\n" for one in answer["done"] if "sha256" in one]
    script = "cd /export/storm && sha256sum --check --quiet && rm -r /export/storm"
    lab.run("server", "sh", "-c", script, stdin="".join(lines).encode())
    return answer


def worked(
    lab: Nodes, faults: Sequence[Fault], seconds: float, seed: str, workers: Sequence[str]
) -> dict[str, Any]:
    argv = ("python3", "-", "work", seed, *workers)
    with beside(lab, "client", *argv, stdin=code("storm"), timeout=seconds + LIMIT) as work:
        try:
            count = inject(lab, faults, seconds, work)
        finally:
            lab.ssh("client").run("touch", "/run/storm.stop")
    answer: dict[str, Any] = json.loads(work.result().stdout)
    about = f"after {count} faults, seed {seed}"
    assert answer["hung"] == [], about
    assert [one for one in answer["done"] if "error" in one] == [], about
    assert len(answer["done"]) == len(workers), about
    return {"faults": count, **answer}


@contextmanager
def beside(
    lab: Nodes, node: str, *argv: str, stdin: bytes = b"", timeout: float = LIMIT
) -> Iterator[Future[Result]]:
    """A program in a node, beside which the caller does something else; then it is waited for."""
    with ThreadPoolExecutor() as pool:
        # only the caller's thread looks at the consoles
        work = pool.submit(lab.ssh(node).run, *argv, stdin=stdin, timeout=timeout)
        yield work
        while not work.done():
            lab.check()
            time.sleep(0.2)
    lab.check()


def inject(lab: Nodes, faults: Sequence[Fault], seconds: float, work: Future[Result]) -> int:
    """One fault after the other until the time is over or the work ends by itself."""
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end and not work.done():
        fault = faults[count % len(faults)]
        lab.run(fault.node, "sh", "-ec", fault.script, timeout=LIMIT)
        count += 1
        time.sleep(1)
    return count
