# SPDX-License-Identifier: Apache-2.0
"""Records of the state before a role, and sweeps that an interrupted play left running."""

import os
from pathlib import Path
from typing import Any

import pytest
import typer.main

pytest.importorskip("ansible", reason="ansible-core is not installed")

from unit.playbooks.ansible_modules import PLAYBOOKS, imported, run_module

from nfsrdma_tools.cli.main import app
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.store import Store


def record(root: Path, check: bool = False, **args: Any) -> dict[str, Any]:
    return run_module(root, "nfsrdma_record", check, **{"role": "client", **args})


def kept(root: Path) -> Any:
    facts = run_module(root, "nfsrdma_facts", command="/nope")
    return facts["ansible_facts"]["nfsrdma"]["records"]


def test_recorded_values_stay_and_new_keys_are_added(tmp_path: Path) -> None:
    first = {"packages": ["nfs-common"], "made": {"/a": "/a"}}
    assert record(tmp_path, content=first, check=True)["changed"]
    assert kept(tmp_path) == {}
    assert record(tmp_path, content=first)["changed"]
    assert record(tmp_path, content={"packages": [], "made": {"/a": ""}})["changed"] is False
    assert record(tmp_path, content={"made": {"/a": "", "/b": "/b"}})["changed"]
    assert kept(tmp_path) == {"client": {**first, "made": {"/a": "/a", "/b": "/b"}}}
    assert (tmp_path / "records").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "records/client.json").stat().st_mode & 0o777 == 0o600


def test_a_record_can_be_replaced(tmp_path: Path) -> None:
    record(tmp_path, content={"config": "/a"})
    assert record(tmp_path, content={"config": "/b"}, replace=True)["changed"]
    assert kept(tmp_path) == {"client": {"config": "/b"}}


def test_the_directory_is_removed_with_the_last_record(tmp_path: Path) -> None:
    record(tmp_path)
    record(tmp_path, role="server")
    assert record(tmp_path, state="absent")["changed"]
    assert list(kept(tmp_path)) == ["server"]
    assert record(tmp_path, role="server", state="absent")["changed"]
    assert not (tmp_path / "records").exists()
    assert record(tmp_path, state="absent")["changed"] is False


@pytest.mark.parametrize("name", ["../x", "", "a b", "A", "a\n", "/etc/passwd"])
def test_an_invalid_role_name_is_refused(tmp_path: Path, name: str) -> None:
    assert "is not a role name" in record(tmp_path, role=name)["msg"]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Stand-ins: an active unit is a file; systemd-run fails once if the file `killed` exists."""
    programs = {
        "systemctl": 'case $1 in is-active) test -e "$R/${3}";; stop) rm "$R/$2";; esac',
        "systemd-run": 'if test -e "$R/killed"; then rm "$R/killed"; exit 9; fi',
    }
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        head = f'#!/bin/sh\nR={tmp_path}\necho {name} "$@" >> "$R/ran"\n'
        (tmp_path / "bin" / name).write_text(head + text + "\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def sweep(host: Path, check: bool = False, **more: Any) -> dict[str, Any]:
    args = {"target": "server:/srv", "options": ["--runs", "1", "--no-probes"], **more}
    return run_module(host, "nfsrdma_sweep", check, store=str(host / "first/a.db"), **args)


def ran(host: Path) -> list[str]:
    return [line for line in (host / "ran").read_text().splitlines() if "is-active" not in line]


def test_a_completed_sweep_is_not_run_again(host: Path) -> None:
    assert sweep(host, check=True)["changed"]
    assert not (host / "first").exists()
    assert sweep(host)["changed"]
    assert sweep(host)["changed"] is False
    (line,) = ran(host)
    assert line.startswith("systemd-run ")
    assert "nfsrdma sweep --keep-file --runs 1 --no-probes --output" in line
    assert line.endswith("a.db -- server:/srv")


def test_the_runs_start_in_step(host: Path) -> None:
    assert sweep(host, in_step="1790000000/30")["changed"]
    (line,) = ran(host)
    assert "nfsrdma sweep --keep-file --start-at 1790000000 --interval 30 --runs" in line


def test_an_interrupted_sweep_is_stopped_and_resumed(host: Path) -> None:
    (host / "killed").touch()
    assert sweep(host)["failed"]
    with Store(host / "first/a.db") as store:
        store.add_plan(Plan("server:/srv", uid="1"))
    (host / "nfsrdma-sweep.service").touch()
    assert sweep(host)["changed"]
    _, stop, line = ran(host)
    assert stop == "systemctl stop nfsrdma-sweep.service"
    assert line.endswith(f"sweep --keep-file --resume={host}/first/a.db --no-probes")


def test_a_resumed_sweep_gets_the_options_that_its_store_lacks() -> None:
    given = ["--runs", "3", "--server-ssh", "server", "--probes", "--axis", "server:x=1,2"]
    assert resumed(given) == ["--server-ssh", "server", "--probes"]
    assert resumed(["--server-ssh=server", "--no-probes"]) == ["--server-ssh=server", "--no-probes"]


def resumed(options: list[str]) -> list[str]:
    params = {"in_step": "", "store": "a.db", "options": options}
    words: list[str] = imported("modules.nfsrdma_sweep").arguments(params, True)
    assert words[:3] == ["sweep", "--keep-file", "--resume=a.db"]
    return words[3:]


def test_the_options_that_a_store_lacks_are_those_of_the_program() -> None:
    program: Any = typer.main.get_command(app)
    known = program.commands["sweep"].params
    takes_value = {
        name: not getattr(option, "is_flag", False)
        for option in known
        for name in (*option.opts, *option.secondary_opts)
    }
    lacks = imported("modules.nfsrdma_sweep")._NOT_STORED
    assert {name: takes_value.get(name) for name in lacks} == lacks


def test_a_sweep_interrupted_before_its_plan_starts_again(host: Path) -> None:
    (host / "first").mkdir(mode=0o700)
    (host / "first/a.db").touch()
    assert sweep(host)["changed"]
    (line,) = ran(host)
    assert "--resume" not in line
    assert not (host / "first/a.db").exists()


def test_absent_stops_units_and_removes_stores(host: Path) -> None:
    (host / "nfsrdma-load.service").touch()
    assert run_module(host, "nfsrdma_sweep", state="absent", check=True)["changed"]
    assert (host / "nfsrdma-load.service").exists()
    assert run_module(host, "nfsrdma_sweep", state="absent")["changed"]
    assert not (host / "nfsrdma-load.service").exists()
    assert run_module(host, "nfsrdma_sweep", state="absent")["changed"] is False


def test_stores_are_not_below_a_directory_that_users_write_to() -> None:
    play = (PLAYBOOKS / "playbooks/sweep.yml").read_text()
    assert "sweep_folder: /var/lib/nfsrdma-sweeps/" in play
    module = (PLAYBOOKS / "plugins/modules/nfsrdma_sweep.py").read_text()
    assert 'FOLDER = "/var/lib/nfsrdma-sweeps"' in module


def test_a_link_in_place_of_the_directory_of_stores_is_refused(host: Path) -> None:
    (host / "theirs").mkdir(mode=0o700)
    (host / "first").symlink_to(host / "theirs")
    result = sweep(host)
    assert "first: expected a directory, found a link" in result["msg"]
    assert not list((host / "theirs").iterdir())
    assert not (host / "ran").exists()


@pytest.mark.parametrize(
    ("folder", "mode", "expected"),
    [("first", 0o755, "mode 0700"), (".", 0o777, "mode 0755"), (".", 0o775, "mode 0755")],
)
def test_a_directory_that_others_reach_is_refused(
    host: Path, folder: str, mode: int, expected: str
) -> None:
    (host / folder).mkdir(exist_ok=True)
    (host / folder).chmod(mode)
    result = sweep(host)
    host.chmod(0o700)
    assert f"{expected}, found uid {os.geteuid()} and mode {mode:04o}" in result["msg"]
    assert not (host / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("folder", [".", "first"])
def test_a_directory_of_another_user_is_refused(host: Path, folder: str) -> None:
    (host / folder).mkdir(mode=0o700, exist_ok=True)
    os.chown(host / folder, 1000, 1000)
    result = sweep(host)
    os.chown(host, 0, 0)
    assert "expected owner root" in result["msg"] and "found uid 1000" in result["msg"]
    assert not (host / "ran").exists()
