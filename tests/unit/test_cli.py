# SPDX-License-Identifier: Apache-2.0
"""The program as a user meets it: help at once, errors in one line."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forked import nfsrdma

from nfsrdma_tools.cli import main

HEAVY = (
    "matplotlib",
    "numpy",
    "rich",
    "pyroute2",
    "psutil",
    "bcc",
    "textual",
    "qemu",
    "starlette",
    "uvicorn",
    "prometheus_client",
    "asyncio",
)
COMMANDS = (
    ("doctor",), ("mount",), ("mounts",), ("umount",), ("server",), ("link",), ("sweep",),
    ("store",), ("report",), ("tune",), ("lab",), ("lab", "up"), ("tune", "apply"), ("link", "add"),
    ("trace",), ("top",), ("dashboard",), ("exporter",),
)  # fmt: skip


# a new interpreter, which forks for each command: most of a start is importing typer and pydantic,
# which the first help has done
HELP = """
import json, os, sys
from nfsrdma_tools.cli.main import main
def help(words):
    sys.argv = ["nfsrdma", *words, "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code
    print("\\0", *sys.modules, end="\\0", flush=True)
first, *others = json.loads(sys.argv[1])
help(first)
for words in others:
    if not os.fork():
        help(words)
        sys.exit()
    os.wait()
"""


@pytest.fixture(scope="module")
def helps() -> dict[tuple[str, ...], tuple[str, str]]:
    """What each command's --help prints, and the modules that are loaded then."""
    commands = [*COMMANDS, ()]
    argv = (sys.executable, "-c", HELP, json.dumps(commands))
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split("\0")
    return dict(zip(commands, zip(said[0:-1:2], said[1::2], strict=True), strict=True))


@pytest.mark.parametrize("command", [(), *COMMANDS])
def test_help_loads_nothing_heavy(
    command: tuple[str, ...], helps: dict[tuple[str, ...], tuple[str, str]]
) -> None:
    text, modules = helps[command]
    assert text.startswith("Usage")
    assert "nfsrdma_tools.cli.main" in modules.split()
    assert {name.partition(".")[0] for name in modules.split()}.isdisjoint(HEAVY)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report", "/no/such/store"), "/no/such/store"),
        (("sweep",), "SERVER:/EXPORT"),
        (("sweep", "--resume", "/no/such/store"), "no store /no/such/store"),
        (("lab", "up", "../x"), "lab name"),
        (("lab", "ssh", "no-such-lab"), "is down"),
        (("mount", "nocolon", "/mnt"), "nocolon"),
        (("report", "/no/such\n\x1b[31mstore"), "/no/such??[31mstore"),
        (("sweep", "server:/x", "--axis", "a.b"), "has no values"),
    ],
)
def test_an_error_is_one_line_without_a_traceback(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = nfsrdma(*words, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("nfsrdma: ")
    assert said in done.stderr


@pytest.mark.parametrize(("before", "ended"), [(signal.SIG_IGN, False), (signal.SIG_DFL, True)])
def test_a_hangup_that_nohup_ignored_stays_ignored(
    before: signal.Handlers, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nohup(1) has its command ignore SIGHUP; without it a closed terminal ends the command."""
    kept = {n: signal.getsignal(n) for n in (signal.SIGHUP, signal.SIGTERM)}
    monkeypatch.setattr(main, "app", lambda: os.kill(os.getpid(), signal.SIGHUP))
    try:
        signal.signal(signal.SIGHUP, before)
        with pytest.raises(SystemExit) if ended else contextlib.nullcontext() as left:
            main.main()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert (left.value.code if left else 0) == (128 + signal.SIGHUP if ended else 0)
