# SPDX-License-Identifier: Apache-2.0
"""The programs of tests/lab/nodes, which run inside the machines.

New code uses remote.py; this file goes with the last of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from nfsrdma_tools.command import Result
from nfsrdma_tools.lab.nodes import Nodes
from testbed.mounts import LIMIT

__all__ = ["NODES", "beside", "node_script"]

NODES = Path(__file__).parents[1] / "tests/lab/nodes"


def node_script(name: str) -> bytes:
    """The text of ``nodes/NAME_node.py``, for the standard input of a node's python3."""
    return (NODES / f"{name}_node.py").read_bytes()


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
