# SPDX-License-Identifier: Apache-2.0
"""Part of locks_node.py and lock_count_node.py: bpftrace traces while a load runs."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def traced(program: str, load: Callable[[], None]) -> tuple[float, dict[str, Any]]:
    """Run a load under a program of bpftrace that prints "ready" when its probes are there.

    Returns the seconds of the load, and the maps of the program by their names.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "said"
        argv = ("bpftrace", "-q", "-f", "json", "-o", str(output), "-e", program)
        tracer = subprocess.Popen(argv)
        while not (output.exists() and "ready" in output.read_text()):
            if tracer.poll() is not None:
                raise SystemExit("bpftrace ended")
            time.sleep(0.1)
        start = time.monotonic()
        load()
        seconds = time.monotonic() - start
        tracer.terminate()
        if tracer.wait():
            raise SystemExit("bpftrace failed")
        lines = [json.loads(line) for line in output.read_text().splitlines() if line]
    maps = [line["data"] for line in lines if line["type"] == "map"]
    return seconds, {name: values for data in maps for name, values in data.items()}
