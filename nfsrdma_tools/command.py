# SPDX-License-Identifier: Apache-2.0
"""The one door for programs: argv lists only, never a shell, errors ready to paste."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from nfsrdma_tools.errors import CommandError, ProgramMissingError

__all__ = ["Result", "run"]


@dataclass(frozen=True)
class Result:
    """What a program said and how it ended."""

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
) -> Result:
    """Run a program to its end and return what it said.

    ``timeout`` is in seconds; a program that exceeds it is killed and counts as failed with
    status 124.  ``env`` is added to a C-locale environment so that messages can be compared.
    Raises CommandError when ``check`` and the status is not 0, ProgramMissingError when there
    is no such program.
    """
    args = tuple(os.fspath(a) for a in argv)
    try:
        done = subprocess.run(
            args,
            input=stdin,
            capture_output=True,
            timeout=timeout,
            check=False,
            env=_environment(env),
        )
        result = Result(args, _text(done.stdout), _text(done.stderr), done.returncode)
    except FileNotFoundError as error:
        raise ProgramMissingError(args[0]) from error
    except subprocess.TimeoutExpired as error:
        said = f"{_text(error.stderr)}\nno end after {timeout:g} s"
        result = Result(args, _text(error.stdout), said, 124)
    if check and result.returncode:
        raise CommandError(args, result.returncode, result.stderr or result.stdout, hint)
    return result


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    path = os.environ.get("PATH", os.defpath)
    # mount, rdma and exportfs live where an ordinary user's PATH does not look
    return {**os.environ, "LC_ALL": "C", "PATH": f"{path}:/usr/sbin:/sbin", **(extra or {})}
