# SPDX-License-Identifier: Apache-2.0
"""`nfsrdma collect` asks all that the checks of `nfsrdma doctor` ask, and imports none of them."""

from __future__ import annotations

import fnmatch
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from field_archive import CASES, Unpacked
from unit.doctor.hosts_made import KINDS, Host

from nfsrdma_tools.doctor import bundle, inputs, recorded
from nfsrdma_tools.doctor.checks import AFTER_REBOOT, examine
from nfsrdma_tools.host import boot_files
from nfsrdma_tools.host.machine import Machine, Recording
from nfsrdma_tools.host.nfs import units
from nfsrdma_tools.host.nfsd.configuration import UNIT

NAMES = ("programs", "addresses", "facts")
OF_RECORDINGS = {
    ("facts", boot_files.FACT),
    ("programs", ("ip", "-d", "-j", "link", "show")),
    ("programs", (*units._SHOW, f"--property={','.join(units._PROPERTIES)}", "--", UNIT)),
}
"""What the checks want of a recording only."""
CHANGELOG = ("rpm", "-qf", "--changelog")
"""``collect`` runs it by itself, and keeps what it prints about known faults."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Spy(dict[_Key, _Value]):
    """Answers that note which of them somebody wanted."""

    def __init__(self, known: dict[_Key, _Value]) -> None:
        super().__init__(known)
        self.wanted: set[_Key] = set()

    def __contains__(self, key: Any) -> bool:
        self.wanted.add(key)
        return super().__contains__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self.wanted.add(key)
        return super().get(key, default)


def wanted(machine: Machine, work: Callable[[Machine], object]) -> set[Any]:
    """The programs, addresses and facts that ``work`` wants of a recorded host."""
    assert machine.recording
    spies: dict[str, Any] = {name: Spy(getattr(machine.recording, name)) for name in NAMES}
    spied = replace(machine, recording=replace(machine.recording, **spies))
    work(spied.once())
    return {(name, key) for name, spy in spies.items() for key in spy.wanted}


def checks(machine: Machine) -> None:
    examine(machine)
    examine(machine, AFTER_REBOOT)


def missed(machine: Machine) -> set[Any]:
    """What the checks want of a host and ``ask`` does not."""
    missing = wanted(machine, checks) - wanted(machine, inputs.ask) - OF_RECORDINGS
    return {(name, key) for name, key in missing if key[: len(CHANGELOG)] != CHANGELOG}


@pytest.mark.parametrize("case", CASES)
def test_collect_asks_what_the_checks_ask_on_a_host_of_the_field(
    case: str, field: Unpacked
) -> None:
    with recorded.opened(field(case), "10.1.2.3") as machine:
        assert missed(machine) == set()


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_collect_asks_what_the_checks_ask_on_a_made_host(seed: int, tmp_path: Path) -> None:
    host = Host(seed, tmp_path / "host")
    host.make()
    with recorded.opened(host.root) as machine:
        assert missed(machine) == set()


NO_FILES = {"commands of the boot", "services"}
"""Names under which readers keep what they made of several files."""
PROGRAMS = {"bash", "exportfs", "modprobe", "rdma", "rpc.nfsd", "sh"}
"""What the services of these hosts run: the bundle has programs that are scripts of interest."""


def is_collected(name: str) -> bool:
    """Whether the bundle has such a file, or files in such a folder."""
    parts = name.split("/")
    return any(
        len(wanted) >= len(parts) and all(map(fnmatch.fnmatchcase, parts, wanted))
        for pattern, _ in inputs.CONTENTS
        for alternative in bundle.alternatives(pattern.replace("{release}", "*"))
        for wanted in [alternative.split("/")]
    )


@pytest.mark.parametrize("case", CASES)
def test_collect_reads_the_files_that_the_checks_read(case: str, field: Unpacked) -> None:
    names: set[str] = set()
    with recorded.opened(field(case), "10.1.2.3") as machine:
        checks(replace(machine, read_names=names))
        missing = {name for name in names - NO_FILES if not is_collected(name)}
    unknown = {name for name in missing if Path(name).name not in PROGRAMS}
    assert not unknown, "add what the check reads to CONTENTS of nfsrdma_tools/doctor/inputs.py"


def test_this_host_is_asked_all_that_the_checks_ask() -> None:
    noted = Recording()
    inputs.ask(Machine(server="localhost", notes=noted).once())
    kept = {name: set(getattr(noted, name)) for name in NAMES}
    links, nfsd = noted.links, noted.nfsd
    checks(Machine(server="localhost", notes=noted).once())
    asked = {name: set(getattr(noted, name)) for name in NAMES}
    assert asked == kept, "add what the check asks to _QUESTIONS of nfsrdma_tools/doctor/inputs.py"
    assert links is noted.links is not None
    assert nfsd is noted.nfsd is not None


IMPORTED = """
import sys, nfsrdma_tools.doctor.bundle, nfsrdma_tools.doctor.anonymize
nfsrdma_tools.doctor.bundle.collect()
print(*(name for name in sys.modules if name.startswith("nfsrdma_tools.doctor.checks")))
"""


def test_collect_imports_no_check() -> None:
    assert subprocess.check_output((sys.executable, "-c", IMPORTED), text=True) == "\n"
