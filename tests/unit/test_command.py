# SPDX-License-Identifier: Apache-2.0
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.stuck_filesystem import StuckFilesystem, stuck_filesystem

from nfsrdma_tools.command import END_WITH_US, kill, run, stream
from nfsrdma_tools.errors import CommandError, ProgramMissingError, UserError


def test_arguments_reach_no_shell() -> None:
    hostile = "; touch /tmp/x $(reboot) `reboot` \n'\""
    assert run("printf", "%s", hostile).stdout == hostile


def test_a_failure_carries_the_command_ready_to_paste_and_its_last_words() -> None:
    with pytest.raises(CommandError, match=r"^ls '/no such' exited with status 2: .*No such file"):
        run("ls", "/no such")


def test_a_missing_program_is_named() -> None:
    with pytest.raises(ProgramMissingError, match="no-such-program is not installed"):
        run("no-such-program")


def test_a_missing_program_that_ends_with_us_is_named() -> None:
    """Setpriv itself reports it by an exit status."""
    with pytest.raises(ProgramMissingError, match="no-such-program is not installed"):
        run(*END_WITH_US, "no-such-program", check=False)
    assert run(*END_WITH_US, "false", check=False).returncode == 1


def test_a_program_that_does_not_end_is_killed_and_says_so() -> None:
    done = run("sleep", "3600", timeout=0.3, check=False)
    assert done.returncode == 124
    assert "killed after 0.3 s" in done.stderr


def state_of(pid: int) -> str:
    """D: it waits in the kernel, and no signal ends it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[StuckFilesystem]:
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(stuck_filesystem(tmp_path))
        except OSError as error:
            pytest.skip(f"no filesystem that blocks: {error.strerror}")


def test_a_program_that_cannot_be_killed_is_left_after_the_timeout(
    stuck: StuckFilesystem, tmp_path: Path
) -> None:
    done = run("cat", tmp_path / "x", timeout=1, check=False)
    (pid,) = stuck.waiting
    assert state_of(pid) == "D"
    assert done.returncode == 124
    assert f"killed after 1 s; process {pid} has not ended" in done.stderr


def test_a_process_that_cannot_be_killed_is_named(stuck: StuckFilesystem, tmp_path: Path) -> None:
    with subprocess.Popen(("cat", tmp_path / "x")) as process:
        while process.pid not in stuck.waiting:
            time.sleep(0.01)
        with pytest.raises(UserError, match=f"process {process.pid} has not ended"):
            kill(process)
        stuck.end()


def test_what_the_watch_raises_ends_also_a_command_that_cannot_be_killed(
    stuck: StuckFilesystem, tmp_path: Path
) -> None:
    def watch() -> None:
        if len(stuck.waiting) >= expected:
            raise KeyError("seen")

    expected = 1
    with pytest.raises(KeyError):
        run("cat", tmp_path / "x", timeout=3600, watch=watch)
    expected = 2
    with pytest.raises(KeyError):
        list(stream("cat", tmp_path / "y", watch=watch))
    assert {state_of(pid) for pid in stuck.waiting} == {"D"}


def test_what_the_watch_raises_ends_the_program() -> None:
    start = time.monotonic()

    def watch() -> None:
        raise KeyError("seen")

    with pytest.raises(KeyError):
        run("sleep", "3600", timeout=3600, watch=watch)
    assert time.monotonic() - start < 1800


def test_input_larger_than_a_pipe_comes_through() -> None:
    data = b"x" * 1_000_000
    assert run("wc", "-c", stdin=data).stdout.strip() == "1000000"


def test_input_comes_through_to_a_program_that_is_slow_to_read_it() -> None:
    slow = "import sys, time; time.sleep(1); print(len(sys.stdin.buffer.read()))"
    assert run(sys.executable, "-c", slow, stdin=b"x" * 1_000_000).stdout == "1000000\n"


def test_lines_come_as_they_are_printed() -> None:
    code = "print('one', flush=True); input(); print('two')"
    lines = stream(sys.executable, "-c", code, watch=lambda: None)
    assert next(lines) == "one"
    with pytest.raises(CommandError, match="EOFError"):
        list(lines)


@pytest.mark.parametrize("text", ["one\ntwo", "two", "one\n\n", ""])
def test_the_last_line_comes_without_its_end(text: str) -> None:
    assert list(stream("printf", "%s", text, watch=lambda: None)) == text.splitlines()


def test_a_line_without_an_end_comes_in_parts() -> None:
    lines = stream("sh", "-c", "exec tr '\\0' x < /dev/zero", watch=lambda: None)
    assert len(next(lines)) < 2 << 20
    lines.close()  # type: ignore[attr-defined]


def test_a_stream_that_is_left_kills_its_program(tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(3600)"
    lines = stream(sys.executable, "-c", code, watch=lambda: None)
    pid = next(lines)
    lines.close()  # type: ignore[attr-defined]
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("script", ["exec sleep 3600", "exec sleep 3600 >&-"])
def test_what_the_watch_raises_ends_the_stream(script: str) -> None:
    """Also that of a program that has closed its output, and goes on."""

    def watch() -> None:
        raise KeyError("seen")

    with pytest.raises(KeyError):
        list(stream("sh", "-c", script, watch=watch))
