# SPDX-License-Identifier: Apache-2.0
"""The core runs without the extras; a command that needs one names it."""

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from unit.report.test_report import plan, store

from nfsrdma_tools.cli import main
from nfsrdma_tools.cli.main import EXTRAS, extras_needed
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.lab import image

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "nfsrdma_tools"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# of the word "word"
HASH = "$2b$04$sJnC0RuhksfnzYbK3IjOq.rxkz6XjaFn5S0LDn1ZIbeUJEH3/KELO"
# bcc is Debian's, and only the probes try it
NOT_ON_PYPI = {"bcc"}


def names(requirements: list[str]) -> set[str]:
    """The names that Python imports."""
    matches = (re.match(r"[\w.-]+", each) for each in requirements)
    packages = {match[0].replace("-", "_").partition(".")[0] for match in matches if match}
    return {{"pyyaml": "yaml"}.get(package, package) for package in packages}


CORE = names(PROJECT["dependencies"])
OF_EXTRA = {
    extra: names(PROJECT["optional-dependencies"][extra])
    for extra in ("report", "live", "lab", "fsspec")
}
# a file system for other programs: no command needs it
ROOM = {"fsspec": "client"}
OF_ROOM = {ROOM.get(extra, extra): libraries for extra, libraries in OF_EXTRA.items()}
# those that load a module of ours: each has an extra of its name, which is in no other
FRAMEWORKS = {path.stem for path in (PACKAGE / "client" / "adapters").glob("[!_]*.py")} - {
    "background"
}


def imported(path: Path) -> set[str]:
    """Packages that a file imports, without Python's own and ours."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    modules = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    modules |= {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
    return (
        {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - {"nfsrdma_tools"}
    )


ROOMS = sorted({path.parent.name for path in PACKAGE.glob("*/*.py")})


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_each_library_is_declared_where_it_is_imported(room: str) -> None:
    files = (PACKAGE / room).rglob("*.py") if room else PACKAGE.glob("*.py")
    used = {name for path in files for name in imported(path)} - NOT_ON_PYPI
    frameworks = FRAMEWORKS if room == "client" else set()
    assert used <= CORE | OF_ROOM.get(room, set()) | frameworks


def test_each_framework_is_an_extra_of_its_own_and_its_module_alone_imports_it() -> None:
    extras = PROJECT["optional-dependencies"]
    assert {name: names(extras[name]) for name in FRAMEWORKS} == {
        name: {name} for name in FRAMEWORKS
    }
    others = {name for extra, row in extras.items() if extra not in FRAMEWORKS for name in row}
    assert not FRAMEWORKS & (names(sorted(others)) | CORE)
    users = {
        (path.stem, name) for path in PACKAGE.rglob("*.py") for name in imported(path) & FRAMEWORKS
    }
    assert users == {(name, name) for name in FRAMEWORKS}


def test_each_library_of_an_extra_is_known_by_it() -> None:
    known = {extra: {n for n in EXTRAS if EXTRAS[n] == extra} for extra in set(EXTRAS.values())}
    assert known | {"lab": {"qemu"}, "fsspec": {"fsspec"}} == OF_EXTRA


@pytest.mark.parametrize("extra", ["none", *(f"`[{each}]`" for each in OF_EXTRA)])
def test_the_page_on_installation_names_each_library(extra: str) -> None:
    page = (ROOT / "docs/how-to/install.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| {extra} |"))
    listed = names([each.strip() for each in row.split("|")[3].split(",")])
    assert listed == OF_EXTRA.get(extra.strip("`[]"), CORE)


# a new interpreter, in which no test has imported the libraries; it forks for each
WITHOUT = """
import json, os, sys
from nfsrdma_tools.cli.main import main
for library, words in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        sys.modules[library] = None
        sys.argv = ["nfsrdma", *words]
        main()
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_command_names_the_extra_that_it_needs_in_one_line(tmp_path: Path) -> None:
    report = ("report", str(store(tmp_path / "s.db", plan())), "--output", str(tmp_path / "out"))
    (tmp_path / "web.yml").write_text(f"basic_auth_users: {{someone: {HASH}}}")
    config = f"--web.config.file={tmp_path / 'web.yml'}"
    exporter = ("exporter", "--no-probes", "--web.listen-address=127.0.0.1:0", config)
    commands = {"report": report, "live": exporter}
    asked = [(n, ("top",) if n == "textual" else commands[e]) for n, e in EXTRAS.items()]
    argv = (sys.executable, "-c", WITHOUT, json.dumps(asked))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["1"] * len(asked)
    assert done.stderr.splitlines() == [
        f"nfsrdma: this command needs {library}, which is not installed "
        f"({sys.executable} -m pip install 'nfsrdma-tools[{EXTRAS[library]}]')"
        for library, _ in asked
    ]


def test_the_debian_package_names_debians_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_DEBIAN", ROOT)
    with pytest.raises(UserError, match="apt install python3-prometheus-client"), extras_needed():
        raise ModuleNotFoundError(name="prometheus_client.core")


def test_a_fault_of_our_own_is_not_taken_for_a_missing_library() -> None:
    with pytest.raises(ModuleNotFoundError), extras_needed():
        raise ModuleNotFoundError(name="nfsrdma_tools.nothing")


def test_the_nodes_of_a_lab_get_the_core_and_what_commands_need_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs = ["typer>=0.15", "h11>=0.14; extra == 'live'", 'numpy>=1 ; extra == "report"',
             "qemu-qmp>=0.0.5; extra == 'lab'", "nfsrdma-tools[lab]; extra == 'all'"]  # fmt: skip
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: needs)
    assert image._requirements() == ("h11>=0.14", "numpy>=1", "typer>=0.15")
