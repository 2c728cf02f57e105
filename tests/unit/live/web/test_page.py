# SPDX-License-Identifier: Apache-2.0
"""The dashboard's scripts, run by node: what a chart shows, and why it is empty."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.live.snapshots_made import SENDS, mount, served, served_threadless, snapshot, xprt

from nfsrdma_tools.live.snapshot import Personality, Snapshot
from nfsrdma_tools.live.snapshot_json import to_plain
from nfsrdma_tools.live.web.broadcast import frame

PAGE = Path(__file__).parents[4] / "nfsrdma_tools/live/web/page"
pytestmark = pytest.mark.skipif(
    not shutil.which("node"), reason="node is not installed; missed: the dashboard's scripts"
)


def evaluated(script: str, expression: str) -> Any:
    """The value of a JavaScript expression that uses the exports of a script of the page."""
    code = f'import * as page from "{PAGE / script}";\nconsole.log(JSON.stringify({expression}));'
    argv = ("node", "--input-type=module", "-e", code)
    return json.loads(subprocess.run(argv, capture_output=True, check=True, text=True).stdout)


def reasons(taken: Snapshot | None, who: str = "") -> dict[str, str]:
    """The reasons of a page that shows ``who`` in the last 10 minutes."""
    frames = [frame(taken)] if taken else []
    state = {"frames": frames, "now": to_plain(taken), "who": who}
    texts: dict[str, str] = evaluated(
        "reasons.js", f"page.reasons({json.dumps(state)}, '10 minutes')"
    )
    return texts


def test_a_send_phase_is_a_mean_over_sends() -> None:
    frames = json.dumps([frame(snapshot(server=SENDS)), frame(snapshot(2))])
    both = evaluated(
        "series.js", f'["server:", "client:10.0.0.1"].map((who) => page.phases({frames}, who))'
    )
    assert both == [[["nfsd", [1, 0]], ["send", [3, 0]]]] * 2


def test_without_probes_phases_have_the_names_of_nfsiostat() -> None:
    without = mount(timings=(), ops=(replace(mount().ops[0], queue_ms=30, execute_ms=250),))
    frames = json.dumps([frame(snapshot(1, (without,)))])
    # 100 READs: 30 ms in the queue, 200 ms on the way, 250 ms from start to end
    assert evaluated("series.js", f'page.phases({frames}, "")') == [
        ["queue", [300]], ["RTT", [2000]], ["rest of exe", [200]],
    ]  # fmt: skip


def test_the_figures_of_a_personality_are_below_its_connection() -> None:
    lanes = Personality("pre-posted", {"lanes": 4, "lanes_busy": 0}, {"lane_calls": 1234})
    own, usual = (to_plain(xprt(personality=each)) for each in (lanes, Personality("read-write")))
    expression = f"[{json.dumps(own)}, {json.dumps(usual)}, {{}}].map(page.figures)"
    assert evaluated("tables.js", expression) == [
        "lanes 4, lanes busy 0, lane calls 1.23 k", "", "",
    ]  # fmt: skip
    text = evaluated("tables.js", f"page.inUse({json.dumps(to_plain(served()))})")
    assert text == ", 131 kB exposed, 2 RDMA_DONEs outstanding, 16 lanes, 3.15 MB granted"


def test_threadless_reads_follow_nfsds_rates() -> None:
    now = {"seconds": 2, "server": to_plain(served_threadless())}
    assert evaluated("tables.js", f"page.threadless({json.dumps(now)})") == (
        ", threadless 15 READs/s of 61.4 kB/s; in all 37.5 ops/s, read 1.37 MB/s"
    )
    now["server"] = to_plain(served())
    assert evaluated("tables.js", f"page.threadless({json.dumps(now)})") == ""


def test_before_the_first_snapshot_every_chart_says_that_it_waits() -> None:
    assert set(reasons(None).values()) == {"Waiting for the first snapshot."}


def test_an_idle_mount_has_idle_charts() -> None:
    texts = reasons(snapshot(), "mount:/mnt")
    assert texts["rpcs"] == "No RPCs on this mount in the last 10 minutes."
    assert texts["bytes"].startswith("No data was read or written on this mount")
    assert texts["times"] == texts["rpcs"]


def test_charts_from_probes_name_what_is_missing() -> None:
    texts = reasons(snapshot(missing={"probes": "needs root"}))
    for chart in ("times", "sizes", "credits", "regions"):
        assert texts[chart] == "Probes are unavailable: needs root."
    assert "probes" not in texts["rpcs"]
    partial = reasons(snapshot(missing={"rpcrdma:marshal": "no such event"}))
    assert partial["sizes"].endswith("Some probes are not attached: see Unavailable metrics.")


def test_tcp_mounts_have_no_rdma_charts() -> None:
    texts = reasons(snapshot(1, (mount(transport="tcp"),)))
    assert texts["sizes"] == "Only RDMA mounts have chunks."
    assert texts["credits"] == "Only RDMA mounts have credits."
    assert texts["regions"] == "Only RDMA mounts register memory."
    both = reasons(snapshot(1, (mount(transport="tcp"), mount("/r", device="0:46"))))
    assert "RDMA" not in both["sizes"]


@pytest.mark.parametrize("who", ["server:", "client:10.9.1.11"])
def test_a_server_has_no_charts_of_clients(who: str) -> None:
    texts = reasons(snapshot(1, (), server=served()), who)
    for chart in ("sizes", "credits", "regions"):
        assert texts[chart].startswith("Only clients count this")
    assert who.removeprefix("client:") in texts["rpcs"] or "this server" in texts["rpcs"]
