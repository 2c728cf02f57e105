# SPDX-License-Identifier: Apache-2.0
"""Run programs: argv lists only, never a shell, errors with the command ready to paste."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, NamedTuple

from nfsrdma_tools.errors import CommandError, ProgramMissingError, UserError, printable

__all__ = ["END_WITH_US", "Result", "is_installed", "kill", "run", "stream"]

END_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
"""Words before a program (setpriv(1)): the kernel kills it when this process dies."""
_WATCH_SECONDS = 0.2
_KILL_SECONDS = 5.0
_LONGEST_LINE = 1 << 20


class Result(NamedTuple):
    """Output and exit status of a program."""

    argv: tuple[str, ...]
    stdout: str
    stderr: str
    returncode: int


def run(
    *argv: str | os.PathLike[str],
    stdin: bytes = b"",
    timeout: float = 120,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    hint: str = "",
    watch: Callable[[], None] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Result:
    """Run a program and return its output and exit status.

    A program that runs longer than ``timeout`` seconds is killed; its status is then 124.  If it
    waits in the kernel, it ends later, if at all: the result says so.  ``env``
    extends an environment with the C locale, so that callers can parse messages.  ``watch`` is
    called a few times a second while the program runs; an exception from it kills the program.
    Raises CommandError when ``check`` is set and the status is not 0, ProgramMissingError when the
    program, or the one behind END_WITH_US, does not exist.
    """
    args = tuple(os.fspath(a) for a in argv)
    # a file, not a pipe: communicate() loses unsent input when it is interrupted to call watch
    with tempfile.TemporaryFile() as feed:
        feed.write(stdin)
        feed.seek(0)
        with _running(args, feed, env, cwd=cwd) as process:
            result = _finish(process, args, timeout, watch or _nothing)
    if process.returncode is None:
        result = result._replace(stderr=f"{result.stderr}; {_stuck(process)}")
    _debug(f"{args[0]}: exit status {result.returncode}")
    if result.returncode:
        _require_program(args)
    if check and result.returncode:
        raise CommandError(args, result.returncode, result.stderr or result.stdout, hint)
    return result


def stream(*argv: str | os.PathLike[str], watch: Callable[[], None]) -> Iterator[str]:
    """Run a program and yield its lines as they come; kill it when the caller closes the iterator.

    A line of more than 1 MiB comes in parts.  ``watch`` is called a few times a second; an
    exception from it kills the program.  Raises CommandError after the last line when the program
    fails.
    """
    args = tuple(os.fspath(a) for a in argv)
    with tempfile.TemporaryFile() as errors:
        with _running(args, None, None, errors) as process:
            yield from _lines(process, watch)
            # one that has closed its output may go on
            while _is_running(process):
                watch()
        errors.seek(0)
        if process.returncode:
            raise CommandError(args, process.returncode, _text(errors.read()))


def _lines(process: subprocess.Popen[bytes], watch: Callable[[], None]) -> Iterator[str]:
    assert process.stdout is not None  # noqa: S101 - for the type checker
    # not the buffered reader of Python: select() does not see the lines that it has read ahead
    rest = b""
    while True:
        if not select.select([process.stdout], [], [], _WATCH_SECONDS)[0]:
            watch()
            continue
        data = os.read(process.stdout.fileno(), 1 << 16)
        *whole, rest = (rest + data).split(b"\n")
        yield from (_text(line) for line in whole)
        if len(rest) > _LONGEST_LINE:
            yield _text(rest)
            rest = b""
        if not data:
            if rest:
                yield _text(rest)
            return


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    """Whether a program still runs after a fraction of a second."""
    try:
        process.wait(_WATCH_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


@contextlib.contextmanager
def _running(
    args: tuple[str, ...],
    feed: IO[bytes] | None,
    env: Mapping[str, str] | None,
    errors: IO[bytes] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is killed at the end of the block if it still runs."""
    process = _start(args, feed, env, errors, cwd)
    try:
        yield process
    finally:
        # not Popen's own block: its wait has no limit
        with contextlib.suppress(UserError):
            kill(process)
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()


def is_installed(program: str) -> bool:
    """Whether ``run`` finds a program."""
    return shutil.which(program, path=_environment(None)["PATH"]) is not None


def _require_program(args: tuple[str, ...]) -> None:
    """Raise ProgramMissingError if the program behind END_WITH_US does not exist."""
    words = len(END_WITH_US)
    # setpriv exists, and its message depends on its version
    if args[:words] == END_WITH_US and not is_installed(args[words]):
        raise ProgramMissingError(args[words])


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and wait a few seconds for its end.

    UserError if it remains: SIGKILL does not end a process that waits in the kernel, for a dead
    server or a device ("uninterruptible sleep" of proc_pid_stat(5)).
    """
    process.kill()
    try:
        process.wait(_KILL_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UserError(_stuck(process), "it ends when the kernel answers it") from error


def _stuck(process: subprocess.Popen[bytes]) -> str:
    return f"process {process.pid} has not ended, because it waits in the kernel"


def _start(
    args: tuple[str, ...],
    feed: IO[bytes] | None,
    env: Mapping[str, str] | None,
    errors: IO[bytes] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    _debug(f"run: {printable(shlex.join(args))}")
    try:
        return subprocess.Popen(
            args,
            stdin=feed or subprocess.DEVNULL,
            stdout=pipe,
            stderr=errors or pipe,
            env=_environment(env),
            cwd=cwd,
        )
    except FileNotFoundError as error:
        raise ProgramMissingError(args[0]) from error


def _finish(
    process: subprocess.Popen[bytes],
    args: tuple[str, ...],
    timeout: float,
    watch: Callable[[], None],
) -> Result:
    end = time.monotonic() + timeout
    try:
        while True:
            left = end - time.monotonic()
            try:
                out, err = process.communicate(timeout=max(0.0, min(_WATCH_SECONDS, left)))
                return Result(args, _text(out), _text(err), process.returncode)
            except subprocess.TimeoutExpired:
                watch()
                if left <= 0:
                    raise
    except subprocess.TimeoutExpired as error:
        stderr = f"{_text(error.stderr)}\nkilled after {timeout:g} s"
        # the status of timeout(1)
        return Result(args, _text(error.stdout), stderr, 124)


def _debug(message: str) -> None:
    # --verbose imports logging; without it nobody reads the message
    if logging := sys.modules.get("logging"):
        logging.getLogger(__name__).debug("%s", message)


def _nothing() -> None:
    pass


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    path = os.environ.get("PATH", os.defpath)
    # mount, rdma and exportfs are in directories that an ordinary user's PATH lacks
    return {**os.environ, "LC_ALL": "C", "PATH": f"{path}:/usr/sbin:/sbin", **(extra or {})}
