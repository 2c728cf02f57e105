# SPDX-License-Identifier: Apache-2.0
"""READs that the server of our module answers without nfsd: limit, counters, what is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from unit.files_made import write

from nfsrdma_tools import etab
from nfsrdma_tools.cli import server as command
from nfsrdma_tools.errors import MismatchError, UsageError, UserError
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.kernel_modules import Module
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfsd import exports, nfsctl, serving, threadless
from nfsrdma_tools.host.nfsd.exports import Export
from nfsrdma_tools.host.nfsd.nfsctl import Listener
from nfsrdma_tools.host.nfsd.serving import Serving
from nfsrdma_tools.host.nfsd.threadless import Threadless
from nfsrdma_tools.host.state import ServerState, server_state
from nfsrdma_tools.host.tunables import Tunable
from nfsrdma_tools.live.collect.client_finder import ClientFinder
from nfsrdma_tools.live.collect.host_statistics import HostReader
from nfsrdma_tools.undo import Journal

ZEROS = " 0" * 15
NFSD = (
    "rc 0 0 9\nio 4096 77\nth 8 0\nrpc 60 1 1 0 0\n"
    f"proc3 22 0 9 0 0 3 0 40{ZEROS}\nproc4ops 30 0 0 0 1 0 0 0 0 0 0{ZEROS} 5 0 0 0 0\n"
)
COUNTERS = """\
threadless_entries 12 of 4096
threadless_hits 900
threadless_bytes 3686400
threadless_missed_absent 4
threadless_missed_expired 30
threadless_missed_changed 0
threadless_missed_share 7
"""
TOTALS = """\
connections 2 of 1024
read_pages 0 of 4096
reply_pages 2 of 4096
exposed_pages 0
dones_outstanding 0
lanes 0
granted_pages 0 of 65536
"""
PARAMETER = "sys/module/nfsrdma/parameters/server_threadless"
DEBUG = "sys/kernel/debug/nfsrdma-server"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The files of a server that had such READs."""
    write(tmp_path, "proc/net/rpc/nfsd", NFSD)
    write(tmp_path, PARAMETER, "65536\n")
    write(tmp_path, f"{DEBUG}/totals", f"{TOTALS}{COUNTERS}")
    return tmp_path


def shown(status: Threadless | None, capsys: pytest.CaptureFixture[str]) -> list[str]:
    state = Serving(8, (), ("3",), (), (), threadless=status)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "serving", lambda _: state)
        command.status()
    lines = capsys.readouterr().out.splitlines()
    return [
        line
        for line in lines
        if not line.startswith(("threads ", "listeners", "versions", "pending"))
    ]


def test_hits_misses_and_the_sum_of_reads_are_shown(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = threadless.status(Machine(root))
    missed = {"absent": 4, "expired": 30, "share": 7}
    assert status == Threadless(65536, 900, 3686400, missed, 45, 945, 12, 4096)
    assert shown(status, capsys) == [
        "threadless up to 64 KiB: 900 READs, 3686400 bytes; 12 of 4096 entries",
        "  missed   absent 4, expired 30, share 7",
        "READs      945: 45 by nfsd, 900 threadless",
    ]


def test_another_user_than_root_sees_the_limit_only(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / DEBUG).rename(root / "hidden")
    status = threadless.status(Machine(root))
    assert status == Threadless(65536)
    assert shown(status, capsys) == ["threadless up to 64 KiB; hits unknown (needs root)"]


@pytest.mark.parametrize("text", [None, "", "Y\n", "-1\n", "\xff" * 40])
def test_a_module_without_threadless_reads_shows_nothing(
    root: Path, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / PARAMETER).unlink()
    if text is not None:
        (root / PARAMETER).write_text(text, encoding="latin-1")
    assert threadless.status(Machine(root)) is None
    assert shown(None, capsys) == []


def test_counters_of_an_older_module_or_of_garbage_are_no_counts(root: Path) -> None:
    write(root, PARAMETER, "0\n")
    write(root, f"{DEBUG}/totals", TOTALS)
    assert threadless.counts(root / DEBUG) == {}
    garbage = f"threadless_entries many\nthreadless_hits -4\nthreadless_missed_{'x' * 99} 3\n\0\n"
    write(root, f"{DEBUG}/totals", f"connections 2 of 1024\n{garbage}")
    assert threadless.counts(root / DEBUG) == {}
    assert threadless.status(Machine(root)) == Threadless(0, 0, 0, {}, 45, 45)


def test_reads_that_are_off_take_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(root, PARAMETER, "0\n")
    status = threadless.status(Machine(root))
    assert status is not None
    assert shown(status, capsys)[-1] == "READs      945: 45 by nfsd, 900 threadless"
    assert shown(replace(status, hits=0, missed={}), capsys) == ["threadless off"]


def test_counts_grow_between_two_readings() -> None:
    before = {"hits": 5, "bytes": 50, "missed_open": 1}
    now = {"hits": 8, "bytes": 50, "missed_open": 1, "missed_size": 1}
    assert threadless.grown(now, before) == {"hits": 3, "missed_size": 1}
    # the module was loaded anew
    assert threadless.grown({"hits": 2}, before) == {}


def test_the_collector_counts_between_two_readings(root: Path) -> None:
    write(root, "proc/self/net/rpc/nfsd", NFSD)
    write(root, "proc/self/mountinfo", "")
    write(root, "proc/fs/nfsd/threads", "8\n")
    reader = HostReader(ClientFinder(), Machine(root))
    before = reader.read()
    write(root, f"{DEBUG}/totals", TOTALS + COUNTERS.replace("hits 900", "hits 950"))
    now = reader.read()
    server = reader.server(now, before)
    assert server is not None
    assert server.threadless == {"hits": 50}
    assert (server.calls, server.answered) == (0, 50)
    # off: they are not read, and what was counted before they are read again is of no interval
    write(root, PARAMETER, "0\n")
    off = reader.read()
    write(root, PARAMETER, "65536\n")
    for first, second in ((now, off), (off, reader.read())):
        quiet = reader.server(second, first)
        assert quiet is not None
        assert quiet.threadless == {}


@pytest.fixture
def parameter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The parameter, and the file of modprobe.d, of a host of the test's."""
    path = tmp_path / "server_threadless"
    path.write_text("0\n")
    monkeypatch.setattr(threadless, "PARAMETER", str(path.relative_to("/")))
    monkeypatch.setattr(threadless, "CONF", tmp_path / "modprobe.d/nfsrdma-threadless.conf")
    monkeypatch.setattr(Tunable, "_path", lambda _: str(path))
    return path


@pytest.mark.parametrize("limit", [-4096, 1, 4095, 6000, 131073, 262144])
def test_a_limit_that_the_module_refuses_is_refused_before(parameter: Path, limit: int) -> None:
    with pytest.raises(UsageError, match=r"use 0, or 4096 to 131072 in steps of 4096"):
        threadless.check(limit)
    for each in (0, 4096, 65536, 131072):
        threadless.check(each)


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        (["rpcrdma"], r"^threadless reads need module nfsrdma: found rpcrdma \(load it: "),
        ([], r"need module nfsrdma: found no transport module"),
        (["nfsrdma"], r"^the loaded nfsrdma has no parameter server_threadless \(load this"),
    ],
)
def test_another_module_or_an_older_one_is_refused_in_a_line(
    parameter: Path, loaded: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameter.unlink()
    modules = {name: Module(name, 1, 0, (), "") for name in loaded}
    monkeypatch.setattr(kernel_modules, "loaded", lambda *_: modules)
    monkeypatch.setattr(threadless, "owner", lambda: "".join(loaded))
    with pytest.raises(UserError, match=message):
        threadless.check(65536)


def test_a_listener_of_another_module_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threadless, "serves_as", lambda _: "nfr")
    monkeypatch.setattr(nfsctl, "listeners", lambda: [Listener("rdma", 1), Listener("nfr", 2)])
    threadless.verify_port(2)
    with pytest.raises(MismatchError, match=r"requested of nfsrdma, got rdma 1 "):
        threadless.verify_port(1)


def test_a_value_that_the_kernel_does_not_take_is_a_difference_and_is_undone(
    parameter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "x.undo")
    monkeypatch.setattr(Tunable, "_write", lambda *_: None)
    with pytest.raises(MismatchError, match="requested 65536, got 0"):
        threadless.set_limit(65536, journal)
    monkeypatch.undo()
    assert journal.undo() == []
    assert parameter.read_text() == "0\n"


def enabled(path: Path, journal: Journal, limit: int | None) -> bool:
    return serving.enable(Export(path, ("client",)), journal, None, (), limit).changed


@pytest.fixture
def nfsd(tmp_path: Path, parameter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nfsd that runs at boot and listens with our module; etab has what is exported."""
    monkeypatch.setenv("NFSRDMA_LIB", str(tmp_path / "lib"))
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path))
    monkeypatch.setattr(serving, "_require_server", lambda: None)
    monkeypatch.setattr(serving, "CONF", tmp_path / "nfs.conf.d/nfsrdma.conf")
    monkeypatch.setattr(exports, "file_of", lambda path: tmp_path / f"{path.name}.exports")
    for name in ("_is_active", "_starts_at_boot", "_requests"):
        monkeypatch.setattr(serving, name, lambda *_: True)
    for name in ("_systemctl", "_set_boot"):
        monkeypatch.setattr(serving, name, pytest.fail)
    monkeypatch.setattr(exports, "verify", lambda *_: None)
    monkeypatch.setattr(etab, "add", lambda _: None)
    monkeypatch.setattr(etab, "ETAB", tmp_path / "etab")
    monkeypatch.setattr(nfsctl, "threads", lambda: 8)
    monkeypatch.setattr(nfsctl, "versions", lambda: ["3"])
    listeners = [Listener("rdma", 20049), Listener("tcp", 2049)]
    monkeypatch.setattr(nfsctl, "listeners", lambda: listeners)
    monkeypatch.setattr(threadless, "serves_as", lambda _: "rdma")


@pytest.mark.usefixtures("nfsd")
def test_server_enable_sets_the_parameter_and_disable_gives_it_back(
    parameter: Path, tmp_path: Path
) -> None:
    path, journal = tmp_path.resolve() / "data", Journal(tmp_path / "x.undo")
    path.mkdir()
    parameter.write_text("8192\n")
    export = Export(path, ("client",))
    steps = serving.enabling(export, limit=65536)
    assert steps[1] == f"write {threadless.CONF}"
    assert steps[-1] == "set nfsrdma.server_threadless to 65536"
    assert enabled(path, journal, 65536)
    assert not enabled(path, journal, 65536)
    assert not enabled(path, journal, None)
    journal.keep()
    assert parameter.read_text() == "65536"
    assert threadless.CONF.read_text().splitlines()[1] == "options nfsrdma server_threadless=65536"
    # a reboot, or another module: it is set again
    parameter.write_text("0\n")
    assert serving.enabling(export, limit=65536)[-1].endswith("to 65536")
    assert enabled(path, journal, 65536)
    journal.keep()
    changes = serving.disabling(str(path))
    assert f"remove {threadless.CONF}" in changes
    assert "set nfsrdma.server_threadless to 8192" in changes
    serving.disable(str(path))
    assert parameter.read_text() == "8192"
    assert not threadless.CONF.exists()
    assert server_state.load() is None


@pytest.mark.usefixtures("nfsd")
def test_server_enable_turns_them_off_again(parameter: Path, tmp_path: Path) -> None:
    path, journal = tmp_path.resolve() / "data", Journal(tmp_path / "x.undo")
    path.mkdir()
    assert enabled(path, journal, 4096)
    assert f"remove {threadless.CONF}" in serving.enabling(Export(path, ("client",)), limit=0)
    journal.keep()
    assert enabled(path, journal, 0)
    assert not threadless.CONF.exists()
    assert parameter.read_text() == "0"
    # a failed attempt gives both back
    assert journal.undo() == []
    assert threadless.CONF.read_text() == threadless.conf_text(4096)
    assert parameter.read_text() == "4096"


def test_an_administrators_value_is_kept(parameter: Path) -> None:
    parameter.write_text("32768\n")
    threadless.restore(65536, 0)
    threadless.restore(None, 0)
    assert parameter.read_text() == "32768\n"
    # the module is gone, or another one is loaded
    parameter.unlink()
    threadless.restore(65536, 0)


@pytest.mark.usefixtures("nfsd")
def test_a_state_without_threadless_reads_is_still_read(tmp_path: Path) -> None:
    state = ServerState(True, True, 20049, exports={"/srv": "/etc/x"})
    server_state.save(state)
    file = server_state.path()
    lines = [line for line in file.read_text().splitlines() if "threadless" not in line]
    file.write_text("\n".join(lines).replace("],\n}", "]\n}"))
    assert server_state.load() == state
