# SPDX-License-Identifier: Apache-2.0
"""The exact keys of each JSON document of a snapshot, beside the document's version.

If a test here fails, a key was renamed, removed or added.  Rename the field only if you raise the
version of the document, because scripts, recordings and pages that are open in browsers read it.
"""

import json
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import pytest
from unit.live.snapshots_made import changed, mount, personality, served_threadless, snapshot, xprt

from nfsrdma_tools.cli.live import top
from nfsrdma_tools.cli.output import SCHEMA_VERSION
from nfsrdma_tools.live import snapshot as classes
from nfsrdma_tools.live import snapshot_json
from nfsrdma_tools.live.snapshot import Ahead, Event, Snapshot, Waiting
from nfsrdma_tools.live.web import broadcast
from nfsrdma_tools.live.web.broadcast import Hub, page_data

SNAPSHOT = {
    "Snapshot": "time seconds number host kernel mounts server processors ports events missing "
    "lost cost_ns links",
    "Mount": "device directory also target fstype transport asked vers rsize wsize nconnect "
    "read_ahead_kb read written direct ops xprts timings chunks regions ahead credit_waits "
    "waiting limit",
    "Op": "name count errors timeouts again sent received queue_ms rtt_ms execute_ms",
    "Xprt": "number kind address states connected credits requests sending pending backlog "
    "connects counters personality",
    "Credits": "granted used",
    "Personality": "name gauges counters",
    "Timing": "procedure count ns phases times",
    "Chunks": "procedure counts sizes",
    "Regions": "counts lifetimes",
    "Ahead": "counts",
    "Waiting": "procedure seconds waits_for client number",
    "Server": "threads listeners read written calls bad_calls clients exposed dones_outstanding "
    "lanes granted grants threadless queued woken disks limit pending held",
    "PendingRpc": "xid program version procedure age_us client client_port server server_port "
    "operations",
    "Disk": "name directory busy in_flight requests",
    "Cpu": "number busy interrupts stolen",
    "Thread": "name process number share cpu kernel devices",
    "Link": "name rate received sent",
    "Client": "peer procedure counts ns phases times",
    "Processors": "cpus wall_ns busy_ns layers_ns layers fresh busiest threads hidden",
    "Layer": "name client server neither",
    "Port": "name netdev state physical",
    "Event": "time kind where what advice severity",
}
"""The keys of schema version 1 (`nfsrdma top --batch --json`) and of recordings of version 1."""
EVENT = Event(1.0, "stall", "/mnt", "READ waits", "look", "error")


def full() -> Snapshot:
    """A snapshot in which no list that the page shows is empty."""
    busy = mount(
        xprts=(xprt(personality=personality()),),
        waiting=(Waiting("READ", 9.0, "xprt_pending", 3, 1),),
        ahead=Ahead({"windows": 1}),
        limit="Idle",
    )
    processors = replace(snapshot().processors, fresh=True)
    missing = {"probes": "none"}
    return snapshot(
        *(1, (busy,)),
        server=replace(served_threadless(), limit="Idle"),
        processors=processors,
        events=(EVENT,),
        missing=missing,
    )


def test_the_versions_of_the_documents() -> None:
    assert (SCHEMA_VERSION, broadcast.SCHEMA_VERSION) == (1, 1)
    assert snapshot_json._FORM == {"nfsrdma snapshots": 1}


@pytest.mark.parametrize("name", SNAPSHOT)
def test_the_fields_of_a_snapshot(name: str) -> None:
    assert [field.name for field in fields(getattr(classes, name))] == SNAPSHOT[name].split()


def test_each_class_of_a_snapshot_is_listed() -> None:
    made = {name for name, value in vars(classes).items() if hasattr(value, "__dataclass_fields__")}
    assert made == set(SNAPSHOT)


def test_top_prints_the_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A field with its default value is left out."""
    recorder = snapshot_json.Recorder(tmp_path / "r")
    recorder.add(full())
    recorder.add(Snapshot(1.0, 2.0))
    recorder.close()
    top(batch=True, count=None, replay=tmp_path / "r", as_json=True)
    whole, empty = map(json.loads, capsys.readouterr().out.splitlines())
    stated = [*SNAPSHOT["Snapshot"].split()]
    # of full() these have their default values
    absent = {"lost", "cost_ns", "links"}
    assert list(whole) == ["schema_version", *(name for name in stated if name not in absent)]
    assert empty == {"schema_version": 1, "time": 1.0, "seconds": 2.0}
    required = [field.name for field in fields(Snapshot)
                if field.default is MISSING and field.default_factory is MISSING]  # fmt: skip
    assert required == ["time", "seconds"]


def keys(value: Any) -> list[str]:
    return sorted(value)


def test_the_last_hour_for_the_page() -> None:
    hub = Hub()
    hub.deliver(full())
    past = json.loads(hub.past())
    assert list(past) == ["schema_version", "frames", "events"]
    assert past["schema_version"] == broadcast.SCHEMA_VERSION
    assert keys(past["events"][0]) == keys(SNAPSHOT["Event"].split())
    (frame,) = past["frames"]
    assert list(frame) == ["time", "seconds", "subjects", "cpu", "credits"]
    assert list(frame["cpu"]) == ["busy_ns", "cpus_ns", "layers", "layers_cpus_ns"]
    assert list(frame["credits"]["3"]) == ["granted", "used"]
    assert list(frame["subjects"]) == ["mount:/mnt", "server:", "client:10.9.1.11"]
    assert list(frame["subjects"]["mount:/mnt"]) == [
        "read", "rpcs", "execute_ms", "rtt_ms", "probed", "phases", "times", "sizes", "regions",
    ]  # fmt: skip
    assert list(frame["subjects"]["client:10.9.1.11"]) == [
        "read", "written", "rpcs", "probed", "sends", "execute_ms", "phases", "times",
    ]  # fmt: skip


def test_the_state_for_the_page() -> None:
    now = page_data(full())
    assert list(now) == [
        "seconds", "host", "kernel", "ports", "events", "missing", "mounts", "server",
    ]  # fmt: skip
    (shown,) = now["mounts"]
    assert list(shown) == [
        "device", "directory", "target", "transport", "vers", "rsize", "read_ahead_kb", "read",
        "ops", "chunks", "waiting", "limit", "xprts",
    ]  # fmt: skip
    assert list(shown["xprts"][0]) == [
        "number", "kind", "address", "states", "connected", "credits", "requests", "personality",
    ]  # fmt: skip
    assert list(now["server"]) == [
        "threads", "listeners", "read", "calls", "exposed", "dones_outstanding", "lanes",
        "granted", "threadless", "limit", "clients",
    ]  # fmt: skip
    assert list(now["server"]["clients"][0]) == ["peer", "procedure", "counts", "ns"]


def test_fields_of_the_page_that_are_empty_are_left_out() -> None:
    (idle,) = page_data(changed(1, ops=(), read=0, limit=""))["mounts"]
    assert not {"ops", "read", "limit", "waiting"} & set(idle)
