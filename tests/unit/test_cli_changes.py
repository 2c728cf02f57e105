# SPDX-License-Identifier: Apache-2.0
"""Commands that change the host: what they print about their undo."""

from __future__ import annotations

from pathlib import Path

import pytest

from nfsrdma_tools.cli import link as link_cli
from nfsrdma_tools.cli import tune as tune_cli
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.rdma import nldev
from nfsrdma_tools.host.rdma.nldev_parse import Device, Link
from nfsrdma_tools.host.tune import tuning
from nfsrdma_tools.host.tune.state import Tuned

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
