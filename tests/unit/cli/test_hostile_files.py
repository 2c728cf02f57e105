# SPDX-License-Identifier: Apache-2.0
"""The real commands read hostile captures and stores within 256 MiB and 10 s of CPU time.

A file ends in one line of error, or the command succeeds; the limits are those of the process, so
that a slow machine fails no test.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from unit.cli.hostile_files import CAPTURES, LARGEST, STORES, capture, store

PEAK_KB = 256 << 10
PROGRAM = """
import atexit, pathlib, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
# ru_maxrss is that of the parent if it is larger
peak = pathlib.Path(sys.argv.pop(1))
atexit.register(lambda: peak.write_text(pathlib.Path("/proc/self/status").read_text()))
from nfsrdma_tools.cli.main import main
main()
"""
# a report of a store that can be read takes seconds: those that differ in their figures
DRAWN = (
    "deep cell", "wide list in rows", "list of words", "axes of one value", "axes of a cell",
    "jobs of a cell", "throughput of 1e308", "throughput of 1e-308", "times of 2^63",
    "text of terminals", "trials", "rsizes", "rsizes at the limit", "read-aheads", "tiles",
    "small tiles", "axes", "24 sets of axes", "axes of plan and cell", "endless view of plans",
)  # fmt: skip


_WARNING = re.compile(r"ends in the middle of frame \d+$|the capture lost \d+ messages$")


def run(tmp_path: Path, *words: object) -> None:
    """Run a command; fails if it is killed, has a traceback, or has more than one line of error."""
    peak = tmp_path / "peak"
    peak.unlink(missing_ok=True)
    argv = [sys.executable, "-c", PROGRAM, str(peak), *map(str, words)]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode in (0, 1, 2), (words, done.returncode, done.stderr[-2000:])
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if not _WARNING.search(line)]
    assert len(errors) <= 1, done.stderr[-2000:]
    assert len(done.stderr.splitlines()) <= 2, done.stderr[-2000:]
    match = re.search(r"VmHWM:\s+(\d+) kB", peak.read_text())
    assert match
    assert int(match[1]) <= PEAK_KB, words


@pytest.mark.parametrize("name", CAPTURES)
def test_a_hostile_capture_is_read_or_ends_in_one_line(name: str, tmp_path: Path) -> None:
    file = capture(name, tmp_path / "capture")
    assert file.stat().st_size <= LARGEST
    run(tmp_path, "capture", "--read", file)
    run(tmp_path, "doctor", "--capture", file)


@pytest.mark.parametrize("name", STORES)
def test_a_hostile_store_is_read_or_ends_in_one_line(name: str, tmp_path: Path) -> None:
    file = store(name, tmp_path / "store.db")
    assert file.stat().st_size <= LARGEST
    run(tmp_path, "results", "export", "--format", "json", file)


@pytest.mark.parametrize("name", DRAWN)
def test_a_hostile_store_is_drawn_or_ends_in_one_line(name: str, tmp_path: Path) -> None:
    run(tmp_path, "report", store(name, tmp_path / "store.db"), "--output", tmp_path / "report")


@pytest.mark.parametrize("name", ("wide list in rows", "endless view of trials", "trials"))
def test_results_merge_and_compare_a_hostile_store_or_refuse_it(name: str, tmp_path: Path) -> None:
    file = store(name, tmp_path / "store.db")
    run(tmp_path, "results", "merge", tmp_path / "merged.db", file)
    run(tmp_path, "results", "compare", file, file)


def test_there_are_many_of_each_kind() -> None:
    assert len(CAPTURES) >= 40
    assert len(STORES) >= 40
