# SPDX-License-Identifier: Apache-2.0
"""A judgement that doctor cannot make says so: each input of each host of the field, made unusable.

The inputs are those that doctor reads: Python's audit events name each file and each folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from field_archive import CASES, Unpacked, expected_of
from unit.files_made import write

from nfsrdma_tools import files
from nfsrdma_tools.command import Result
from nfsrdma_tools.doctor import bundle, recorded
from nfsrdma_tools.doctor.checks import AFTER_REBOOT, examine, firewall, kernel
from nfsrdma_tools.doctor.finding import Finding
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine, Recording, host_of_container
from nfsrdma_tools.host.nfs import mount_state
from nfsrdma_tools.host.nfsd import serving
from nfsrdma_tools.live.health import check

SILENT = "not judged"
ESSENTIAL = (
    "proc/modules",
    "proc/self/mountinfo",
    "proc/self/mountstats",
    "proc/sys/kernel/osrelease",
    "proc/fs/nfsd/portlist",
)
"""Files whose absence from a folder of pasted files proves nothing."""


class Reads:
    """The files and folders below a root that this process opens; one of them is unreadable.

    An open of a FIFO that would wait for a writer is an error.
    """

    def __init__(self) -> None:
        self.root = ""
        self.seen: set[str] = set()
        self.waits: set[str] = set()
        self.denied = ""
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[object, ...]) -> None:
        if not self.root or event not in ("open", "os.listdir", "os.scandir"):
            return
        if not isinstance(args[0], str | bytes | os.PathLike):
            return
        name = os.path.relpath(os.fsdecode(args[0]), self.root)
        if name == "." or name.startswith(".."):
            return
        self.seen.add(name)
        if name == self.denied:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), args[0])
        if event != "open":
            return
        flags = args[2]
        assert isinstance(flags, int)
        if not flags & os.O_NONBLOCK and Path(self.root, name).is_fifo():
            self.waits.add(name)
            raise AssertionError(f"the open of {name} waits for a writer")

    @contextlib.contextmanager
    def of(self, root: Path, denied: str = "") -> Iterator[None]:
        self.root, self.denied = str(root), denied
        try:
            yield
        finally:
            self.root = self.denied = ""


# a hook of the interpreter stays
READS = Reads()
TRIED: set[tuple[int, str]] = set()
"""The files that were a FIFO already, by command: most hosts have the same ones."""


@contextlib.contextmanager
def host(case: str, field: Unpacked) -> Iterator[tuple[Machine, Recording]]:
    with recorded.opened(field(case), expected_of(case).get("server", "")) as machine:
        assert machine.recording is not None
        yield machine, machine.recording


def silent(before: list[Finding], after: list[Finding], *names: str) -> list[Finding]:
    """The findings that changed or disappeared though no other one names the input."""
    named = [finding for finding in after if any(name in finding.found for name in names)]
    kept = {(finding.name, finding.status) for finding in after}
    lost = [
        finding
        for finding in before
        if (finding.name, finding.status) not in kept and not _unjudged(finding)
    ]
    return [] if named else lost


def invented(before: list[Finding], after: list[Finding], *names: str) -> list[Finding]:
    """The new errors and warnings that do not name the input."""
    known = {(finding.name, finding.status) for finding in before}
    # the fact was known, and its cause is not any more
    facts = tuple(
        finding.found.partition(f"; {SILENT}")[0] for finding in before if _unjudged(finding)
    )
    # one finding was about several mounts, of which the first is not judged any more
    facts += tuple(
        finding.found.partition("; the same for ")[0] for finding in before if _shared(finding)
    )
    return [
        finding
        for finding in after
        if finding.status in ("error", "warning")
        and (finding.name, finding.status) not in known
        and not any(name in finding.found for name in names)
        and not (facts and finding.found.startswith(facts))
    ]


def _shared(finding: Finding) -> bool:
    return "; the same for " in finding.found


def _unjudged(finding: Finding) -> bool:
    return finding.status == "unknown" and SILENT in finding.found


@pytest.mark.parametrize("case", CASES)
def test_an_unreadable_file_is_named(case: str, field: Unpacked) -> None:
    with host(case, field) as (machine, _):
        READS.seen.clear()
        with READS.of(machine.root):
            before = examine(machine)
        inputs = sorted(READS.seen)
        assert inputs
        for name in inputs:
            with READS.of(machine.root, name):
                after = examine(machine)
            assert not silent(before, after, f"/{name}", Path(name).name), name
            assert not invented(before, after, f"/{name}"), name


@contextlib.contextmanager
def fifo(path: Path) -> Iterator[None]:
    """A FIFO in place of a file; a FIFO that nobody writes to stops a reader for ever."""
    aside = path.with_name("aside~")
    path.rename(aside)
    os.mkfifo(path)
    try:
        yield
    finally:
        path.unlink()
        aside.rename(path)


def files_read(root: Path) -> list[str]:
    """The files that were opened; of those with several names, one."""
    paths = {(root / name).resolve(): name for name in sorted(READS.seen)}
    return sorted(str(path.relative_to(root)) for path in paths if path.is_file())


def check_health(machine: Machine, state: Path) -> None:
    """The check of ``nfsrdma health``, in this process."""
    where = (Path("/anywhere"),)
    check.check(check.Request(check.limits("30", None), where, machine, state))


@pytest.mark.parametrize("case", CASES)
def test_a_fifo_is_named_and_does_not_stop_a_judgement(case: str, field: Unpacked) -> None:
    with host(case, field) as (machine, _):
        READS.seen.clear()
        with READS.of(machine.root):
            before = examine(machine)
        READS.waits.clear()
        for name in files_read(machine.root):
            with fifo(machine.root / name), READS.of(machine.root):
                after = examine(machine)
            assert not READS.waits
            assert not silent(before, after, f"/{name}", Path(name).name), name
            assert not invented(before, after, f"/{name}"), name


@pytest.mark.parametrize("case", CASES)
def test_a_fifo_stops_no_command(case: str, field: Unpacked, tmp_path: Path) -> None:
    with host(case, field) as (machine, _):
        write(machine.root, "proc/sys/kernel/random/boot_id", "0123\n")
        commands: tuple[Callable[[], object], ...] = (
            lambda: examine(machine, AFTER_REBOOT),
            lambda: mount_state.states(machine),
            lambda: serving.serving(machine),
            lambda: check_health(machine, tmp_path),
            lambda: bundle.collect(machine=Machine(machine.root)),
        )
        READS.waits.clear()
        for at, command in enumerate(commands):
            READS.seen.clear()
            with READS.of(machine.root), contextlib.suppress(UserError, OSError):
                command()
            for name in files_read(machine.root):
                if (at, name) in TRIED:
                    continue
                TRIED.add((at, name))
                with (
                    fifo(machine.root / name),
                    READS.of(machine.root),
                    contextlib.suppress(UserError, OSError),
                ):
                    command()
                assert not READS.waits


@pytest.mark.parametrize("case", CASES)
def test_a_program_that_was_not_recorded_is_named(case: str, field: Unpacked) -> None:
    with host(case, field) as (machine, recording):
        before = examine(machine)
        for argv in list(recording.programs):
            rest = {key: result for key, result in recording.programs.items() if key != argv}
            after = examine(replace(machine, recording=replace(recording, programs=rest)))
            # of the log, either program does
            names = ("kernel's log",) if argv[0] in ("dmesg", "journalctl") else ()
            two = " ".join(word for word in argv if not word.startswith("-"))
            assert not silent(before, after, argv[0], two, *names), argv
            assert not invented(before, after, argv[0]), argv


@pytest.mark.parametrize("case", CASES)
def test_links_that_were_not_recorded_are_named(case: str, field: Unpacked) -> None:
    with host(case, field) as (machine, recording):
        before = examine(machine)
        after = examine(replace(machine, recording=replace(recording, links=None)))
        assert not silent(before, after, "no list of RDMA links was recorded")
        assert not invented(before, after, "no RDMA device was recorded")


@pytest.mark.parametrize("case", CASES)
def test_an_essential_file_that_was_not_recorded_is_named(case: str, field: Unpacked) -> None:
    with host(case, field) as (machine, recording):
        part = replace(machine, recording=replace(recording, complete=False, collected=False))
        before = examine(part)
        for name in ESSENTIAL:
            path = machine.root / name
            if not path.exists():
                continue
            aside = path.rename(path.with_name("aside~"))
            after = examine(part)
            aside.rename(path)
            assert not silent(before, after, f"/{name} was not recorded"), name
            assert not invented(before, after, f"/{name}"), name


def test_a_server_without_a_route_is_an_error_beside_ports_that_are_down(tmp_path: Path) -> None:
    argv = ("ip", "-j", "route", "get", "192.0.2.9")
    stderr = "RTNETLINK answers: Network is unreachable\n"
    recording = Recording({argv: Result(argv, "", stderr, 2)}, links=[])
    findings = {
        finding.name: finding for finding in examine(Machine(tmp_path, "192.0.2.9", recording))
    }
    assert findings["route to 192.0.2.9"].status == "error"


def test_a_kernel_older_than_the_table_of_faults_is_not_called_free_of_them(tmp_path: Path) -> None:
    write(tmp_path, "proc/sys/kernel/osrelease", "4.18.0\n")
    modules = tmp_path / "proc/modules"
    for lines, status in (("siw 1 0 - Live 0x0\n", "unknown"), ("ext4 1 0 - Live 0x0\n", "ok")):
        modules.write_text(lines)
        (finding,) = kernel.known_faults(Machine(tmp_path))
        assert finding.status == status


def test_an_unreadable_list_of_listeners_needs_what_any_server_needs(tmp_path: Path) -> None:
    rules = "table inet f {\n chain c {\n  type filter hook input priority 0; policy drop;\n }\n}\n"
    argv = ("nft", "list", "ruleset")
    recording = Recording({argv: Result(argv, rules, "", 0)}, links=[])
    machine = Machine(tmp_path, recording=recording)
    nfsd = tmp_path / "proc/fs/nfsd"
    nfsd.mkdir(parents=True)
    (tmp_path / "proc/modules").write_text("nf_tables 1 0 - Live 0x0\n")
    (nfsd / "portlist").write_text("")
    assert [finding.status for finding in firewall.firewall(machine)] == ["ok"]
    with READS.of(machine.root, "proc/fs/nfsd/portlist"):
        assert [finding.status for finding in firewall.firewall(machine)] == ["warning"]


def test_a_filter_is_unknown_without_the_list_of_modules(tmp_path: Path) -> None:
    write(tmp_path, "proc/sys/kernel/osrelease", "6.12.0\n")
    for machine in (host_of_container(tmp_path / "proc", None, tmp_path), Machine(tmp_path)):
        (verdict,) = [finding for finding in examine(machine) if finding.name == "firewall"]
        assert verdict.status == "unknown"
        assert "/proc/modules does not exist" in verdict.found


def test_a_folder_that_cannot_be_listed_is_noted(tmp_path: Path) -> None:
    write(tmp_path, "a.d/b.conf", "x")
    (tmp_path / "file.d").write_text("")
    wanted = [tmp_path / "a.d/b.conf"]
    with files.unread() as unread, READS.of(tmp_path):
        assert files.matching(tmp_path, "*.d/*.conf") == wanted
        assert files.matching(tmp_path / "none", "*") == []
    assert not unread
    with files.unread() as unread, READS.of(tmp_path, "a.d"):
        assert files.matching(tmp_path, "*.d/*.conf") == []
    assert unread == {tmp_path / "a.d": "Permission denied"}
