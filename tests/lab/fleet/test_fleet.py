# SPDX-License-Identifier: Apache-2.0
"""The playbooks on a server and three clients.  Each test continues the last.

The last test compares the state of each host after `rollback` with its state before `site`.
"""

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import pytest
from lab.fleet.playbooks import MOUNT, PROGRAM, ROOT, Fleet, recap

from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.lab.lab import Lab
from testbed.programs import prometheus
from testbed.scrapes import scrape

pytestmark = pytest.mark.nightly
REPORTER = str(ROOT / ".venv/bin/nfsrdma")
NO_DRIVER = "/etc/modprobe.d/test-no-soft-roce.conf"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with Lab(
        LabConfig(f"test-fleet-{folder.name[-3:]}", shape="pair", clients=3, extras=True)
    ) as lab:
        fleet = Fleet(lab, folder)
        fleet.play("prepare.yml")
        yield fleet


@pytest.fixture(scope="module")
def before(fleet: Fleet) -> dict[str, list[str]]:
    return {node: fleet.look(node) for node in fleet.lab.config.nodes}


def unchanged(output: str, hosts: tuple[str, ...]) -> None:
    """Check the recap: all hosts are in it, none is changed, failed or unreachable."""
    figures = recap(output)
    assert set(hosts) <= set(figures)
    changed = {host: row["changed"] for host, row in figures.items() if row["changed"]}
    assert changed == {}, output[-6000:]
    assert not any(row["failed"] or row["unreachable"] for row in figures.values())


def test_check_mode_reports_changes_and_makes_none(
    fleet: Fleet, before: dict[str, list[str]]
) -> None:
    hosts = fleet.lab.config.nodes
    output = fleet.play("site", "--check", "--diff")
    assert all(recap(output)[host]["changed"] for host in hosts)
    assert f"+server:/export {MOUNT} nfs vers=4.2,proto=rdma" in output
    assert "only-for-the-lab" not in output
    assert {node: fleet.look(node) for node in hosts} == before


def test_site_continues_after_a_kill_and_after_a_host_failed(fleet: Fleet) -> None:
    """The outcome of each host is reported, and the next run continues."""
    hosts = fleet.lab.config.nodes
    fleet.cut("site", "nfsrdma.tools.server : Export the directories")
    refuse = f"echo install rdma_rxe /bin/false > {NO_DRIVER}"
    fleet.lab.run("client3", "sh", "-c", f"{refuse}; rdma link delete rxe0; modprobe -r rdma_rxe")
    output = fleet.play("site", check=False)
    figures = recap(output)
    assert {host for host in hosts if figures[host]["failed"]} == {"client3"}
    assert '"client3: Load the modules: ' in output
    assert '"client1: in the requested state"' in output
    fleet.lab.run("client3", "rm", NO_DRIVER)
    figures = recap(fleet.play("site", "--limit", "client3"))
    assert figures["client3"]["changed"]
    assert not figures["client3"]["failed"]
    unchanged(fleet.play("site"), hosts)


def test_verify_finds_the_mounts_in_effect(fleet: Fleet) -> None:
    unchanged(fleet.play("verify"), fleet.lab.config.nodes)
    for client in fleet.lab.config.client_nodes:
        listing = fleet.lab.run(client, PROGRAM, "mounts", "--json").stdout
        (mount,) = json.loads(listing)["mounts"]
        assert (mount["directory"], mount["transport"], mount["rsize"]) == (MOUNT, "rdma", 131072)
        assert MOUNT in fleet.lab.run(client, "cat", "/etc/fstab").stdout


def test_ports_stay_open_when_nftables_is_reloaded(fleet: Fleet) -> None:
    # systemctl does not wait for the unit to which systemd propagates the reload
    rules = "nft list chain inet filter input | grep -c nfsrdma-fleet"
    wait = f"until test $({rules}) = 2; do sleep 1; done"
    for verb in ("reload", "restart"):
        fleet.lab.run("server", "systemctl", verb, "nftables")
        fleet.lab.run("server", "timeout", "60", "sh", "-c", wait)
    unchanged(fleet.play("verify", "--limit", "nfsrdma_servers"), ("server",))


def test_exporters_require_the_token(fleet: Fleet, tmp_path: Path) -> None:
    scrape_at_server = scrape.at("server")
    assert scrape_at_server(fleet.lab, "", "client1") == "HTTP Error 401: Unauthorized"
    token = fleet.lab.run("server", "cat", "/etc/prometheus/nfsrdma/token").stdout.strip()
    assert "nfsrdma_mount_info" in scrape_at_server(fleet.lab, token, "client1")
    tar = fleet.lab.run("server", "sh", "-c", "tar -C / -c etc/prometheus | base64").stdout
    subprocess.run(("tar", "-x"), input=base64.b64decode(tar), cwd=tmp_path, check=True)
    config = tmp_path / "etc/prometheus/prometheus.yml"
    config.write_text(config.read_text().replace("/etc/", f"{tmp_path}/etc/"))
    subprocess.run((prometheus() / "promtool", "check", "config", config), check=True)
    (targets,) = json.loads((config.parent / "nfsrdma/targets.json").read_text())
    assert sorted(targets["targets"]) == [f"{n}:29949" for n in sorted(fleet.lab.config.nodes)]


def test_a_busy_mount_is_reported_and_kept(fleet: Fleet) -> None:
    lab = fleet.lab
    lab.run(
        "client1", "systemd-run", "--unit=busy", f"--working-directory={MOUNT}", "sleep", "9999"
    )
    mounts = json.dumps(
        {"client_mounts": [{"src": "server:/export", "path": MOUNT, "rsize": 65536}]}
    )
    output = fleet.play("site", "--tags", "client", "-e", mounts, check=False)
    assert "(sleep, working folder)" in output
    figures = recap(output)
    assert {host for host in figures if figures[host]["failed"]} == {"client1"}
    assert {host for host in figures if figures[host]["changed"]} == {"client2", "client3"}
    (mount,) = json.loads(lab.run("client1", PROGRAM, "mounts", "--json").stdout)["mounts"]
    assert mount["rsize"] == 131072
    lab.run("client1", "systemctl", "stop", "busy")
    figures = recap(fleet.play("site", "--tags", "client"))
    assert {host for host in figures if figures[host]["changed"]} == {"client2", "client3"}


def test_an_unreachable_host_does_not_stop_the_others(fleet: Fleet) -> None:
    gone = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_args": ""}
    inventory = json.dumps({"nfsrdma_clients": {"hosts": {"gone": gone}}})
    (fleet.folder / "gone.json").write_text(inventory)
    figures = recap(fleet.play("verify", "-i", str(fleet.folder / "gone.json"), check=False))
    assert figures["gone"]["unreachable"] == 1
    assert all(not row["failed"] and not row["changed"] for row in figures.values())
    assert all(figures[host]["ok"] > 3 for host in fleet.lab.config.client_nodes)


def test_a_sweep_on_several_clients_is_resumed_and_reported(fleet: Fleet) -> None:
    # NFSv3 also needs the ports of rpcbind and mountd
    one_cell = "--vers 4.2 --transport rdma --rsize 128k --read-ahead 4 --runs 2 --no-probes"
    variables = {
        "sweep_target": "server:/export",
        "sweep_mode": "at_once",
        "sweep_file_size": "96M",
        "sweep_beat": 120,
        "sweep_options": one_cell.split(),
        "sweep_reporter": REPORTER,
    }
    words = ("-e", json.dumps(variables))
    measures = "until grep ' nfs4* ' /proc/mounts | grep -v /mnt/fleet; do sleep 1; done"
    fleet.cut("sweep", "Sweep", *words, seen=("client1", "sh", "-c", measures))
    fleet.play("sweep", *words)
    unchanged(fleet.play("sweep", *words), fleet.lab.config.client_nodes)
    store = fleet.folder / "sweeps/first/all.db"
    argv = (REPORTER, "report", store, "--json")
    report = json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)
    assert {host["host"] for host in report["fleet"]["hosts"]} == set(fleet.lab.config.client_nodes)
    assert {row["clients"] for row in report["fleet"]["at_once"]} == {1, 2, 3}
    assert all(row["server"] for row in report["fleet"]["at_once"])


def test_site_keeps_what_tune_applied(fleet: Fleet) -> None:
    hosts = fleet.lab.config.client_nodes
    fleet.lab.run("client1", "dd", "if=/dev/zero", f"of={MOUNT}/big.bin", "bs=1M", "count=16")
    variables = {
        "tune_store": "sweeps/first/all.db",
        "tune_file": "big.bin",
        "sweep_reporter": REPORTER,
    }
    words = ("-e", json.dumps(variables))
    worse = (*words, "-e", '{"tune_slower": true}', "--limit", "localhost,client1")
    assert "s after: reverted" in fleet.play("tune", *worse)
    output = fleet.play("tune", *words, "--limit", "localhost,client1")
    assert "set tune_again to try it again" in output
    unchanged(output, ("client1",))
    output = fleet.play("tune", *words, "-e", '{"tune_again": true}')
    outcomes = dict(
        re.findall(r"(client.): [0-9.]+ s before, [0-9.]+ s after: (kept|reverted)", output)
    )
    assert set(outcomes) == set(hosts)
    # a host where other load made the read slower is skipped, too
    unchanged(fleet.play("tune", *words), hosts)
    unchanged(fleet.play("site"), hosts)
    fleet.lab.run("client1", "rm", f"{MOUNT}/big.bin")


def test_rollback_restores_the_hosts(fleet: Fleet, before: dict[str, list[str]]) -> None:
    hosts = fleet.lab.config.nodes
    fleet.cut("rollback", "nfsrdma.tools.client : Unmount, and remove the definitions")
    fleet.play("rollback")
    unchanged(fleet.play("rollback"), hosts)
    for node in hosts:
        differences = list(unified_diff(before[node], fleet.look(node), lineterm="", n=0))
        assert differences == []
