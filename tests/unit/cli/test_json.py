# SPDX-License-Identifier: Apache-2.0
"""The exact keys of each JSON document that a command prints, beside the documents' version.

If a test here fails, a key was renamed, removed or added.  Rename a field only if you raise
SCHEMA_VERSION, because scripts read the documents.  Snapshots have theirs in test_live_json.py.
"""

import json
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import typer
from unit.sweep.trials_made import trial_of

from nfsrdma_tools.cli import (
    doctor,
    explain,
    health,
    lab,
    link,
    load,
    module,
    mount,
    results,
    server,
    size,
    tune,
)
from nfsrdma_tools.cli.output import SCHEMA_VERSION, print_line
from nfsrdma_tools.cli.trace import JsonIntervals
from nfsrdma_tools.client import load as client_load
from nfsrdma_tools.client.load import Outcome
from nfsrdma_tools.doctor import checks
from nfsrdma_tools.doctor.finding import Finding
from nfsrdma_tools.host.kernel_log import explain as kernel_log
from nfsrdma_tools.host.kernel_log import sources
from nfsrdma_tools.host.kernel_log.explain import Explanation
from nfsrdma_tools.host.module import status as module_status
from nfsrdma_tools.host.module.status import Status
from nfsrdma_tools.host.nfs import mount_state, mounting, mounts
from nfsrdma_tools.host.nfs.mount_state import MountState
from nfsrdma_tools.host.nfsd import serving
from nfsrdma_tools.host.nfsd.serving import Serving
from nfsrdma_tools.host.rdma import nldev
from nfsrdma_tools.host.rdma.ports import Link
from nfsrdma_tools.host.tune import tuning
from nfsrdma_tools.host.tune.tuning import TuneState
from nfsrdma_tools.lab import client_library, image, kernels, nodes, paths, qemu
from nfsrdma_tools.lab import lab as life_cycle
from nfsrdma_tools.lab.config import LabConfig
from nfsrdma_tools.live.health import check
from nfsrdma_tools.live.health.verdicts import Report, Verdict
from nfsrdma_tools.probes.intervals import Cost, Interval
from nfsrdma_tools.probes.maps import Losses
from nfsrdma_tools.sweep import progress
from nfsrdma_tools.sweep.plan import Plan
from nfsrdma_tools.sweep.store import Store, Trial

PATCH = pytest.MonkeyPatch
PLAIN = {str: "x", int: 1, float: 1.0, bool: True, Path: Path("/x"), Any: "x", object: "x"}


def filled(kind: Any) -> Any:
    """A value of a type in which no list, mapping or optional value is empty."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if origin in (Union, types.UnionType):
        return filled(next(member for member in inner if member is not type(None)))
    if origin is Literal:
        return inner[0]
    if origin is tuple:
        return tuple(filled(member) for member in inner if member is not ...)
    if origin in (dict, Mapping):
        return {"x": filled(inner[1])}
    # a dataclass or a named tuple
    hints = get_type_hints(kind)
    return kind(**{name: filled(hint) for name, hint in hints.items()})


def shape(value: Any) -> str:
    """The sorted keys of a document; those of a value, or of a list's first, in parentheses."""
    words = []
    for key, entry in sorted(value.items()):
        first = entry[0] if isinstance(entry, list) and entry else entry
        words.append(f"{key}({shape(first)})" if isinstance(first, dict) else key)
    return " ".join(words)


# all keys of the class, so that a new one changes the document
STATE: dict[str, Any] = {**filled(nodes.LabState), "config": LabConfig("x").to_dict()}


def show_findings(patch: PATCH, _: Path) -> None:
    patch.setattr(checks, "examine", lambda _: [filled(Finding)])
    doctor.doctor(as_json=True)


def show_messages(patch: PATCH, _: Path) -> None:
    patch.setattr(sources, "boot_log", list)
    patch.setattr(kernel_log, "read_log", lambda _: kernel_log.Log([filled(Explanation)], 1, True))
    explain.explain(as_json=True)


def show_kernel(_patch: PATCH, _: Path) -> None:
    explain.explain(kernel=True, sources=["6.12.1"], as_json=True)


def show_whether_it_has(_patch: PATCH, _: Path) -> None:
    explain.explain(commit="4836da219781", sources=["6.12.1"], as_json=True)


def check_health(patch: PATCH, _: Path) -> None:
    report = Report(0, [filled(Verdict)], ["x"])
    outcome = check.Outcome(0, [], check.to_plain(report))
    patch.setattr(check, "run", lambda *_: outcome)
    with pytest.raises(typer.Exit):
        health.health(as_json=True)


def show_mounts(patch: PATCH, _: Path) -> None:
    patch.setattr(mount_state, "states", lambda _: [filled(MountState)])
    mount.mounts(as_json=True)


def check_mounts(patch: PATCH, _: Path) -> None:
    patch.setattr(mounts, "mounts", lambda _: [filled(MountState).mount])
    with pytest.raises(SystemExit):
        mount.mounts(require=["transport=tcp"], as_json=True)


def make_mount(patch: PATCH, _: Path) -> None:
    patch.setattr(mounting, "mount", lambda *_: filled(MountState))
    mount.mount("s:/e", "/mnt", as_json=True)


def show_module(patch: PATCH, _: Path) -> None:
    patch.setattr(module_status, "status", lambda: filled(Status))
    module.status(as_json=True)


def show_tuned(patch: PATCH, _: Path) -> None:
    patch.setattr(tuning, "show", lambda: [filled(TuneState)])
    tune.show(as_json=True)


def show_server(patch: PATCH, _: Path) -> None:
    patch.setattr(serving, "serving", lambda _: filled(Serving))
    server.status(as_json=True)


def show_links(patch: PATCH, _: Path) -> None:
    patch.setattr(nldev, "links", lambda: [filled(Link)])
    patch.setattr(nldev, "resources", lambda: {"x": {"qp": 1}})
    patch.setattr(nldev, "statistics", lambda _: {"sent": 1})
    link.show(as_json=True)


def put_load(patch: PATCH, _: Path) -> None:
    patch.setattr(client_load, "load", lambda *_: filled(Outcome)._replace(interrupted=False))
    with pytest.raises(typer.Exit):
        load.load("s:/e", mix="read=3,write=1", as_json=True)


def compute_size(_patch: PATCH, _: Path) -> None:
    size.size(clients=2, as_json=True)


def show_labs(patch: PATCH, folder: Path) -> None:
    (folder / "x.lock").touch()
    patch.setattr(paths, "labs_dir", lambda: folder)
    patch.setattr(nodes, "read_state", lambda _: STATE)
    patch.setattr(nodes, "kvm_works", lambda: True)
    patch.setattr(image, "find", lambda **_: None)
    lab.status(as_json=True)


def start_lab(patch: PATCH, _: Path) -> None:
    patch.setattr(life_cycle, "up", lambda *_: STATE)
    lab.up("x", as_json=True)


def build_lab(patch: PATCH, folder: Path) -> None:
    patch.setattr(qemu, "fetch", lambda *_: None)
    patch.setattr(kernels, "build", lambda *_: None)
    # it compiles what the cache of this machine lacks
    patch.setattr(client_library, "build", lambda *_: None)
    patch.setattr(image, "build", lambda *_: types.SimpleNamespace(folder=folder))
    lab.build(as_json=True)


def clean_labs(patch: PATCH, _: Path) -> None:
    patch.setattr(life_cycle, "clean", lambda: 1 << 20)
    lab.clean(as_json=True)


def show_rows(_: PATCH, __: Path) -> None:
    JsonIntervals().show(Interval([{"x": 1}], filled(Losses), filled(Cost)))


def sweep(folder: Path) -> Path:
    """The store of a sweep with a trial of each cell."""
    plan = Plan("s:/e", transports=("tcp",), uid="p", axes=(("nfsrdma.credits", ("16", "32")),))
    with Store(folder / "s.db") as store:
        store.add_plan(plan)
        for order, cell in enumerate(plan.cells()):
            speed = 1.0 + order
            store.add_trial(trial_of("p", cell, 1, order, throughput=speed, bytes=1, busy_ns=1))
    return folder / "s.db"


def export(_: PATCH, folder: Path) -> None:
    results.export(sweep(folder), as_json=True)


def merge(_: PATCH, folder: Path) -> None:
    results.merge(folder / "all.db", [sweep(folder)], as_json=True)


def compare(_: PATCH, folder: Path) -> None:
    results.compare(sweep(folder), sweep(folder), as_json=True)


def report(_: PATCH, folder: Path) -> None:
    results.report(sweep(folder), as_json=True)


def event(made: Callable[[Plan, Trial], progress.Event]) -> Callable[[PATCH, Path], None]:
    """Print an event as `sweep --json` does."""

    def show(_: PATCH, __: Path) -> None:
        plan = Plan("s:/e", uid="p")
        print_line(progress.to_facts(made(plan, Trial("p", next(iter(plan.cells())), 1, 0))))

    return show


PLAN = (
    "axes block_size depths direct direction directory existing file_size jobs minutes mode "
    "nconnects order preset read_ahead_kbs read_aheads rsizes runs seconds seed target "
    "transports uid verify vers whole_from with_direct"
)
CELL = "as_mounted axes depth direct jobs nconnect read_ahead read_ahead_kb rsize transport"
TRIAL = (
    "axes() began busy_ns bytes bytes_received bytes_sent cache ceiling "
    "cell(as_mounted axes depth direct jobs nconnect read_ahead read_ahead_kb rsize transport) "
    "cpu_modes() cpu_share duration_ns "
    "environment execute_ms file_size harness_ns mount() operations order plan probe_rows() "
    "queue_ms rdma() read_ahead_kb_after read_ahead_kb_before reader_system_s reader_user_s reason "
    "retransmits rpc_counts() rtt_ms run started status steal_s task_ns throughput total_ns "
    "verified wall_ns"
)
SUMMARY = (
    "axes(nfsrdma.credits) cpu_ms_per_mib depth direct highest jobs lowest mb_per_s nconnect "
    "read_ahead rsize runs unstable"
)
MOUNT = (
    "addresses(x) connections device directory figures(x) flags fstype nconnect options(x) "
    "personality proto read_ahead_blocks read_ahead_kb rsize shares_with target transport vers "
    "wsize"
)
MOUNT_AND_MODULE = MOUNT.replace("nconnect", "module module_origin nconnect")
TIMES = "(count max mean min p50 p90 p99 p99_9 p99_99)"
KIND = f"bytes bytes_per_second done failed per_second response_us{TIMES} service_us{TIMES}"
LAB = (
    "accel config(clients clock cpus dma extras kernel kernel_args link memory name nic profile "
    "shape) keys name owner phase report"
)
DOCUMENTS: dict[str, tuple[Callable[[PATCH, Path], None], str]] = {
    "doctor": (show_findings, "findings(expected found name remedy status)"),
    "explain": (
        show_messages,
        "messages(code count doubt example explained fault first last lines meaning name next_step "
        "numbers(meaning name number) process recovers severity source subject where"
        " wording(since since_year until until_year))",
    ),
    "explain --kernel": (
        show_kernel,
        "kernels(base by certain from kind possible_faults reason release source upstream)",
    ),
    "explain --has": (
        show_whether_it_has,
        "answers(from line release section source status text) commit cves subject",
    ),
    "health": (
        check_health,
        "error exit_status findings(address advice age_seconds connection mount "
        "namespace_of_process reason rpc(action client procedure queue task) server status "
        "transport vers volume(name namespace plugin pod pod_uid)) not_seen status",
    ),
    "mounts": (show_mounts, f"mounts({MOUNT_AND_MODULE})"),
    "mounts --require": (
        check_mounts,
        "met mounts(differences(found name required) directory target)",
    ),
    "mount": (make_mount, MOUNT),
    "module status": (
        show_module,
        "built built_srcversion devices(limits name values(x)) installed kernel_too_old "
        "loaded_is_this_source origin ours owner "
        "registered(kernel state version) release server(clients(calls connected credits "
        "dones_outstanding exposed_memory floor granted_memory grants(x) in_use lanes memory "
        "peer personality reason reply_memory) connections connections_max dones_outstanding "
        "exposed_memory floor_max floor_memory floor_sharers granted_max granted_memory lanes "
        "memory memory_max name personalities reply_memory) source source_hash srcversion "
        "transports(counters(x) gauges(x) number personality port requested server) "
        "tunables(about(default high kind low name text) "
        "name value) users version",
    ),
    "tune show": (
        show_tuned,
        "tuned(after before directory file in_effect(read_ahead_kb rsize wsize) pending "
        "read_ahead_kb read_ahead_was_kb rsize shares_with wsize)",
    ),
    "server status": (
        show_server,
        "exports(client options path) io_cache_read io_cache_write listeners(port transport) "
        "max_block_size min_threads other(configured ports program rdma_ports) own "
        "pending(count cut rpcs(age_us client client_port name operations procedure program server "
        "server_port version xid)) "
        "pending_unknown pool_mode pool_threads splice_read "
        "threadless(bytes entries entries_max hits limit missed(x) nfsd_reads reads) threads "
        "versions",
    ),
    "link show": (
        show_links,
        "links(driver firmware index name netdev node_guid node_type physical_state port "
        "protocol resources(qp) state statistics(sent))",
    ),
    "load": (
        put_load,
        "address arrivals "
        f"connections(connect_seconds connect_us{TIMES} connected failed_attempts lost "
        f"outage_us{TIMES} outages reconnects recovery_seconds up) device dropped errors(x) "
        f"fairness(jain least most) interrupted kinds(x({KIND})) late_us{TIMES} left message "
        "mismatch mismatches plan(at_once depth duration_seconds file_size_bytes files in_flight "
        "mix(read write) paths queue rate_per_second seed sequential sessions size_bytes stable "
        "think_seconds timeout_seconds verify warm_up_seconds) resent seconds short target "
        f"total({KIND}) unfinished unsent",
    ),
    "size": (
        compute_size,
        "busy_bytes calls calls_per_thread clients completion_queues connections credits "
        "idle_bytes message_bytes module nconnect queue_pairs soft_queues_bytes threads warnings",
    ),
    "lab status": (show_labs, f"image kvm labs({LAB})"),
    "lab up": (start_lab, LAB),
    "lab build": (build_lab, "image kernel"),
    "lab clean": (clean_labs, "freed_bytes"),
    "trace": (show_rows, "cost(ns runs) lost(credits regions rpcs windows) rows(x) time"),
    "results export": (export, f"environments() plans({PLAN}) trials({TRIAL})"),
    "results merge": (merge, "hosts new plans trials"),
    "results compare": (
        compare,
        f"differences(cell({CELL}) first second) losses(loss recommended({CELL}) transport "
        f"winner({CELL})) median trials",
    ),
    "report": (
        report,
        "as_mounted_today conditions() figures fleet missing page plan "
        f"recommendation(apply best({SUMMARY}) "
        f"cheapest_in_cpu({SUMMARY}) default({SUMMARY}) fstab gain_over_default mount "
        f"other_kind pareto_front({SUMMARY}) tied({SUMMARY}) transport vers) target",
    ),
    "sweep, planned": (
        event(lambda plan, _: progress.Planned(plan, {"x": "1"}, 0, 1)),
        f"done environment(x) event expected plan({PLAN})",
    ),
    "sweep, step": (event(lambda *_: progress.Step("x", 1)), "event seconds what"),
    "sweep, trial": (
        event(lambda _, trial: progress.TrialDone(trial, 1, 1)),
        f"done event expected trial({TRIAL})",
    ),
    "sweep, finished": (event(lambda *_: progress.Finished("p", 1)), "done event plan reason"),
}
"""The command that prints a document, and the document's keys in schema version 1."""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_keys_of_a_document(
    name: str, tmp_path: Path, monkeypatch: PATCH, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NFSRDMA_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    show, keys = DOCUMENTS[name]
    show(monkeypatch, tmp_path)
    document = json.loads(capsys.readouterr().out)
    assert document.pop("schema_version") == SCHEMA_VERSION == 1
    assert shape(document) == keys
