# SPDX-License-Identifier: Apache-2.0
"""Dashboard, exporter and top of a client in the lab: Chromium, Prometheus and a terminal."""

import contextlib
import json
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lab.live.prometheus import Query, running
from lab.live.terminal import use_top

from testbed.browser import Browser, opened
from testbed.dashboard import MOUNT, Scene, scene
from testbed.faults import AGAIN, LINK_DOWN
from testbed.labs import THEIRS, ModulePair
from testbed.node.programs import until
from testbed.programs import prometheus

MONITORING = Path(__file__).parents[3] / "playbooks/monitoring"


@pytest.fixture(scope="module")
def watched(pair_file: ModulePair) -> Iterator[Scene]:
    """One dashboard for all tests of this file."""
    with scene(pair_file.bring(THEIRS, THEIRS)) as dashboard:
        yield dashboard


@pytest.fixture(scope="module")
def browser(watched: Scene) -> Iterator[Browser]:
    """One page for all tests of this file, open from the first to the last."""
    with opened(watched.url) as window:
        yield window


@pytest.mark.nightly
def test_a_browser_shows_what_fio_measures(watched: Scene, browser: Browser) -> None:
    since = watched.now()
    with watched.load(5) as account:
        job = account()["read"]
    last = watched.now()
    until("a later frame", lambda: browser.state("frames.at(-1).time") > last + 1, 300, 0.5)
    rate = browser.shown(since) / (job["runtime"] / 1000)
    assert rate == pytest.approx(job["bw_bytes"], rel=0.02)
    row = browser.text("#mounts tbody")
    assert MOUNT in row
    assert "rdma v4.2" in row


def test_a_link_that_goes_down_is_an_event_of_the_next_two_intervals(
    watched: Scene, browser: Browser
) -> None:
    since = watched.now()
    # a busy host may take longer than an interval to begin the command
    down = float(watched.lab.run("client", "sh", "-ec", f"{LINK_DOWN}date +%s.%N").stdout)
    try:
        (event,) = until("link down", lambda: events(browser, "link down", since), 300, 0.5)
    finally:
        watched.lab.run("client", "ip", "link", "set", "eth1", "up")
    until("link up", lambda: events(browser, "link up", since), 300, 0.5)
    assert event["where"] == "rxe0/1"
    after = [
        t
        for t in browser.state("frames.map(frame => frame.time)")
        if down < t <= event["time"] + 0.01
    ]
    assert len(after) <= 2
    assert "link down" in browser.text("#events")
    # if that took long, the client renewed its lease meanwhile: then only a new device connects
    watched.lab.run("client", "sh", "-ec", AGAIN)
    with watched.load(3) as account:
        assert account()["error"] == 0


@pytest.mark.nightly
def test_an_unplugged_cable_under_load_is_reported_as_soon(
    watched: Scene, browser: Browser
) -> None:
    since = watched.now()
    with watched.load(20) as account:
        until("reads before", lambda: browser.shown(since) > 0, 300, 0.5)
        since = watched.now()
        with unplugged(watched):
            (event,) = until("link down", lambda: events(browser, "link down", since), 300, 0.5)
        until("link up", lambda: events(browser, "link up", since), 300, 0.5)
        # a datagram that left meanwhile ended the device's queue pair for connections
        watched.lab.run("client", "sh", "-ec", AGAIN)
        assert account()["error"] == 0
    again = watched.now()
    with watched.load(5) as account:
        account()
    until("reads after", lambda: browser.shown(again) > 0, 300, 0.5)
    assert event["where"] == "rxe0/1"
    after = [
        t
        for t in browser.state("frames.map(frame => frame.time)")
        if since < t <= event["time"] + 0.01
    ]
    assert len(after) <= 2
    assert "link down" in browser.text("#events")


@contextlib.contextmanager
def unplugged(watched: Scene) -> Iterator[None]:
    """In a thread of its own: QEMU's monitor and the browser both need an event loop."""
    with ThreadPoolExecutor(1) as thread, contextlib.ExitStack() as stack:
        thread.submit(stack.enter_context, watched.lab.unplugged("client")).result()
        try:
            yield
        finally:
            thread.submit(stack.close).result()


def events(browser: Browser, kind: str, since: float) -> list[dict[str, Any]]:
    return [e for e in browser.state("events") if e["kind"] == kind and e["time"] > since]


@pytest.mark.nightly
def test_a_restart_of_the_server_is_reported_and_survived(watched: Scene, browser: Browser) -> None:
    since = watched.now()
    with watched.load(40) as account:
        until("reads before", lambda: browser.shown(since) > 0, 300, 0.5)
        watched.lab.run("server", "systemctl", "restart", "nfs-server", timeout=300)
        assert account()["error"] == 0
    # an event is on the page when the sampler has read it
    until("the disconnect", lambda: events(browser, "disconnect", since), 300, 0.5)
    until("the connection after it", lambda: events(browser, "connect", since), 300, 0.5)
    again = watched.now()
    with watched.load(5) as account:
        account()
    until("reads after", lambda: browser.shown(again) > 0, 300, 0.5)
    assert browser.text("#link") == "live"


def test_the_browser_logged_no_errors(watched: Scene, browser: Browser) -> None:
    """And sent requests to the dashboard only."""
    browser.page.emulate_media(color_scheme="dark")
    browser.page.set_viewport_size({"width": 390, "height": 844})
    frames = browser.state("frames.length")
    until("frames on a phone", lambda: browser.state("frames.length") > frames + 1, 300, 0.5)
    wide = browser.page.locator("body").bounding_box()["width"]
    assert wide <= 390
    assert browser.said == []
    assert browser.asked == {urllib.parse.urlsplit(watched.url).netloc}


def test_probes_and_mountstats_count_the_same_rpcs(watched: Scene) -> None:
    """RPCs in mountstats and in the probe set latency, over the same snapshots."""
    time.sleep(2)
    since = watched.now()
    with watched.load(5) as account:
        job = account()
    ended = watched.now()
    until("the last frame", lambda: watched.past()["frames"][-1]["time"] > ended + 1, 300, 0.5)
    frames = watched.past()["frames"]
    mine = [f["subjects"].get(f"mount:{MOUNT}", {}) for f in frames if f["time"] > since]
    rpcs, probed = (sum(each.get(key, 0) for each in mine) for key in ("rpcs", "probed"))
    assert rpcs >= job["read"]["total_ios"]
    # both count every RPC, but not always in the same interval
    assert probed == pytest.approx(rpcs, rel=0.02)


def test_a_real_prometheus_scrapes_it(watched: Scene, tmp_path: Path) -> None:
    tool = prometheus() / "promtool"
    checked = subprocess.run(
        (tool, "check", "metrics"), input=watched.metrics(), capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, b"")
    for argv in (("check", "rules", "rules.yml"), ("test", "rules", "rules-test.yml"),
                 ("check", "config", "prometheus.yml")):  # fmt: skip
        subprocess.run((tool, *argv), cwd=MONITORING, check=True, capture_output=True)
    with scraped(watched, tmp_path) as query, watched.load(5) as account:
        account()
        reads = f'nfsrdma_mount_read_bytes_total{{mount="{MOUNT}"}} > 0'
        until("a scrape", lambda: query(reads), 300, 0.5)
        # only the dashboard has probes, and Prometheus may scrape it after the exporter
        until("the durations", lambda: query("nfsrdma_rpc_duration_seconds_count > 0"), 300, 0.5)
        assert query("histogram_quantile(0.9, sum by (le) (nfsrdma_rpc_duration_seconds_bucket))")
        until("a scrape of each", lambda: len(query('up{job="nfsrdma"} == 1')) == 2, 300, 0.5)
        by_exporter = f'nfsrdma_mount_read_bytes_total{{instance="{watched.exporter}"}} > 0'
        until("a scrape of the exporter", lambda: query(by_exporter), 300, 0.5)
        dashboards(query)


def test_prometheus_sees_a_shared_connection_once(watched: Scene, tmp_path: Path) -> None:
    """NFSv4 mounts of a server share its connection: sums and alerts count it once."""
    with second_mount(watched), scraped(watched, tmp_path) as query:
        users = "count by (instance, xprt) (nfsrdma_mount_xprt_info)"
        until("two mounts each", lambda: sorted(counts(query(users))) == ["2", "2"], 300, 0.5)
        assert counts(query("count by (instance) (nfsrdma_xprt_connected == 1)")) == ["1", "1"]
        assert counts(query("count by (instance) (nfsrdma_xprt_info)")) == ["1", "1"]
        sends = "nfsrdma_xprt_sends_total and on (instance, xprt) nfsrdma_mount_xprt_info"
        for mount in (MOUNT, SECOND):
            assert len(query(f'{sends}{{mount="{mount}"}}')) == 2


SECOND = "/mnt/second"
MOUNT_SECOND = """
mkdir -p "$1"
mount -t nfs -o vers=4.2,proto=rdma,port=20049,nosharecache server:/export "$1"
"""


@contextlib.contextmanager
def second_mount(watched: Scene) -> Iterator[None]:
    """Another superblock of the same server."""
    watched.lab.run("client", "sh", "-ec", MOUNT_SECOND, "sh", SECOND)
    try:
        yield
    finally:
        watched.lab.run("client", "sh", "-c", 'umount "$1" && rmdir "$1"', "sh", SECOND)


def counts(result: list[Any]) -> list[str]:
    """The values of a result."""
    return [each["value"][1] for each in result]


def dashboards(query: Query) -> None:
    """Prometheus can evaluate each expression of the Grafana dashboards."""
    for file in sorted(MONITORING.glob("grafana-*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                asked = target["expr"].replace("$__rate_interval", "1m")
                for name in ("instance", "mount", "client"):
                    asked = asked.replace(f"${name}", ".*")
                query(asked)


@contextlib.contextmanager
def scraped(watched: Scene, folder: Path) -> Iterator[Query]:
    """A Prometheus that scrapes the dashboard and the exporter."""
    targets = f"'{urllib.parse.urlsplit(watched.url).netloc}', '{watched.exporter}'"
    config = (MONITORING / "prometheus.yml").read_text()
    config = config.replace("15s", "2s").replace("'localhost:29949'", targets)
    (folder / "prometheus.yml").write_text(config)
    (folder / "rules.yml").write_text((MONITORING / "rules.yml").read_text())
    with running(folder) as query:
        yield query


def test_top_shows_the_mount_and_restores_the_terminal(watched: Scene) -> None:
    use_top(watched.lab)
