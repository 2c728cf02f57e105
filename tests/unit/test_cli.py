# SPDX-License-Identifier: Apache-2.0
"""The program as a user meets it: help at once, errors in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "matplotlib",
    "scipy",
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


def nfsrdma(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    argv = (sys.executable, "-m", "nfsrdma_tools", *words)
    return subprocess.run(argv, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("command", [(), *COMMANDS])
def test_help_loads_nothing_heavy(command: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom nfsrdma_tools.cli.main import main\n"
        f"sys.argv = ['nfsrdma', *{command!r}, '--help']\n"
        "try:\n    main()\nfinally:\n"
        "    print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage")
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert loaded.isdisjoint(HEAVY)


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
    done = nfsrdma(*words, cwd=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("nfsrdma: ")
    assert said in done.stderr
