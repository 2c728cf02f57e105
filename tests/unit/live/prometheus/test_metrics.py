# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics: names, sums, series and collectors."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml
from lab.whole.test_container import HOST, IMAGE, PATHS
from prometheus_client.parser import text_string_to_metric_families
from unit.live.snapshots_made import (
    HOSTILE,
    a_thousand_clients,
    changed,
    hostile,
    mount,
    personality,
    served,
    served_threadless,
    snapshot,
    xprt,
)

from nfsrdma_tools import __version__
from nfsrdma_tools.cli.main import app
from nfsrdma_tools.live.collect.probe_statistics import SETS
from nfsrdma_tools.live.prometheus.families import COLLECTORS, FAMILIES, NAMES
from nfsrdma_tools.live.prometheus.families import COLUMNS as XPRT_COLUMNS
from nfsrdma_tools.live.prometheus.metrics import Metrics
from nfsrdma_tools.live.snapshot import Ahead, Event, Mount, Processors, Snapshot, Waiting
from nfsrdma_tools.probes import probe_sets
from nfsrdma_tools.probes.maps import IDLE

# of families.py: messages, objects, or bytes
UNITS = ("RPC", "Segments", "Bytes", "Calls", "Replies", "Memory", "Times")
IDLE_INTERVALS = int(IDLE)
ROOT = Path(__file__).parents[4]
DOCS, MONITORING = ROOT / "docs", ROOT / "playbooks/monitoring"


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = metrics.text()[0].decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(*snapshots: Snapshot, **options: Any) -> Metrics:
    """Metrics that these snapshots were added to."""
    metrics = Metrics(**options)
    for each in snapshots:
        metrics.add(each)
    return metrics


def value(metrics: Metrics, name: str, **labels: str) -> float:
    all_labels = (
        {"mount": "/mnt", "transport": "rdma", **labels} if name.startswith(MOUNTS) else labels
    )
    return samples(metrics)[name, frozenset(all_labels.items())]


MOUNTS = ("nfsrdma_mount", "nfsrdma_rpc", "nfsrdma_chunk", "nfsrdma_mess", "nfsrdma_regi",
          "nfsrdma_read")  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_names_follow_prometheus_conventions(name: str) -> None:
    family = FAMILIES[name]
    assert re.fullmatch(r"nfsrdma_[a-z_]+", name)
    assert (family.kind == "counter") == name.endswith("_total")
    if family.kind == "histogram":
        assert name.endswith(("_seconds", "_bytes"))
    assert family.help.endswith(".")
    assert not re.search(r"_(ms|us|ns|kb)(_|$)", name)


@pytest.mark.parametrize("column", XPRT_COLUMNS)
def test_the_help_of_a_column_says_what_it_counts(column: str) -> None:
    name, text = XPRT_COLUMNS[column]
    assert text.split()[0] in UNITS, "begins with the unit: what is counted"
    assert ("_bytes" in f"_{name}") <= text.startswith("Bytes ")
    assert FAMILIES[f"nfsrdma_xprt_{name}_total"].help.endswith(f"(mountstats: {column}).")


def test_counters_add_up() -> None:
    metrics = of(*(snapshot(number, server=served()) for number in (1, 2, 3)))
    assert value(metrics, "nfsrdma_rpc_requests_total", op="READ") == 300
    assert value(metrics, "nfsrdma_rpc_response_seconds_total", op="READ") == pytest.approx(0.6)
    assert value(metrics, "nfsrdma_mount_read_bytes_total") == 3 * 6553600
    connection = {"xprt": "3", "transport": "rdma"}
    assert value(metrics, "nfsrdma_xprt_write_segments_total", **connection) == 300
    assert value(metrics, "nfsrdma_xprt_credits", **connection) == 64
    assert value(metrics, "nfsrdma_server_calls_total") == 135
    labels = {"client": "10.9.1.11", "op": "READ"}
    assert value(metrics, "nfsrdma_server_client_calls_total", **labels) == 120
    assert value(metrics, "nfsrdma_server_client_sends_total", **labels) == 0
    assert value(metrics, "nfsrdma_sampler_snapshots_total") == 3


def test_a_personality_is_exported_of_its_connection() -> None:
    own = {"xprts": (xprt(personality=personality()),)}
    metrics = of(changed(1, **own), changed(2, **own), snapshot(3, server=served()))
    metrics.add(changed(4, transport="nfsrdma", **own))
    labels = {"xprt": "3", "transport": "nfsrdma"}
    assert value(metrics, "nfsrdma_xprt_personality_info", personality="pre-posted", **labels) == 1
    figures = {"lanes": 4, "cache_hits_total": 7, "optimistic_reads_total": 7,
               "optimistic_paused": 4}  # fmt: skip
    assert {name: value(metrics, f"nfsrdma_xprt_{name}", **labels) for name in figures} == figures


def test_memory_that_clients_may_read_is_exported() -> None:
    metrics = of(snapshot(1, server=served()))
    figures = {"exposed_bytes": 131072, "dones_outstanding": 2, "lanes": 16,
               "granted_bytes": 3145728, "grants_total": 5}  # fmt: skip
    assert {name: value(metrics, f"nfsrdma_server_{name}") for name in figures} == figures
    assert value(metrics, "nfsrdma_server_revocations_total", reason="modified") == 2
    # another module's server has none of them
    metrics.add(snapshot(2, server=replace(served(), exposed=None, lanes=None)))
    names = {name for name, _ in samples(metrics)}
    assert "nfsrdma_server_dones_outstanding" in names
    assert not names & {"nfsrdma_server_exposed_bytes", "nfsrdma_server_lanes"}


def test_threadless_reads_are_exported_beside_nfsds_counts() -> None:
    metrics = of(*(snapshot(number, server=served_threadless()) for number in (1, 2)))
    figures = {"threadless_reads_total": 60, "threadless_read_bytes_total": 245760,
               "calls_total": 90, "read_bytes_total": 5242880}  # fmt: skip
    assert {name: value(metrics, f"nfsrdma_server_{name}") for name in figures} == figures
    assert value(metrics, "nfsrdma_server_threadless_missed_total", reason="absent") == 4


def test_a_connection_is_exported_once_however_many_mounts_share_it() -> None:
    """NFSv4 mounts of a server share its connections; mount_xprt_info has the users of each."""
    shared = (xprt(number=3, connects=1), xprt(number=4))
    mounts = (
        mount("/a", nconnect=2, xprts=shared),
        mount("/b", nconnect=2, device="0:46", xprts=shared),
        # the kernel reported no numbers of their connections
        mount("/c", device="0:47", xprts=(xprt(number=-1),)),
        mount("/d", device="0:48", xprts=(xprt(number=-1),)),
    )
    sampled = samples(of(snapshot(1, mounts), snapshot(2, mounts)))

    def series(name: str) -> dict[str, float]:
        return {dict(labels)["xprt"]: n for (each, labels), n in sampled.items() if each == name}

    assert series("nfsrdma_xprt_connects_total") == {"3": 2, "4": 0, "0:47 0": 0, "0:48 0": 0}
    assert series("nfsrdma_xprt_sends_total") == dict.fromkeys(("3", "4", "0:47 0", "0:48 0"), 210)
    for name in ("connected", "credits", "credits_used", "requests", "info"):
        assert set(series(f"nfsrdma_xprt_{name}")) == {"3", "4", "0:47 0", "0:48 0"}
    labels = [set(labels) for name, labels in sampled if name == "nfsrdma_mount_xprt_info"]
    users = sorted((dict(each)["xprt"], dict(each)["mount"]) for each in labels)
    assert users == [("0:47 0", "/c"), ("0:48 0", "/d"), ("3", "/a"), ("3", "/b"), ("4", "/a"),
                     ("4", "/b")]  # fmt: skip


def test_histograms_are_histograms() -> None:
    metrics = of(snapshot(server=served()), snapshot())
    sampled = samples(metrics)
    own = {"mount": "/mnt", "transport": "rdma", "op": "READ"}
    buckets = sorted(
        (float(dict(labels)["le"]), count)
        for (name, labels), count in sampled.items()
        if name == "nfsrdma_rpc_duration_seconds_bucket"
    )
    counts = [count for _, count in buckets]
    assert counts == sorted(counts)
    assert buckets[-1] == (float("inf"), 200)
    assert sampled["nfsrdma_rpc_duration_seconds_count", frozenset(own.items())] == 200
    assert value(metrics, "nfsrdma_rpc_duration_seconds_sum", op="READ") == pytest.approx(0.4)
    # slot 40 begins at 2^21 ns: all but the five of slot 52 are below 2^22
    assert dict(buckets)[4194304e-9] == 190


def test_layers_are_counted_once() -> None:
    first, labels = snapshot(), {"layer": "nfs", "side": "client"}
    fresh = snapshot(2, processors=fresh_layers(first))
    metrics = of(first, fresh, first)
    assert value(metrics, "nfsrdma_cpu_layer_seconds_total", **labels) == 1.0


def fresh_layers(taken: Snapshot) -> Processors:
    return replace(taken.processors, wall_ns=1, busy_ns=1, layers_ns=1, fresh=True)


def test_series_of_an_unmounted_mount_disappear() -> None:
    metrics = of(hostile())
    assert any(dict(labels).get("mount", "").startswith("/mnt/<") for _, labels in samples(metrics))
    metrics.add(snapshot(2))
    left = {name for name, labels in samples(metrics) if "<script>" in str(sorted(labels))}
    # its events happened nevertheless
    assert left == {"nfsrdma_events_total"}
    assert value(metrics, "nfsrdma_rpc_requests_total", op="READ") == 200


def test_a_mount_with_another_transport_has_no_old_label() -> None:
    """After unmounting and mounting by TCP within an interval, for example."""
    metrics = of(snapshot(), snapshot(2, (replace(mount(), transport="tcp"),)))
    assert {dict(labels).get("transport") for _, labels in samples(metrics)} == {None, "tcp"}
    assert value(metrics, "nfsrdma_rpc_requests_total", op="READ", transport="tcp") == 100


def serving(number: int, *peers: str, seconds: float = 1.0) -> Snapshot:
    """Clients with these addresses sent Calls, and one event concerned each of them."""
    (row,) = served().clients
    rows = tuple(replace(row, peer=peer) for peer in peers)
    events = tuple(Event(1e9, "accept", peer, "done") for peer in peers)
    there = replace(served(), clients=rows)
    return replace(snapshot(number, events=events), server=there, seconds=seconds)


def of_clients(metrics: Metrics) -> set[str]:
    clients = {
        dict(labels).get("client") or dict(labels).get("where") for _, labels in samples(metrics)
    }
    return {each for each in clients if each and each.startswith("10.")}


def test_series_of_a_thousand_clients_have_room() -> None:
    """Each has some for each procedure; the histograms of Call times are those of all clients."""
    (row,) = served().clients
    metrics = of(a_thousand_clients())
    assert len(of_clients(metrics)) == 1000
    assert value(metrics, "nfsrdma_series_dropped_total") == 0
    assert 40_000 <= len(samples(metrics)) < 41_000
    name = "nfsrdma_server_call_duration_seconds_count"
    assert value(metrics, name, op="READ") == 1000 * sum(count for _, count in row.times)


def test_series_of_idle_clients_end() -> None:
    metrics, steady = Metrics(), "10.9.9.9"
    peers = [f"10.9.{n // 250}.{n % 250}" for n in range(1000)]
    for number, peer in enumerate(peers):
        metrics.add(serving(number, peer, steady))
    assert of_clients(metrics) == {steady, *peers[-IDLE_INTERVALS:]}
    for step in range(3):
        metrics.add(serving(1000 + step, steady, seconds=IDLE_INTERVALS / 2))
    assert of_clients(metrics) == {steady}
    calls = value(metrics, "nfsrdma_server_client_calls_total", client=steady, op="READ")
    assert calls == 40 * 1003
    # a client that comes back begins at 0
    metrics.add(serving(2000, peers[0]))
    assert value(metrics, "nfsrdma_server_client_calls_total", client=peers[0], op="READ") == 40
    assert metrics._counted["client"].keys() == {(steady,), (peers[0],)}


def test_hostile_names_are_valid_labels() -> None:
    metrics = of(hostile())
    shown = HOSTILE.encode("utf-8", "backslashreplace").decode()
    labels = frozenset({"mount": shown, "transport": "rdma"}.items())
    assert samples(metrics)["nfsrdma_mount_read_bytes_total", labels] == 6553600
    assert metrics.text("application/openmetrics-text")[0].endswith(b"# EOF\n")


def total(metrics: Metrics) -> int:
    """The series of collectors."""
    prefixes = tuple(name for name, family in FAMILIES.items() if family.collector)
    return sum(name.startswith(prefixes) for name, _ in samples(metrics))


def test_a_label_has_a_longest_length_and_stays_unique() -> None:
    """A path has up to 4095 bytes: /var/lib/kubelet/pods/UID/volumes/... for example."""
    # two bytes of UTF-8 each
    begin = "/mnt/" + "\N{GREEK SMALL LETTER PI}" * 200
    paths = [f"{begin}/{end}" for end in ("a", "b")]
    metrics = of(snapshot(1, tuple(mount(p, device=f"0:{n}") for n, p in enumerate(paths))))
    directories = {dict(labels)["mount"] for name, labels in samples(metrics)
                   if name == "nfsrdma_mount_info"}  # fmt: skip
    assert len(directories) == 2
    assert all(len(label.encode()) <= 255 for label in directories)
    assert all(label.startswith(begin[:100]) for label in directories)
    # and they end with their mount
    metrics.add(snapshot(2, (mount("/" + "x" * 254),)))
    assert {dict(labels).get("mount") for _, labels in samples(metrics)} == {None, "/" + "x" * 254}


def crowd(count: int) -> tuple[Mount, ...]:
    return tuple(mount(f"/mnt/{n:03}", device=f"0:{n}", xprts=(xprt(number=n),))
                 for n in range(count))  # fmt: skip


def test_the_number_of_series_is_bounded() -> None:
    taken = [snapshot(number, crowd(200)) for number in range(3)]
    free, metrics = of(*taken), of(*taken, most=3000)
    assert total(free) > 10_000
    assert total(metrics) <= 3000
    assert value(free, "nfsrdma_series_dropped_total") == 0
    dropped = value(metrics, "nfsrdma_series_dropped_total")
    assert dropped > 1000
    metrics.add(snapshot(4, crowd(200)))
    assert value(metrics, "nfsrdma_series_dropped_total") > dropped
    # what describes the exporter is always there
    assert value(metrics, "nfsrdma_sampler_snapshots_total") == 4


def test_state_has_precedence_over_counters() -> None:
    metrics = of(snapshot(1, crowd(100)), most=7000)
    sampled = samples(metrics)
    assert sum(name == "nfsrdma_mount_info" for name, _ in sampled) == 100
    assert sum(name == "nfsrdma_xprt_connected" for name, _ in sampled) == 100
    assert total(metrics) <= 7000
    assert value(metrics, "nfsrdma_series_dropped_total") > 0


def test_series_that_ended_make_room() -> None:
    metrics = of(snapshot(1, crowd(5)), most=400)
    assert value(metrics, "nfsrdma_series_dropped_total") > 0
    metrics.add(snapshot(2))
    before = value(metrics, "nfsrdma_series_dropped_total")
    metrics.add(snapshot(3))
    assert value(metrics, "nfsrdma_series_dropped_total") == before
    assert value(metrics, "nfsrdma_rpc_requests_total", op="READ") == 200
    assert metrics._counting == total(metrics) - len(
        [series for series in metrics._of_snapshot(snapshot(3)) if FAMILIES[series[0]].collector]
    )


def test_a_hostile_server_makes_no_more_series_than_allowed() -> None:
    """Each event names another address, and each client another procedure."""
    many = ((number, [f"10.9.{number}.{n}" for n in range(50)]) for number in range(50))
    metrics = of(*(serving(number, *peers, seconds=0.01) for number, peers in many), most=1000)
    assert total(metrics) <= 1000


def whole() -> Snapshot:
    """A snapshot with counts for every metric."""
    counters = dict.fromkeys(
        ("sends", "recvs", "bad_xids", "read_chunk_count", "write_chunk_count", "reply_chunk_count",
         "total_rdma_request", "total_rdma_reply", "pullup_copy_count", "fixup_copy_count",
         "hardway_register_count", "failed_marshal_count", "bad_reply_count", "nomsg_call_count",
         "mrs_recycled", "mrs_orphaned", "mrs_allocated", "local_inv_needed", "empty_sendctx_q",
         "reply_waits_for_send"), 1,
    )  # fmt: skip
    full = changed(
        1, xprts=(xprt(counters=counters, personality=personality()),), asked="tcp",
        ahead=Ahead({"used": 3}), waiting=(Waiting("READ", 7, "xprt_pending", 1, 1),),
    )  # fmt: skip
    more = {"server": served_threadless(), "events": (Event(1, "stall", "/mnt", "x"),),
            "missing": {"a": "b"}, "lost": {"rpcs": 2}}  # fmt: skip
    return snapshot(1, full.mounts, processors=fresh_layers(full), **more)


def exported(*collectors: str) -> set[str]:
    """The names of the metrics that these collectors export of a whole snapshot."""
    source = ("/proc/self/mountinfo", "4026531841")
    metrics = of(whole(), collectors=collectors, source=source)
    return set(re.findall(r"^# TYPE (\w+)", metrics.text()[0].decode(), re.MULTILINE))


def test_all_metrics_of_the_table_are_exported() -> None:
    """And none by another name: the Grafana dashboards are checked against this table."""
    assert exported(*NAMES) == set(FAMILIES)


@pytest.mark.parametrize("collector", COLLECTORS)
def test_a_collector_exports_its_metrics_only(collector: str) -> None:
    own = {name for name, family in FAMILIES.items() if family.collector in (collector, "")}
    assert exported(collector) == own
    assert any(FAMILIES[name].collector for name in own)


def test_every_metric_has_a_known_collector_or_describes_the_exporter() -> None:
    assert {family.collector for family in FAMILIES.values()} == {*COLLECTORS, ""}
    always = {name for name, family in FAMILIES.items() if not family.collector}
    assert always == exported()
    assert "nfsrdma_build_info" in always


def test_each_probe_set_of_a_snapshot_has_a_collector() -> None:
    assert set(SETS) <= {*NAMES} & {*probe_sets.NAMES}


def test_build_info_has_the_version_before_the_first_snapshot() -> None:
    ((name, labels),) = samples(Metrics())
    assert (name, dict(labels)["version"]) == ("nfsrdma_build_info", __version__)


@pytest.mark.parametrize("file", ["grafana-client.json", "grafana-server.json", "rules.yml"])
def test_dashboards_and_alerts_use_existing_metrics(file: str) -> None:
    text = (MONITORING / file).read_text()
    asked = set(re.findall(r"\bnfsrdma_[a-z_]+", text))
    assert asked
    for name in asked:
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        known = FAMILIES.get(name) or FAMILIES.get(family)
        assert known, name
        assert known.kind == "histogram" or name in FAMILIES


def test_each_alert_is_tested_with_and_without_its_fault() -> None:
    """promtool runs the tests in a lab."""
    rules = yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"][0]["rules"]
    tests = yaml.safe_load((MONITORING / "rules-test.yml").read_text())["tests"]
    rows = [row for test in tests for row in test["alert_rule_test"]]
    fired = {row["alertname"] for row in rows if row["exp_alerts"]}
    assert fired == {rule["alert"] for rule in rules}
    page = (MONITORING.parents[1] / "docs/how-to/exporter.md").read_text()
    assert all(f"| {name} |" in page for name in fired)
    (job,) = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["scrape_configs"]
    assert all(name == job["job_name"] for name in re.findall(r'job="(\w+)"', str(rules)))
    # one series of the tests is that of a port that nobody uses
    ports = [series for test in tests for series in test["input_series"]
             if series["series"].startswith("nfsrdma_port_active")]  # fmt: skip
    assert any(set(series["values"]) <= set("0x4") for series in ports)


VOLUME = "/var/lib/kubelet/pods/4b1f/volumes/kubernetes.io~csi/scratch/mount"


def test_the_rules_of_the_page_select_mounts_over_tcp() -> None:
    text = (MONITORING.parents[1] / "docs/how-to/rdma-in-use.md").read_text()
    (block,) = re.findall(r"```yaml\n(groups:.*?)```", text, re.DOTALL)
    rules = yaml.safe_load(block)["groups"][0]["rules"]
    mounts = (
        mount(VOLUME, device="0:1", target="other:/x", transport="tcp"),
        mount(VOLUME.replace("scratch", "fast"), device="0:2"),
        mount("/home/anna", device="0:3", target="other:/home/anna", transport="tcp"),
        mount("/mnt/data", device="0:4", transport="tcp"),
        mount("/mnt/other", device="0:5", target="other:/y", transport="tcp"),
    )
    metrics = of(snapshot(mounts=mounts))
    assert {rule["alert"]: selected(rule["expr"], metrics) for rule in rules} == {
        "VolumeOverTcp": {"/mnt/data"},
        "PathOverTcp": {VOLUME, "/home/anna"},
    }


def selected(expression: str, metrics: Metrics) -> set[str]:
    """The mounts of the series that a selector matches; regular expressions match a whole value."""
    match = re.fullmatch(r"(\w+)\{(.+)\} == 1", expression)
    assert match
    wanted = re.findall(r'(\w+)(=~?)"([^"]*)"', match[2])
    return {
        labels["mount"]
        for (name, pairs), value in samples(metrics).items()
        if name == match[1] and value == 1
        for labels in [dict(pairs)]
        if all(
            re.fullmatch(pattern if operation == "=~" else re.escape(pattern), labels[label])
            for label, operation, pattern in wanted
        )
    }


def test_the_manifest_of_kubernetes_names_options_and_folders_that_exist() -> None:
    (document,) = yaml.safe_load_all((MONITORING / "daemonset.yml").read_text())
    pod = document["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    exporter: Any = typer.main.get_command(app)
    options = {
        name for each in exporter.commands["exporter"].params
        for name in (*each.opts, *each.secondary_opts)
    }  # fmt: skip
    command, *words = container["args"]
    assert command == "exporter"
    given = dict(word.partition("=")[::2] for word in words)
    assert given.keys() <= options
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    hosts = {each["name"]: each.get("hostPath", {}).get("path") for each in pod["volumes"]}
    for option, path in (("procfs", "/proc"), ("sysfs", "/sys"), ("rootfs", "/")):
        mount_ = mounts[given[f"--path.{option}"]]
        assert (hosts[mount_["name"]], mount_["readOnly"]) == (path, True)
    assert str(Path(given["--token"]).parent) in mounts
    assert {each["name"] for each in container["volumeMounts"]} == hosts.keys()
    selector = document["spec"]["selector"]["matchLabels"]
    assert selector == document["spec"]["template"]["metadata"]["labels"]
    port = int(given["--web.listen-address"].rpartition(":")[2])
    assert [each["containerPort"] for each in container["ports"]] == [port]
    security = container["securityContext"]
    assert "--no-probes" not in given and not security["privileged"]
    # probes read the identifiers of events there
    assert hosts[mounts["/sys/kernel/tracing"]["name"]] == "/sys/kernel/tracing"
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    # Kubernetes documents it as always true with SYS_ADMIN
    assert "SYS_ADMIN" in security["capabilities"]["add"]
    assert "allowPrivilegeEscalation" not in security


def mounts_of_the_manifest() -> dict[str, Any]:
    (document,) = yaml.safe_load_all((MONITORING / "daemonset.yml").read_text())
    (container,) = document["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each for each in container["volumeMounts"]}


def test_mounts_of_the_manifest_are_read_only_as_far_as_kubernetes_permits() -> None:
    """With a propagation, the API server refuses ``recursiveReadOnly``; the schema does not."""
    mounts = mounts_of_the_manifest()
    assert all(each["readOnly"] for each in mounts.values())
    for name in ("proc", "sys"):
        assert mounts[name]["recursiveReadOnly"] == "IfPossible"
        assert "mountPropagation" not in mounts[name]
    assert mounts["root"]["mountPropagation"] == "HostToContainer"
    assert "recursiveReadOnly" not in mounts["root"]


def test_the_page_has_the_mounts_of_the_manifest() -> None:
    mounts = mounts_of_the_manifest()
    text = (DOCS / "how-to/exporter.md").read_text()
    (block,) = re.findall(r"^```yaml\n(    containers:\n.*?)^```$", text, re.M | re.S)
    (shown,) = yaml.safe_load(block)["containers"]
    assert {each["name"] for each in shown["volumeMounts"]} == {"proc", "sys", "root"}
    assert all(each == mounts[each["name"]] for each in shown["volumeMounts"])
    # without probes it has no capability, so that Kubernetes permits this
    assert "--no-probes" in shown["args"]
    security = shown["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False


def test_the_command_for_podman_is_the_one_that_the_lab_runs() -> None:
    text = (DOCS / "how-to/doctor.md").read_text()
    (line,) = re.findall(r"^# podman run (.*)$", text, re.M)
    assert line == f"{HOST} --cap-drop ALL {IMAGE} doctor {PATHS}"


@pytest.mark.parametrize("release", ["1.30", "1.33", "1.37"])
def test_the_schema_of_kubernetes_accepts_the_manifest_and_refuses_a_wrong_one(
    release: str,
) -> None:
    text = (MONITORING / "daemonset.yml").read_text()
    kubernetes_validate.validate(yaml.safe_load(text), release, strict=True)
    wrong = yaml.safe_load(text.replace("readOnlyRootFilesystem", "readOnlyRootFileSystem"))
    with pytest.raises(kubernetes_validate.ValidationError, match="readOnlyRootFileSystem"):
        kubernetes_validate.validate(wrong, release, strict=True)


@pytest.mark.parametrize("file", ["grafana-client.json", "grafana-server.json"])
def test_grafana_dashboards_are_complete(file: str) -> None:
    board = json.loads((MONITORING / file).read_text())
    names = {each["name"] for each in board["templating"]["list"]}
    asked = set(re.findall(r"\$\{?([a-z]+)", json.dumps(board))) - {"__rate_interval"}
    assert asked <= names
    ids = {panel["id"] for panel in board["panels"]}
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]}
    assert len(ids) == len(places) == len(board["panels"]) > 5
    assert all(p["targets"] and p["title"] for p in board["panels"])
