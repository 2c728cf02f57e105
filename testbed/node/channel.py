# SPDX-License-Identifier: Apache-2.0
"""A function that runs beside a test (``started`` of testbed/remote.py) talks with the test."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
from typing import IO, Any

from testbed.node.values import pack, unpack

__all__ = ["ended", "receive", "send", "wait"]

_received: queue.SimpleQueue[Any] = queue.SimpleQueue()
_end = threading.Event()
_lock = threading.Lock()
_output: list[IO[str]] = []


def send(value: object) -> None:
    """Send a value to the test, which gets it by ``Running.receive``."""
    write("value", pack(value))


def receive(timeout: float | None = None) -> Any:
    """Wait for a value that the test sends; TimeoutError after that many seconds."""
    try:
        return _received.get(timeout=timeout)
    except queue.Empty:
        raise TimeoutError(f"the test sent nothing in {timeout:g} s") from None


def ended() -> bool:
    """Whether the test has reached the end of its block."""
    return _end.is_set()


def wait(timeout: float | None = None) -> bool:
    """Wait until the test has reached the end of its block; returns whether it has."""
    return _end.wait(timeout)


def write(kind: str, value: object) -> None:
    """Write one line; of the runner."""
    with _lock:
        print(json.dumps({kind: value}), file=_output[0], flush=True)


def listen(lines: IO[str]) -> None:
    """Take what the test sends; of the runner.

    A test that fails or is killed closes its end, and all processes of this session end.
    """
    for line in lines:
        message = json.loads(line)
        if "end" in message:
            _end.set()
        else:
            _received.put(unpack(message["value"]))
    os.killpg(0, signal.SIGKILL)
