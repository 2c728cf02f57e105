# SPDX-License-Identifier: Apache-2.0
"""The process that owns a lab after ``nfsrdma lab up`` has returned; SIGTERM stops the lab."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab import paths
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.console import KernelReportError
from nfsrdma_tools.lab.lab import Lab, prepare
from nfsrdma_tools.lab.nodes import read_state

__all__ = ["down", "up"]

_SECONDS = 300


def up(config: LabConfig, step: Callable[[str], None]) -> dict[str, Any]:
    """Start a supervisor that brings a lab up; returns the lab's state."""
    if read_state(config.name):
        raise UserError(f"the lab {config.name} is already up", f"nfsrdma lab down {config.name}")
    prepare(config, step)
    step("starting")
    log = _log(config.name)
    with log.open("wb") as output:
        supervisor = subprocess.Popen(
            (sys.executable, "-m", __name__, json.dumps(config.to_dict())),
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    end = time.monotonic() + _SECONDS
    while (state := read_state(config.name)).get("phase") != "ready":
        if supervisor.poll() is not None or time.monotonic() > end:
            raise UserError(f"the lab failed to start: {log.read_text(errors='replace').strip()}")
        time.sleep(0.05)
    return state


def down(name: str) -> None:
    """Stop a lab and wait until it is removed."""
    state = read_state(name)
    if not state:
        raise UserError(f"the lab {name} is not up", "list the labs: nfsrdma lab status")
    os.kill(state["pid"], signal.SIGTERM)
    end = time.monotonic() + _SECONDS
    while read_state(name):
        if time.monotonic() > end:
            raise UserError(
                f"the lab {name} is still up after {_SECONDS} s", f"run: kill -9 {state['pid']}"
            )
        time.sleep(0.05)
    _log(name).unlink(missing_ok=True)


def _log(name: str) -> Path:
    return paths.labs_dir() / f"{name}.keeper"


def _run(config: LabConfig) -> None:
    with Lab(config) as lab:
        while True:
            time.sleep(0.5)
            try:
                for machine in lab.machines.values():
                    machine.check()
            except KernelReportError as error:
                lab.save_state(report=error.message)


def _main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        _run(LabConfig(**json.loads(sys.argv[1])))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
