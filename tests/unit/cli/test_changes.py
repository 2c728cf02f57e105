# SPDX-License-Identifier: Apache-2.0
"""Commands that change the host: their undo, their JSON, and --dry-run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from nfsrdma_tools import etab
from nfsrdma_tools.cli import link as link_cli
from nfsrdma_tools.cli import mount as mount_cli
from nfsrdma_tools.cli import server as server_cli
from nfsrdma_tools.cli import tune as tune_cli
from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.host.nfsd import configuration, exports, nfsctl, serving
from nfsrdma_tools.host.nfsd.configuration import Requested
from nfsrdma_tools.host.nfsd.nfsctl import Listener
from nfsrdma_tools.host.rdma import nldev
from nfsrdma_tools.host.rdma.ports import Device, Link
from nfsrdma_tools.host.state import ServerState, Tuned, server_state
from nfsrdma_tools.host.tune import tuning

RXE = Link(Device(3, "rxe0", 1, "ca", "roce", "rxe", "", "0:0:0:1"), 1, "ACTIVE", "LINK_UP", "eth0")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals and state files are below ``tmp_path``."""
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("NFSRDMA_LIB", str(tmp_path / "lib"))


def tuned(directory: str) -> Tuned:
    """A mount of which only the read-ahead is tuned."""
    return Tuned(directory, None, None, 128, None, None, None, read_ahead_was_kb=1024)


def test_tune_apply_names_its_undo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(tuning, "apply", lambda *_, **__: tuning.TuneState(tuned("/mnt/a b")))
    tune_cli.apply(mount=Path("/mnt/a b"), read_ahead_kb=128)
    assert capsys.readouterr().out.splitlines()[-1] == "  undo: nfsrdma tune undo '/mnt/a b'"
    tune_cli.apply(mount=Path("/mnt/a b"), read_ahead_kb=128, as_json=True)
    assert "undo" not in capsys.readouterr().out


def test_link_add_names_its_undo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nldev, "add_link", lambda *_: RXE)
    link_cli.add("rxe0", netdev="eth0")
    assert capsys.readouterr().out.splitlines() == [
        "rxe0/1 ACTIVE LINK_UP on eth0",
        "  lasts until a reboot; undo: nfsrdma link delete rxe0",
    ]


def test_tune_undo_prints_the_restored_mounts_before_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def undo(directory: Path | None) -> None:
        raise tuning.PartlyUndoneError([tuned("/mnt/a")], {"/mnt/b": UserError("it has changed")})

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(tuning, "undo", undo)
    with pytest.raises(UserError, match="/mnt/b is still tuned: it has changed; restored: /mnt/a"):
        tune_cli.undo()
    assert capsys.readouterr().out == "/mnt/a: restored\n"


@dataclass
class Nfsd:
    """The state of nfsd that ``serving`` reads."""

    active: bool = False
    boot: bool = False
    port: int = 0
    versions: tuple[str, ...] = ("3", "4.2")
    transport: str = "rdma"
    asked: Requested = field(default_factory=Requested)

    def listeners(self) -> list[Listener]:
        return [Listener(self.transport, self.port), Listener("tcp", 2049)] if self.port else []


@pytest.fixture
def nfsd(monkeypatch: pytest.MonkeyPatch) -> Nfsd:
    """An nfsd that a test can set, and that no test may change."""
    fake = Nfsd()
    monkeypatch.setattr(serving, "_require_server", lambda: None)
    monkeypatch.setattr(serving, "_is_active", lambda: fake.active)
    monkeypatch.setattr(serving, "_starts_at_boot", lambda: fake.boot)
    monkeypatch.setattr(configuration, "requested", lambda: fake.asked)
    monkeypatch.setattr(serving, "_is_disabled", lambda _: False)
    monkeypatch.setattr(nfsctl, "threads", lambda: 8 if fake.active else 0)
    monkeypatch.setattr(nfsctl, "listeners", fake.listeners)
    monkeypatch.setattr(nfsctl, "versions", lambda: list(fake.versions))
    monkeypatch.setattr(etab, "effective", lambda *_: [])
    for name in ("_systemctl", "_set_boot"):
        monkeypatch.setattr(serving, name, pytest.fail)
    return fake


EXPORTED = "export it to each client: exportfs -i -o OPTIONS CLIENT:PATH"


@pytest.mark.parametrize(
    ("before", "vers", "changes"),
    [
        (Nfsd(), [], ["start nfs-server.service", "enable nfs-server.service at boot"]),
        (Nfsd(True, True), [], ["make nfsd listen on RDMA port 20049"]),
        (Nfsd(True, True, 20049), [], []),
        (
            Nfsd(True, False, 20049),
            ["4.0"],
            [
                "restart nfs-server.service: nfsd changes versions only when it starts",
                "enable nfs-server.service at boot",
            ],
        ),
    ],
)
def test_server_enable_dry_run_lists_the_changes(
    before: Nfsd,
    vers: list[str],
    changes: list[str],
    nfsd: Nfsd,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    vars(nfsd).update(vars(before))
    path = tmp_path.resolve()
    server_cli.enable(path, ["client"], vers=vers, dry_run=True)
    files = [exports.file_of(path), serving.CONF]
    steps = [*(f"write {file}" for file in files), EXPORTED, *changes]
    assert capsys.readouterr().out.splitlines() == [f"would {step}" for step in steps]
    server_cli.enable(path, ["client"], vers=vers, dry_run=True, as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert facts == {"schema_version": 1, "dry_run": True, "changes": steps}
    assert list(path.iterdir()) == []


CONFIGURED = Requested(20050, "/etc/nfs.conf")


@pytest.mark.parametrize(
    ("before", "wanted", "port", "drop_in"),
    [
        # what nfs.conf, an option of rpc.nfsd or portlist has is kept
        (Nfsd(asked=CONFIGURED), None, 20050, ""),
        (Nfsd(True, True, 20050, asked=CONFIGURED), 20050, 20050, ""),
        (Nfsd(True, True, 20050, asked=CONFIGURED, versions=("4.2",)), None, 20050, "vers3=y"),
        (Nfsd(True, True, 20051), None, 20051, "rdma=y\nrdma-port=20051\nvers3=y"),
        (Nfsd(True, True, 20050, transport="nfr"), 20050, 20050, "rdma=y\nrdma-port=20050"),
        (Nfsd(), None, 20049, "rdma=y\nrdma-port=20049"),
        (Nfsd(), 20052, 20052, "rdma=y\nrdma-port=20052"),
    ],
)
def test_server_enable_takes_over_the_rdma_port(
    before: Nfsd,
    wanted: int | None,
    port: int,
    drop_in: str,
    nfsd: Nfsd,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vars(nfsd).update(vars(before))
    monkeypatch.setattr(serving, "_is_disabled", lambda version: version not in nfsd.versions)
    export = exports.Export(tmp_path.resolve(), ("client",))
    state = serving._planned(None, export, wanted, ("3",))
    assert state.port == port
    # a listener that nothing but portlist has
    kept = () if before.asked.rdma_port or not before.port else (f"{before.transport} {port}",)
    assert state.listeners == kept
    text = serving._files(export, state).get(serving.CONF, "")
    assert text.partition("[nfsd]\n")[2].startswith(drop_in) if drop_in else text == ""
    # the same for a second export, when our own drop-in is in effect
    if state.requests_rdma:
        nfsd.asked = Requested(port, str(serving.CONF))
    again = serving._planned(state, export, None, ("3",))
    assert again == state


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (
            Nfsd(asked=CONFIGURED),
            r"port 20050 \(/etc/nfs.conf requests it\); use --rdma-port 20050",
        ),
        (Nfsd(True, True, 20051), "port 20051 .nfsd listens on rdma 20051"),
        (Nfsd(asked=Requested(rdma_source="/etc/x", fault="no port")), "/etc/x: no port"),
    ],
)
def test_server_enable_refuses_a_second_rdma_port(
    before: Nfsd, message: str, nfsd: Nfsd, tmp_path: Path
) -> None:
    vars(nfsd).update(vars(before))
    with pytest.raises(UserError, match=message):
        server_cli.enable(tmp_path.resolve(), ["client"], rdma_port=20049, dry_run=True)


def test_server_enable_dry_run_has_the_errors_of_enable(nfsd: Nfsd, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a directory"):
        server_cli.enable(tmp_path.resolve() / "none", ["client"], dry_run=True)
    with pytest.raises(UserError, match=r"version '5'"):
        server_cli.enable(tmp_path.resolve(), ["client"], vers=["5"], dry_run=True)


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        (
            ServerState(False, False, 20049, writes_conf=True),
            [
                f"remove {serving.CONF}",
                "stop nfs-server.service",
                "disable nfs-server.service at boot",
            ],
        ),
        (ServerState(True, True, 20049, needs_restart=True), ["restart nfs-server.service"]),
    ],
)
def test_server_disable_dry_run_lists_the_changes(
    before: ServerState, changes: list[str], nfsd: Nfsd, capsys: pytest.CaptureFixture[str]
) -> None:
    nfsd.active = True
    state = replace(before, exports={"/srv/a": "/etc/exports.d/a.exports"})
    server_state.save(state)
    server_cli.disable("/srv/a", dry_run=True)
    steps = ["remove /etc/exports.d/a.exports"]
    assert capsys.readouterr().out.splitlines() == [f"would {step}" for step in steps + changes]
    both = {**state.exports, "/srv/b": "/etc/exports.d/b.exports"}
    server_state.save(replace(state, exports=both))
    server_cli.disable("/srv/a", dry_run=True, as_json=True)
    assert json.loads(capsys.readouterr().out)["changes"] == steps
    kept = server_state.load()
    assert kept is not None
    assert kept.exports == both
    with pytest.raises(UserError, match="not served by nfsrdma"):
        server_cli.disable("/srv/c", dry_run=True)


@pytest.mark.parametrize("spelled", ["/srv/a/", "/srv//./a", "/srv/b/../a", "//srv/a"])
def test_server_disable_takes_any_spelling_of_the_path(
    spelled: str, nfsd: Nfsd, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ServerState(True, True, 20049, exports={"/srv/a": "/etc/exports.d/a.exports"})
    server_state.save(state)
    server_cli.disable(spelled, dry_run=True)
    assert "would remove /etc/exports.d/a.exports" in capsys.readouterr().out


def test_server_enable_and_disable_print_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(serving, "enable", lambda *_: serving.Enabled(True, 20049))
    monkeypatch.setattr(serving, "disable", lambda _: None)
    server_cli.enable(tmp_path, ["a", "b"], as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert facts["enabled"] is True
    assert facts["path"] == str(tmp_path)
    assert (facts["clients"], facts["rdma_port"]) == (["a", "b"], 20049)
    assert facts["file"] == str(exports.file_of(tmp_path))
    assert facts["threadless"] is None
    for text, limit in (("64k", 65536), ("0", 0), ("4096", 4096)):
        server_cli.enable(tmp_path, ["a"], threadless=text, as_json=True)
        assert json.loads(capsys.readouterr().out)["threadless"] == limit
    server_cli.enable(tmp_path, ["a"], threadless="64k")
    assert "  threadless reads of up to 64k, now and at each" in capsys.readouterr().out
    with pytest.raises(UserError, match="is not a size"):
        server_cli.enable(tmp_path, ["a"], threadless="on")
    server_cli.disable("/srv/a", as_json=True)
    assert json.loads(capsys.readouterr().out) == {"schema_version": 1, "disabled": "/srv/a"}


def test_tune_undo_prints_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(tuning, "undo", lambda _: [tuned("/mnt/a")])
    tune_cli.undo(as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert [mount["directory"] for mount in facts["undone"]] == ["/mnt/a"]
    assert facts["still_tuned"] == []

    def undo(_: Path | None) -> None:
        raise tuning.PartlyUndoneError([tuned("/mnt/a")], {"/mnt/b": UserError("it has changed")})

    monkeypatch.setattr(tuning, "undo", undo)
    with pytest.raises(UserError):
        tune_cli.undo(as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert facts["still_tuned"] == [{"directory": "/mnt/b", "error": "it has changed"}]


def test_tune_undo_dry_run_needs_no_root_and_undoes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = (["remove /a\nb"], {"/mnt/b": UserError("it has changed")})
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(tuning, "undo", pytest.fail)
    monkeypatch.setattr(tuning, "undoing", lambda _: plan)
    with pytest.raises(UserError, match="/mnt/b would stay tuned: it has changed"):
        tune_cli.undo(dry_run=True)
    assert capsys.readouterr().out == "would remove /a?b\n"
    monkeypatch.setattr(tuning, "undoing", lambda _: ([], {}))
    tune_cli.undo(dry_run=True)
    assert capsys.readouterr().out == "would change nothing\n"


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["type", "rxe", "netdev", "lo"], ["add the rxe link new0 on lo"]),
        (
            ["type", "card", "netdev", "lo"],
            ["build and load the module nfsrdma_card", "add the card link new0 on lo"],
        ),
    ],
)
def test_link_add_dry_run_checks_and_adds_nothing(
    words: list[str],
    changes: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(nldev, "links", lambda: [RXE])
    monkeypatch.setattr(nldev, "add_link", pytest.fail)
    link_cli.add("new0", words, dry_run=True)
    assert capsys.readouterr().out.splitlines() == [f"would {each}" for each in changes]
    link_cli.add("new0", words, dry_run=True, as_json=True)
    assert json.loads(capsys.readouterr().out)["changes"] == changes
    with pytest.raises(UserError, match="rxe0 already exists"):
        link_cli.add("rxe0", words, dry_run=True)
    with pytest.raises(UserError, match="no network device none0"):
        link_cli.add("new0", netdev="none0", dry_run=True)
    link_cli.add("new0", netdev="lo", kind="card", profile="bnxt", dry_run=True)
    assert capsys.readouterr().out.endswith("new0 on lo with the profile bnxt\n")
    with pytest.raises(UsageError, match="expected model, mlx5"):
        link_cli.add("new0", netdev="lo", kind="card", profile="efa", dry_run=True)
    with pytest.raises(UsageError, match="only modelled cards"):
        link_cli.add("new0", netdev="lo", profile="bnxt", dry_run=True)
    with pytest.raises(UserError, match="expected rxe, siw, card"):
        link_cli.add("new0", kind="mlx5", netdev="lo", dry_run=True)


def test_link_add_prints_json_as_link_show_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nldev, "add_link", lambda *_: RXE)
    monkeypatch.setattr(nldev, "links", lambda: [RXE])
    monkeypatch.setattr(nldev, "resources", lambda: {"rxe0": {"pd": 1}})
    monkeypatch.setattr(nldev, "statistics", lambda _: {"sent_pkts": 0})
    link_cli.add("rxe0", netdev="eth0", as_json=True)
    added = json.loads(capsys.readouterr().out)
    link_cli.show(as_json=True)
    (shown,) = json.loads(capsys.readouterr().out)["links"]
    assert added == {"schema_version": 1, **shown}


def test_link_delete_dry_run_deletes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nldev, "links", lambda: [RXE])
    link_cli.delete("rxe0", dry_run=True)
    assert capsys.readouterr().out == "would delete the link rxe0 on eth0\n"
    with pytest.raises(UserError, match="there is no RDMA device 'rxe1'"):
        link_cli.delete("rxe1", dry_run=True)


def test_mount_dry_run_prints_the_command_and_mounts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mount_cli.mount("192.0.2.1:/a", str(tmp_path), rsize="64k", read_ahead=4, dry_run=True)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"would run mount.nfs 192.0.2.1:/a {tmp_path} -o ")
    assert "rsize=65536" in first and "proto=rdma" in first
    assert second == "would set the read-ahead to 4 blocks of rsize"
    with pytest.raises(UserError, match="No such file or directory"):
        mount_cli.mount("192.0.2.1:/a", str(tmp_path / "none"), dry_run=True)


@pytest.mark.parametrize(("rsize", "requests"), [("64k", 16), ("1M", 0), (None, 0)])
def test_tune_apply_says_what_an_rsize_below_the_default_costs(
    rsize: str | None,
    requests: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tuning, "applying", lambda *_, **__: [])
    tune_cli.apply(mount=Path("/mnt"), rsize=rsize, read_ahead=4, dry_run=True)
    stderr = capsys.readouterr().err
    assert bool(stderr) is bool(requests)
    assert not requests or f"takes {requests} requests instead of 1" in stderr


def test_a_hint_after_a_bracket_gets_none_of_its_own() -> None:
    assert str(UserError("no link (driver x)", "add one")) == "no link (driver x); add one"
    assert str(UserError("no link", "add one")) == "no link (add one)"
