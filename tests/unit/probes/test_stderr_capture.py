# SPDX-License-Identifier: Apache-2.0
"""A compiler that ends the program has its last word."""

import os
import subprocess
import sys
import tempfile

import pytest

from nfsrdma_tools.probes.session import captured_stderr

RUN = """
import os, sys
from nfsrdma_tools.probes.session import captured_stderr
with captured_stderr("it compiled") as said:
    {}
    words = said()
print(words)
"""


def run(body: str) -> "subprocess.CompletedProcess[str]":
    argv = (sys.executable, "-c", RUN.format(body))
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("end", ["os.abort()", "os._exit(1)", "os.kill(os.getpid(), 9)"])
def test_why_the_program_ended_is_said_in_one_line(end: str) -> None:
    ended = run(f"os.write(2, b'a.c:1\\nLLVM ERROR: bad\\x1b thing\\nstack:\\n0. run\\n'); {end}")
    assert ended.returncode != 0
    assert ended.stderr == "nfsrdma: ended while it compiled: LLVM ERROR: bad? thing\n"


def test_one_that_ends_without_a_word() -> None:
    assert run("os._exit(3)").stderr == "nfsrdma: ended while it compiled: no message\n"


def test_more_than_a_pipe_holds_is_kept_aside() -> None:
    ended = run("os.write(2, b'warning: x\\n' * 100_000 + b'a.c:7: error: y\\n')")
    assert (ended.returncode, ended.stderr, ended.stdout) == (0, "", "a.c:7: error: y\n")


def test_no_folder_needs_to_be_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root of a container may be read-only, without a tmpfs."""
    monkeypatch.setattr(tempfile, "tempdir", "/none")
    with captured_stderr("it compiled") as captured:
        os.write(2, b"a.c:7: error: y\n")
        assert captured() == "a.c:7: error: y"
