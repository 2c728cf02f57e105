# SPDX-License-Identifier: Apache-2.0
"""The process that owns a lab after ``nfsrdma lab up`` has returned; SIGTERM stops the lab."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nfsrdma_tools.command import kill
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.identity import terminate
from nfsrdma_tools.lab import paths
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.console import KernelReportError
from nfsrdma_tools.lab.lab import Lab, prepare
from nfsrdma_tools.lab.nodes import LabState, read_state

__all__ = ["down", "up"]

# to stop the machines and remove their disks
_SECONDS = 300


def up(config: LabConfig, step: Callable[[str], None]) -> LabState:
    """Start a supervisor that brings a lab up; returns the lab's state."""
    if read_state(config.name):
        raise UserError(f"the lab {config.name} is already up", f"nfsrdma lab down {config.name}")
    prepare(config, step)
    step("starting")
    log = _log(config.name)
    # a session of its own: Ctrl-C and the end of this terminal do not reach the supervisor
    with log.open("wb") as output:
        supervisor = subprocess.Popen(
            (sys.executable, "-m", __name__, json.dumps(config.to_dict())),
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        return _wait_until_ready(config.name, supervisor)
    except BaseException:
        _end(supervisor)
        raise


def _wait_until_ready(name: str, supervisor: subprocess.Popen[bytes]) -> LabState:
    # without a limit: each step of the supervisor has its own, of 15 minutes for a boot
    while True:
        ended = supervisor.poll() is not None
        state = read_state(name)
        mine = str(state.get("owner", "")).partition("-")[0] == str(supervisor.pid)
        if mine and state["phase"] == "ready":
            return state
        if ended:
            text = _log(name).read_text(errors="replace")
            raise UserError(f"the lab failed to start: {text.strip()}")
        time.sleep(0.05)


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    supervisor.terminate()
    try:
        supervisor.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        # its machines die with it
        kill(supervisor)


def down(name: str) -> None:
    """Stop a lab and wait until it is removed."""
    if not read_state(name):
        raise UserError(f"the lab {name} is not up", "list the labs: nfsrdma lab status")
    end, owner = time.monotonic() + _SECONDS, ""
    while state := read_state(name):
        if not owner and terminate(state.get("owner", "")):
            owner = state["owner"]
        if time.monotonic() > end:
            hint = f"run: kill -9 {owner.partition('-')[0]}" if owner else "wait until it is ready"
            raise UserError(f"the lab {name} is still up after {_SECONDS} s", hint)
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
