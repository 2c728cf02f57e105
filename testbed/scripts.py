# SPDX-License-Identifier: Apache-2.0
"""The programs of tests/lab/nodes, which run inside the machines.

New code uses remote.py; this file goes with the last of them.
"""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from nfsrdma_tools.command import Result
from nfsrdma_tools.lab.nodes import Nodes
from testbed.mounts import LIMIT

__all__ = ["NODES", "beside", "bring_programs", "called", "node_script"]

NODES = Path(__file__).parents[1] / "tests/lab/nodes"
THERE = "/run/programs"
NAMES = ("optimistic", "bypass", "ends", "permits")


def node_script(name: str) -> bytes:
    """The text of ``nodes/NAME_node.py``, for the standard input of a node's python3."""
    return (NODES / f"{name}_node.py").read_bytes()


def bring_programs(lab: Nodes, node: str = "client") -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in NAMES:
            file = NODES / f"{name}_node.py"
            tar.add(file, f"lab/nodes/{file.name}")
    script = f"mkdir -p {THERE} && tar -xC {THERE}"
    lab.run(node, "sh", "-c", script, stdin=buffer.getvalue())


def called(
    lab: Nodes, program: str, *words: str, node: str = "client", timeout: float = 900
) -> Any:
    """The result of a function of ``nodes/PROGRAM_node.py``."""
    argv = ("env", f"PYTHONPATH={THERE}", "python3", "-m", f"lab.nodes.{program}_node", *words)
    result = json.loads(lab.run(node, *argv, timeout=timeout).stdout)
    print(words, json.dumps(result)[:2000])
    return result


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
