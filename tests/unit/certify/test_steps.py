# SPDX-License-Identifier: Apache-2.0
"""The steps on a made host, whose mounts are folders and whose sweep measures nothing."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from unit.sweep.trials_made import trial_of, with_columns

from nfsrdma_tools.certify import result, steps
from nfsrdma_tools.certify.result import (
    ALL,
    CERTIFICATE,
    FAILED,
    PASSED,
    UNKNOWN,
    Certificate,
    Result,
    Row,
    StepName,
    table,
)
from nfsrdma_tools.certify.steps import Certification, begin, compared, plan_for
from nfsrdma_tools.cli import certify as command
from nfsrdma_tools.cli import process
from nfsrdma_tools.cli.shared_commands import write_new
from nfsrdma_tools.command import Result as Output
from nfsrdma_tools.doctor.anonymize import anonymized
from nfsrdma_tools.doctor.bundle import Bundle
from nfsrdma_tools.doctor.finding import Finding
from nfsrdma_tools.errors import MismatchError, ProgramMissingError, UserError
from nfsrdma_tools.host.machine import Machine, Recording
from nfsrdma_tools.host.nfs import mounting, mountstats
from nfsrdma_tools.host.nfs.mounting import MountRequest
from nfsrdma_tools.host.nfs.mounts import Mount
from nfsrdma_tools.host.nfs.mountstats import ByteCounts, MountStats, Operation, Xprt
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.rdma import nldev
from nfsrdma_tools.host.rdma.ports import Device, Link
from nfsrdma_tools.probes import session
from nfsrdma_tools.sweep import runner, workload
from nfsrdma_tools.sweep import trial as trials
from nfsrdma_tools.sweep.runner import Options
from nfsrdma_tools.sweep.store import DiskFullError, Store, Trial
from nfsrdma_tools.sweep.trial import Bench
from nfsrdma_tools.undo import Journal, Remove

DEVICE = Device(0, "mlx5_0", 1, "ca", "roce", "mlx5", "22.31.1014", "0c42:a103:0001:0203")
LINK = Link(DEVICE, 1, "ACTIVE", "LINK_UP", "ens1")
LIMITS = {"max_qp_wr": 8192, "max_sge": 30, "max_sge_rd": 29, "max_qp_rd_atom": 16}
BLOCKED = "INFO: task nfsd:812 blocked for more than 120 seconds."
_IMPORTS = """
import json, os, sys
from nfsrdma_tools.certify import transfer
"""
_AS_NOBODY = """
if os.getuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
"""
# a local file system may refuse O_DIRECT of odd sizes, which NFS does not
_WORK = """
transfer.WAYS = dict.fromkeys(transfer.WAYS, 0)
transfer.SIZES = (1, 513, 4097)
try:
    print(json.dumps(transfer.main(*sys.argv[2:])))
except OSError as error:
    sys.exit(f"errno {error.errno}")
"""


class Host:
    """A server's export, and the host that mounts it, with their refusals and wrong data."""

    def __init__(self, export: Path, patch: pytest.MonkeyPatch) -> None:
        self.export, self.patch = export, patch
        self.squash(export, on=False)
        self.mounts: list[MountRequest] = []
        self.findings = [Finding("links", "ok", "ACTIVE")]
        self.links = [LINK]
        # as dmesg's output ends
        self.log = ["[1.0] boot", ""]
        self.connects, self.read_bytes, self.more_read = 0, 0, 1 << 20
        self.refuse: Callable[[MountRequest], None] = lambda _: None
        self.mounted: Callable[[MountRequest], None] = lambda _: None
        self.trial: Callable[[Trial], Trial] = lambda done: done

    def squash(self, folder: Path, *, on: bool = True) -> None:
        """Have the server map root to nobody, who may not use a folder."""
        program = f"{_IMPORTS}{_AS_NOBODY if on else ''}{_WORK}"
        self.patch.setattr(workload, "ISOLATED_PYTHON", (sys.executable, "-c", program))
        # for a user who is not root
        folder.chmod(0 if on else 0o700)

    def at_first_read(self, transport: str, change: Callable[[Path], None]) -> None:
        """Change a file of both writers' once, when it is about to be read over a transport."""
        changed: list[Path] = []

        def mounted(request: MountRequest) -> None:
            files = [*self.export.glob("*/rdma-direct-4097")]
            if files and request.transport == transport and not changed:
                changed.extend(files)
                change(files[0])

        self.mounted = mounted

    @contextlib.contextmanager
    def mount(self, _: Bench, request: MountRequest) -> Iterator[Mount]:
        self.refuse(request)
        self.mounts.append(request)
        # the mount point has the export's files as long as it is mounted
        request.directory.rmdir()
        request.directory.symlink_to(self.export)
        self.mounted(request)
        options = {"proto": request.family}
        try:
            yield Mount(
                request.target, request.directory, "0:50", "nfs4", request.transport,
                request.vers, 1 << 20, 1 << 20, 1, options,
            )  # fmt: skip
        finally:
            request.directory.unlink()
            request.directory.mkdir()

    def stats(self, directory: Path) -> MountStats:
        xprt = Xprt("rdma", {"connect_count": self.connects})
        self.read_bytes += self.more_read
        read = ByteCounts(server_read=self.read_bytes)
        return MountStats(directory, "0:50", "nfs4", xprts=(xprt,), bytes=read)

    def measure(self, bench: Bench, one: Trial, check_data: bool) -> Trial:
        speed = 900.0 if one.cell.transport == "rdma" else 300.0
        return self.trial(
            with_columns(one, throughput=speed, verified=check_data, environment=bench.environment)
        )


def no_probes() -> None:
    raise UserError("cannot import bcc")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    export = tmp_path / "export"
    export.mkdir()
    made = Host(export, monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(trials, "mounted", made.mount)
    monkeypatch.setattr(steps, "mounts", list)
    monkeypatch.setattr(mountstats, "read", made.stats)
    monkeypatch.setattr(steps, "examine", lambda _: made.findings)
    monkeypatch.setattr(nldev, "links", lambda: made.links)
    monkeypatch.setattr(steps, "kernel_ring", lambda _: list(made.log))
    monkeypatch.setattr(session, "available", no_probes)
    for module in (result, steps):
        monkeypatch.setattr(module, "link_of", lambda *_: made.links[0] if made.links else None)
    return made


@pytest.fixture
def store(tmp_path: Path, host: Host) -> Iterator[Store]:
    with Store(tmp_path / "certify.db") as opened:
        begin(plan_for("127.0.0.1:/export", None), opened, module=False, pull=False)
        yield opened
    host.export.chmod(0o700)
    assert not list((tmp_path / "state").glob("*")), "something was left behind"
    assert not list(host.export.iterdir()), "a file was left on the server"


def request(store: Store, **optional: bool) -> None:
    """Have the certification also do optional steps."""
    noted = json.loads(store.noted(store.plan(), "certify"))
    store.note(store.plan(), "certify", json.dumps({**noted, **optional}))


def certification(store: Store, host: Host) -> Certification:
    """One whose sweep measures nothing, and without probes."""

    @contextlib.contextmanager
    def prepare(*_: object) -> Iterator[None]:
        yield

    options = Options(probes=False, measure=host.measure, prepare=prepare, size=lambda *_: 32 << 20)
    return Certification(store, options, lambda _: None, lambda _: None)


def certified(store: Store, host: Host) -> dict[StepName, Result]:
    """The results by step."""
    events = certification(store, host).run()
    return {event.name: event for event in events if isinstance(event, Result)}


def statuses(results: dict[StepName, Result]) -> dict[str, str]:
    return {" ".join(filter(None, name)): result.status for name, result in results.items()}


GOOD = {
    "doctor": PASSED, "mount tcp": PASSED, "mount rdma": PASSED, "data tcp": PASSED,
    "data rdma": PASSED, "counts rdma": UNKNOWN, "sweep": PASSED, "log": PASSED,
}  # fmt: skip


def test_each_step_has_a_result_and_what_cannot_run_is_unknown(store: Store, host: Host) -> None:
    results = certified(store, host)
    assert statuses(results) == GOOD
    # each writer's three sizes in two ways, read in two ways over both
    assert results["data", "rdma"].figures["files"] == 48
    assert results["sweep", ""].figures["rdma_mb_per_s"] == 900
    assert results["counts", "rdma"].found == "probe sets: none: cannot import bcc"
    assert {request.transport for request in host.mounts} == {"tcp", "rdma"}
    assert all({"soft", "nosharecache"} < {*request.options} for request in host.mounts)


def test_a_read_has_a_new_mount(store: Store, host: Host) -> None:
    certified(store, host)
    over = [request.transport for request in host.mounts]
    # two mounts; data over TCP (write, read, remove); of data over RDMA, each writes and reads
    assert over[:2] == ["tcp", "rdma"]
    assert over[2:5] == ["tcp", "tcp", "tcp"]
    assert over[5:10] == ["tcp", "rdma", "rdma", "tcp", "tcp"]


def test_an_interrupted_certification_goes_on_with_the_next_step(store: Store, host: Host) -> None:
    def interrupt(request: MountRequest) -> None:
        if len(host.mounts) == 7:
            raise KeyboardInterrupt

    host.mounted = interrupt
    with pytest.raises(KeyboardInterrupt):
        list(certification(store, host).run())
    host.mounted, host.mounts = lambda _: None, []
    host.findings = [Finding("links", "error", "looked at again")]
    events = list(certification(store, host).run())
    begun = [event for event in events if not isinstance(event, Result)]
    assert begun == [("data", "rdma"), ("counts", "rdma"), ("sweep", ""), ("log", "")]
    assert statuses({e.name: e for e in events if isinstance(e, Result)}) == GOOD
    # the third time nothing is left to do
    assert all(isinstance(event, Result) for event in certification(store, host).run())


def flip(file: Path) -> None:
    """Change the last bit."""
    kept = file.read_bytes()
    file.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (flip, "1 of 4097 bytes are wrong, the first at 4096"),
        (lambda file: os.truncate(file, 4096), "found 4096 of 4097 bytes"),
        (lambda file: file.write_bytes(file.read_bytes() + b"x"), "found 4098 of 4097 bytes"),
    ],
    ids=("a bit", "too short", "too long"),
)
@pytest.mark.parametrize("transport", ["rdma", "tcp"])
def test_other_data_is_a_failure(
    store: Store, host: Host, change: Callable[[Path], None], found: str, transport: str
) -> None:
    host.at_first_read(transport, change)
    results = certified(store, host)
    assert results["data", "tcp"].status == PASSED
    data = results["data", "rdma"]
    assert (data.status, f"over {transport}: rdma-direct-4097 (direct): {found}" in data.found) == (
        FAILED, True,
    ), data  # fmt: skip
    assert data.figures["wrong_files"] == (4 if transport == "rdma" else 2)
    assert certification_status(store, host) == 1


def become_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def test_files_are_removed_over_tcp_after_a_failure(store: Store, host: Host) -> None:
    host.at_first_read("rdma", become_folder)
    data = certified(store, host)["data", "rdma"]
    assert (data.status, data.found.partition(";")[0]) == (FAILED, "read over rdma: Is a directory")
    over = [request.transport for request in host.mounts]
    # written over TCP and RDMA, not read over RDMA, removed
    assert over[5:9] == ["tcp", "rdma", "rdma", "tcp"]


def test_files_that_stay_on_the_server_are_told(store: Store, host: Host) -> None:
    def refuse(_: MountRequest) -> None:
        if len(host.mounts) == 4:
            raise UserError("the server is gone")

    host.refuse = refuse
    told: list[str] = []
    done = certification(store, host)
    done._tell = told.append
    try:
        results = {e.name: e for e in done.run() if isinstance(e, Result)}
        assert results["data", "tcp"].status == PASSED
        (line,) = set(told)
        assert re.fullmatch(
            r"\.nfsrdma-certify-\w{12} stays in .*, remove it there: the server is gone", line
        )
    finally:
        for left in host.export.iterdir():
            shutil.rmtree(left)


def test_data_that_the_server_did_not_send_is_unknown(store: Store, host: Host) -> None:
    host.more_read = 1
    result = certified(store, host)["data", "rdma"]
    assert result.status == UNKNOWN
    assert "all equal, but not all over rdma, tcp came from the server" in result.found


def test_a_read_without_permission_is_a_failure(store: Store, host: Host) -> None:
    def squash(file: Path) -> None:
        host.squash(file.parent)
        host.mounted = lambda _: host.squash(file.parent, on=False)

    host.at_first_read("rdma", squash)
    result = certified(store, host)["data", "rdma"]
    assert (result.status, result.found.partition(";")[0]) == (
        FAILED, "read over rdma: Permission denied",
    )  # fmt: skip


class Probes:
    """Probe sets that count nothing, or do not attach."""

    enabled, names, summary = True, ("chunks", "registrations"), "all"

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def __call__(self, _: bool) -> "Probes":
        return self

    def attach(self) -> None:
        if self.fault:
            raise UserError(self.fault, "install bcc", "or sweep with --no-probes")

    def begin(self) -> dict[str, Any]:
        return {}

    def end(self, *_: object) -> dict[str, list[dict[str, Any]]]:
        return {"chunks": [], "registrations": []}

    def release(self) -> None:
        pass


@pytest.mark.parametrize(
    ("probes", "status", "found"),
    [
        (Probes("the kernel refuses it"), UNKNOWN, "the kernel refuses it (install bcc)"),
        (Probes(), FAILED, "probes: reads 0, expected 0; bytes_received 0, expected 0; "),
    ],
    ids=("not attached", "nothing counted"),
)
def test_counts_need_probes_that_count(
    store: Store, host: Host, monkeypatch: pytest.MonkeyPatch,
    probes: Probes, status: str, found: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(steps, "TrialProbes", probes)
    result = certified(store, host)["counts", "rdma"]
    assert result.status == status, result
    assert result.found.startswith(found)
    assert "--" not in result.found


def too_short() -> None:
    assert workload.Job(1, 0, 0, 0).throughput


def no_answer() -> None:
    request = MountRequest(Target.parse("server:/export"), Path("/mnt"))
    raise mounting._explain(request, Output(("mount.nfs",), "", "", 124), 5)


def hopeless() -> None:
    cells = plan_for("127.0.0.1:/export", None).cells()
    runner._stop_if_hopeless([trial_of("", cell, reason="lost") for cell in cells])


@pytest.mark.parametrize(
    ("fail", "shown"),
    [
        (too_short, ""),
        (no_answer, " (check that the server runs and is reachable)"),
        (hopeless, " (fix the cause)"),
    ],
)
def test_advice_leaves_out_options_of_other_commands(
    store: Store, host: Host, fail: Callable[[], None], shown: str
) -> None:
    with pytest.raises(UserError) as caught:
        fail()
    assert caught.value.option in str(caught.value)
    assert "--" in caught.value.option

    host.refuse = lambda _: fail()
    found = certified(store, host)["mount", "rdma"].found
    assert found == f"{caught.value.message}{shown}"


def test_advice_keeps_options_of_programs(store: Store, host: Host) -> None:
    hint = "install bcc, and a venv with --system-site-packages; or try another --vers"

    def refuse(_: MountRequest) -> None:
        raise UserError("no mount", hint)

    host.refuse = refuse
    assert certified(store, host)["mount", "rdma"].found == f"no mount ({hint})"


def test_a_program_that_is_not_installed_is_no_failure(store: Store, host: Host) -> None:
    def refuse(_: MountRequest) -> None:
        raise ProgramMissingError("mount.nfs", "apt install nfs-common")

    host.refuse = refuse
    results = certified(store, host)
    for step in (("mount", "tcp"), ("mount", "rdma")):
        assert results[step].status == UNKNOWN
        assert results[step].found == "mount.nfs is not installed (apt install nfs-common)"
    assert certification_status(store, host) == 3


def test_a_full_disk_is_no_result_of_a_step(store: Store, host: Host) -> None:
    def full(_: Trial) -> Trial:
        raise DiskFullError(store.path)

    host.trial = full
    with pytest.raises(DiskFullError, match=r"certify\.db: its disk is full"):
        certified(store, host)
    host.trial = lambda one: one
    assert statuses(certified(store, host)) == GOOD


def test_a_certification_goes_on_with_what_it_began_with_only(
    store: Store, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = certification(store, host).run()
    next(events)
    events.close()
    monkeypatch.setattr(result, "__version__", "0.2.0")
    with pytest.raises(UserError, match=r"has changed.*expected .*mlx5.*found .*0\.2\.0"):
        next(certification(store, host).run())


def test_the_store_of_a_sweep_is_no_certification(host: Host, tmp_path: Path) -> None:
    with Store(tmp_path / "sweep.db") as other:
        other.add_plan(plan_for("127.0.0.1:/export", None))
        with pytest.raises(UserError, match=r"sweep\.db is no store of nfsrdma certify"):
            certification(other, host)
        other.note(other.plan(), "certify", '{"module": "yes"}')
        with pytest.raises(UserError, match=r"sweep\.db: .*the store is damaged"):
            certification(other, host)


@pytest.mark.parametrize(
    ("logged", "status"),
    [
        (["boot", BLOCKED, ""], PASSED),
        (["boot", BLOCKED, BLOCKED, ""], FAILED),
        ([BLOCKED, ""], PASSED),
        ([""], UNKNOWN),
        (["new", ""], UNKNOWN),
    ],
    ids=("nothing new", "once more", "the start is lost", "all is lost", "all is new"),
)
def test_messages_since_the_start_count(
    store: Store, host: Host, logged: list[str], status: str
) -> None:
    done = certification(store, host)
    host.log = ["boot", BLOCKED, ""]
    done._log, host.log = steps._kernel_messages(), logged
    done._changes = Journal(Path(os.devnull))
    assert done._outcome(("log", ""))[0] == status


def certification_status(store: Store, host: Host) -> int:
    again = certification(store, host)
    list(again.run())
    return again.certificate.exit_status


def test_a_lost_connection_fails_although_the_data_is_equal(
    store: Store, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = host.stats

    def reconnecting(directory: Path) -> MountStats:
        host.connects += 1
        return real(directory)

    monkeypatch.setattr(mountstats, "read", reconnecting)
    result = certified(store, host)["data", "rdma"]
    assert result.status == FAILED
    assert "all equal, but the connection was lost 4 times" in result.found


def test_without_a_port_nothing_over_rdma_passes(store: Store, host: Host) -> None:
    host.links = []
    results = certified(store, host)
    without = dict.fromkeys(("mount rdma", "data rdma", "counts rdma", "sweep"), UNKNOWN)
    assert statuses(results) == GOOD | without
    assert "no RDMA port of this host is active" in results["mount", "rdma"].found
    assert results["sweep", ""].found == "not run, because mount rdma did not pass"


def test_a_mount_that_fails_is_a_failure(store: Store, host: Host) -> None:
    def refuse(request: MountRequest) -> None:
        if request.transport == "rdma":
            raise UserError("the server refuses rdma connections on port 20049")

    host.refuse = refuse
    results = certified(store, host)
    assert (results["mount", "rdma"].status, results["data", "rdma"].status) == (FAILED, UNKNOWN)
    assert "port 20049" in results["mount", "rdma"].found


def test_an_export_without_a_place_to_write_is_no_fault_of_the_card(
    store: Store, host: Host
) -> None:
    host.squash(host.export)
    host.export.chmod(0o500)
    result = certified(store, host)["data", "rdma"]
    assert result.status == UNKNOWN
    assert "Permission denied (export it with rw,no_root_squash" in result.found


def block(file: Path) -> None:
    """Have each reader wait for ever."""
    file.unlink()
    os.mkfifo(file)


def test_a_read_without_an_answer_is_a_failure(
    store: Store, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(file: Path) -> None:
        block(file)
        monkeypatch.setattr(steps, "_LIMIT_S", 0.2)

    host.at_first_read("rdma", hang)
    result = certified(store, host)["data", "rdma"]
    assert result.status == FAILED
    assert "read over rdma: killed after 0.2 s" in result.found


def test_trials_that_fail_and_messages_of_the_kernel_are_failures(store: Store, host: Host) -> None:
    reason = "the data read is not the data written"
    host.trial = lambda one: (
        replace(one, status="failed", reason=reason) if one.cell.transport == "rdma" else one
    )
    host.mounted = lambda _: host.log.append(
        "[9.0] INFO: task nfsd:812 blocked for more than 120 seconds."
    )
    results = certified(store, host)
    assert results["sweep", ""].status == FAILED
    assert "the data read is not the data written" in results["sweep", ""].found
    assert results["log", ""].status == FAILED, results["log", ""].found


def test_an_error_of_doctor_is_a_failure_with_its_text(store: Store, host: Host) -> None:
    host.findings.append(Finding("wire mlx5_0/1", "error", "lost 5 of 100 packets"))
    result = certified(store, host)["doctor", ""]
    assert (result.status, result.figures["error"]) == (FAILED, 1)
    assert "wire mlx5_0/1: lost 5 of 100 packets" in result.found


def test_only_root_gets_a_result(store: Store, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="only root may mount"):
        list(certification(store, host).run())


def test_without_root_there_is_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="only root may mount"):
        command._begun("server:/export", None, False, False, tmp_path / "certify.db")
    assert not list(tmp_path.iterdir())


def test_a_link_in_place_of_a_new_store_is_not_followed(tmp_path: Path, host: Host) -> None:
    path = tmp_path / "new.db"
    path.symlink_to(tmp_path / "made by root")
    with pytest.raises(UserError, match=r"new\.db exists"):
        command._begun("server:/export", None, False, False, path)
    with pytest.raises(UserError, match=r"new\.db exists"):
        command._require_room(path, tmp_path / "store.db")
    assert not path.exists()


def test_a_bundle_that_cannot_be_written_is_refused_before_the_steps(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    with pytest.raises(UserError, match=r"cannot write into .*no folder"):
        command._require_room(tmp_path / "no folder" / "bundle", store)
    with pytest.raises(UserError, match="both the store and the bundle"):
        command._require_room(tmp_path / "store.db", store)
    command._require_room(tmp_path / "bundle", store)


@pytest.mark.parametrize(
    ("full", "found"),
    [
        (True, r"its disk is full \(free space there, or name another file with --output\)"),
        (False, "the server has no name"),
    ],
)
def test_a_store_without_a_plan_is_removed(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch, full: bool, found: str
) -> None:
    path = tmp_path / "certify.db"

    def fail(*_: object) -> None:
        raise DiskFullError(path) if full else UserError("the server has no name")

    monkeypatch.setattr(steps, "begin", fail)
    with pytest.raises(UserError, match=found):
        command._begun("server:/export", None, False, False, path)
    assert not list(tmp_path.glob("certify.db*"))


def of_others(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE pictures (name)")


def of_a_sweep(path: Path) -> None:
    with Store(path) as store:
        store.add_plan(plan_for("127.0.0.1:/export", None))


@pytest.mark.parametrize(
    "make",
    [
        Path.touch,
        lambda path: path.write_bytes(b"holiday pictures " * 999),
        of_others,
        lambda path: Store(path).close(),
        of_a_sweep,
    ],
    ids=("empty", "no database", "another database", "an empty store", "of a sweep"),
)
def test_a_file_of_others_is_not_resumed_and_not_changed(
    tmp_path: Path, host: Host, make: Callable[[Path], object]
) -> None:
    path = tmp_path / "theirs.db"
    make(path)
    before, files = path.read_bytes(), set(tmp_path.iterdir())
    with pytest.raises(UserError, match=r"theirs\.db.*(store|database)") as info:
        command._certified(path, tmp_path / "bundle", True)
    assert "sweep" not in str(info.value)
    assert (path.read_bytes(), set(tmp_path.iterdir())) == (before, files)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_with_the_command_that_continues(
    store: Store, host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    host.mounted = lambda _: os.kill(os.getpid(), number)
    kept = {n: signal.getsignal(n) for n in (number, signal.SIGINT)}
    try:
        # pytest may have been started in the background, with SIGINT ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if number != signal.SIGINT:
            signal.signal(number, process._stop)
        with pytest.raises((SystemExit, typer.Exit)) as left:
            command._certified(store.path, tmp_path / "bundle", False)
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)
    # of SystemExit, of typer.Exit
    statuses_ = [getattr(left.value, name, None) for name in ("code", "exit_code")]
    assert 128 + number in statuses_
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"next: nfsrdma certify --resume {store.path}"


def test_a_bundle_that_did_not_fit_leaves_its_name_free(tmp_path: Path) -> None:
    path, limits = tmp_path / "bundle", resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        with pytest.raises(UserError, match="cannot write"):
            write_new(path, bytes(100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    write_new(path, bytes(100), "--bundle")
    with pytest.raises(UserError, match="name another file with --bundle"):
        write_new(path, bytes(100), "--bundle")
    assert path.read_bytes() == bytes(100)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"uid": "../../../root/x"}, "uid: expected letters and digits"),
        ({"uid": "/etc"}, "uid: expected letters and digits"),
        ({"uid": 5}, "uid: expected letters and digits"),
        ({"directory": "/etc"}, "is no store of nfsrdma certify"),
    ],
)
def test_a_plan_that_certify_did_not_write_names_no_path(
    store: Store, host: Host, change: dict[str, Any], found: str
) -> None:
    plan, noted = store.plan(), store.noted(store.plan(), "certify")
    row = {**plan.to_json(), **change}
    with store._db:
        for table_, column in (("plans", "uid"), ("notes", "plan")):
            store._db.execute(f"UPDATE {table_} SET {column} = ?", (row["uid"],))  # noqa: S608
        store._db.execute("UPDATE plans SET plan = ?", (json.dumps(row),))
    with pytest.raises(UserError, match=found):
        certification(store, host)
    assert noted
    assert host.mounts == []


def test_ctrl_c_ends_it_also_if_an_undo_fails(
    store: Store, host: Host, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    done = certification(store, host)
    blocker = tmp_path / "blocker"

    def interrupt(_: MountRequest) -> None:
        # another program has replaced the file that this undo is to remove
        blocker.write_text("theirs")
        done._changes.add(Remove(str(blocker), "ours"))
        raise KeyboardInterrupt

    host.mounted = interrupt
    with pytest.raises(KeyboardInterrupt):
        list(done.run())
    assert [each.name for each in done.certificate.steps] == [("doctor", "")]
    assert f"cannot undo a change (remove {blocker})" in capsys.readouterr().err


def test_without_a_bundle_the_results_stay_in_the_store(
    store: Store, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certified(store, host)
    with pytest.raises(
        UserError, match=r"no bundle: cannot write .*--resume .*certify\.db"
    ) as info:
        command._certified(store.path, tmp_path / "no folder" / "bundle", True)
    assert info.value.status == 1
    certificate = command._certified(store.path, tmp_path / "bundle", True)
    assert statuses({each.name: each for each in certificate.steps}) == GOOD


def test_cells_that_are_not_offered_are_named(store: Store, host: Host) -> None:
    def refuse(one: Trial) -> Trial:
        if one.cell.rsize < 1 << 20:
            return one
        return replace(one, status="not_offered", reason="rsize: requested 1048576, got 524288")

    host.trial = refuse
    sweep = certified(store, host)["sweep", ""]
    assert (sweep.status, sweep.figures["not_offered"]) == (PASSED, 4)
    assert "; not offered: rdma 1M, 4 ahead; rdma 1M, direct, depth 1; tcp 1M" in sweep.found
    assert sweep.found.endswith("(rsize: requested 1048576, got 524288)")


def test_a_mount_that_would_share_its_connections_is_refused(
    store: Store, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Mount(
        Target.parse(store.plan().target), Path("/mnt"), "0:9", "nfs4", "tcp", "4.1", 0, 0, 1,
        {"addr": "127.0.0.1"},
    )  # fmt: skip
    monkeypatch.setattr(steps, "mounts", lambda: [other])
    with pytest.raises(UserError, match=r"/mnt shares .* of NFSv4 to 127\.0\.0\.1.*--vers 3"):
        list(certification(store, host).run())
    done = certification(store, host)
    done.plan = replace(done.plan, vers="3")
    done._require_own_connections()
    monkeypatch.setattr(steps, "mounts", lambda: [other._replace(vers="3")])
    with pytest.raises(UserError, match=r"/mnt shares .* of NFSv3 .*--vers 4\.2"):
        done._require_own_connections()


def test_the_mount_of_a_killed_certification_is_undone_first(
    store: Store, host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left = tmp_path / "mounted"
    left.touch()
    other = Mount(
        Target.parse(store.plan().target),
        left,
        "0:9",
        "nfs4",
        "tcp",
        "4.2",
        0,
        0,
        1,
        {"addr": "127.0.0.1"},
    )
    monkeypatch.setattr(steps, "mounts", lambda: [other] if left.exists() else [])
    state = tmp_path / "state"
    state.mkdir(exist_ok=True)
    undo = json.dumps([{"kind": "remove", "path": str(left), "wrote": ""}])
    # of a process of an earlier boot
    (state / "1-0badc0de-00000000.undo").write_text(undo)
    assert statuses(certified(store, host)) == GOOD


def test_the_cable_is_pulled_and_the_data_is_equal(store: Store, host: Host) -> None:
    request(store, pull=True)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        if "pull the cable" in text:
            host.links = [replace(LINK, state="DOWN")]
        if "plug" in text:
            host.links = [LINK]

    steps_ = certification(store, host)
    steps_._tell = tell
    results = {e.name: e for e in steps_.run() if isinstance(e, Result)}
    assert results["pull", "rdma"].status == PASSED, results["pull", "rdma"].found
    assert [text.partition(":")[0] for text in told] == [
        "pull the cable of mlx5_0/1 now", "mlx5_0/1 is down",
    ]  # fmt: skip
    # written, read after a new mount that waits long enough, removed
    *_, written, read, removed = host.mounts
    assert [request.transport for request in (written, read, removed)] == ["rdma", "rdma", "tcp"]
    assert {"soft", "timeo=6000"} < {*read.options}


def test_a_cable_that_stays_out_is_a_failure(
    store: Store, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    request(store, pull=True)

    def tell(text: str) -> None:
        if "pull the cable" in text:
            host.links = [replace(LINK, state="DOWN")]
            block(next(host.export.glob("*/rdma-buffered-1")))

    pulled = certification(store, host)
    pulled._tell = tell
    monkeypatch.setattr(steps, "_PULL_LIMIT_S", 0.5)
    results = {e.name: e for e in pulled.run() if isinstance(e, Result)}
    assert (results["pull", "rdma"].status, results["pull", "rdma"].found) == (
        FAILED, "mlx5_0/1 did not come up in 0.5 s",
    )  # fmt: skip


def test_nobody_pulls_the_cable(store: Store, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    request(store, pull=True)
    monkeypatch.setattr(steps, "_PULL_LIMIT_S", 0.1)
    result = certified(store, host)["pull", "rdma"]
    assert (result.status, result.found) == (UNKNOWN, "mlx5_0/1 stayed up for 0.1 s")


def test_the_module_s_steps_need_the_module(
    store: Store, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    request(store, module=True)

    @contextlib.contextmanager
    def in_use(*_: object) -> Iterator[Any]:
        raise UserError("module rpcrdma is in use by mount /mnt")
        yield

    monkeypatch.setattr(steps, "with_our_module", in_use)
    results = certified(store, host)
    assert results["data", "cached"].status == UNKNOWN
    assert results["data", "cached"].found == "module rpcrdma is in use by mount /mnt"
    assert list(results) == [name for name in ALL if name[0] != "pull"]


def test_a_personality_that_the_server_lacks_is_unknown(
    store: Store, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    request(store, module=True)
    loaded: list[str] = []

    @contextlib.contextmanager
    def with_our_module(*_: object) -> Iterator[Any]:
        yield loaded.append
        loaded.append("before")

    def refuse(request: MountRequest) -> None:
        if request.personality not in (None, "read-write", "optimistic"):
            raise MismatchError("personality", request.personality, "read-write")

    monkeypatch.setattr(steps, "with_our_module", with_our_module)
    host.refuse = refuse
    results = certified(store, host)
    assert loaded == ["nfsrdma", "before"]
    found = {over: r.status for (step, over), r in results.items() if step == "data"}
    assert found == {
        "tcp": PASSED, "rdma": PASSED, "read-write": PASSED, "optimistic": PASSED,
        "read-read": UNKNOWN, "padded": UNKNOWN, "pre-posted": UNKNOWN, "cached": UNKNOWN,
    }  # fmt: skip
    assert results["data", "padded"].found.startswith("personality: requested padded, got read-")
    versions = {request.vers for request in host.mounts if request.personality == "optimistic"}
    assert versions == {"3"}


def test_each_figure_and_no_text_leaves_the_host(
    store: Store, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "LIVE", made_host(tmp_path))
    begin(store.plan(), store, module=False, pull=False)
    host.findings.append(Finding("route to nas.example.org", "error", "10.1.2.3 is secret"))
    done = certification(store, host)
    list(done.run())
    certificate = done.certificate
    made = Bundle(files={CERTIFICATE: certificate.without_texts().encode()})
    bundled = anonymized(made)
    assert bundled.withheld == {}
    text = bundled.files[CERTIFICATE].decode()
    kept = Certificate.from_json(text)
    assert kept.row == certificate.row
    assert [(r.name, r.status, r.figures) for r in kept.steps] == [
        (r.name, r.status, r.figures) for r in certificate.steps
    ]
    assert not re.search(r"nas|10\.1|secret|export", text)
    row = kept.row
    assert (row.card, row.firmware, row.gbps) == ("15b3:101d", "22.31.1014", 100)
    assert (row.link_layer, row.limits) == ("Ethernet", LIMITS)


def made_host(folder: Path) -> Machine:
    """A host with the card LINK."""
    card = "sys/class/infiniband/mlx5_0"
    texts = {
        "proc/sys/kernel/osrelease": "6.12.118+deb13-amd64\n",
        f"{card}/device/vendor": "0x15b3\n",
        f"{card}/device/device": "0x101d\n",
        f"{card}/ports/1/rate": "100 Gb/sec (4X EDR)\n",
        f"{card}/ports/1/link_layer": "Ethernet\n",
    }
    for name, text in texts.items():
        path = folder / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    lines = "".join(f"\t{name}:\t\t\t{number}\n" for name, number in LIMITS.items())
    argv = ("ibv_devinfo", "-v", "-d", "mlx5_0")
    programs: dict[tuple[str, ...], Output | None] = {
        argv: Output(argv, f"{lines}\tmax_mr:\t9\n\t\tmax_sge:\tx\n", "", 0)
    }
    return Machine(folder / "root", recording=Recording(programs=programs))


def test_counts_are_compared_with_mountstats() -> None:
    reads = Operation(5, 6, 0, 0, 0, 0, 0, 0)
    xprt = Xprt("rdma", {"total_rdma_reply": 4000})
    stats = MountStats(Path("/mnt"), "0:50", "nfs4", xprts=(xprt,), operations={"READ": reads})
    chunks = {"write_used": 4000, "reply_used": 0}
    rows: dict[str, list[dict[str, Any]]] = {
        "chunks": [
            {"procedure": "READ", "rpcs": 6, **chunks},
            {"procedure": "GETATTR", "rpcs": 9, **dict.fromkeys(chunks, 0)},
        ],
        "registrations": [
            {
                **{"mapped": 8, "registered": 7, "unmapped": 8},
                **{"local_invalidations": 3, "remote_invalidations": 4},
            }
        ],
    }
    assert compared(stats, rows) == {
        "reads": (6, 6),
        "bytes_received": (4000, 4000),
        "regions_invalidated": (7, 7),
        "regions_unmapped": (8, 8),
    }
    rows["registrations"][0]["remote_invalidations"] = 3
    assert compared(stats, rows)["regions_invalidated"] == (6, 7)


@pytest.mark.parametrize(
    ("statuses_", "exit_status"),
    [((PASSED, PASSED), 0), ((PASSED, UNKNOWN), 3), ((UNKNOWN, FAILED), 1)],
)
@pytest.mark.parametrize(
    ("limits", "shown"),
    [({}, "unknown"), ({"max_sge": 30, "max_sge_rd": 6}, "max_sge 30, max_sge_rd 6")],
    ids=("no limits", "limits"),
)
def test_exit_status_and_row(
    statuses_: tuple[str, str], exit_status: int, limits: dict[str, int], shown: str
) -> None:
    row = Row("6.12.1", "0.1.0", "2026-11-30", driver="mlx5", protocol="roce", limits=limits)
    results = tuple(
        Result(*name, status, "text") for name, status in zip(ALL, statuses_, strict=False)
    )
    certificate = Certificate(row, results)
    assert certificate.exit_status == exit_status
    ((*what, passed, failed, unknown, _),) = table([certificate])
    assert what == ["unknown", "mlx5", "unknown", "6.12.1", "roce, unknown, unknown", shown]
    assert ("doctor" in passed, "mount tcp" in failed) == (
        statuses_[0] == PASSED,
        statuses_[1] == FAILED,
    )
    # it was not run
    assert "pull rdma" in unknown


def test_a_document_of_another_form_is_refused() -> None:
    row = '{"kernel": "", "nfsrdma": "", "date": ""}'
    step = '{"step": "doctor", "over": "", "status": "%s", "seconds": %s}'
    document = f'{{"row": {row}, "steps": [{step}]}}'
    assert Certificate.from_json(document % ("passed", 1)).steps[0].status == PASSED
    forms = ("[]", "{", '{"row": {}, "steps": 5}', '{"row": 1, "steps": []}')
    for text in (*forms, document % ("great", 1), document % ("passed", "NaN")):
        with pytest.raises(UserError, match="this is not a certificate"):
            Certificate.from_json(text)
