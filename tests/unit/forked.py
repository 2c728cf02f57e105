# SPDX-License-Identifier: Apache-2.0
"""Runs nfsrdma in a process of its own that is forked: most of a start is importing typer."""

import contextlib
import io
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn

import typer

from nfsrdma_tools.cli.main import app, main

# what commands import, and typer when it parses words: here once, and not in each child
dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    app(["doctor", "--help"])


def nfsrdma(
    *words: str, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command's exit status, stdout and stderr, as of ``python -m nfsrdma_tools``."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            _be_the_command(words, cwd, env, (out.fileno(), err.fileno()))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, status, out.read(), err.read())


def _be_the_command(
    words: tuple[str, ...], cwd: Path, env: Mapping[str, str] | None, files: tuple[int, int]
) -> NoReturn:
    status = 1
    try:
        os.dup2(files[0], 1)
        os.dup2(files[1], 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.chdir(cwd)
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        sys.argv = ["nfsrdma", *words]
        main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
