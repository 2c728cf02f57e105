# SPDX-License-Identifier: Apache-2.0
"""Runs client_reader.c, a program that reads a file through libnfsrdma, in a lab's one machine."""

from __future__ import annotations

from bench.solo import FOLDER, READERS
from nfsrdma_tools.lab.lab import Lab
from testbed.client_library import place_program

__all__ = ["OPTIMISTIC", "PATH", "SOURCE", "install", "run"]

SOURCE = READERS / "client_reader.c"
PATH = f"{FOLDER}/{SOURCE.stem}"
# bytes of a read
SIZE = 4096
# parameters of the server: idle time takes no instructions, but ends references; a client gets a
# quarter of the memory, and each of its connections has grants of its own
OPTIMISTIC = {"optimistic_lifetime": "3600", "optimistic_memory": "8192"}


def install(lab: Lab) -> None:
    """Compile the reader on this host and put it into the node."""
    place_program(lab, "solo", SOURCE, PATH)


def run(lab: Lab, count: int, depth: int, connections: int, optimistic: bool) -> list[str]:
    """Read blocks, ``depth`` of them by one doorbell; returns the lines that the reader prints."""
    numbers = (SIZE, count, depth, connections, int(optimistic))
    argv = (PATH, "server:/export", "bench-data", *map(str, numbers))
    return lab.run("solo", *argv, timeout=3600).stdout.splitlines()
