# SPDX-License-Identifier: Apache-2.0
"""The options of dashboard and exporter, and the service that they define."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nfsrdma_tools.cli.main import app
from nfsrdma_tools.live.collect import namespace
from nfsrdma_tools.live.feed import FeedOptions
from nfsrdma_tools.live.prometheus.families import COLLECTORS, MOST_SERIES, NAMES
from nfsrdma_tools.live.web import server
from nfsrdma_tools.live.web.server import Address, Patient, Service
from nfsrdma_tools.probes import probe_sets

Called = list[tuple[FeedOptions, Service]]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Called:
    """The options and services that commands would serve."""
    calls: Called = []

    def serve(options: FeedOptions, service: Service, report: Callable[[str], None]) -> None:
        calls.append((options, service))
        for _ in service.addresses:
            report("http://127.0.0.1:1/")

    monkeypatch.setattr(server, "serve", serve)
    return calls


def typed(*argv: str) -> str:
    """Run a command; its standard error."""
    result = CliRunner().invoke(app, argv, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stderr


def test_by_default_only_loopback_is_served(called: Called) -> None:
    # one line says whose mounts are exported
    assert (
        typed("exporter")
        .splitlines()[0]
        .startswith("nfsrdma: the mounts are those in /proc/self/mountinfo, mount namespace ")
    )
    assert typed("dashboard") == ""
    exporter, dashboard = called
    assert exporter[1].addresses == [Address("127.0.0.1", 29949)]
    assert dashboard[1].addresses == [Address("127.0.0.1", 8949)]
    assert (exporter[1].page, dashboard[1].page) == (False, True)
    assert exporter[0].probe_sets == dashboard[0].probe_sets == probe_sets.NAMES


@pytest.mark.parametrize("command", ["exporter", "dashboard"])
def test_web_options_have_the_names_of_the_exporter_toolkit(
    called: Called, command: str, tmp_path: Path
) -> None:
    listen = ("--web.listen-address", ":1", "--web.listen-address=[::1]:2")
    typed(command, *listen, "--web.config.file", str(tmp_path / "web.yml"), "-i", "2")
    ((options, service),) = called
    assert service.addresses == [Address("", 1), Address("::1", 2)]
    assert service.config == tmp_path / "web.yml"
    assert options.interval == 2


def test_a_collector_can_be_turned_off(called: Called) -> None:
    typed("exporter", "--no-collector.cpu", "--no-collector.rpc", "--collector.mount")
    ((options, service),) = called
    assert set(service.collectors) == set(NAMES) - {"cpu", "rpc"}
    assert set(options.probe_sets) == set(probe_sets.NAMES) - {"cpu"}


def test_without_defaults_only_named_collectors_are_on(called: Called) -> None:
    typed("exporter", "--collector.disable-defaults", "--collector.rpc", "--collector.latency")
    typed("exporter", "--collector.disable-defaults")
    (named, service), (nothing, empty) = called
    assert service.collectors == ("rpc", "latency")
    assert named.probe_sets == ("latency",)
    assert (empty.collectors, nothing.probe_sets) == ((), ())


def test_the_help_lists_every_collector() -> None:
    text = CliRunner().invoke(app, ["exporter", "--help"], terminal_width=200).output
    for name in COLLECTORS:
        assert f"--collector.{name} / --no-collector.{name}" in text


def test_paths_have_the_names_of_node_exporter(called: Called) -> None:
    output = typed(
        "exporter", "--path.procfs=/host/proc", "--path.sysfs=/host/sys", "--path.rootfs=/host/root"
    )
    typed("exporter", "--path.sysfs", "/host/sys", "--max-series", "5000")
    (pod, service), (own, limited) = called
    assert output == (
        "nfsrdma: the mounts are those in /host/proc/1/mountinfo, mount namespace unknown\n"
    )
    machine = pod.machine
    assert str(machine.of_process("mountstats")) == "/host/proc/1/mountstats"
    assert str(machine.path("sys/class/bdi")) == "/host/sys/class/bdi"
    assert str(machine.path("etc/fstab")) == "/host/root/etc/fstab"
    assert (own.machine.process, str(own.machine.path("proc/stat"))) == ("self", "/proc/stat")
    assert (service.max_series, limited.max_series) == (MOST_SERIES, 5000)


@pytest.mark.parametrize(
    ("links", "hint"),
    [
        ({"self/ns/pid": "pid:[4026531836]", "1/ns/mnt": "mnt:[7]"}, False),
        # not allowed to see it
        ({"self/ns/pid": "pid:[4026531836]"}, False),
        ({"self/ns/pid": "pid:[4026532200]", "1/ns/mnt": "mnt:[7]"}, True),
        ({"self/ns/pid": "pid:[4026531836]", "1/ns/mnt": "mnt:[8]"}, True),
    ],
)
def test_in_a_container_the_way_to_the_hosts_mounts_is_said(
    monkeypatch: pytest.MonkeyPatch, links: dict[str, str], hint: bool
) -> None:
    known = {"/proc/self/ns/mnt": "mnt:[7]", **{f"/proc/{k}": v for k, v in links.items()}}
    monkeypatch.setattr(namespace, "_link", lambda path: known.get(str(path), ""))
    text = namespace.described_namespace()
    assert text.startswith("the mounts are those in /proc/self/mountinfo, mount namespace 7")
    assert ("--path.procfs" in text) == hint


def test_the_page_of_the_exporter_has_its_limits() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/exporter.md").read_text()
    limits = f"at most {Patient.most} connections, and a client has {Patient.patience:g} s"
    assert limits in page
