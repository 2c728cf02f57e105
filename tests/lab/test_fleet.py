# SPDX-License-Identifier: Apache-2.0
"""Plays on a lab: rolled out, again without a change, verified, measured, all of it taken back."""

import json
import re
import subprocess
from collections.abc import Iterator
from difflib import unified_diff

import pytest
from fleet import BARE, MOUNT, PROGRAM, ROOT, Fleet, recap

from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab


@pytest.fixture(scope="module")
def fleet(long: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Bare hosts: one client, with --long three."""
    folder = tmp_path_factory.mktemp("fleet")
    archive = folder / "toolkit.tar.gz"
    subprocess.run((ROOT / "tools/bundle", archive, "--bare"), check=True, capture_output=True)
    config = LabConfig(f"test-fleet-{folder.name[-3:]}", shape="pair", clients=3 if long else 1)
    with Lab(config) as lab:
        for node in config.nodes:
            lab.run(node, "sh", "-c", BARE)
        yield Fleet(lab, folder, archive)


@pytest.fixture(scope="module")
def before(fleet: Fleet) -> dict[str, list[str]]:
    return {node: fleet.look(node) for node in fleet.lab.config.nodes}


def unchanged(said: str, hosts: tuple[str, ...]) -> None:
    figures = recap(said)
    assert set(hosts) <= set(figures)
    assert {host: row["changed"] for host, row in figures.items() if row["changed"]} == {}, said[
        -6000:
    ]
    assert not any(row["failed"] or row["unreachable"] for row in figures.values())


def test_rolled_out_and_a_second_time_nothing_changes(
    fleet: Fleet, before: dict[str, list[str]]
) -> None:
    hosts = fleet.lab.config.nodes
    checked = recap(fleet.play("site", "--check", "--diff", check=False))
    assert all(row["changed"] for row in checked.values())
    assert {node: fleet.look(node) for node in hosts} == before, "check mode has changed something"
    first = recap(fleet.play("site"))
    assert all(first[host]["changed"] for host in hosts)
    unchanged(fleet.play("site"), hosts)


def test_what_is_in_effect(fleet: Fleet) -> None:
    unchanged(fleet.play("verify"), fleet.lab.config.nodes)
    for client in fleet.lab.config.client_nodes:
        (found,) = json.loads(fleet.lab.run(client, PROGRAM, "mounts", "--json").stdout)
        assert (found["directory"], found["transport"], found["rsize"]) == (MOUNT, "rdma", 131072)
        assert MOUNT in fleet.lab.run(client, "cat", "/etc/fstab").stdout


def test_a_busy_mount_is_named_and_left_alone(fleet: Fleet) -> None:
    lab = fleet.lab
    lab.run(
        "client1", "systemd-run", "--unit=busy", f"--working-directory={MOUNT}", "sleep", "9999"
    )
    mounts = json.dumps(
        {"client_mounts": [{"src": "server:/export", "path": MOUNT, "rsize": 65536}]}
    )
    said = fleet.play("site", "--tags", "client", "--limit", "client1", "-e", mounts, check=False)
    lab.run("client1", "systemctl", "stop", "busy")
    assert "(sleep, working folder)" in said
    (found,) = json.loads(lab.run("client1", PROGRAM, "mounts", "--json").stdout)
    assert found["rsize"] == 131072
    unchanged(fleet.play("site", "--tags", "client"), lab.config.client_nodes)


def test_a_host_that_is_down_keeps_nobody_from_it(fleet: Fleet) -> None:
    nobody = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_args": ""}
    down = json.dumps({"nfsrdma_clients": {"hosts": {"gone": nobody}}})
    (fleet.folder / "gone.json").write_text(down)
    figures = recap(fleet.play("site", "-i", str(fleet.folder / "gone.json"), check=False))
    assert figures["gone"]["unreachable"] == 1
    assert all(not row["failed"] and not row["changed"] for row in figures.values())
    assert figures["client1"]["ok"] > 10


def test_measured_at_once_and_reported(fleet: Fleet, long: bool) -> None:
    if not long:
        pytest.skip("one client is no fleet (--long)")
    one_cell = "--transport rdma --rsize 128k --read-ahead 4 --runs 2 --no-accounts"
    asked = {
        "sweep_target": "server:/export",
        "sweep_mode": "at_once",
        "sweep_file_size": "64M",
        "sweep_options": one_cell.split(),
        "sweep_reporter": str(ROOT / ".venv/bin/nfsrdma"),
    }
    words = ("-e", json.dumps(asked))
    fleet.play("sweep", *words)
    unchanged(fleet.play("sweep", *words), fleet.lab.config.client_nodes)
    store = fleet.folder / "sweeps/first/all.db"
    report = json.loads(
        subprocess.run(
            (ROOT / ".venv/bin/nfsrdma", "report", store, "--json"), check=True, capture_output=True
        ).stdout
    )
    assert {host["host"] for host in report["fleet"]["hosts"]} == set(fleet.lab.config.client_nodes)
    assert {one["clients"] for one in report["fleet"]["at_once"]} == {1, 2, 3}
    assert all(one["server"] for one in report["fleet"]["at_once"])


def test_tuned_and_site_leaves_that_alone(fleet: Fleet, long: bool) -> None:
    if not long:
        pytest.skip("there is no sweep to tune by (--long)")
    hosts = fleet.lab.config.client_nodes
    fleet.lab.run("client1", "dd", "if=/dev/zero", f"of={MOUNT}/big.bin", "bs=1M", "count=16")
    words = ("-e", json.dumps({"tune_store": "sweeps/first/all.db", "tune_file": "big.bin",
                               "sweep_reporter": str(ROOT / ".venv/bin/nfsrdma")}))  # fmt: skip
    said = fleet.play("tune", *words)
    assert all(re.search(rf"{host}: [0-9.]+ s before, [0-9.]+ s after", said) for host in hosts)
    unchanged(fleet.play("tune", *words), hosts)
    unchanged(fleet.play("site"), hosts)
    fleet.lab.run("client1", "rm", f"{MOUNT}/big.bin")


def test_everything_is_taken_back(fleet: Fleet, before: dict[str, list[str]]) -> None:
    hosts = fleet.lab.config.nodes
    fleet.play("rollback")
    unchanged(fleet.play("rollback"), hosts)
    for node in hosts:
        differences = list(unified_diff(before[node], fleet.look(node), lineterm="", n=0))
        assert differences == []
