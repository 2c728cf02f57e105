# SPDX-License-Identifier: Apache-2.0
"""The node of a lab with one machine: programs of a benchmark, and parameters of our module."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.cells import CellResult
from bench.solo import sh
from nfsrdma_tools.lab.lab import Lab

__all__ = ["FOLDER", "READERS", "install", "run", "set_parameters"]

READERS = Path(__file__).with_name("readers")
FOLDER = "/run/bench"


def install(lab: Lab, program: Path, *readers: str) -> None:
    """Put a Python program and compiled readers into the node."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in readers]
        for file in files:
            source = READERS / f"{file.name}.c"
            subprocess.run(("gcc", "-O2", "-Wall", "-o", file, source), check=True)
        sh(lab, f"mkdir -p {FOLDER}")
        for file in (*files, program):
            lab.run("solo", "tee", f"{FOLDER}/{file.name}", stdin=file.read_bytes())
            sh(lab, f"chmod +x {FOLDER}/{file.name}")


def run(lab: Lab, program: str, request: str) -> list[CellResult]:
    """Run an installed Python program; returns a result for each cell of the request."""
    argv = ("python3", f"{FOLDER}/{program}", request)
    results: list[CellResult] = json.loads(lab.run("solo", *argv, timeout=7200).stdout)
    return results


def set_parameters(lab: Lab, sets: Sequence[str]) -> list[str]:
    """Set parameters of our module; new connections use them. Returns those in effect before."""
    script = """
for one; do
	file=/sys/module/nfsrdma/parameters/${one%%=*}
	echo "${one%%=*}=$(cat $file)"
	echo "${one#*=}" > $file
done
"""
    return lab.run("solo", "sh", "-ec", script, "sh", *sets).stdout.split()
